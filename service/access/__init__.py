"""Who may call what: keys, roles, and what browsers owe a service without keys.

Reads and writes keys through `storage`; knows no campaign's state.
"""
