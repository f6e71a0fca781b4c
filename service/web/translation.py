"""Errors in the shape of another protocol, for the routes below one path, whoever raised them."""

from collections.abc import Callable
from typing import NamedTuple

from starlette.types import Message, Send

from service.base.errors import ErrorBody, ErrorDetail


class Translator(NamedTuple):
    """For paths with this prefix: makes the status and the JSON of an error, given ours and the path."""

    prefix: str
    translate: Callable[[int, ErrorDetail, str], tuple[int, bytes]]

    def wrap(self, send: Send, path: str) -> Send:
        """Return a `send` that translates an error, and passes on everything else."""
        started: Message | None = None
        body = bytearray()

        async def send_translated(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start" and message["status"] >= 400:
                started = message
            elif started is None:
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body"):
                    error = ErrorBody.model_validate_json(bytes(body)).error
                    status, content = self.translate(started["status"], error, path)
                    kept = [header for header in started.get("headers", ()) if header[0] != b"content-length"]
                    headers = [*kept, (b"content-length", b"%d" % len(content))]
                    await send({**started, "status": status, "headers": headers})
                    await send({"type": "http.response.body", "body": content})

        return send_translated
