"""The asynchronous client: carries out the same plans with httpx on asyncio's event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from undercurrent_client import calls
from undercurrent_client.address import TIMEOUT, choose_settings, parse_address
from undercurrent_client.errors import ClientError
from undercurrent_client.exchange import DEADLINE, Answer, Call, Core, Lost, Outcome, Pause, Plan, Request

P = ParamSpec("P")
T = TypeVar("T")


def _add(
    make: Callable[Concatenate[Core, P], Call[T]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    async def method(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client.run(make(client.core, *args, **kwargs))

    calls.describe_method(method, make)
    return method


class AsyncClient:
    """A connection to one service, for any number of tasks of one event loop. Its methods are those of `Client`."""

    decide = _add(calls.decide)
    decide_batch = _add(calls.decide_batch)
    reward = _add(calls.reward)
    reward_batch = _add(calls.reward_batch)
    correct = _add(calls.correct)
    reward_subject = _add(calls.reward_subject)
    create_campaign = _add(calls.create_campaign)
    check_campaign = _add(calls.check_campaign)
    get_campaign = _add(calls.get_campaign)
    list_campaigns = _add(calls.list_campaigns)
    change_campaign = _add(calls.change_campaign)
    archive_campaign = _add(calls.archive_campaign)
    unarchive_campaign = _add(calls.unarchive_campaign)
    delete_campaign = _add(calls.delete_campaign)
    report = _add(calls.report)
    export = _add(calls.export)
    get_version = _add(calls.get_version)
    check_version = _add(calls.check_version)

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        patience: float = 30.0,
        timeout: float = TIMEOUT,
        deadline: float = DEADLINE,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        address = parse_address(url)
        self.core = Core(str(address), key, patience=patience, deadline=deadline)
        self._timeout, self._sleep = timeout, sleep
        self._http = httpx.AsyncClient(transport=transport, timeout=timeout, **choose_settings(address, key))

    @property
    def url(self) -> str:
        """The address of the service."""
        return self.core.url

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def run(self, call: Call[T]) -> T:
        """Carry out one call."""
        wait = call.get_wait()
        if wait is None:
            return await self._follow(call.plan, self._timeout)
        try:
            async with asyncio.timeout(wait):
                return await self._follow(call.plan, wait)
        except (TimeoutError, ClientError) as error:
            return call.recover(error)

    async def _follow(self, plan: Plan[T], seconds: float) -> T:
        """Do what a plan says, step by step, and return its result."""
        outcome: Outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                await self._sleep(step.seconds)
                outcome = None
            else:
                outcome = await self._send(step.request, seconds)

    async def _send(self, request: Request, seconds: float) -> Answer | Lost:
        try:
            if request.file is not None:
                return await self._download(request)
            response = await self._http.request(request.method, request.path, content=request.content, timeout=seconds)
        except httpx.TransportError as error:
            return Lost(error)
        return Answer(response.status_code, response.headers, response.content)

    async def _download(self, request: Request) -> Answer:
        assert request.file is not None
        async with self._http.stream(request.method, request.path) as response:
            if not response.is_success:
                return Answer(response.status_code, response.headers, await response.aread())
            with request.file.open("wb") as file:
                async for chunk in response.aiter_bytes():
                    await asyncio.to_thread(file.write, chunk)
        return Answer(response.status_code, response.headers, b"")
