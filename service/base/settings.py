"""Settings of the service: command-line flags, then UNDERCURRENT_* variables, then defaults."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

PREFIX = "UNDERCURRENT_"
# A file, not :memory:, which would lose everything; the service chooses the driver.
DATABASES = r"^(sqlite:///[^:?]+|postgresql(\+psycopg)?://.+)$"
LogLevel = Literal["debug", "info", "warning", "error"]
HOSTS = r"^[A-Za-z0-9.,: _-]*$"  # names or addresses, without ports

NOT_AN_ADDRESS = "not a database address like sqlite:///FILE or postgresql://USER@HOST/NAME"


class SettingsError(Exception):
    """A setting has a value that is not allowed; the message names the setting and the allowed values."""


class Settings(BaseModel):
    """Everything that can be configured. The command line reads it once and passes it on; it is never global."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port, 0 for any free one")
    database_url: str = Field(
        default="sqlite:///undercurrent.db", pattern=DATABASES, description="sqlite:///FILE or postgresql://…"
    )
    workers: int = Field(default=1, ge=1, le=64, description="processes, only with PostgreSQL")
    log_format: Literal["text", "json"] = Field(default="text", description="text or json")
    log_level: LogLevel = Field(default="info", description="debug, info, warning or error")
    access_log: bool = Field(default=False, description="log every request, not only slow and failed ones")
    https: bool = Field(default=False, description="tell browsers to use HTTPS only, for a year")
    allowed_hosts: str = Field(
        default="", pattern=HOSTS, description="more host names that a service without keys answers to: a,b"
    )
    webhook_secret: Annotated[SecretStr, Field(min_length=16)] | None = None  # signs messages
    webhook_private: bool = Field(default=False, description="allow webhooks to private addresses")

    rehearsal: bool = Field(default=False, description="let POST /rehearsal/clock move the clock; never in production")

    @field_validator("database_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            make_url(url)
        except (ArgumentError, ValueError):
            raise PydanticCustomError("address", NOT_AN_ADDRESS) from None
        return url

    @field_validator("webhook_secret", mode="before")
    @classmethod
    def _drop_empty(cls, secret: object) -> object:
        return None if secret == "" else secret  # a compose file cannot omit a variable

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers > 1 and self.database_url.startswith("sqlite"):
            # R19: a second process could only wait for the first one's lock.
            raise PydanticCustomError("workers", "SQLite has one writer: use 1, or a PostgreSQL --database-url")
        if self.rehearsal and self.workers > 1:
            raise PydanticCustomError("rehearsal", "a rehearsal has one clock, so one worker: use --workers 1")
        return self

    @property
    def hosts(self) -> list[str]:
        """The host names that a service without keys answers to, besides this machine's own."""
        return [self.host, *(name.strip() for name in self.allowed_hosts.split(",") if name.strip())]

    @classmethod
    def load(cls, environ: Mapping[str, str], flags: Mapping[str, object]) -> Self:
        """Load the settings. A flag that is not None wins over its variable; for `port` that is UNDERCURRENT_PORT."""
        values: dict[str, object] = {}
        source: dict[str, str] = {}
        for name in cls.model_fields:
            if flags.get(name) is not None:
                values[name], source[name] = flags[name], f"--{name.replace('_', '-')}"
            elif (variable := PREFIX + name.upper()) in environ:
                values[name], source[name] = environ[variable], variable
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError("; ".join(_describe(problem, source) for problem in error.errors())) from None


def _describe(problem: ErrorDetails, source: Mapping[str, str]) -> str:
    if not problem["loc"]:  # a rule about several settings
        return f"{source[problem['type']]}: {problem['msg']}"
    name = source[str(problem["loc"][0])]
    if problem["loc"][0] == "database_url":  # it may contain a password
        return f"{name} is {NOT_AN_ADDRESS}"
    if problem["loc"][0] == "webhook_secret":
        return f"{name} must have at least 16 characters; `openssl rand -hex 32` prints a good one"
    return f"{name} is {problem['input']!r}: {problem['msg']}"
