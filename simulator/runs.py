"""Many campaigns: in the processes of this machine, or side by side at a service. Stopped, they keep what ran."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from typing import NamedTuple

from joblib import Parallel, delayed
from tqdm import tqdm

from simulator.agents import HttpAgent
from simulator.client import Client, ClientError, ServiceError
from simulator.presets import slug
from simulator.replay import ORACLE, Game, Run, Task, replay_seed

__all__ = ["Outcome", "Remote", "play_at_service", "play_in_process"]


class Outcome(NamedTuple):
    """What ran: a run for each task, cut to `rounds`; None for a task that got nowhere near."""

    runs: list[Run | None]
    rounds: int
    played: list[int]  # rounds of each task, whether or not its run is among `runs`
    problem: BaseException | None = None  # why not everything ran: a KeyboardInterrupt, or what the service said


class Remote(NamedTuple):
    """The service to play at, and how."""

    url: str
    key: str | None = None
    batch: bool = False  # a stage in a request, not a round
    name: str | None = None  # begins the campaigns' names
    concurrency: int = 1  # campaigns at once
    patience: float = 60.0  # seconds


def play_in_process(tasks: Sequence[Task], jobs: int = -1, label: str = "") -> Outcome:
    """Every task on the local cores."""
    for task in tasks:  # fail before the work, not in a worker
        if task.preset != ORACLE:
            task.config()
    runs: list[Run | None] = []
    problem = None
    parallel = Parallel(n_jobs=min(jobs, len(tasks)), return_as="generator")
    try:
        with tqdm(total=len(tasks), unit="run", desc=label, disable=None) as bar:
            for run in parallel(delayed(replay_seed)(*task) for task in tasks):
                runs.append(run)
                bar.update()
    except KeyboardInterrupt as stopped:
        if not runs:
            raise
        problem = stopped
    played = [task.rounds if i < len(runs) else 0 for i, task in enumerate(tasks)]
    return Outcome(runs + [None] * (len(tasks) - len(runs)), tasks[0].rounds, played, problem)


def play_at_service(tasks: Sequence[Task], remote: Remote, label: str = "") -> Outcome:
    """Every task as a campaign of the service. Stopped, the same call goes on where it was."""
    with Client(remote.url, remote.key, remote.patience) as client:
        client.check_version(version("undercurrent"))
    names = _names(tasks, remote.name)
    for task, name in zip(tasks, names, strict=True):
        task.config(name)
    crew = _Crew(tasks, names, remote, label)
    return crew.work()


def _names(tasks: Sequence[Task], prefix: str | None) -> list[str]:
    """What the tasks' campaigns are called: the same in every run of them."""
    several = len({task.title for task in tasks}) > 1
    names = []
    for task in tasks:
        parts = [task.title] if prefix is None else [prefix, task.title] if several else [prefix]
        if prefix is None and isinstance(task.preset, str):
            parts.append(slug(task.environment.name))
        names.append("-".join([*parts, str(task.seed)]))
    return names


class _StoppedError(Exception):
    """Ends a game between two steps."""


class _Crew:
    """Threads that play the campaigns, and what they show meanwhile."""

    def __init__(self, tasks: Sequence[Task], names: Sequence[str], remote: Remote, label: str) -> None:
        self._tasks, self._names, self._remote = tasks, names, remote
        self._games: list[Game | None] = [None] * len(tasks)
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._problem: BaseException | None = None
        total = sum(task.rounds for task in tasks)
        self._bar = tqdm(total=total, unit="round", desc=label, disable=None, smoothing=0.05)

    def work(self) -> Outcome:
        with self._bar, ThreadPoolExecutor(self._remote.concurrency) as pool:
            futures = [pool.submit(self._play, i) for i in range(len(self._tasks))]
            try:
                for future in futures:
                    future.result()
            except BaseException as problem:  # Ctrl-C reaches only this thread
                self._fail(problem)
                if not isinstance(problem, KeyboardInterrupt):
                    raise
            finally:
                self._stop.set()
        return self._outcome()

    def _fail(self, problem: BaseException) -> None:
        with self._lock:
            self._problem = self._problem or problem
        self._stop.set()

    def _play(self, index: int) -> None:
        if self._stop.is_set():
            return
        task, remote = self._tasks[index], self._remote
        config, episode = task.config(self._names[index]), task.episode()
        schedule = task.delivery.schedule(episode.delays, task.rounds, task.seed)
        game = self._games[index] = Game(task, config, episode, schedule)
        with Client(remote.url, remote.key, remote.patience, sleep=self._pause) as client, suppress(_StoppedError):
            try:
                agent = HttpAgent(client, config, remote.batch)
                _require_same_rewards(game, agent)
                game.play(agent, config.stage_length if remote.batch else 1, self._tick)
            except ClientError as problem:
                self._fail(_explained(problem, config.name, client.url))

    def _pause(self, seconds: float) -> None:
        """Wait for the service, unless all is over."""
        if self._stop.wait(seconds):
            raise _StoppedError

    def _tick(self, game: Game) -> None:
        with self._lock:
            if not self._bar.disable:
                at_work = [g for g in self._games if g is not None and 0 < g.done < g.task.rounds] or [game]
                regret = sum(g.regret for g in at_work) / len(at_work)
                self._bar.set_postfix_str(f"regret {regret:.1f}", refresh=False)
            self._bar.update(sum(g.done for g in self._games if g is not None) - self._bar.n)
        if self._stop.is_set() and game.done < game.task.rounds:
            raise _StoppedError

    def _outcome(self) -> Outcome:
        """Finished runs; if there is none, those that were begun, up to the round that they all reached."""
        played = [0 if game is None else game.done for game in self._games]
        rounds = max(task.rounds for task in self._tasks)
        if all(done < rounds for done in played):
            rounds = min((done for done in played if done), default=0)
        runs = [
            game.measured(rounds) if game is not None and rounds and game.done >= rounds else None
            for game in self._games
        ]
        return Outcome(runs, rounds, played, self._problem)


def _require_same_rewards(game: Game, agent: HttpAgent) -> None:
    """A campaign that is taken up must have got the rewards that this run would have given it by now."""
    if game.config.rewards.wait_seconds is not None:  # the service makes some up
        return
    known, length = min(agent.known, game.task.rounds), game.config.stage_length
    stage_start = max(0, known - 1) // length * length
    if not game.schedule.count(stage_start) <= agent.rewarded <= game.schedule.count(known):
        raise ClientError(
            f"campaign {game.config.name} has {agent.rewarded} rewards in {agent.known} rounds, which are not those of"
            " this run (another --rounds, --reward-delay or --reward-loss?); choose another --name"
        )


def _explained(problem: ClientError, name: str, url: str) -> ClientError:
    if isinstance(problem, ServiceError) and problem.status == 409:
        return ClientError(
            f"campaign {name} at {url} holds another run (another --environment, --rounds or --reward-model?); choose"
            f" another --name. The service says: {problem}"
        )
    return problem
