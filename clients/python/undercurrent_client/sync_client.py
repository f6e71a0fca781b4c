"""The synchronous client: carries out plans with httpx, and waits in this thread."""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from undercurrent_client import calls
from undercurrent_client.address import TIMEOUT, choose_settings, parse_address
from undercurrent_client.errors import ClientError
from undercurrent_client.exchange import DEADLINE, Answer, Call, Core, Lost, Outcome, Pause, Plan, Request

P = ParamSpec("P")
T = TypeVar("T")
MOST_WAITING = 64  # calls with a deadline at a time; more of them get the baseline if none of these ends in time


def _add(make: Callable[Concatenate[Core, P], Call[T]]) -> Callable[Concatenate["Client", P], T]:
    def method(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.run(make(client.core, *args, **kwargs))

    calls.describe_method(method, make)
    return method


class Client:
    """A connection to one service, for any number of threads.

    After a connection error, a 429 or a 503 it retries for up to `patience` seconds. `timeout` is for one try.
    """

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
        sleep: Callable[[float], object] = time.sleep,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        address = parse_address(url)
        self.core = Core(str(address), key, patience=patience, deadline=deadline)
        self._timeout, self._sleep = timeout, sleep
        self._http = httpx.Client(transport=transport, timeout=timeout, **choose_settings(address, key))

    @property
    def url(self) -> str:
        """The address of the service."""
        return self.core.url

    def close(self) -> None:
        """Close all connections."""
        if "_threads" in self.__dict__:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, call: Call[T]) -> T:
        """Carry out one call."""
        wait = call.get_wait()
        if wait is None:
            return self._follow(call.plan)
        # A time-out of httpx is for each part of a request. Only another thread can keep a deadline for all of it.
        end = time.monotonic() + wait
        future = self._threads.submit(self._follow, call.plan, end)
        try:
            return future.result(max(0.0, end - time.monotonic()))  # starting a thread took a moment
        except (TimeoutError, ClientError) as error:
            future.cancel()
            return call.recover(error)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(MOST_WAITING, "undercurrent")

    def _follow(self, plan: Plan[T], end: float = math.inf) -> T:
        """Do what a plan says, step by step, and return its result. After the end nothing is sent any more."""
        outcome: Outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as done:
                result: T = done.value
                return result
            if isinstance(step, Pause):
                self._sleep(step.seconds)
                outcome = None
            else:
                outcome = self._send(step.request, end)

    def _send(self, request: Request, end: float) -> Answer | Lost:
        timeout = self._timeout if end == math.inf else end - time.monotonic()
        if timeout <= 0:
            raise TimeoutError
        try:
            if request.file is not None:
                return self._download(request)
            response = self._http.request(request.method, request.path, content=request.content, timeout=timeout)
        except httpx.TransportError as error:
            return Lost(error)
        return Answer(response.status_code, response.headers, response.content)

    def _download(self, request: Request) -> Answer:
        assert request.file is not None
        with self._http.stream(request.method, request.path) as response:
            if not response.is_success:
                return Answer(response.status_code, response.headers, response.read())
            with request.file.open("wb") as file:
                for chunk in response.iter_bytes():
                    file.write(chunk)
        return Answer(response.status_code, response.headers, b"")
