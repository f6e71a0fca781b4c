"""The load generator: one process, one thread, plain sockets, so that it leaves the cores to the servers.

Every connection sends its next request when the last one is answered. Requests are encoded beforehand, except for the
ids. `python -c "from benchmarks import load; load.generate()"` reads jobs and writes results, one line of JSON each,
and prints a line when the measured part of a job begins and ends.
"""

import gc
import itertools
import json
import random
import re
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

HOST = "127.0.0.1"
BATCH = 100  # decisions in one /decide/batch
STALLED = 30.0  # seconds to wait for an answer
BEGUN, ENDED = "begun", "ended"  # printed when the measured part of a job begins and ends
APART = 0.002  # seconds between two connections
DECISIONS = {"decide": 1, "decide_by_path": 1, "batch": BATCH}  # in one answer
# Two persistent regimes with different rewards, so that the default policy finds and filters them.
RISKS = ((5, 4, 3, 2, 1), (1, 2, 3, 4, 5))
REVENUES, REWARDS = (48_000.0, 20_000.0), (1.0, 0.0)  # means
STAY = 0.98


# --- what clients send --------------------------------------------------------------------------------------


def describe_campaign(name: str) -> dict[str, Any]:
    """Describe a campaign with 3 actions, 3 variables and the default policy."""
    return {
        "name": name,
        "actions": ["none", "email", "call"],
        "variables": [
            {"name": "risk", "levels": ["1", "2", "3", "4", "5"]},
            {"name": "age", "levels": ["young", "middle", "old"]},
            {"name": "revenue", "cuts": [10_000, 36_000, 54_000]},
        ],
        "signals": ["risk", "revenue"],
        "seed": 7,
    }


def draw_rounds(count: int, draws: random.Random) -> Iterator[tuple[dict[str, Any], float]]:
    """Draw contexts and rewards for consecutive rounds of one campaign."""
    regime = 0
    for _ in range(count):
        regime = regime if draws.random() < STAY else 1 - regime
        context = {
            "risk": draws.choices("12345", RISKS[regime])[0],
            "age": draws.choice(("young", "middle", "old")),
            "revenue": round(max(0.0, draws.gauss(REVENUES[regime], 15_000.0)), 2),
        }
        yield context, round(draws.gauss(REWARDS[regime], 0.2), 6)


def encode_post(path: str, body: bytes) -> bytes:
    """Encode one HTTP/1.1 request that keeps the connection open."""
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class Client:
    """Requests to one server, for campaigns picked at random. Each method yields the traffic of one connection."""

    def __init__(self, campaigns: Sequence[str], rounds: int = 4_096) -> None:
        draws = random.Random(7)
        played = {name: draw_rounds(rounds, draws) for name in campaigns}
        blank = b"%b".ljust(32, b"?")  # as long as an id
        singles, items = [], []
        for _ in range(rounds):
            name = draws.choice(campaigns)
            context, reward = next(played[name])
            campaign, content = name.encode(), json.dumps(context).encode()
            decide = b'{"campaign":"%b","context":%b,"decision_id":"%b"}' % (campaign, content, blank)
            rewarded = b'{"campaign":"%b","decision_id":"%b","reward":%.6f}' % (campaign, blank, reward)
            paths = (("/decide", decide), ("/reward", rewarded), (f"/campaigns/{name}/decide", decide))
            singles.append([encode_post(path, body).replace(blank, b"%b") for path, body in paths])
            items.append(b'{"decision_id":"%%b","context":%b}' % content)
        self._singles, self._items = itertools.cycle(singles), itertools.cycle(items)
        self._campaigns = itertools.cycle([name.encode() for name in campaigns])
        self._bits = random.Random().getrandbits

    def _make_id(self) -> bytes:
        """Make a random id, as callers do: the database must look it up among all others."""
        return b"%032x" % self._bits(128)

    def decide(self) -> Iterator[bytes]:
        while True:
            yield next(self._singles)[0] % self._make_id()

    def decide_by_path(self) -> Iterator[bytes]:
        """Name the campaign in the path, where a proxy can see it."""
        while True:
            yield next(self._singles)[2] % self._make_id()

    def mixed(self) -> Iterator[bytes]:
        """A decision, then its reward."""
        while True:
            decision, (decide, reward, _) = self._make_id(), next(self._singles)
            yield decide % decision
            yield reward % decision

    def batch(self) -> Iterator[bytes]:
        while True:
            items = b",".join([next(self._items) % self._make_id() for _ in range(BATCH)])
            yield encode_post("/decide/batch", b'{"campaign":"%b","items":[%b]}' % (next(self._campaigns), items))


# --- connections --------------------------------------------------------------------------------------------


class ExchangeError(Exception):
    """The answer is missing or wrong; the message says why."""


