"""Simulated customers with a hidden regime, policies replayed on them, and the paper's tables and figures.

The simulator imports `policy`, and reaches the service over HTTP only.
"""
