"""The `undercurrent` commands, a module each, and the application that `serve` runs.

May import every other room; no room imports this one.
"""
