"""Count the functions that one `POST /decide` passes: `python -m benchmarks.trace [--list]`.

The tool starts the installed `undercurrent serve` on a new SQLite file, plays a campaign past its warm start, and
records the calls during single decides. The definitions:

- A *function* is Python code in policy, service, simulator or migrations that the serving thread calls, named by
  module and qualified name. Comprehensions, generator expressions and lambdas count as part of the function around
  them; compiled kernels and other packages do not count.
- A *call* is the start of such a function, or the resumption of a coroutine or generator.
- A *module switch* is a call whose module differs from that of the call before it.

Of several decides, the one with the fewest calls counts, because the event loop also runs background work.

It imports nothing from the project, so the file can trace another checkout. Run it with that checkout's Python, in that
checkout's folder: `cd OTHER && .venv/bin/python -P PATH/benchmarks/trace.py`.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("policy", "service", "simulator", "migrations")
HOST = "127.0.0.1"
WARM_UP, TRACED = 60, 7  # decides
PAUSE_SECONDS = 0.05  # for the work that the service does after its answer
CAMPAIGN = {
    "name": "traced",
    "actions": ["none", "email", "call"],
    "variables": [{"name": "risk", "levels": ["low", "high"]}, {"name": "age", "levels": ["young", "old"]}],
    "signals": ["risk"],
    "stage_length": 100,
    "warm_start_rounds": 20,
}

# Runs inside the service, because Python imports `sitecustomize` at its start. A pipe tells it when to record.
HOOK = """
import json, os, sys, threading

control, root = int(os.environ["TRACE_CONTROL"]), os.getcwd() + os.sep
prefixes = tuple(root + package + os.sep for package in json.loads(os.environ["TRACE_PACKAGES"]))
calls, is_recording = [], False

def record(frame, event, argument):
    if is_recording and event == "call":
        code = frame.f_code
        if code.co_filename.startswith(prefixes):
            module = code.co_filename[len(root):].removesuffix(".py").replace(os.sep, ".").removesuffix(".__init__")
            calls.append((module, code.co_qualname))

def obey():
    global is_recording
    for line in os.fdopen(control):
        command, path = line.split()
        is_recording = command == "start"
        with open(path + ".partial", "w") as file:
            json.dump(calls, file)
        os.replace(path + ".partial", path)
        calls.clear()

threading.Thread(target=obey, daemon=True).start()
sys.setprofile(record)
"""


class Call(NamedTuple):
    module: str
    function: str


class Service(NamedTuple):
    connection: socket.socket  # one for all requests, as a marketing system keeps it open
    control: int  # file descriptor of the pipe to the hook
    folder: Path

    def post(self, path: str, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
        self.connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        answer = b""
        while not re.search(rb"\r\n\r\n.*\}\s*$", answer, re.DOTALL):
            answer += self.connection.recv(65536)
        if answer.split()[1] not in (b"200", b"201"):
            raise SystemExit(f"POST {path}: {answer.decode()}")

    def decide(self, number: int) -> None:
        context = {"risk": ("low", "high")[number % 2], "age": ("young", "old")[number // 2 % 2]}
        self.post("/decide", {"campaign": "traced", "decision_id": f"d-{number}", "context": context})

    def trace_decide(self, number: int) -> list[Call]:
        self._control("start")
        self.decide(number)
        calls = [Call(module, function) for module, function in self._control("stop")]
        return [call for call in calls if not call.function.endswith(">")]  # comprehensions and lambdas

    def _control(self, command: str) -> list[list[str]]:
        """Start or stop recording; return the calls recorded until now."""
        time.sleep(PAUSE_SECONDS)
        result = self.folder / "calls.json"
        result.unlink(missing_ok=True)
        os.write(self.control, f"{command} {result}\n".encode())
        while not result.exists():
            time.sleep(0.001)
        calls: list[list[str]] = json.loads(result.read_text(encoding="utf-8"))
        return calls


@contextmanager
def run_service(folder: Path) -> Iterator[Service]:
    """Start the service of the current folder with the hook in it."""
    (folder / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    reader, writer = os.pipe()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UNDERCURRENT_")}
    environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environ |= {"TRACE_CONTROL": str(reader), "TRACE_PACKAGES": json.dumps(PACKAGES)}
    command = [str(Path(sys.executable).with_name("undercurrent")), "serve", "--port", "0"]
    command += ["--log-level", "warning", "--database-url", f"sqlite:///{folder}/traced.db"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, pass_fds=[reader]) as process:
        try:
            assert process.stdout is not None
            address = re.search(rf"http://{re.escape(HOST)}:(\d+)", process.stdout.readline())
            if address is None:
                raise SystemExit("the service did not start")
            with socket.create_connection((HOST, int(address[1])), timeout=60) as connection:
                yield Service(connection, writer, folder)
        finally:
            process.terminate()


def trace() -> list[Call]:
    """Return the calls of one warm decide, in order."""
    with tempfile.TemporaryDirectory(prefix="undercurrent-trace-") as name, run_service(Path(name)) as service:
        service.post("/campaigns", CAMPAIGN)
        for number in range(WARM_UP):
            service.decide(number)
            service.post("/reward", {"campaign": "traced", "decision_id": f"d-{number}", "reward": number % 3})
        return min((service.trace_decide(WARM_UP + i) for i in range(TRACED)), key=len)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the functions that one POST /decide passes.")
    parser.add_argument("--list", action="store_true", help="also print the calls in order")
    options = parser.parse_args()
    calls = trace()
    if options.list:
        for call in calls:
            print(f"{call.module:<28} {call.function}")
        print()
    switches = sum(before.module != after.module for before, after in pairwise(calls))
    modules = {call.module for call in calls}
    print(f"one POST /decide: {len(set(calls))} functions in {len(modules)} modules, {switches} module switches")


if __name__ == "__main__":
    main()
