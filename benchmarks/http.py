"""A durable /decide beside an empty FastAPI endpoint of the same run: python -m benchmarks.http [--quick].

Three servers and the load generator are processes of their own, on the loopback interface; they end with this one.
"""

import argparse
import asyncio
import ctypes
import gc
import itertools
import json
import os
import platform
import random
import re
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil
import uvicorn
import uvloop
from fastapi import FastAPI
from pydantic import AwareDatetime, BaseModel
from tqdm import tqdm

from benchmarks import Timing, Verdict, installed, print_table, print_verdicts, ratio

HOST = "127.0.0.1"
CAMPAIGN = "bench"
BATCH = 100  # decisions in one /decide/batch
STARTING, STOPPING, STALLED = 60.0, 10.0, 30.0  # seconds to wait for a server, for its end, for an answer
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GENERATOR_FLOOR = 12_000  # requests/s against the bare hello that show the generator is not what is measured
DESCRIPTION = {
    "name": CAMPAIGN,
    "actions": ["none", "email", "call"],
    "variables": [
        {"name": "risk", "levels": ["1", "2", "3", "4", "5"]},
        {"name": "age", "levels": ["young", "middle", "old"]},
        {"name": "revenue", "cuts": [10_000, 36_000, 54_000]},
    ],
    "signals": ["risk", "revenue"],
    "seed": 7,
}
# Two regimes that last and matter, so that the default policy finds and filters them.
RISKS = ((5, 4, 3, 2, 1), (1, 2, 3, 4, 5))
REVENUES, REWARDS = (48_000.0, 20_000.0), (1.0, 0.0)  # means
STAY = 0.98


# --- what clients send --------------------------------------------------------------------------------------


def drawn_rounds(count: int, draws: random.Random) -> list[tuple[bytes, bytes]]:
    """Contexts and rewards in the order of the rounds, as JSON."""
    regime, rounds = 0, []
    for _ in range(count):
        regime = regime if draws.random() < STAY else 1 - regime
        context = {
            "risk": draws.choices("12345", RISKS[regime])[0],
            "age": draws.choice(("young", "middle", "old")),
            "revenue": round(max(0.0, draws.gauss(REVENUES[regime], 15_000.0)), 2),
        }
        rounds.append((json.dumps(context).encode(), b"%.6f" % draws.gauss(REWARDS[regime], 0.2)))
    return rounds


