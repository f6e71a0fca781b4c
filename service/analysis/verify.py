"""Verification: replay the log of a campaign from its first round and compare it with what is stored (R14, R15)."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from policy import CodecError, Decision, PolicyError, State, decode
from policy.codec import decode_estimate
from service.engine.fold import MissingInput, Replay
from service.engine.recovery import coefficients_match, load_first_position, numbers_match
from service.storage.models import read_models
from service.storage.reading import find_wrong_rewards
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
    for wrong in find_wrong_rewards(tx, campaign):
        if wrong.replaced_by != wrong.next_arrival:
            told = f"replaced_by is {wrong.replaced_by}, the log gives {wrong.next_arrival}"
        else:
            told = f"reward is {wrong.reward}, its amounts give {wrong.total}"
        yield f"reward {wrong.arrival} of round {wrong.round}: {told}"
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
                    for row, belief in zip(part.rows, part.beliefs, strict=True):  # their actions were given
                        if stored := msgspec.json.decode(row.explanation)["belief"]:  # an erased row has none
                            yield from _compare_numbers(f"round {row.round}: ", {"belief": (stored, belief)})
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
    for round, arrived, _ in replay.missed:
        yield f"snapshot of round {round}: the log never had {arrived} rewards at that point"
    yield from models.find_unpublished()
    state = replay.state
    yield from _compare_fields(
        "live ", live, {name: getattr(state, name) for name in ("round", "arrived", "folded", "model_version")}
    )
    yield from _compare_numbers("live ", {"belief": (msgspec.json.decode(live.belief), state.belief)})


def _compare_fields(prefix: str, stored: object, replayed: Mapping[str, object]) -> Iterator[str]:
    for field, new in replayed.items():
        old = getattr(stored, field)
        if old != new:
            yield f"{prefix}{field} is {old}, the replay gives {new}"


def _compare_numbers(prefix: str, pairs: Mapping[str, tuple[Sequence[float], npt.ArrayLike]]) -> Iterator[str]:
    for field, (old, new) in pairs.items():
        if not numbers_match(old, new):
            yield f"{prefix}{field} is {old}, the replay gives {np.asarray(new).tolist()}"


def _compare_snapshots(tx: Transaction, campaign: int, replay: Replay) -> Iterator[str]:
    for state in replay.paused:
        stored = decode(get_snapshot(tx, campaign, state.round))
        for name, old, new in (
            ("belief", stored.belief, state.belief),
            ("beliefs of record", stored.history.beliefs[: stored.rows], state.history.beliefs[: state.rows]),
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
    prefix, stored = f"round {row.round}: ", msgspec.json.decode(row.explanation)
    fields = ("round", "model_version", "mode", "action")
    yield from _compare_fields(prefix, row, {name: getattr(replayed, name) for name in fields})
    if [score["action"] for score in stored["scores"]] != list(replayed.eligible):
        yield f"{prefix}the scored actions are not those of the replay"
        return
    estimates, bonuses, scores = (
        [score[name] for score in stored["scores"]] for name in ("estimate", "bonus", "score")
    )
    pairs = {
        "propensity": ([row.propensity], [replayed.propensity]),
        "belief": (stored["belief"], replayed.belief),
        "estimates": (estimates, replayed.estimates),
        "bonuses": (bonuses, replayed.bonuses),
        "scores": (scores, [score.score for score in replayed.scores]),
    }
    yield from _compare_numbers(prefix, pairs)


class _Models:
    """The stored models, read in step with the replay."""

    def __init__(self, rows: Iterator[ModelRow]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def compare(self, replay: Replay) -> Iterator[str]:
        """Compare the models that the replay has published since the last call."""
        for kind, (revision, _, state) in replay.models:
            version, row = state.model_version, self._next
            if row is None or row.version > version:
                yield f"model {version} is missing"
                continue
            self._next = next(self._rows, None)
            fields = {"version": version, "kind": kind, "round": state.round, "arrived": state.arrived}
            if revision >= replay.exact_from:  # an erasure changes what earlier models learned
                fields |= {"folded": state.counted, "regimes": state.belief.size}
                if not coefficients_match(row.theta, state):
                    yield f"model {version}: its coefficients differ from the replay"
            yield from _compare_fields(f"model {version}: ", row, fields)
        replay.models.clear()

    def find_unpublished(self) -> Iterator[str]:
        """Stored models that the replay did not publish."""
        while self._next is not None:
            yield f"model {self._next.version} is stored, but the log does not lead to it"
            self._next = next(self._rows, None)
