"""Which campaign a request means that names none: the one with its actions, whose variables are among its features."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from operator import attrgetter
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from policy import CampaignConfig
from policy.config import Variable
from service.base.errors import ApiError, ConflictError, FieldProblem, InvalidError
from service.storage.campaigns import get_newest_revisions, read_campaigns
from service.storage.rows import LiveRow, RevisionRow
from service.storage.store import Store

__all__ = ["Directory", "Shape", "values_of"]

RELOAD_SECONDS = 0.5  # what other workers did to a campaign is known that soon, as keys are
MOST_VALUES = 5_000  # of a request's features
MOST_TOLD = 5  # campaigns that a refusal tells about
LONGEST_NAME = 100  # of a variable: a longer path is none
SETTLED = "a key that is limited to one campaign settles it: undercurrent keys create --role client --campaign NAME"


# --- the values of a context ------------------------------------------------------------------------------------------


class _Several(NamedTuple):
    """A name that stands in several places, or in one with several values, so that it says nothing."""

    places: tuple[str, ...]


def values_of(features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every value of nested objects by its dotted path, and by its own name where that stands in one place only."""
    by_path: dict[str, Any] = {}
    places: dict[str, dict[str, None]] = {}  # of each name, in their order
    for count, (path, name, value) in enumerate(_leaves(features, "")):
        if count >= MOST_VALUES:
            raise InvalidError([FieldProblem(field="contextFeatures", message="too many", allowed=f"{MOST_VALUES}")])
        if path in by_path and by_path[path] != value:
            value = _Several((path,))
        by_path[path] = value
        if len(name) <= LONGEST_NAME:
            places.setdefault(name, {})[path] = None
    by_name = {
        name: by_path[next(iter(paths))] if len(paths) == 1 else _Several(tuple(paths))
        for name, paths in places.items()
    }
    return by_name | by_path


