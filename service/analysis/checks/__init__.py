"""The checks behind "why is nothing learning?", by subject. Each looks at the facts and yields what it finds.

A problem keeps the campaign from learning, a warning makes it learn less than it could, and an info is worth knowing.
"""
