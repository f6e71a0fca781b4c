"""The database: tables, rows, engines, transactions and every SQL statement, for SQLite and PostgreSQL.

Each subject (campaigns, jobs, keys …) has a module of queries. Imports only `base` and `policy`, and knows no HTTP.
"""