def _leaves(objects: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[tuple[str, str, Any]]:
    """(path, name, value) of every value that is there. A path too long for a variable is cut: bodies are large."""
    for one in objects:
        for name, value in one.items():
            path = f"{prefix}{name}"[: LONGEST_NAME + 1]
            if isinstance(value, dict):
                yield from _leaves([value], f"{path}.")
            elif value is not None:
                yield path, name, value


def _misfit(variable: Variable, values: Mapping[str, Any]) -> str | None:
    """Why the values have none for the variable."""
    if variable.name not in values:
        return "missing"
    value = values[variable.name]
    if isinstance(value, _Several):
        if len(value.places) == 1:
            return "has several values"
        return f"stands in several places ({', '.join(value.places[:MOST_TOLD])}): name the variable by its path"
    if variable.cuts is None and variable.range is None:
        return None if isinstance(value, str | int) else "is no text"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if is_number else "is no number"


# --- campaigns --------------------------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """A campaign as requests are matched with it: one revision of its configuration (R23)."""

    campaign_id: int
    name: str
    archived: bool
    changes: int  # of the live row: as long as it stays, so does the revision
    revision: int
    round: int  # the revision holds from the round after this one on
    config: CampaignConfig
    actions: frozenset[str]
    variables: frozenset[str]

    def fits(self, actions: frozenset[str], values: Mapping[str, Any]) -> bool:
        """But for being archived."""
        return (
            actions <= self.actions
            and self.variables <= values.keys()
            and not any(_misfit(variable, values) for variable in self.config.variables)
        )

    def context(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The campaign's variables among the values; of a request that does not fit, those there are."""
        found = {variable.name: values.get(variable.name) for variable in self.config.variables}
        return {name: str(value).lower() if isinstance(value, bool) else value for name, value in found.items()}

    def lacks(self, actions: Sequence[str], values: Mapping[str, Any]) -> int:
        """How far a request is from being one for this campaign."""
        unknown = sum(action not in self.actions for action in actions)
        return self.archived + unknown + sum(_misfit(v, values) is not None for v in self.config.variables)

    def misfits(self, actions: Sequence[str], values: Mapping[str, Any]) -> list[FieldProblem]:
        """All that a request lacks to be one for this campaign."""
        who = f"campaign {self.name!r}"
        found = [FieldProblem(field="actions", message=f"{who} is archived", allowed=None)] if self.archived else []
        if unknown := [action for action in actions if action not in self.actions]:
            message = f"{who} has no {', '.join(map(repr, unknown))}"
            found.append(FieldProblem(field="actions", message=message, allowed=list(self.config.actions)))
        for variable in self.config.variables:
            if reason := _misfit(variable, values):
                allowed = list(variable.levels) if variable.levels and not variable.cuts else "a number"
                message = f"{who} needs it: {reason}"
                found.append(FieldProblem(field=f"contextFeatures.{variable.name}", message=message, allowed=allowed))
        return found


class _Known(NamedTuple):
    """All campaigns, archived ones too, and two ways to the few that a request may fit."""

    shapes: Mapping[int, Shape]
    by_name: Mapping[str, Shape]
    by_action: Mapping[str, Sequence[Shape]]
    by_variable: Mapping[str | None, Sequence[Shape]]  # by the one that the fewest campaigns have

    @classmethod
    def of(cls, shapes: Mapping[int, Shape]) -> "_Known":
        by_action, by_variable = defaultdict[str, list[Shape]](list), defaultdict[str | None, list[Shape]](list)
        common = Counter(name for shape in shapes.values() for name in shape.variables)
        for shape in shapes.values():
            for action in shape.actions:
                by_action[action].append(shape)
            by_variable[min(shape.variables, key=lambda name: common[name], default=None)].append(shape)
        return cls(shapes, {shape.name: shape for shape in shapes.values()}, dict(by_action), dict(by_variable))

    def perhaps(self, actions: Iterable[str], values: Iterable[str]) -> list[Shape]:
        """Campaigns among which are all with these actions whose variables are among the values."""
        by_action = min((self.by_action.get(action, ()) for action in actions), key=len)
        by_variable = [self.by_variable[name] for name in (None, *values) if name in self.by_variable]
        if len(by_action) <= sum(map(len, by_variable)):
            return list(by_action)
        return [shape for shapes in by_variable for shape in shapes]


class Directory:
    """All campaigns of a database, as one worker knows them.

    They are read again twice a second if anyone asks. So a campaign that another worker has just created may be missing
    for a moment; but who decides for a shape names its revision, and a campaign that has another refuses.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known = _Known.of({})
        self._read_at = float("-inf")
        self._turn = asyncio.Lock()

    async def keep_up(self, since: float) -> None:
        """Know what was in the database at that moment (of the monotonic clock) and half a second ago."""
        needed = max(since, time.monotonic() - RELOAD_SECONDS)
        if self._read_at <= needed:
            async with self._turn:
                if self._read_at <= needed:  # else it was read for someone else meanwhile
                    begun = time.monotonic()
                    self._known = await run_in_threadpool(self._read)
                    self._read_at = begun

    def _read(self) -> _Known:
        """Only configurations that are new are read: there may be thousands."""
        held = self._known.shapes
        with self._store.reading() as tx:
            rows = {row.campaign_id: row for row in read_campaigns(tx)}
            changes = {number: shape.changes for number, shape in held.items()}
            new = get_newest_revisions(
                tx, [number for number, row in rows.items() if changes.get(number) != row.changes]
            )
        shapes: dict[int, Shape] = {}
        for number, row in rows.items():
            shape = _shape(row, new[number]) if number in new else held[number]
            archived = row.archived_at is not None
            shapes[number] = shape if shape.archived == archived else shape._replace(archived=archived)
        if shapes.keys() == held.keys() and all(shape is held[number] for number, shape in shapes.items()):
            return self._known
        return _Known.of(shapes)

    def matched(self, actions: Sequence[str], values: Mapping[str, Any], among: Collection[str] | None) -> Shape:
        """The one campaign that fits, of those with a name among some; a refusal says what is missing, or too many."""
        fitting = [shape for shape in self._fitting(actions, values, among) if not shape.archived]
        if len(fitting) == 1:
            return fitting[0]
        raise _several(sorted(fitting, key=attrgetter("name"))) if fitting else self._none(actions, values, among)

    def archived(self, actions: Sequence[str], values: Mapping[str, Any], among: Collection[str] | None) -> list[str]:
        """The names of those that would fit if they were not archived."""
        return [shape.name for shape in self._fitting(actions, values, among) if shape.archived]

    def _fitting(
        self, actions: Sequence[str], values: Mapping[str, Any], among: Collection[str] | None
    ) -> Iterator[Shape]:
        wanted = frozenset(actions)
        few = self._known.perhaps(actions, values) if among is None else self._named(among)
        return (shape for shape in few if shape.fits(wanted, values))

    def _named(self, among: Collection[str]) -> list[Shape]:
        return [self._known.by_name[name] for name in sorted(among) if name in self._known.by_name]

    def _none(self, actions: Sequence[str], values: Mapping[str, Any], among: Collection[str] | None) -> ApiError:
        shapes = [*self._known.shapes.values()] if among is None else self._named(among)
        nearest = nsmallest(MOST_TOLD, shapes, key=lambda shape: shape.lacks(actions, values))
        told = [problem for shape in nearest for problem in shape.misfits(actions, values)]
        whose = "" if among is None else " that this key is good for"
        message = f"fits no campaign{whose}" if shapes else f"there is no campaign{whose}"
        rest = f"; {len(shapes) - MOST_TOLD} more fit no better" if len(shapes) > MOST_TOLD else ""
        hint = f"; {SETTLED}" if len(shapes) > 1 else ""
        return InvalidError([FieldProblem(field="body", message=f"{message}{rest}{hint}"), *told])

    def shape(self, campaign: int) -> Shape | None:
        return self._known.shapes.get(campaign)


def _several(fitting: Sequence[Shape]) -> ApiError:
    names = ", ".join(repr(shape.name) for shape in fitting[:MOST_TOLD])
    rest = f" and {len(fitting) - MOST_TOLD} more" if len(fitting) > MOST_TOLD else ""
    told = [
        FieldProblem(
            field="actions",
            message=f"campaign {shape.name!r} has all of them, and its variables are all among contextFeatures",
            allowed=list(shape.config.actions),
        )
        for shape in fitting[:MOST_TOLD]
    ]
    return ConflictError(f"{len(fitting)} campaigns fit: {names}{rest}; {SETTLED}", told)


def _shape(row: LiveRow, revision: RevisionRow) -> Shape:
    config = CampaignConfig.model_validate_json(revision.config)
    return Shape(
        campaign_id=row.campaign_id,
        name=row.name,
        archived=row.archived_at is not None,
        changes=row.changes,
        revision=revision.revision,
        round=revision.round,
        config=config,
        actions=frozenset(config.actions),
        variables=frozenset(variable.name for variable in config.variables),
    )
