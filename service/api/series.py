"""The series of a campaign: what its page plots, down-sampled here, with every regime change where it happened."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Query, Response
from pydantic import BaseModel, Field

from policy import CampaignConfig
from policy.lift import Compared, Lifts, cumulative_lift
from service.access.roles import READERS, allow
from service.analysis.buckets import Changes, bucket_starts, lasting_changes, mean_beliefs, tallied
from service.analysis.columns import KINDS, MODES, ColumnCache, Columns
from service.base.times import timestamp
from service.engine.recovery import get_campaign
from service.engine.worker import Service
from service.storage.reading import rounds_between
from service.storage.rows import RevisionRow
from service.web.openapi import describe_errors
from service.web.times import Moment, interval

__all__ = ["add_series_routes"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
LEAST_POINTS, MOST_POINTS = 10, 2_000
MOST_NOTES = 200  # of a kind: the newest


class Rewards(BaseModel):
    count: int
    sum: float


class Lift(BaseModel):
    """From the beginning of the range to the end of the bucket: what a decision of the model earns more than control's.

    After the warm start and while control was on.
    """

    decided_rewards: int
    decided_mean: float | None
    control_rewards: int
    control_mean: float | None
    difference: Annotated[float | None, Field(description="null until both groups have 20 rewards, by subject")]
    low: Annotated[float | None, Field(description="of its 95 % interval")]
    high: float | None


class Bucket(BaseModel):
    """Rounds next to each other."""

    first_round: int
    last_round: int
    first_decided_at: str
    last_decided_at: str
    belief: Annotated[list[float] | None, Field(description="the mean of each regime's probability; null if erased")]
    last_belief: Annotated[list[float] | None, Field(description="in its last round")]
    actions: Annotated[dict[str, int], Field(description="decisions")]
    modes: dict[str, int]
    models: Annotated[int, Field(description="published before one of its rounds")]
    rewards: Rewards
    decided: Annotated[Rewards, Field(description="of rounds that the model decided, after the warm start")]
    control: Rewards
    lift: Lift


class RegimeChange(BaseModel):
    """Another regime became the likeliest, and stayed so for at least `alert_rounds` rounds."""

    since_round: Annotated[int, Field(description="the first of them; a bucket begins here")]
    round: Annotated[int, Field(description="in which it had lasted long enough")]
    decided_at: Annotated[str, Field(description="of since_round")]
    before: Annotated[int, Field(description="regimes count from 1")]
    after: int
    before_label: str | None
    after_label: str | None


class RegimesInUse(BaseModel):
    round: Annotated[int, Field(description="from this one on")]
    regimes: int


class Publication(BaseModel):
    model_version: int
    kind: Literal["update", "estimation", "actions", "rollback", "erasure"]
    round: Annotated[int, Field(description="decisions made before it")]
    regimes: int
    published_at: str


class Note(BaseModel):
    """A change by someone."""

    revision: int
    kind: Literal["created", "configuration", "rollback", "erasure"]
    round: Annotated[int, Field(description="decisions made before it")]
    changed: Annotated[list[str], Field(description="fields of the configuration that got another value")]
    restored_model_version: int | None
    erased_decisions: int | None
    created_at: str


class Series(BaseModel):
    """A campaign over time, in buckets of rounds."""

    campaign: str
    round: Annotated[int, Field(description="decisions so far")]
    first_round: Annotated[int | None, Field(description="of the range; null if nothing was decided in it")]
    last_round: int | None
    beliefs: Literal["as_decided", "now"]
    regimes: Annotated[int, Field(description="in use now")]
    regime_labels: list[str]
    action_names: list[str]
    alert_rounds: int
    buckets: list[Bucket]
    regime_changes: Annotated[list[RegimeChange], Field(description="all of the range, unless some were left out")]
    regime_changes_left_out: Annotated[int, Field(description="beyond 2,000, those that lasted shortest")]
    regimes_in_use: Annotated[list[RegimesInUse], Field(description="at first, and where their number changed")]
    models: Annotated[dict[str, int], Field(description="published in the range, by kind")]
    publications: Annotated[list[Publication], Field(description="other than stage updates; the newest 200, in order")]
    revisions: Annotated[list[Note], Field(description="the newest 200, in order")]


def add_series_routes(app: FastAPI, service: Service) -> None:
    """The series of a campaign."""
    cache = ColumnCache()

    @app.get("/campaigns/{name}/series", tags=["reports"], response_model=Series, responses=describe_errors(404, 422))
    @allow(READERS, campaign="path")
    def series(
        name: str,
        start: Annotated[Moment, Query(alias="from")] = None,
        to: Moment = None,
        points: Annotated[int, Query(ge=LEAST_POINTS, le=MOST_POINTS, description="buckets at most")] = 400,
        beliefs: Annotated[
            Literal["as_decided", "now"], Query(description="what it believed then, or what it knows of then now")
        ] = "as_decided",
    ) -> Response:
        """What was decided from `from` on and before `to`, in at most so many buckets of rounds: beliefs, actions,
        rewards and the lift over control as it builds up. Every regime change of the range begins a bucket."""
        begin, end = interval(start, to)
        with service.store.reading() as tx:
            row, _ = get_campaign(tx, name)
            after, last = rounds_between(tx, row.campaign_id, begin, end)
            revisions = tx.revisions_after(row.campaign_id, 0)
            state = service.campaigns.read_entry(tx, row).state if beliefs == "now" else None
            config = CampaignConfig.model_validate_json(revisions[-1].config)
            with cache.read(tx, row, revisions, config) as columns:
                settled = row.round if config.rewards.default is None else row.settled
                picture = _Picture(columns, config, revisions, after, min(last, row.round), row.round, settled)
                if state is not None:
                    picture.believe(state.history.beliefs[: row.round], state.belief.size)
                answer = picture.answer(points)
        answer |= {"campaign": row.name, "beliefs": beliefs, "regimes": len(msgspec.json.decode(row.belief))}
        return Response(msgspec.json.encode(answer), media_type="application/json")


class _Picture:
    """A range of a campaign's rounds (after … last], and everything before and after that it depends on."""

    def __init__(
        self,
        columns: Columns,
        config: CampaignConfig,
        revisions: Sequence[RevisionRow],
        after: int,
        last: int,
        rounds: int,
        settled: int,
    ) -> None:
        self._after, self._last, self._rounds, self._settled = after, last, rounds, settled
        self._rows, self._models = columns.rows[:rounds], columns.models
        self._config, self._revisions = config, revisions
        self._configs = [msgspec.json.decode(revision.config) for revision in revisions]
        self._beliefs, self._regimes = self._rows["belief"], self._rows["regimes"]

    def believe(self, beliefs: FloatArray, regimes: int) -> None:
        """Take these beliefs instead of those that were decided with."""
        self._beliefs, self._regimes = beliefs, np.full(len(beliefs), regimes, np.int8)

    def answer(self, points: int) -> dict[str, Any]:
        after, last = self._after, self._last
        changes = lasting_changes(self._beliefs, self._regimes, self._config.alerts.rounds)
        changes = changes.picked((changes.since >= after) & (changes.since < last))
        left_out = max(0, changes.since.size - MOST_POINTS)
        if left_out:
            lasted = np.diff(changes.since, append=last)
            longest = np.argsort(-lasted, kind="stable")[:MOST_POINTS]
            changes = changes.picked(np.isin(np.arange(changes.since.size), longest))
        starts = bucket_starts(after, last, points, changes.since)
        models = self._models[self._within(self._models["round"])]
        empty = after >= last
        return {
            "round": self._rounds,
            "first_round": None if empty else after + 1,
            "last_round": None if empty else last,
            "regime_labels": self._config.regime_labels,
            "action_names": self._config.actions,
            "alert_rounds": self._config.alerts.rounds,
            "buckets": [] if empty else self._buckets(starts, models["round"]),
            "regime_changes": self._changes(changes),
            "regime_changes_left_out": left_out,
            "regimes_in_use": self._in_use(),
            "models": {kind: count for kind, count in _counted(models["kind"].tolist(), KINDS).items() if count},
            "publications": _publications(models[models["kind"] != "update"][-MOST_NOTES:]),
            "revisions": self._notes(),
        }

    def _within(self, rounds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """What happened before one of the range's rounds, or since the last one of all."""
        newest = (rounds == self._last) & (self._last == self._rounds)
        inside: npt.NDArray[np.bool_] = (rounds >= self._after) & ((rounds < self._last) | newest)
        return inside

    # --- buckets -----------------------------------------------------------------------------------------------

    def _buckets(self, starts: IntArray, published: IntArray) -> list[dict[str, Any]]:
        rows, span, count = self._rows[self._after : self._last], slice(self._after, self._last), starts.size
        ends = np.append(starts[1:], self._last)
        bucket = np.repeat(np.arange(count), ends - starts)
        # With a default reward, later rounds tell nothing yet: of them only some rewards have come (reports).
        rewarded = ~np.isnan(rows["reward"]) & (np.arange(self._after, self._last) < self._settled)
        rewards, modes, actions = np.where(rewarded, rows["reward"], 0.0), rows["mode"], rows["action"]
        kinds, names = len(MODES), self._config.actions
        earned = tallied(bucket, count, modes, kinds, rewarded.astype(np.float64)).astype(np.int64)
        sums = tallied(bucket, count, modes, kinds, rewards)
        model = np.searchsorted(starts, np.minimum(published, self._last - 1), side="right") - 1
        decided, control = MODES.index("optimistic"), MODES.index("control")
        columns: dict[str, Iterable[Any]] = {
            "first_round": (starts + 1).tolist(),
            "last_round": ends.tolist(),
            "first_decided_at": map(timestamp, self._rows["decided_at"][starts].tolist()),
            "last_decided_at": map(timestamp, self._rows["decided_at"][ends - 1].tolist()),
            "belief": self._laws(mean_beliefs(self._beliefs[span], self._regimes[span], starts - self._after)),
            "last_belief": self._laws(np.where(self._regimes[ends - 1, None] > 0, self._beliefs[ends - 1], np.nan)),
            "actions": _named(tallied(bucket, count, actions, len(names)), names),
            "modes": _named(tallied(bucket, count, modes, kinds), MODES),
            "models": np.bincount(model, minlength=count).tolist(),
            "rewards": _rewards(earned.sum(axis=1), sums.sum(axis=1)),
            "decided": _rewards(earned[:, decided], sums[:, decided]),
            "control": _rewards(earned[:, control], sums[:, control]),
            "lift": _lifts(self._lift(rows, rewarded, ends - self._after)),
        }
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _laws(self, beliefs: FloatArray) -> list[list[float] | None]:
        """Beliefs of as many regimes as the range has at most."""
        most = max(1, int(self._regimes[self._after : self._last].max(initial=1)))
        return [None if law[0] != law[0] else law for law in beliefs[:, :most].tolist()]

    def _lift(self, rows: npt.NDArray[Any], rewarded: npt.NDArray[np.bool_], ends: IntArray) -> Lifts:
        """Where control was of the kind that it was last: two kinds have no one lift."""
        held = (
            np.searchsorted(
                [revision.round for revision in self._revisions], np.arange(self._after, self._last), side="right"
            )
            - 1
        )
        share = np.array([config["control"]["share"] for config in self._configs])[held]
        kind = np.array([config["control"]["kind"] == "baseline" for config in self._configs])[held]
        controlled = rows["mode"] == MODES.index("control")
        counted = rewarded & (controlled | (rows["mode"] == MODES.index("optimistic"))) & (share > 0.0)
        if counted.any():
            counted &= kind == kind[np.flatnonzero(counted)[-1]]
        places = np.flatnonzero(counted)
        compared = Compared(rows["reward"][places], controlled[places], share[places], rows["cluster"][places])
        return cumulative_lift(compared, np.searchsorted(places, ends))

    # --- what is marked ----------------------------------------------------------------------------------------

    def _changes(self, changes: Changes) -> list[dict[str, Any]]:
        labels, rounds = dict(enumerate(self._config.regime_labels)), self._config.alerts.rounds
        return [
            {
                "since_round": since + 1,
                "round": since + rounds,
                "decided_at": timestamp(int(self._rows["decided_at"][since])),
                "before": before + 1,
                "after": after + 1,
                "before_label": labels.get(before),
                "after_label": labels.get(after),
            }
            for since, before, after in zip(*(column.tolist() for column in changes[:3]), strict=True)
        ]

    def _in_use(self) -> list[dict[str, int]]:
        regimes = self._regimes[self._after : self._last]
        known = np.flatnonzero(regimes)
        changed = known[np.diff(regimes[known], prepend=0) != 0][-MOST_NOTES:]
        return [{"round": self._after + row + 1, "regimes": int(regimes[row])} for row in changed.tolist()]

    def _notes(self) -> list[dict[str, Any]]:
        inside = self._within(np.array([revision.round for revision in self._revisions])).tolist()
        notes, earlier = [], dict[str, Any]()
        for revision, fields, shown in zip(self._revisions, self._configs, inside, strict=True):
            if shown:
                changed = [name for name in fields if earlier and fields[name] != earlier.get(name)]
                notes.append(_note(revision, changed))
            earlier = fields
        return notes[-MOST_NOTES:]


def _note(revision: RevisionRow, changed: list[str]) -> dict[str, Any]:
    kind = "created" if revision.revision == 1 else "configuration"
    if revision.restored is not None:
        kind = "rollback"
    elif revision.erased is not None:
        kind = "erasure"
    return {
        "revision": revision.revision,
        "kind": kind,
        "round": revision.round,
        "changed": changed,
        "restored_model_version": revision.restored,
        "erased_decisions": revision.erased,
        "created_at": timestamp(revision.created_at),
    }


def _publications(models: npt.NDArray[Any]) -> list[dict[str, Any]]:
    return [
        {
            "model_version": version,
            "kind": kind,
            "round": round,
            "regimes": regimes,
            "published_at": timestamp(published_at),
        }
        for version, round, published_at, regimes, kind in models.tolist()
    ]


def _counted(found: Iterable[str], names: Sequence[str]) -> dict[str, int]:
    counts = Counter(found)
    return {name: counts[name] for name in names}


def _named(table: FloatArray, names: Sequence[str]) -> list[dict[str, int]]:
    return [dict(zip(names, counts, strict=True)) for counts in table.astype(np.int64).tolist()]


def _rewards(counts: IntArray, sums: FloatArray) -> list[dict[str, Any]]:
    return [{"count": count, "sum": total} for count, total in zip(counts.tolist(), sums.tolist(), strict=True)]


def _lifts(lifts: Lifts) -> list[dict[str, Any]]:
    columns = {
        "decided_rewards": lifts.decided.rewards,
        "decided_mean": lifts.decided.mean,
        "control_rewards": lifts.control.rewards,
        "control_mean": lifts.control.mean,
        "difference": lifts.difference,
        "low": lifts.low,
        "high": lifts.high,
    }
    each = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        {name: None if value != value else value for name, value in zip(columns, values, strict=True)}
        for values in each
    ]
