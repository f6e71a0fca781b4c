"""`undercurrent verify`: fold the log from its first round and compare everything with what is stored (R14, R15)."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from policy import CodecError, Decision, PolicyError, State, decode
from policy.codec import decode_estimate
from service.engine.fold import MissingInput, Replay
from service.engine.ids import Ids, hash_ids
from service.engine.recovery import coefficients_match, load_first_position, numbers_match
from service.storage.rows import DecisionRow, LiveRow, NewModel
from service.storage.statements import PAGE
from service.storage.transaction import Transaction

__all__ = ["find_differences"]


def find_differences(tx: Transaction, live: LiveRow, progress: bool = False) -> Iterator[str]:
    """What the fold finds different from the log's answers, the stored models and the live row."""
    campaign = live.campaign_id
    moments = []
    for moment in reversed(tx.snapshot_moments(campaign)):
        round = moment[0]
        try:
            decode(tx.snapshot(campaign, round))
            moments.append(moment)
        except CodecError as error:
            yield f"snapshot of round {round}: {error}"
    for job in tx.jobs_after(campaign, 0):
        try:
            if job.result is not None:
                decode_estimate(job.result)
        except CodecError as error:
            yield f"re-estimation of round {job.input_round}: {error}"
    replay = Replay(load_first_position(tx, campaign), tx, campaign, recompute=True, pauses=moments)
    models = _Models(tx.models_of(campaign))
    try:
        with tqdm(total=live.round, desc=live.name, unit=" decisions", disable=not progress, leave=False) as bar:
            for part in replay.parts():
                yield from models.differences(replay)
                if part.decided:
                    for row, decision in zip(part.rows, part.decisions, strict=True):
                        yield from _decision_differences(row, decision)
                elif part.beliefs is not None:
                    for row, belief in zip(part.rows, part.beliefs, strict=True):
                        yield from _belief_differences(row, belief)
                yield from _snapshot_differences(tx, campaign, replay)
                bar.update(len(part.rows))
    except MissingInput:
        yield f"after round {replay.state.round} the log goes back to a model that it never made"
        return
    except (PolicyError, ValueError, AssertionError) as error:
        yield f"after round {replay.state.round} the log cannot be folded: {error}"
        return
    yield from models.differences(replay)
    yield from _snapshot_differences(tx, campaign, replay)
    yield from (
        f"snapshot of round {moment[0]}: the log never had {moment[1]} rewards then" for moment in replay.missed
    )
    yield from models.left()
    state = replay.state
    for field, found in (
        ("round", state.round),
        ("arrived", state.arrived),
        ("folded", state.folded),
        ("model_version", state.model_version),
    ):
        if getattr(live, field) != found:
            yield f"live {field} is {getattr(live, field)}, the fold gives {found}"
    if not numbers_match(msgspec.json.decode(live.belief), state.belief):
        yield f"live belief is {live.belief}, the fold gives {state.belief.tolist()}"
    yield from _id_differences(tx, campaign)


def _id_differences(tx: Transaction, campaign: int) -> Iterator[str]:
    """Ids that two decisions have, and blocks of hashes that are not those of the ids."""
    ids, names, blocks = Ids(), tx.ids_after(campaign, 0), tx.id_blocks(campaign)
    while page := list(islice(names, PAGE)):
        hashes = hash_ids(page)
        before = tx.known(campaign, ids.rounds_of(hashes))
        for name, times in Counter(page).items():
            if times > 1 or name in before:
                yield f"decision_id {name!r} is that of several decisions"
        ids.extend(ids.count, hashes)
    done = 0
    for last, stored in blocks:
        if stored != ids.block(done, last):
            yield f"the ids of rounds {done + 1} to {last} have other hashes than are stored"
        done = last


def _snapshot_differences(tx: Transaction, campaign: int, replay: Replay) -> Iterator[str]:
    for state in replay.paused:
        stored = decode(tx.snapshot(campaign, state.round))
        for name, was, now in (
            ("belief", stored.belief, state.belief),
            ("beliefs of record", stored.history.beliefs[: state.round], state.history.beliefs[: state.round]),
            ("excluded rewards", stored.history.excluded, state.history.excluded),
            ("schedule", _schedule(stored), _schedule(state)),
            *((name, getattr(stored.statistics, name), a) for name, a in state.statistics._asdict().items()),
        ):
            if not numbers_match(was, now):
                yield f"snapshot of round {state.round}: its {name} differ from the fold's"
    replay.paused.clear()


def _schedule(state: State) -> list[int]:
    return [state.next_update, state.next_estimation, state.trial_end, state.rebuild]


def _decision_differences(row: DecisionRow, found: Decision) -> Iterator[str]:
    for field in ("round", "model_version", "mode", "action"):
        if getattr(row, field) != getattr(found, field):
            yield f"round {row.round}: {field} is {getattr(row, field)}, the fold gives {getattr(found, field)}"
    stored = msgspec.json.decode(row.explanation)
    scores = stored["scores"]
    if [score["action"] for score in scores] != list(found.eligible):
        yield f"round {row.round}: other actions were scored than the fold allows"
        return
    for field, was, now in (
        ("propensity", [row.propensity], [found.propensity]),
        ("belief", stored["belief"], found.belief),
        ("estimates", [score["estimate"] for score in scores], found.estimates),
        ("bonuses", [score["bonus"] for score in scores], found.bonuses),
        ("scores", [score["score"] for score in scores], [score.score for score in found.scores]),
    ):
        if not numbers_match(was, now):
            yield f"round {row.round}: {field} is {was}, the fold gives {list(now)}"


def _belief_differences(row: DecisionRow, found: npt.NDArray[np.float64]) -> Iterator[str]:
    """Of a row that carries no request: its action is a fact, only its belief is the fold's."""
    stored = msgspec.json.decode(row.explanation)["belief"]
    if stored and not numbers_match(stored, found):  # an erased row has none
        yield f"round {row.round}: belief is {stored}, the fold gives {found.tolist()}"


class _Models:
    """The stored models, in step with the fold's."""

    def __init__(self, rows: Iterator[NewModel]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def differences(self, replay: Replay) -> Iterator[str]:
        """Of the models that the fold has made since it was last asked."""
        for kind, start in replay.models:
            yield from self._differences(kind, start.state, start.revision < replay.rebuilt_by)
        replay.models.clear()

    def _differences(self, kind: str, state: State, rebuilt: bool) -> Iterator[str]:
        """What was learned before an erasure is not what it was; when it was published still is."""
        version, row = state.model_version, self._next
        if row is None or row.version > version:
            yield f"model {version} is missing"
            return
        self._next = next(self._rows, None)
        for field, found in (
            ("version", version),
            ("kind", kind),
            ("round", state.round),
            ("arrived", state.arrived),
            *(() if rebuilt else (("folded", state.counted), ("regimes", state.belief.size))),
        ):
            if getattr(row, field) != found:
                yield f"model {version}: {field} is {getattr(row, field)}, the fold gives {found}"
        if not rebuilt and not coefficients_match(row.theta, state):
            yield f"model {version}: its coefficients differ from the fold's"

    def left(self) -> Iterator[str]:
        """Models that the fold did not make."""
        while self._next is not None:
            yield f"model {self._next.version} is stored but the log does not lead to it"
            self._next = next(self._rows, None)
