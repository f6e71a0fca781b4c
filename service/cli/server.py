"""How uvicorn serves the application."""

import uvicorn

from service.base.logs import build_log_config
from service.base.settings import Settings
from service.web.protocol import KEEP_ALIVE_SECONDS, Protocol


def configure_server(app: object, **options: object) -> uvicorn.Config:
    """The options of every server we run; these can be overridden."""
    defaults = {
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # no route depends on the caller's address
        "http": Protocol,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": 30,  # seconds for clients that never finish sending
    }
    return uvicorn.Config(app, **{**defaults, **options})  # type: ignore[arg-type]


def configure_server_with_logs(app: object, settings: Settings) -> uvicorn.Config:
    """The same, and uvicorn sets up our logs."""
    return configure_server(app, log_config=build_log_config(settings), log_level=None)
