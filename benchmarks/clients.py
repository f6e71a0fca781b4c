"""What the Python client adds to a call, and how long it waits for a service that is away.

python -m benchmarks.clients [--calls N]

The contenders send the same decide to one service in turns, call by call: httpx alone, and the client. The times of a
call are medians: of the whole call, and of the CPU time of this process alone. Then the service is away in three ways,
and each decide must come back with the baseline by its deadline.
"""

import argparse
import asyncio
import socket
import statistics
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any
from uuid import uuid4

import httpx

from benchmarks import Verdict, format_verdicts, print_table
from benchmarks.measure import open_client, post
from benchmarks.servers import build_serve_command, run_server
from service.engine.requests import CAMPAIGN_EXAMPLE, CONTEXT_EXAMPLE
from undercurrent_client import AsyncClient, Client
from undercurrent_client.exchange import IN_TIME

NAME = CAMPAIGN_EXAMPLE["name"]
LARGEST_RATIO = 1.3
DEADLINE = 0.25
TOLERANCE = 0.05  # seconds for a busy machine to wake a thread
PATIENT = 60.0
AWAY_CALLS = 20
Times = dict[str, list[tuple[float, float]]]  # of each call: milliseconds, and milliseconds of CPU time


def make_body() -> dict[str, Any]:
    return {"campaign": NAME, "decision_id": uuid4().hex, "context": CONTEXT_EXAMPLE}


def measure_sync(url: str, calls: int) -> Times:
    """Time the synchronous contenders in turns."""
    with httpx.Client(base_url=url, verify=False) as http, Client(url) as client:
        contenders: Mapping[str, Callable[[], object]] = {
            "httpx": lambda: http.post("/decide", json=make_body()).raise_for_status().json(),
            "Client": lambda: client.decide(NAME, CONTEXT_EXAMPLE),
            "Client, baseline": lambda: client.decide(NAME, CONTEXT_EXAMPLE, baseline="none", deadline=PATIENT),
        }
        times: Times = {name: [] for name in contenders}
        for call in range(calls + 20):
            for name, decide in contenders.items():
                started, used = perf_counter(), process_time()
                decide()
                if call >= 20:  # the first calls open connections
                    times[name].append((1_000 * (perf_counter() - started), 1_000 * (process_time() - used)))
    return times


async def measure_async(url: str, calls: int) -> Times:
    """Time the asynchronous contenders in turns."""
    async with httpx.AsyncClient(base_url=url, verify=False) as http, AsyncClient(url) as client:

        async def post_alone() -> Any:
            return (await http.post("/decide", json=make_body())).raise_for_status().json()

        contenders: Mapping[str, Callable[[], Awaitable[object]]] = {
            "httpx, async": post_alone,
            "AsyncClient": lambda: client.decide(NAME, CONTEXT_EXAMPLE),
            "AsyncClient, baseline": lambda: client.decide(NAME, CONTEXT_EXAMPLE, baseline="none", deadline=PATIENT),
        }
        times: Times = {name: [] for name in contenders}
        for call in range(calls + 20):
            for name, decide in contenders.items():
                started, used = perf_counter(), process_time()
                await decide()
                if call >= 20:
                    times[name].append((1_000 * (perf_counter() - started), 1_000 * (process_time() - used)))
    return times


# --- a service that is away -------------------------------------------------------------------------------------------


