"""Other products' APIs, for clients that only change the address.

Translates their requests into operations of `engine`; never imports `api`.
"""
