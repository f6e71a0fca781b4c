"""The HTTP API, one module a subject: each route with its role, its errors, its examples and its answer.

Reads through `analysis` and `storage`, writes by handing operations to `engine`; knows nothing of SQL.
"""
