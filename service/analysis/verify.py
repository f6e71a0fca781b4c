"""Verification: replay the log of a campaign from its first round and compare it with what is stored (R14, R15)."""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from policy import CodecError, Decision, PolicyError, State, decode
from policy.codec import decode_estimate
from service.engine.fold import MissingInput, Replay
from service.engine.recovery import coefficients_match, load_first_position, numbers_match
from service.storage.models import read_models
from service.storage.rows import DecisionRow, LiveRow, ModelRow
from service.storage.snapshots import get_snapshot, read_snapshot_points
from service.storage.transaction import Transaction


def find_differences(tx: Transaction, live: LiveRow, progress: bool = False) -> Iterator[str]:
    """Describe every difference between the replay and the stored decisions, models, snapshots and live row."""
    campaign = live.campaign_id
    snapshots = []
    for snapshot in reversed(read_snapshot_points(tx, campaign)):
        round = snapshot.round
        try:
            decode(get_snapshot(tx, campaign, round))
            snapshots.append(snapshot)
        except CodecError as error:
            yield f"snapshot of round {round}: {error}"
    for job in tx.read_jobs(campaign, 0):
        try:
            if job.result is not None:
                decode_estimate(job.result)
        except CodecError as error:
            yield f"re-estimation of round {job.input_round}: {error}"
    replay = Replay(load_first_position(tx, campaign), tx, campaign, recompute=True, pauses=snapshots)
    models = _Models(read_models(tx, campaign))
    try:
        with tqdm(total=live.round, desc=live.name, unit=" decisions", disable=not progress, leave=False) as bar:
            for part in replay.parts():
                yield from models.compare(replay)
                if part.decided:
                    for row, decision in zip(part.rows, part.decisions, strict=True):
                        yield from _compare_decision(row, decision)
                elif part.beliefs is not None:
                    for row, belief in zip(part.rows, part.beliefs, strict=True):
                        yield from _compare_belief(row, belief)
                yield from _compare_snapshots(tx, campaign, replay)
                bar.update(len(part.rows))
    except MissingInput:
        yield f"after round {replay.state.round} the log rolls back to a model that was never published"
        return
    except (PolicyError, ValueError, AssertionError) as error:
        yield f"after round {replay.state.round} the log cannot be replayed: {error}"
        return
    yield from models.compare(replay)
    yield from _compare_snapshots(tx, campaign, replay)
    yield from (
        f"snapshot of round {round}: the log never had {arrived} rewards at that point"
        for round, arrived, _ in replay.missed
    )
    yield from models.find_unpublished()
    yield from _compare_live_row(live, replay.state)


def _compare_live_row(live: LiveRow, state: State) -> Iterator[str]:
    for field, replayed in (
        ("round", state.round),
        ("arrived", state.arrived),
        ("folded", state.folded),
        ("model_version", state.model_version),
    ):
        if getattr(live, field) != replayed:
            yield f"live {field} is {getattr(live, field)}, the replay gives {replayed}"
    if not numbers_match(msgspec.json.decode(live.belief), state.belief):
        yield f"live belief is {live.belief}, the replay gives {state.belief.tolist()}"


def _compare_snapshots(tx: Transaction, campaign: int, replay: Replay) -> Iterator[str]:
    for state in replay.paused:
        stored = decode(get_snapshot(tx, campaign, state.round))
        for name, old, new in (
            ("belief", stored.belief, state.belief),
            ("beliefs of record", stored.history.beliefs[: state.round], state.history.beliefs[: state.round]),
            ("excluded rewards", stored.history.excluded, state.history.excluded),
            ("schedule", _schedule(stored), _schedule(state)),
            *((name, getattr(stored.statistics, name), a) for name, a in state.statistics._asdict().items()),
        ):
            if not numbers_match(old, new):
                yield f"snapshot of round {state.round}: its {name} differs from the replay"
    replay.paused.clear()


def _schedule(state: State) -> list[int]:
    return [state.next_update, state.next_estimation, state.trial_end, state.rebuild]


def _compare_decision(row: DecisionRow, replayed: Decision) -> Iterator[str]:
    for field in ("round", "model_version", "mode", "action"):
        if getattr(row, field) != getattr(replayed, field):
            yield f"round {row.round}: {field} is {getattr(row, field)}, the replay gives {getattr(replayed, field)}"
    stored = msgspec.json.decode(row.explanation)
    scores = stored["scores"]
    if [score["action"] for score in scores] != list(replayed.eligible):
        yield f"round {row.round}: the scored actions are not those of the replay"
        return
    for field, old, new in (
        ("propensity", [row.propensity], [replayed.propensity]),
        ("belief", stored["belief"], replayed.belief),
        ("estimates", [score["estimate"] for score in scores], replayed.estimates),
        ("bonuses", [score["bonus"] for score in scores], replayed.bonuses),
        ("scores", [score["score"] for score in scores], [score.score for score in replayed.scores]),
    ):
        if not numbers_match(old, new):
            yield f"round {row.round}: {field} is {old}, the replay gives {list(new)}"


def _compare_belief(row: DecisionRow, replayed: npt.NDArray[np.float64]) -> Iterator[str]:
    """Compare a row without a request: its action was given, so only its belief can be checked."""
    stored = msgspec.json.decode(row.explanation)["belief"]
    if stored and not numbers_match(stored, replayed):  # an erased row has no belief
        yield f"round {row.round}: belief is {stored}, the replay gives {replayed.tolist()}"


class _Models:
    """The stored models, read in step with the replay."""

    def __init__(self, rows: Iterator[ModelRow]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def compare(self, replay: Replay) -> Iterator[str]:
        """Compare the models that the replay has published since the last call."""
        for kind, start in replay.models:
            yield from self._compare(kind, start.state, start.revision < replay.exact_from)
        replay.models.clear()

    def _compare(self, kind: str, state: State, rebuilt: bool) -> Iterator[str]:
        """Compare one model. An erasure changes what earlier models learned, but not when they were published."""
        version, row = state.model_version, self._next
        if row is None or row.version > version:
            yield f"model {version} is missing"
            return
        self._next = next(self._rows, None)
        for field, replayed in (
            ("version", version),
            ("kind", kind),
            ("round", state.round),
            ("arrived", state.arrived),
            *(() if rebuilt else (("folded", state.counted), ("regimes", state.belief.size))),
        ):
            if getattr(row, field) != replayed:
                yield f"model {version}: {field} is {getattr(row, field)}, the replay gives {replayed}"
        if not rebuilt and not coefficients_match(row.theta, state):
            yield f"model {version}: its coefficients differ from the replay"

    def find_unpublished(self) -> Iterator[str]:
        """Stored models that the replay did not publish."""
        while self._next is not None:
            yield f"model {self._next.version} is stored, but the log does not lead to it"
            self._next = next(self._rows, None)
