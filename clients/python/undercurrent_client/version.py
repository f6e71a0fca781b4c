"""The version of this client. It is the version of the service that it was released with."""

__version__ = "0.1.0"
