"""What is computed from the log for people: reports, series, regimes, previews, diagnostics, files, verification.

Reads through `storage` and `engine`; knows nothing of HTTP. Nothing here writes to the database.
"""