class Connection:
    """One keep-alive connection, with at most one request under way."""

    LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), STALLED)
        self.socket.settimeout(None)  # with a timeout, Python makes two system calls per operation
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = 0.0
        self._received = b""

    def send(self, request: bytes) -> None:
        self.sent = perf_counter()
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """Return the body of the answer, or None if part of it has not arrived yet."""
        data = self.socket.recv(65_536)
        if not data:
            raise ExchangeError("connection lost")
        answer = self._received + data if self._received else data
        body = answer.find(b"\r\n\r\n") + 4
        length = self.LENGTH.search(answer, 0, body) if body > 3 else None
        if body > 3 and length is None:
            raise ExchangeError(f"no content-length in {answer[:200]!r}")
        if length is None or len(answer) < body + int(length[1]):
            self._received = answer
            return None
        self._received = b""
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise ExchangeError(f"status {answer[9:12].decode()}: {answer[body : body + 500].decode(errors='replace')}")
        return answer[body:]

    def close(self) -> None:
        self.socket.close()

    def ask(self, request: bytes) -> float:
        """Send one request and return the seconds until its answer."""
        self.send(request)
        while self.receive() is None:
            pass
        return perf_counter() - self.sent


# --- the process --------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """One slice of load."""

    port: int
    traffic: str  # a method of Client
    campaigns: Sequence[str]
    connections: int
    warm_up: float
    seconds: float


class Tally:
    """Counts and latencies of all connections in one slice. The slice starts after the warm-up."""

    def __init__(self, job: Job) -> None:
        self.begin = perf_counter() + job.warm_up
        self.end = self.begin + job.seconds
        self.begun = False
        self.answered = self.decisions = 0  # inside the slice
        self.latencies: list[float] = []  # ms, of every request sent inside the slice
        self.sample = b""
        self.failure = ""  # the first failure, also in the warm-up; it ends the slice

    def count_answer(self, sent: float, now: float, body: bytes) -> None:
        if not self.begun and now >= self.begin:
            self.begun = True
            print(BEGUN, flush=True)
        if sent >= self.begin:
            self.latencies.append(1e3 * (now - sent))
        if self.begin <= now < self.end:
            self.answered += 1
            self.decisions += body.count(b'"propensity"')
            self.sample = body

    def build_result(self, job: Job) -> dict[str, Any]:
        expected = DECISIONS.get(job.traffic)
        if not self.failure and expected is not None and self.decisions != expected * self.answered:
            self.failure = f"an answer without {expected} decisions, such as {self.sample[:500]!r}"
        return {
            "answered": self.answered,
            "decisions": self.decisions,
            "latencies": [round(latency, 3) for latency in self.latencies],
            "sample": self.sample[:2_000].decode(errors="replace"),
            "failure": self.failure or ("" if self.answered else "no answer in a slice"),
        }


def play(job: Job, client: Client) -> dict[str, Any]:
    """Run one slice; the result includes any failure."""
    with selectors.DefaultSelector() as selector:
        connections = []
        tally = Tally(job)
        try:
            for _ in range(job.connections):
                connections.append(Connection(job.port))
                time.sleep(APART)  # otherwise the first worker to wake accepts all of them
                selector.register(connections[-1].socket, selectors.EVENT_READ, connections[-1])
            tally = Tally(job)
            _exchange(selector, connections, getattr(client, job.traffic), tally)
        except (OSError, ExchangeError) as error:
            tally.failure = f"{type(error).__name__}: {error}"
        for connection in connections:
            connection.close()
    return tally.build_result(job)


def _exchange(selector: selectors.BaseSelector, connections: Sequence[Connection], traffic: Any, tally: Tally) -> None:
    requests = {connection: traffic() for connection in connections}
    for connection in connections:
        connection.send(next(requests[connection]))
    # The next request is encoded while the server works on the last one.
    prepared = {connection: next(requests[connection]) for connection in connections}
    open_requests = len(connections)
    while open_requests:
        ready = selector.select(STALLED)
        if not ready:
            raise ExchangeError(f"no answer for {STALLED:.0f} s")
        for key, _ in ready:
            answering: Connection = key.data
            body = answering.receive()
            if body is None:
                continue
            now = perf_counter()
            tally.count_answer(answering.sent, now, body)
            if now < tally.end:
                answering.send(prepared[answering])
                prepared[answering] = next(requests[answering])
            else:
                open_requests -= 1
    print(ENDED, flush=True)


def generate() -> None:
    """Read jobs and write results until the input ends."""
    clients: dict[tuple[int, tuple[str, ...]], Client] = {}
    for line in sys.stdin:
        job = Job(*json.loads(line))
        place = job.port, tuple(job.campaigns)
        if place not in clients:
            clients[place] = Client(job.campaigns)
        gc.collect()
        gc.disable()
        begun, cpu = perf_counter(), time.process_time()
        result = play(job, clients[place])
        result["cpu"], result["wall"] = time.process_time() - cpu, perf_counter() - begun
        gc.enable()
        print(json.dumps(result), flush=True)
