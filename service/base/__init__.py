"""What every room may use: errors, settings, logs, times.

Imports nothing of the service.
"""
