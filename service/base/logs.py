"""Log formats: one line for each record, as text or JSON, with the id of the request it belongs to.

Log lines never contain bodies, keys, decision ids or subjects. Paths are logged as templates, because they may contain
an id. Messages of exceptions that may quote a request or a row are left out of tracebacks.
"""

import json
import logging
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from service.base.settings import Settings

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
# The attributes of every record; the others are fields that the caller gave. Uvicorn adds its message in colours.
STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"}
# Exceptions whose messages quote values.
QUOTING = (LookupError, ValueError)
QUOTING_LIBRARIES = ("asyncpg", "fastapi", "msgspec", "policy", "psycopg", "pydantic", "sqlalchemy", "sqlite3")
CAUSE = "The above exception was the direct cause of the following exception:"
CONTEXT = "During handling of the above exception, another exception occurred:"


class _Formatter(logging.Formatter):
    def get_fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields of a record in order; those of the caller come last and cannot replace the others."""
        standard = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage().strip(),
            "request_id": REQUEST_ID.get(),
        }
        own = {name: value for name, value in vars(record).items() if name not in STANDARD}
        return {**standard, **own, **standard}

    def format_error(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        return "" if error is None else _format_traceback(error)


class JsonFormatter(_Formatter):
    """One JSON object a line, with the traceback as one of its fields."""

    def format(self, record: logging.LogRecord) -> str:
        error = self.format_error(record)
        return json.dumps(self.get_fields(record) | ({"exception": error} if error else {}), default=str)


class TextFormatter(_Formatter):
    """A line of text with time, level, logger, message and fields, followed by the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.get_fields(record)
        head = f"{fields.pop('ts')} {fields.pop('level').upper()} {fields.pop('logger')}: {fields.pop('message')}"
        line = " ".join([head, *(f"{name}={_quote(value)}" for name, value in fields.items() if value is not None)])
        return "\n".join(filter(None, [line, self.format_error(record)]))


def _format_traceback(error: BaseException) -> str:
    """Format a traceback as Python does, but without messages that may quote a request or a row."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [_format_traceback(earlier), "", CAUSE if error.__cause__ else CONTEXT, ""] if earlier is not None else []
    if error.__traceback__ is not None:
        frames = traceback.format_tb(error.__traceback__)
        parts.append("Traceback (most recent call last):\n" + "".join(frames).rstrip("\n"))
    kind = type(error)
    quotes = isinstance(error, QUOTING) or kind.__module__.startswith(QUOTING_LIBRARIES)
    last = f"{kind.__module__}.{kind.__qualname__}" if quotes else "".join(traceback.format_exception_only(error))
    return "\n".join([*parts, last.strip()])


def _quote(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and not set(text) & {" ", '"', "="} else json.dumps(text)


def build_log_config(settings: Settings) -> dict[str, Any]:
    """Build the argument of `logging.config.dictConfig`: all in one format to stderr, ours at the set level."""
    formatter = {"json": JsonFormatter, "text": TextFormatter}[settings.log_format]
    level = settings.log_level.upper()
    others = "ERROR" if level == "ERROR" else "WARNING"  # the server logs each start and stop at level info
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"own": {"()": f"{__name__}.{formatter.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "own", "stream": "ext://sys.stderr"}},
        "root": {"handlers": ["stderr"], "level": others},
        "loggers": {"undercurrent": {"level": level}, "uvicorn": {"level": level if level == "DEBUG" else others}},
    }
