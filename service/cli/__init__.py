"""The `undercurrent` commands, and the composition of the application from its parts.

May import every other room; nobody imports this one.
"""
