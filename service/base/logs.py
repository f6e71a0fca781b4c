"""Logs: one line for each thing worth telling, for people or as JSON, with the id of the request it belongs to.

Never in a line: bodies, keys, decision ids, subjects. A path is told by its template, since it may hold an id; the
message of an exception that may quote what was asked is left out of its traceback.
"""

import json
import logging
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from service.base.settings import Settings

__all__ = ["REQUEST_ID", "JsonFormatter", "TextFormatter", "administered", "log_config"]

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
# What every record has; the rest are fields that the caller gave. Uvicorn's message in colours is its message again.
STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"}
# Exceptions whose messages quote the value they are about.
QUOTING = (LookupError, ValueError)
QUOTING_LIBRARIES = {"fastapi", "msgspec", "policy", "psycopg", "pydantic", "pydantic_core", "sqlalchemy", "sqlite3"}
CAUSED = "The above exception was the direct cause of the following exception:"
MEANWHILE = "During handling of the above exception, another exception occurred:"
_admin = logging.getLogger("undercurrent.admin")


class _Formatter(logging.Formatter):
    def told(self, record: logging.LogRecord) -> dict[str, Any]:
        """The record as ordered fields; those of its caller come last and cannot hide the others."""
        head = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage().strip(),
            "request_id": REQUEST_ID.get(),
        }
        return head | {k: v for k, v in vars(record).items() if k not in STANDARD and k not in head}

    def trouble(self, record: logging.LogRecord) -> str:
        """The traceback, empty without one."""
        error = record.exc_info[1] if record.exc_info else None
        return "" if error is None else _traced(error)


class JsonFormatter(_Formatter):
    """One JSON object a line; a traceback is one field of it."""

    def format(self, record: logging.LogRecord) -> str:
        trouble = self.trouble(record)
        return json.dumps(self.told(record) | ({"exception": trouble} if trouble else {}), default=str)


class TextFormatter(_Formatter):
    """A line for people: time, level, logger, message, fields; a traceback follows it."""

    def format(self, record: logging.LogRecord) -> str:
        told = self.told(record)
        head = [str(told.pop(name)) for name in ("ts", "level", "logger", "message")]
        fields = [f"{name}={_plain(value)}" for name, value in told.items() if value is not None]
        line = " ".join([head[0], head[1].upper(), f"{head[2]}:", head[3], *fields])
        return "\n".join(filter(None, [line, self.trouble(record)]))


def _traced(error: BaseException) -> str:
    """A traceback as Python writes it, but without messages that may quote a request or a row."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [_traced(earlier), "", CAUSED if error.__cause__ else MEANWHILE, ""] if earlier is not None else []
    if error.__traceback__ is not None:
        frames = traceback.format_tb(error.__traceback__)
        parts.append("Traceback (most recent call last):\n" + "".join(frames).rstrip("\n"))
    kind = type(error)
    quotes = isinstance(error, QUOTING) or kind.__module__.partition(".")[0] in QUOTING_LIBRARIES
    last = f"{kind.__module__}.{kind.__qualname__}" if quotes else "".join(traceback.format_exception_only(error))
    return "\n".join([*parts, last.strip()])


def _plain(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and not set(text) & {" ", '"', "="} else json.dumps(text)


def log_config(settings: Settings) -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything in one format to stderr, ours from the level that is set."""
    formatter = {"json": JsonFormatter, "text": TextFormatter}[settings.log_format]
    level = settings.log_level.upper()
    others = "ERROR" if level == "ERROR" else "WARNING"  # the server tells of its every start and stop at level info
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"told": {"()": f"{__name__}.{formatter.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "told", "stream": "ext://sys.stderr"}},
        "root": {"handlers": ["stderr"], "level": others},
        "loggers": {"undercurrent": {"level": level}, "uvicorn": {"level": level if level == "DEBUG" else others}},
    }


def administered(what: str, **fields: Any) -> None:
    """Log that someone changed how the service runs: `administered("create", campaign="spring")`, once it is done."""
    _admin.info(what, extra=fields)
