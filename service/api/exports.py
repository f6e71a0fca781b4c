"""Exports: a campaign's decisions with their rewards as one file, in round order, streamed from one transaction."""

import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Annotated

import anyio
from fastapi import FastAPI, Query
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from policy import CampaignConfig
from service.access.roles import WATCHERS, allow
from service.analysis.formats import FORMATS, Format, Pages
from service.base.errors import TooManyRequestsError
from service.engine.recovery import get_campaign, load_config
from service.engine.worker import Service
from service.storage.reading import logged, rounds_between
from service.storage.transaction import Transaction
from service.web.openapi import describe_errors
from service.web.times import TIME, Interval, Moment, interval

__all__ = ["add_export_routes", "open_log"]

PAGE = 1_000  # decisions: some milliseconds during which nobody else gets the interpreter
MOST_AT_ONCE = 4  # of a worker: each holds a connection of the database for as long as it takes
STALLED_SECONDS = 60  # without the client taking anything


# --- the route ------------------------------------------------------------------------------------------------------


class Export(StreamingResponse):
    """Chunks made in the thread pool. However the answer ends, what it held is let go of, the transaction above all."""

    def __init__(self, chunks: Generator[bytes, None, None], held: ExitStack, file: str, media_type: str) -> None:
        super().__init__(
            chunks, headers={"content-disposition": f'attachment; filename="{file}"'}, media_type=media_type
        )
        self._chunks, self._held = chunks, held

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # An exception leaves the answer without its end: the server closes the connection, and the client sees that.
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


def add_export_routes(app: FastAPI, service: Service) -> None:
    """The one route that gives many decisions."""
    slots = threading.BoundedSemaphore(MOST_AT_ONCE)
    content = {media_type.partition(";")[0]: {"schema": {"type": "string"}} for media_type, _ in FORMATS.values()}

    @app.get(
        "/campaigns/{name}/decisions",
        tags=["decisions"],
        response_class=StreamingResponse,
        responses={200: {"description": "The file", "content": content}, **describe_errors(404, 422, 429)},
    )
    @allow(WATCHERS, campaign="path")
    def decisions(
        name: str,
        format: Format = "ndjson",
        start: Annotated[Moment, Query(alias="from", description=f"decided then or later. {TIME}")] = None,
        end: Annotated[Moment, Query(alias="to", description="decided before that")] = None,
    ) -> StreamingResponse:
        """All decisions with their rewards as one file, in round order: lines of JSON, CSV or Parquet. Of an erased
        decision only its id, time, model and action are left; subjects are never in it."""
        if not slots.acquire(blocking=False):
            raise TooManyRequestsError(f"{MOST_AT_ONCE} exports are under way; try again when one is done", 10)
        with ExitStack() as held:
            held.callback(slots.release)
            asked = interval(start, end)
            tx = held.enter_context(service.store.scanning())
            media_type, write = FORMATS[format]
            config, pages, _ = open_log(tx, name, asked)
            kept = held.pop_all()  # until the answer is over
        return Export(_within(kept, write(config, pages)), kept, f"{name}-decisions.{format}", media_type)


def _within(held: ExitStack, chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """The chunks; an exception of theirs passes through what is held, where the database's errors become ours."""
    with held:
        yield from chunks


def open_log(tx: Transaction, name: str, times: Interval) -> tuple[CampaignConfig, Pages, int]:
    """A campaign's configuration, the pages between two times, and how many decisions these are."""
    row, _ = get_campaign(tx, name)
    after, last = rounds_between(tx, row.campaign_id, *times)
    config = load_config(tx, row.campaign_id)
    return config, logged(tx, row.campaign_id, after, last, PAGE), max(0, last - after)
