"""The ASGI shell around the routes: request ids, limits, errors as HTTP, security headers, the OpenAPI document.

Asks `access` who may call a route, and counts requests in the metrics of `engine`; knows no campaign.
"""
