"""The write path: gather operations, carry them out in one transaction, commit; recover state from the log.

Joins `policy` and `storage`. Runs the background work and the webhooks, and does not know routes or pages.
"""
