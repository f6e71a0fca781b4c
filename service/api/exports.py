"""`GET /campaigns/{name}/decisions`: a campaign's decisions and rewards as one file, streamed from one transaction."""

import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Annotated

import anyio
from fastapi import Query
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from service.access.roles import WATCHERS, allow
from service.analysis.export_files import FORMATS, Format, open_log
from service.base.errors import TooManyRequestsError
from service.engine.worker import Service
from service.web.application import Application
from service.web.openapi import describe_errors
from service.web.times import TIME, QueryTime, make_interval

MAX_EXPORTS = 4  # at once in a worker: each holds a database connection until it ends
STALLED_SECONDS = 60  # the longest wait for a client that reads nothing


class Export(StreamingResponse):
    """Chunks made in the thread pool. However the response ends, the transaction and the slot are released."""

    def __init__(self, chunks: Generator[bytes, None, None], held: ExitStack, file: str, media_type: str) -> None:
        super().__init__(
            chunks, headers={"content-disposition": f'attachment; filename="{file}"'}, media_type=media_type
        )
        self._chunks, self._held = chunks, held

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # After an exception the last chunk is never sent: the server closes the connection, and the client notices.
        while (chunk := await run_in_threadpool(next, self._chunks, None)) is not None:
            with anyio.fail_after(STALLED_SECONDS):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await run_in_threadpool(self._close)

    def _close(self) -> None:
        self._chunks.close()
        self._held.close()


def add_routes(app: Application, service: Service) -> None:
    slots = threading.BoundedSemaphore(MAX_EXPORTS)
    content = {media_type.partition(";")[0]: {"schema": {"type": "string"}} for media_type, _ in FORMATS.values()}

    @app.api.get(
        "/campaigns/{name}/decisions",
        tags=["decisions"],
        response_class=StreamingResponse,
        responses={200: {"description": "The file", "content": content}, **describe_errors(404, 422, 429)},
    )
    @allow(WATCHERS, campaign="path")
    def decisions(
        name: str,
        format: Format = "ndjson",
        start: Annotated[QueryTime, Query(alias="from", description=f"decided at or after this time. {TIME}")] = None,
        end: Annotated[QueryTime, Query(alias="to", description="decided before this time")] = None,
    ) -> StreamingResponse:
        """All decisions with their rewards as one file, in round order: NDJSON, CSV or Parquet. Of an erased decision
        only the id, time, model and action are left; subjects are never included."""
        if not slots.acquire(blocking=False):
            raise TooManyRequestsError(f"{MAX_EXPORTS} exports are already running; try again later", 10)
        with ExitStack() as held:
            held.callback(slots.release)
            times = make_interval(start, end)
            tx = held.enter_context(service.store.scanning())
            media_type, write = FORMATS[format]
            log = open_log(tx, name, times, service.campaigns.clock())
            kept = held.pop_all()  # released when the response ends
        return Export(_stream(kept, write(log.config, log.pages)), kept, f"{name}-decisions.{format}", media_type)


def _stream(held: ExitStack, chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Yield the chunks inside the transaction, which turns the database's errors into ours."""
    with held:
        yield from chunks
