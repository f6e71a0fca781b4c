"""Who may call what: roles, keys, the credentials of a request, and protection from other sites' pages in browsers.

Reads keys from `storage` and headers from the ASGI scope; knows no campaign's state and no route.
"""
