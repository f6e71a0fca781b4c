"""The ASGI shell around the routes: request ids, limits, errors as HTTP, headers, the OpenAPI document.

The only room below the routes that knows HTTP; knows no campaign.
"""
