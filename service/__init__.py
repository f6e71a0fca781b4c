"""The REST service: campaigns that decide and learn over HTTP."""

__version__ = "0.1.0"
