"""Play many campaigns, in processes on this machine or at a service. A stop keeps the rounds already played."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

import httpx
from tqdm import tqdm

from simulator.agents import HttpAgent
from simulator.presets import slugify
from simulator.replay import ORACLE, Game, Run, Task, replay_seed
from undercurrent_client import Client, ClientError, ServiceError


class Outcome(NamedTuple):
    """What was played: one run per task, cut to `rounds`, or None for a task that did not get that far."""

    runs: list[Run | None]
    rounds: int
    played: list[int]  # rounds of each task, also where its run is None
    problem: BaseException | None = None  # why tasks are unfinished: a KeyboardInterrupt, or an error of the service


class Remote(NamedTuple):
    """A service to play at, and how to play."""

    url: str
    key: str | None = None
    batch: bool = False  # one stage per request, not one round
    name: str | None = None  # prefix of the campaigns' names
    concurrency: int = 1  # campaigns at a time
    patience: float = 60.0  # seconds to wait for an answer
    seconds_per_round: float = 0.0  # by which a rehearsal's clock moves with every round


def play_in_process(tasks: Sequence[Task], jobs: int = -1, label: str = "") -> Outcome:
    """Play every task on the local cores."""
    from joblib import Parallel, delayed  # of the extra `sim`

    for task in tasks:  # report a wrong configuration before starting workers
        if task.preset != ORACLE:
            task.build_config()
    runs: list[Run | None] = []
    problem = None
    parallel = Parallel(n_jobs=min(jobs, len(tasks)), return_as="generator")
    try:
        with tqdm(total=len(tasks), unit="run", desc=label, disable=None) as bar:
            for run in parallel(delayed(replay_seed)(task) for task in tasks):
                runs.append(run)
                bar.update()
    except KeyboardInterrupt as stopped:
        if not runs:
            raise
        problem = stopped
    played = [task.rounds if i < len(runs) else 0 for i, task in enumerate(tasks)]
    return Outcome(runs + [None] * (len(tasks) - len(runs)), tasks[0].rounds, played, problem)


def play_at_service(tasks: Sequence[Task], remote: Remote, label: str = "") -> Outcome:
    """Play every task as a campaign of the service. After a stop, the same call continues where it stopped."""
    with _connect(remote) as client:
        client.check_version(version("undercurrent"))
    names = _name_campaigns(tasks, remote.name)
    for task, name in zip(tasks, names, strict=True):
        task.build_config(name)
    return _Players(tasks, names, remote, label).play()


def _connect(remote: Remote, sleep: Callable[[float], object] = time.sleep) -> Client:
    """Open a client. A step of many rounds may take long, so it waits for an answer as long as for the service."""
    timeout = max(remote.patience, 10.0)
    return Client(remote.url, remote.key, patience=remote.patience, timeout=timeout, sleep=sleep)


def _advance_clock(remote: Remote, rounds: int) -> None:
    """Move the clock of a service that was started with --rehearsal."""
    headers = {"authorization": f"Bearer {remote.key}"} if remote.key else {}
    body = {"advance_seconds": rounds * remote.seconds_per_round}
    try:
        answer = httpx.post(f"{remote.url.rstrip('/')}/rehearsal/clock", json=body, headers=headers, timeout=60.0)
    except httpx.TransportError as error:
        raise ClientError(f"{remote.url} does not answer: {error}") from None
    if not answer.is_success:
        raise ClientError(f"{remote.url} cannot rehearse ({answer.status_code}); start it with --rehearsal")


def _name_campaigns(tasks: Sequence[Task], prefix: str | None) -> list[str]:
    """Name the campaign of each task; the same tasks always get the same names."""
    several = len({task.title for task in tasks}) > 1
    names = []
    for task in tasks:
        parts = [task.title] if prefix is None else [prefix, task.title] if several else [prefix]
        if prefix is None and isinstance(task.preset, str):
            parts.append(slugify(task.environment.name))
        names.append("-".join([*parts, str(task.seed)]))
    return names


class _StoppedError(Exception):
    """Raised to end a game between two steps."""


class _Players:
    """Threads that play the campaigns, and their progress bar."""

    def __init__(self, tasks: Sequence[Task], names: Sequence[str], remote: Remote, label: str) -> None:
        self._tasks, self._names, self._remote = tasks, names, remote
        self._games: list[Game | None] = [None] * len(tasks)
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._problem: BaseException | None = None
        total = sum(task.rounds for task in tasks)
        self._bar = tqdm(total=total, unit="round", desc=label, disable=None, smoothing=0.05)

    def play(self) -> Outcome:
        with self._bar, ThreadPoolExecutor(self._remote.concurrency) as pool:
            futures = [pool.submit(self._play_task, i) for i in range(len(self._tasks))]
            try:
                for future in futures:
                    future.result()
            except BaseException as problem:  # Ctrl-C reaches only this thread
                self._fail(problem)
                if not isinstance(problem, KeyboardInterrupt):
                    raise
            finally:
                self._stop.set()
        return self._collect_outcome()

    def _fail(self, problem: BaseException) -> None:
        with self._lock:
            self._problem = self._problem or problem
        self._stop.set()

    def _play_task(self, index: int) -> None:
        if self._stop.is_set():
            return
        task, remote = self._tasks[index], self._remote
        config = task.build_config(self._names[index])
        game = self._games[index] = Game(task, config)
        with _connect(remote, self._pause) as client, suppress(_StoppedError):
            try:
                advance = partial(_advance_clock, remote) if remote.seconds_per_round else None
                agent = HttpAgent(client, config, remote.batch, advance)
                _require_same_rewards(game, agent)
                game.play(agent, config.stage_length if remote.batch else 1, self._show_progress)
            except ClientError as problem:
                if isinstance(problem, ServiceError) and problem.status == 409:
                    problem = ClientError(
                        f"campaign {config.name} at {client.url} belongs to a different run (different --environment,"
                        f" --rounds or --reward-model?); choose another --name. The service says: {problem}"
                    )
                self._fail(problem)

    def _pause(self, seconds: float) -> None:
        """Wait before a retry, or stop if the whole run has been stopped."""
        if self._stop.wait(seconds):
            raise _StoppedError

    def _show_progress(self, game: Game) -> None:
        with self._lock:
            if not self._bar.disable:
                active = [g for g in self._games if g is not None and 0 < g.done < g.task.rounds] or [game]
                regret = sum(g.regret for g in active) / len(active)
                self._bar.set_postfix_str(f"regret {regret:.1f}", refresh=False)
            self._bar.update(sum(g.done for g in self._games if g is not None) - self._bar.n)
        if self._stop.is_set() and game.done < game.task.rounds:
            raise _StoppedError

    def _collect_outcome(self) -> Outcome:
        """Collect the finished runs; if there are none, the started runs up to the round they all reached."""
        played = [game.done if game else 0 for game in self._games]
        rounds = max(task.rounds for task in self._tasks)
        if all(done < rounds for done in played):
            rounds = min((done for done in played if done), default=0)
        runs = [game.measure(rounds) if game and rounds and game.done >= rounds else None for game in self._games]
        return Outcome(runs, rounds, played, self._problem)


def _require_same_rewards(game: Game, agent: HttpAgent) -> None:
    """Refuse to continue a campaign that does not have the rewards this run would have sent by now."""
    if game.config.rewards.wait_seconds is not None:  # the service fills in missing rewards itself
        return
    decided, length = min(agent.rounds_decided, game.task.rounds), game.config.stage_length
    stage_start = max(0, decided - 1) // length * length
    fewest, most = game.schedule.count_due(stage_start), game.schedule.count_due(decided)
    if not fewest <= agent.rewards_received <= most:
        raise ClientError(
            f"campaign {game.config.name} has {agent.rewards_received} rewards in {agent.rounds_decided} rounds, which"
            " does not match this run (different --rounds, --reward-delay or --reward-loss?); choose another --name"
        )
