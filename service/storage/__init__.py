"""The database: tables, rows, engines, transactions and every SQL statement, for SQLite and PostgreSQL alike.

Imports only `base`; knows neither policies nor HTTP.
"""