def post(path: str, body: bytes) -> bytes:
    """One HTTP/1.1 request; the connection stays open."""
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class Client:
    """The requests to one server, encoded beforehand but for the ids. Each method feeds one connection."""

    def __init__(self) -> None:
        rounds = drawn_rounds(4_096, random.Random(7))
        blank = b"%b".ljust(36, b"?")  # as long as an id
        named, unnamed, items = [], [], []
        for context, reward in rounds:
            body = b'{"campaign":"%b","context":%b' % (CAMPAIGN.encode(), context)
            request = post("/decide", b'%b,"decision_id":"%b"}' % (body, blank))
            named.append((request.replace(blank, b"%b"), reward))
            unnamed.append(post("/decide", body + b"}"))
            items.append(b'{"decision_id":"%%b","context":%b}' % context)
        self._named, self._unnamed, self._items = map(itertools.cycle, (named, unnamed, items))
        self._bits = random.Random().getrandbits
        self.decided: deque[bytes] = deque()  # the /reward requests of decisions that were answered

    def _id(self) -> bytes:
        """A random UUID, faster than the library's."""
        digits = f"{self._bits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}".encode()

    def _round(self) -> tuple[bytes, bytes]:
        """A /decide and its /reward."""
        decision, (request, reward) = self._id(), next(self._named)
        body = b'{"campaign":"%b","decision_id":"%b","reward":%b}' % (CAMPAIGN.encode(), decision, reward)
        return request % decision, post("/reward", body)

    def hello(self) -> Iterator[bytes]:
        yield from itertools.repeat(f"GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())

    def decide(self) -> Iterator[bytes]:
        while True:
            request, reward = self._round()
            yield request
            self.decided.append(reward)

    def decide_without_id(self) -> Iterator[bytes]:
        yield from self._unnamed

    def reward(self) -> Iterator[bytes]:
        """One for each decision of `decide`; ends when all have theirs."""
        while self.decided:
            yield self.decided.popleft()

    def decide_then_reward(self) -> Iterator[bytes]:
        while True:
            yield from self._round()

    def decide_batch(self) -> Iterator[bytes]:
        while True:
            items = b",".join([next(self._items) % self._id() for _ in range(BATCH)])
            yield post("/decide/batch", b'{"campaign":"%b","items":[%b]}' % (CAMPAIGN.encode(), items))


# --- the load generator's process ---------------------------------------------------------------------------


DECISIONS = {"decide": 1, "decide_without_id": 1, "decide_batch": BATCH}  # in one answer


class Job(NamedTuple):
    """One slice of load: every connection sends its next request when it has the answer to the last one."""

    port: int
    traffic: str  # a method of Client
    connections: int
    warm_up: float
    seconds: float


class Tally:
    """What all connections of one slice saw. The clock starts after the warm-up."""

    def __init__(self, job: Job) -> None:
        self.begin = perf_counter() + job.warm_up
        self.end = self.begin + job.seconds
        self.last = self.begin  # answer inside the slice
        self.answered = self.decisions = self.body_bytes = 0  # inside the slice
        self.latencies: list[float] = []  # ms, of every request sent inside the slice
        self.sample = b""
        self.failures: dict[str, int] = {}  # also those of the warm-up
        self.complaint = ""

    def succeeded(self, sent: float, now: float, body: bytes) -> None:
        if sent >= self.begin:
            self.latencies.append(round(1e3 * (now - sent), 3))
        if self.begin <= now < self.end:
            self.last = now
            self.answered += 1
            self.decisions += body.count(b'"propensity"')
            self.body_bytes += len(body)
            self.sample = body

    def failed(self, what: str, details: str) -> None:
        self.complaint = self.complaint or f"{what}: {details[:500]}"
        self.failures[what] = self.failures.get(what, 0) + 1


class Connection(asyncio.Protocol):
    """Plays its requests one after the other, as fast as they are answered."""

    LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

    def __init__(self, requests: Iterator[bytes], tally: Tally) -> None:
        self.requests, self.tally = requests, tally
        self.closed = asyncio.get_running_loop().create_future()
        self.received = b""
        self.sent = 0.0
        self.waiting = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send_next(perf_counter())

    def send_next(self, now: float) -> None:
        request = next(self.requests, None) if now < self.tally.end else None
        self.waiting = request is not None
        if request is None:
            self.transport.close()
        else:
            self.sent = perf_counter()
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        answer = self.received + data if self.received else data
        body = answer.find(b"\r\n\r\n") + 4
        length = self.LENGTH.search(answer, 0, body) if body > 3 else None
        if body > 3 and length is None:
            self.tally.failed("no content-length", answer[:body].decode(errors="replace"))
            self.transport.abort()
        elif length is None or len(answer) < body + int(length[1]):
            self.received = answer
        else:
            self.received = b""
            self.judge(answer[:body], answer[body:])

    def judge(self, head: bytes, body: bytes) -> None:
        now = perf_counter()
        if head.startswith(b"HTTP/1.1 200 "):
            self.tally.succeeded(self.sent, now, body)
        else:
            self.tally.failed(f"status {head[9:12].decode()}", body.decode(errors="replace"))
        self.send_next(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting:
            self.tally.failed("connection lost", repr(exc))
        if not self.closed.done():
            self.closed.set_result(None)


async def play(job: Job, client: Client) -> dict[str, Any]:
    """Run one slice; a failure of any kind is in the result."""
    tally, loop = Tally(job), asyncio.get_running_loop()
    begun, cpu = perf_counter(), time.process_time()
    connections = []
    try:
        async with asyncio.timeout(job.warm_up + job.seconds + STALLED):
            for _ in range(job.connections):
                connect = partial(Connection, getattr(client, job.traffic)(), tally)
                _, connection = await loop.create_connection(connect, HOST, job.port)
                connections.append(connection)
            await asyncio.gather(*(connection.closed for connection in connections))
    except (OSError, TimeoutError) as error:
        tally.failed(type(error).__name__, str(error) or f"no answer for {STALLED:.0f} s")
        for connection in connections:
            connection.transport.abort()
    expected = DECISIONS.get(job.traffic)
    if expected is not None and tally.decisions != expected * tally.answered:
        tally.failed(f"answers without {expected} decisions", tally.sample.decode(errors="replace"))
    busy = (time.process_time() - cpu) / (perf_counter() - begun)
    seconds = job.seconds if job.traffic != "reward" or client.decided else tally.last - tally.begin
    return {
        "seconds": seconds,
        "answered": tally.answered,
        "decisions": tally.decisions,
        "body_bytes": tally.body_bytes,
        "latencies": tally.latencies,
        "sample": tally.sample.decode(errors="replace"),
        "failures": tally.failures,
        "complaint": tally.complaint,
        "generator_busy": busy,
    }


def generate() -> None:
    """The load generator's process: jobs in and results out, a line of JSON each, until its input ends."""
    clients: defaultdict[int, Client] = defaultdict(Client)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            job = Job(*json.loads(line))
            client = clients[job.port]
            gc.collect()
            gc.disable()
            result = runner.run(play(job, client))
            gc.enable()
            print(json.dumps(result), flush=True)


# --- the ceilings, each a process ---------------------------------------------------------------------------


class DecideRequest(BaseModel):
    campaign: str
    context: dict[str, Any]
    decision_id: str | None = None
    excluded_actions: list[str] = []
    subject: str | None = None
    at: AwareDatetime | None = None


class Score(BaseModel):
    action: str
    estimate: float
    bonus: float
    score: float


class Decision(BaseModel):
    decision_id: str
    campaign: str
    round: int
    stage: int
    model_version: int
    mode: str
    action: str
    propensity: float
    belief: list[float]
    scores: list[Score]
    decided_at: str


def empty_app() -> FastAPI:
    """An endpoint with the shapes of /decide and no work: constant numbers, as many digits as real ones."""
    app = FastAPI()
    scores = [
        Score(action=action, estimate=0.5231470588235294, bonus=0.01314705882352941, score=0.5362941176470588)
        for action in ("none", "email", "call")
    ]
    constant: dict[str, Any] = {
        "round": 12_345,
        "stage": 1_235,
        "model_version": 1_234,
        "mode": "optimistic",
        "action": "email",
        "propensity": 1.0,
        "belief": [0.8231470588235294, 0.17685294117647063],
        "scores": scores,
        "decided_at": "2026-01-02T03:04:05.678901Z",
    }

    @app.post("/decide")
    async def decide(request: DecideRequest) -> Decision:
        return Decision(decision_id=request.decision_id or "none", campaign=request.campaign, **constant)

    return app


async def hello_app(scope: Mapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    """The least that an ASGI application can do."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def serve(app: Any) -> None:
    """Serve as the service does, and say where in the same words."""
    listener = socket.create_server((HOST, 0))
    config = uvicorn.Config(app, loop="uvloop", http="httptools", lifespan="off", log_level="warning", access_log=False)
    print(f"is at http://{HOST}:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


# --- processes ----------------------------------------------------------------------------------------------


class RunError(Exception):
    """The benchmark cannot go on; the message says why."""


def end_with_parent() -> None:
    """Called in a new process: the system ends it when the benchmark was killed outright. Linux only."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@contextmanager
def process(command: Sequence[str], **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """A Python process that ends with the block, in a group of its own so that Ctrl-C reaches it only through us."""
    # Our own settings must not change a server: it starts as its users start it.
    environ = {
        k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS") and not k.startswith("UNDERCURRENT_")
    }
    child = subprocess.Popen(
        [sys.executable, *command],
        env=environ,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,
        **streams,
    )
    try:
        yield child
    finally:
        workers = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
        child.terminate()
        try:
            child.wait(STOPPING)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


class Server(NamedTuple):
    port: int
    pid: int


def cpu_seconds(pid: int) -> float:
    """Of a process, with the children it waited for."""
    return float(sum(psutil.Process(pid).cpu_times()[:4]))


def machine_seconds() -> float:
    """CPU time of all cores that was not idle, also what a hypervisor took."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle)


@contextmanager
def server(name: str, command: Sequence[str], folder: Path) -> Iterator[Server]:
    """A server that says where it is in its first line."""
    log = folder / f"{name}.log"
    with log.open("w") as written, process(command, stdout=written, stderr=subprocess.STDOUT) as child:
        patience = perf_counter() + STARTING
        while (place := re.search(rf"is at http://{re.escape(HOST)}:(\d+)\s", log.read_text())) is None:
            if child.poll() is not None or perf_counter() > patience:
                raise RunError(f"{' '.join(command)} did not start:\n{log.read_text()[-2_000:]}")
            time.sleep(0.05)
        yield Server(int(place[1]), child.pid)


class Generator(NamedTuple):
    child: subprocess.Popen[str]

    def play(self, job: Job) -> dict[str, Any]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(job) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise RunError("the load generator ended")
        result: dict[str, Any] = json.loads(line)
        return result


# --- measuring ----------------------------------------------------------------------------------------------


class Target(NamedTuple):
    title: str
    server: str
    traffic: str
    connections: int


class Slice(NamedTuple):
    result: dict[str, Any]  # of the generator
    server_cpu: float  # seconds a request, warm-up included in both
    others: float  # cores that all but this server and the generator used meanwhile

    @property
    def rate(self) -> float:
        return float(self.result["answered"] / self.result["seconds"])


Measured = dict[Target, list[Slice]]


class Bench(NamedTuple):
    """What one run measures with."""

    servers: Mapping[str, Server]
    generator: Generator

    def load(self, target: Target, warm_up: float, seconds: float) -> Slice:
        at = self.servers[target.server]

        def used() -> tuple[float, float, float, float]:
            return perf_counter(), cpu_seconds(at.pid), cpu_seconds(self.generator.child.pid), machine_seconds()

        before = used()
        result = self.generator.play(Job(at.port, target.traffic, target.connections, warm_up, seconds))
        wall, server, generator, machine = (now - then for now, then in zip(used(), before, strict=True))
        rate = result["answered"] / result["seconds"] if result["answered"] else np.inf
        return Slice(result, server / (warm_up + result["seconds"]) / rate, (machine - server - generator) / wall)

    def in_turns(self, topic: str, targets: Sequence[Target], repeats: int, warm_up: float, seconds: float) -> Measured:
        """Slices of the targets in turns; a target that failed gets no further one."""
        slices: Measured = {target: [] for target in targets}
        for target in tqdm([*targets] * repeats, desc=topic, leave=False):
            if not failure(slices[target]):
                slices[target].append(self.load(target, warm_up, seconds))
        return slices


def failure(slices: Sequence[Slice]) -> str:
    """What went wrong in these slices, or nothing."""
    for part in slices:
        if part.result["failures"]:
            counts = ", ".join(f"{count} × {what}" for what, count in part.result["failures"].items())
            return f"{counts} beside {part.result['answered']} good answers; the first was {part.result['complaint']}"
        if not part.result["answered"]:
            return "no answer in a slice (or no decision left to reward)"
    return ""


def pooled(slices: Sequence[Slice], percentile: float) -> float:
    """Milliseconds over the requests of all slices together."""
    return float(np.percentile(np.concatenate([part.result["latencies"] for part in slices]), percentile))


def timing(slices: Sequence[Slice]) -> Timing:
    """Seconds a request, one entry a slice."""
    return Timing([1.0 / part.rate for part in slices], None)


def row(target: Target, slices: Sequence[Slice]) -> list[str]:
    if failure(slices):
        return [target.title, str(target.connections), "FAILED", "", "", "", "", "", ""]
    answered = sum(part.result["answered"] for part in slices)
    decisions = statistics.median(part.result["decisions"] / part.result["seconds"] for part in slices)
    return [
        target.title,
        str(target.connections),
        f"{statistics.median(part.rate for part in slices):,.0f}",
        f"{decisions:,.0f}" if decisions else "",
        *(f"{pooled(slices, percentile):.2f}" for percentile in (50, 99, 100)),
        f"{1e6 * statistics.median(part.server_cpu for part in slices):,.0f}",
        f"{sum(part.result['body_bytes'] for part in slices) / answered:,.0f}",
    ]


def compared(ours: Sequence[Slice], empty: Sequence[Slice], few: Sequence[Sequence[Slice]]) -> list[Verdict]:
    """The two targets, and two ratios beside them."""
    faster, slower = "durable `/decide`: ≥ 1.0 × the empty endpoint's requests/s", "its p99: ≤ 2 × the empty endpoint's"
    if failure(ours) or failure(empty):
        return [Verdict(faster, "failed", False), Verdict(slower, "failed", False)]
    reached = ratio(timing(empty), timing(ours))
    later = pooled(ours, 99) / pooled(empty, 99)
    less = statistics.median(part.server_cpu for part in ours) / statistics.median(part.server_cpu for part in empty)
    verdicts = [
        Verdict(faster, f"{reached:.2f} ×", reached >= 1.0),
        Verdict(slower, f"{later:.2f} ×", later <= 2.0),
        Verdict("its CPU time a request, for comparison", f"{less:.2f} ×", None),
    ]
    if not any(failure(slices) for slices in few):
        alone = ratio(timing(few[1]), timing(few[0]))
        verdicts.append(Verdict("its requests/s one by one, for comparison", f"{alone:.2f} ×", None))
    return verdicts


def generator_verdict(hello: Sequence[Slice], others: Sequence[Slice]) -> Verdict:
    """Whether the generator could have sent more than the servers took."""
    target = f"generator: > {GENERATOR_FLOOR:,} requests/s against the bare hello"
    if failure(hello):
        return Verdict(target, "failed", False)
    rate = statistics.median(part.rate for part in hello)
    own, most = (max(part.result["generator_busy"] for part in slices) for slices in (hello, others))
    measured = f"{rate:,.0f}; {own:.0%} busy there, at most {most:.0%} elsewhere"
    return Verdict(target, measured, rate > GENERATOR_FLOOR)


# --- the run ------------------------------------------------------------------------------------------------


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """All processes of a run."""
    database = f"sqlite:///{folder / 'bench.db'}"
    commands = {
        "service": ["-m", "service.cli", "serve", "--port", "0", "--database-url", database],
        "empty": ["-c", "from benchmarks import http; http.serve(http.empty_app())"],
        "hello": ["-c", "from benchmarks import http; http.serve(http.hello_app)"],
    }
    generator = ["-c", "from benchmarks import http; http.generate()"]
    with ExitStack() as stack:
        servers = {name: stack.enter_context(server(name, run, folder)) for name, run in commands.items()}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        yield Bench(servers, Generator(stack.enter_context(process(generator, **pipes))))


def create_campaign(port: int) -> None:
    try:
        answer = httpx.post(f"http://{HOST}:{port}/campaigns", json=DESCRIPTION, timeout=STARTING, trust_env=False)
    except httpx.HTTPError as error:
        raise RunError(f"POST /campaigns: {error!r}") from error
    if not answer.is_success:
        raise RunError(f"POST /campaigns answered {answer.status_code}: {answer.text[:500]}")


def sync_microseconds(folder: Path) -> list[float]:
    """What this disk takes to make 4 KiB durable: the part of a durable answer that no code can save."""
    times = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            begun = perf_counter()
            file.write(bytes(4_096))
            os.fsync(file.fileno())
            times.append(1e6 * (perf_counter() - begun))
    return times


def journal_mode(folder: Path) -> str:
    """The service's own choice, read from its database."""
    try:
        connection = sqlite3.connect(f"file:{folder / 'bench.db'}?mode=ro", uri=True)
        try:
            return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error as error:
        return f"unknown ({error})"


def last_decision(slices: Sequence[Slice]) -> str:
    """That the campaign was past its warm start, in the service's own words."""
    try:
        decision = json.loads(slices[-1].result["sample"])
        return f"round {decision['round']:,}, mode {decision['mode']}, regimes in its belief: {len(decision['belief'])}"
    except (ValueError, KeyError, TypeError):
        return "none that could be read"


class Rows(NamedTuple):
    """Everything that is measured: the two main targets, then what stands beside them."""

    ours: Target
    empty: Target
    without_id: Target
    reward: Target
    mixed: Target
    batch: Target
    ours_alone: Target
    empty_alone: Target
    hello: Target


def rows(connections: int) -> Rows:
    ours, empty = "durable `/decide`", "empty FastAPI + pydantic"
    return Rows(
        Target(ours, "service", "decide", connections),
        Target(empty, "empty", "decide", connections),
        Target("`/decide` without an id", "service", "decide_without_id", connections),
        Target("`/reward` of those decisions", "service", "reward", connections),
        Target("`/decide`, then its `/reward`", "service", "decide_then_reward", connections),
        Target(f"`/decide/batch` of {BATCH}", "service", "decide_batch", connections),
        Target(f"{ours}, one by one", "service", "decide", 1),
        Target(f"{empty}, one by one", "empty", "decide", 1),
        Target("bare ASGI hello", "hello", "hello", connections),
    )


def leave_warm_start(running: Bench, mixed: Target) -> None:
    """Let the service compile and learn: without rewards its policy would only ever draw."""
    decisions = 0
    for _ in range(10):  # a slice in which it compiles may have no answer
        part = running.load(mixed, 0.0, 2.0)
        decisions += part.result["decisions"]
        if part.result["failures"]:
            raise RunError(f"{mixed.title}: {failure([part])}")
        if decisions >= 1_000:
            return
    raise RunError(f"only {decisions} decisions in 20 s of warming up")


def measure(targets: Rows, options: argparse.Namespace, folder: Path) -> Measured:
    """Start everything, measure the main targets in turns and then the others, and stop everything."""
    with bench(folder) as running:
        create_campaign(running.servers["service"].port)
        leave_warm_start(running, targets.mixed)
        measured = running.in_turns("main targets", targets[:2], options.repeats, 0.4, options.seconds)
        measured |= running.in_turns(
            "beside them", targets[2:], max(2, options.repeats // 2 - 1), 0.3, options.seconds / 2
        )
        print(f"The service's database has journal mode {journal_mode(folder)}. ", end="")
        return measured


def report(targets: Rows, measured: Measured) -> None:
    """The tables, and what makes their figures believable."""
    others = [part.others for slices in measured.values() for part in slices]
    print(f"The last decision of a main slice: {last_decision(measured[targets.ours])}.")
    print(
        "Cores that all but the generator and the server under load used: "
        f"median {statistics.median(others):.2f}, most {max(others):.2f} of {os.cpu_count()}."
    )
    header = ("target", "connections", "requests/s", "decisions/s", "p50 ms", "p99 ms", "longest ms", "CPU µs", "bytes")
    print_table("HTTP: medians of slices, latencies of all", header, [row(*part) for part in measured.items()])
    few = [measured[targets.ours_alone], measured[targets.empty_alone]]
    verdicts = compared(measured[targets.ours], measured[targets.empty], few)
    loaded = [part for target, slices in measured.items() if target != targets.hello for part in slices]
    print_verdicts([*verdicts, generator_verdict(measured[targets.hello], loaded)])


def run(options: argparse.Namespace, folder: Path) -> bool:
    """Measure and print; whether every answer was good."""
    targets, syncs = rows(options.connections), sync_microseconds(folder)
    print(f"One fsync of 4 KiB: median {statistics.median(syncs):.0f} µs, p99 {np.percentile(syncs, 99):.0f} µs.")
    measured = measure(targets, options, folder)
    report(targets, measured)
    for target, slices in measured.items():
        if failure(slices):
            print(f"FAILED {target.title}: {failure(slices)}", file=sys.stderr)
    return not any(map(failure, measured.values()))


def stop(number: int, _frame: object) -> None:
    """Leave once, through every `finally`, so that no process stays behind."""
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="in a minute: fewer and shorter slices")
    parser.add_argument("--connections", type=int, default=16, help="that wait for an answer at the same time")
    parser.add_argument("--seconds", type=float, help="of one slice (default 3, quick 2)")
    parser.add_argument("--repeats", type=int, help="slices of each of the two main targets (default 10, quick 5)")
    options = parser.parse_args()
    options.seconds = options.seconds or (2.0 if options.quick else 3.0)
    options.repeats = options.repeats or (5 if options.quick else 10)
    for ending in ENDINGS:
        signal.signal(ending, stop)
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs (load {os.getloadavg()[0]:.1f} at the start).")
    print(", ".join(installed(package) for package in ("fastapi", "pydantic", "uvicorn", "uvloop", "httptools")) + ".")
    try:
        with tempfile.TemporaryDirectory(prefix="undercurrent-bench-") as folder:
            return 0 if run(options, Path(folder)) else 1
    except RunError as error:
        print(f"benchmarks.http: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