@contextmanager
def listen(answer: Callable[[socket.socket], None] | None) -> Iterator[str]:
    """Something that listens and does not answer as a service would; without `answer` nothing listens at all."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if answer is None:
        listener.close()
        yield url
        return

    def accept() -> None:
        try:
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()
        except OSError:
            pass  # closed

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield url
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def be_silent(connection: socket.socket) -> None:
    threading.Event().wait(PATIENT)
    connection.close()


def trickle(connection: socket.socket) -> None:
    """Answer one byte every 50 ms: each in time for a time-out between bytes, all of them much too late."""
    try:
        for byte in b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}" * 10:
            connection.send(bytes([byte]))
            threading.Event().wait(0.05)
    except OSError:
        pass  # the client has gone


def measure_away() -> list[tuple[str, str, float, float]]:
    """Time decides while the service is away; return how, the client, and the median and longest milliseconds."""
    times = [_time_sleep() for _ in range(AWAY_CALLS)]
    found = [("no call: the machine alone", "time.sleep", statistics.median(times), max(times))]
    for how, answer in (("nothing listens", None), ("silent", be_silent), ("a byte every 50 ms", trickle)):
        with listen(answer) as url:
            times = [_time_decide(url) for _ in range(AWAY_CALLS)]
            found.append((how, "Client", statistics.median(times), max(times)))
            times = [asyncio.run(_time_async_decide(url)) for _ in range(AWAY_CALLS)]
            found.append((how, "AsyncClient", statistics.median(times), max(times)))
    return found


def _time_sleep() -> float:
    """How late does this machine wake a thread that only sleeps for as long as the clients wait?"""
    started = perf_counter()
    sleep(IN_TIME * DEADLINE)
    return 1_000 * (perf_counter() - started)


def _time_decide(url: str) -> float:
    client = Client(url)
    started = perf_counter()
    decision = client.decide(NAME, CONTEXT_EXAMPLE, baseline="none", deadline=DEADLINE)
    seconds = perf_counter() - started
    assert decision.is_baseline
    client.close()
    return 1_000 * seconds


async def _time_async_decide(url: str) -> float:
    async with AsyncClient(url) as client:
        started = perf_counter()
        decision = await client.decide(NAME, CONTEXT_EXAMPLE, baseline="none", deadline=DEADLINE)
        seconds = perf_counter() - started
        assert decision.is_baseline
    return 1_000 * seconds


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the Python client adds to httpx, and its deadline.")
    parser.add_argument("--calls", type=int, default=2_000)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'clients.db'}"
        with run_server("ours", build_serve_command(url), Path(folder)) as at, open_client(at) as client:
            post(client, "/campaigns", CAMPAIGN_EXAMPLE)
            times = measure_sync(str(client.base_url), calls) | asyncio.run(measure_async(str(client.base_url), calls))
    medians = {name: [statistics.median(column) for column in zip(*one, strict=True)] for name, one in times.items()}
    ratios = {}
    for name, values in medians.items():
        bare = medians["httpx, async" if "ync" in name else "httpx"]
        ratios[name] = [value / alone for value, alone in zip(values, bare, strict=True)]
    rows = [
        [name, f"{medians[name][0]:.2f}", f"{ratio:.2f}", f"{medians[name][1]:.2f}", f"{cpu:.2f}"]
        for name, (ratio, cpu) in ratios.items()
    ]
    header = ("contender", "median ms", "× httpx", "median ms of CPU", "× httpx")
    print_table(f"One decide, {calls} calls in turns", header, rows)
    away = measure_away()
    away_rows = [[how, client_name, f"{median:.0f}", f"{longest:.0f}"] for how, client_name, median, longest in away]
    title = f"A service that is away: deadline {1_000 * DEADLINE:g} ms, {AWAY_CALLS} calls"
    print_table(title, ("the service", "client", "median ms", "longest ms"), away_rows)
    latest = max(longest for *_, longest in away[1:])
    limit = 1_000 * (DEADLINE + TOLERANCE)
    verdicts = [
        Verdict(f"{name}: ≤ {LARGEST_RATIO} × httpx", f"{ratio:.2f} ×", ratio <= LARGEST_RATIO)
        for name, (ratio, _) in ratios.items()
        if "httpx" not in name
    ]
    verdicts.append(Verdict(f"the baseline within {limit:g} ms", f"{latest:.0f} ms", latest <= limit))
    print(format_verdicts(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
