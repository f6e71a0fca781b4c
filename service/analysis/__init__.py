"""What is computed from the log for people: summaries, series, diagnostics, files, verification.

Reads through `storage` and `engine`, never writes, and never sees a request.
"""
