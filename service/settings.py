"""Settings of the service: from the command line, else from UNDERCURRENT_* variables, else the defaults."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

PREFIX = "UNDERCURRENT_"


class SettingsError(Exception):
    """A setting has a value that is not allowed; the message names the setting and what is."""


class Settings(BaseModel):
    """Everything that can be configured. Read once by the command line, then passed on; never global."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0: any free one

    @classmethod
    def load(cls, environ: Mapping[str, str], flags: Mapping[str, object]) -> Self:
        """A flag that is not None wins over its variable; field `port` is variable UNDERCURRENT_PORT."""
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
            problems = (
                f"{source[str(problem['loc'][0])]} is {problem['input']!r}: {problem['msg']}"
                for problem in error.errors()
            )
            raise SettingsError("; ".join(problems)) from None
