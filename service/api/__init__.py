"""The HTTP API, one module for each subject. A route declares its role, its errors and its models where it is defined.

Reads through `analysis` and `storage`, and writes by handing operations to `engine`; contains no SQL.
"""
