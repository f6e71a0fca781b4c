"""Finds the campaign that a rank means: it has the rank's actions, and its variables are among the rank's features."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from policy import CampaignConfig
from policy.config import Variable
from service.base.errors import ApiError, ConflictError, FieldProblem, InvalidError
from service.compat.messages import MOST_FEATURES
from service.storage import campaigns, rows
from service.storage.store import Store

RELOAD_SECONDS = 0.5  # how soon changes by other workers are known, as with keys
MOST_NAMED = 5  # campaigns that an error names
LONGEST_NAME = 100  # of a variable; longer paths match none
HINT = "use a key that is limited to one campaign: undercurrent keys create --role client --campaign NAME"


# --- the values of a context ------------------------------------------------------------------------------------------


class _Ambiguous(NamedTuple):
    """A name that occurs in several places, or a path with several values."""

    places: tuple[str, ...]


def flatten_features(features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return every value of nested objects by its dotted path, and by its name if that occurs only once."""
    by_path: dict[str, Any] = {}
    places: dict[str, dict[str, None]] = {}  # the paths of each name, in order
    for count, (path, name, value) in enumerate(_iterate_values(features, "")):
        if count >= MOST_FEATURES:
            raise InvalidError([FieldProblem(field="contextFeatures", message="too many", allowed=f"{MOST_FEATURES}")])
        if value is None or isinstance(value, dict):
            continue
        if path in by_path and by_path[path] != value:
            value = _Ambiguous((path,))
        by_path[path] = value
        if len(name) <= LONGEST_NAME:
            places.setdefault(name, {})[path] = None
    by_name = {
        name: by_path[next(iter(paths))] if len(paths) == 1 else _Ambiguous(tuple(paths))
        for name, paths in places.items()
    }
    return by_name | by_path


def _iterate_values(objects: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[tuple[str, str, Any]]:
    """Yield (path, name, value) of every value, objects included. Paths too long for a variable are cut, since bodies
    can be large."""
    for one in objects:
        for name, value in one.items():
            path = f"{prefix}{name}"[: LONGEST_NAME + 1]
            yield path, name, value
            if isinstance(value, dict):
                yield from _iterate_values([value], f"{path}.")


def _explain_misfit(variable: Variable, values: Mapping[str, Any]) -> str | None:
    """Say why the values have none for the variable; None if they have one."""
    if variable.name not in values:
        return "missing" if variable.missing == "reject" else None
    value = values[variable.name]
    if isinstance(value, _Ambiguous):
        if len(value.places) == 1:
            return "has several values"
        return f"occurs in several places ({', '.join(value.places[:MOST_NAMED])}): name the variable by its path"
    if not variable.is_number:
        return None if isinstance(value, str | int) else "is not text"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if is_number else "is not a number"


# --- campaigns --------------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """What a rank asks for: actions, values of the context, and the campaigns that its key covers, None for all."""

    actions: Sequence[str]
    values: Mapping[str, Any]
    among: Collection[str] | None


class Shape(NamedTuple):
    """What requests are matched with: one revision of a campaign's configuration (R23)."""

    row: rows.LiveRow  # the revision is the newest as long as the row's `changes` are the same
    revision: rows.RevisionRow
    config: CampaignConfig
    actions: frozenset[str]
    variables: frozenset[str]  # that a request must have

    @property
    def archived(self) -> bool:
        return self.row.archived_at is not None

    def fits(self, wanted: Wanted) -> bool:
        """Return whether a request fits this campaign, archived or not."""
        return (
            self.actions.issuperset(wanted.actions)
            and self.variables <= wanted.values.keys()
            and not any(_explain_misfit(variable, wanted.values) for variable in self.config.variables)
        )

    def select_context(self, values: Mapping[str, Any]) -> dict[str, Any]:
        selected = {variable.name: values.get(variable.name) for variable in self.config.variables}
        return {name: str(value).lower() if isinstance(value, bool) else value for name, value in selected.items()}

    def count_misfits(self, wanted: Wanted) -> int:
        unknown = sum(action not in self.actions for action in wanted.actions)
        variables = self.config.variables
        return self.archived + unknown + sum(_explain_misfit(v, wanted.values) is not None for v in variables)

    def list_misfits(self, wanted: Wanted) -> Iterator[FieldProblem]:
        """List what keeps a request from fitting this campaign."""
        label = f"campaign {self.row.name!r}"
        if self.archived:
            yield FieldProblem(field="actions", message=f"{label} is archived", allowed=None)
        if unknown := [action for action in wanted.actions if action not in self.actions]:
            message = f"{label} has no {', '.join(map(repr, unknown))}"
            yield FieldProblem(field="actions", message=message, allowed=list(self.config.actions))
        for variable in self.config.variables:
            if reason := _explain_misfit(variable, wanted.values):
                allowed = list(variable.levels) if variable.levels and not variable.cuts else "a number"
                message = f"{label} needs it: {reason}"
                yield FieldProblem(field=f"contextFeatures.{variable.name}", message=message, allowed=allowed)


class _Index(NamedTuple):
    """All campaigns, also archived ones, indexed by action and by variable to find the few that a request may fit."""

    shapes: Mapping[int, Shape]
    by_name: Mapping[str, Shape]
    by_action: Mapping[str, Sequence[Shape]]
    by_variable: Mapping[str | None, Sequence[Shape]]  # by its variable that the fewest campaigns have

    @classmethod
    def build(cls, shapes: Mapping[int, Shape]) -> "_Index":
        by_action, by_variable = defaultdict[str, list[Shape]](list), defaultdict[str | None, list[Shape]](list)
        common = Counter(name for shape in shapes.values() for name in shape.variables)
        for shape in shapes.values():
            for action in shape.actions:
                by_action[action].append(shape)
            by_variable[min(shape.variables, key=lambda name: common[name], default=None)].append(shape)
        return cls(shapes, {shape.row.name: shape for shape in shapes.values()}, dict(by_action), dict(by_variable))

    def find_candidates(self, wanted: Wanted) -> list[Shape]:
        """Find a few campaigns, among them all that have these actions and whose variables are among the values."""
        by_action = min((self.by_action.get(action, ()) for action in wanted.actions), key=len)
        by_variable = [self.by_variable[name] for name in (None, *wanted.values) if name in self.by_variable]
        if len(by_action) <= sum(map(len, by_variable)):
            return list(by_action)
        return [shape for shapes in by_variable for shape in shapes]


class Directory:
    """All campaigns of a database, as one worker knows them.

    While there are requests, they are read again twice a second. So a campaign that another worker has just created may
    be missing for a moment. A decision names the revision of its shape, and is refused if the campaign has a newer one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index = _Index.build({})
        self._read_at = float("-inf")
        self._turn = asyncio.Lock()

    async def keep_up(self, since: float) -> None:
        """Read the campaigns again unless they were read after `since` (monotonic) and within the last half second."""
        needed = max(since, time.monotonic() - RELOAD_SECONDS)
        if self._read_at <= needed:
            async with self._turn:
                if self._read_at <= needed:  # else another request has read them meanwhile
                    begun = time.monotonic()
                    self._index = await run_in_threadpool(self._read)
                    self._read_at = begun

    def _read(self) -> _Index:
        """Read all campaigns, but only the configurations that are new: there may be thousands."""
        held = self._index.shapes
        with self._store.reading() as tx:
            rows = {row.campaign_id: row for row in campaigns.read_campaigns(tx)}
            changes = {number: shape.row.changes for number, shape in held.items()}
            new = campaigns.get_newest_revisions(
                tx, [number for number, row in rows.items() if changes.get(number) != row.changes]
            )
        shapes: dict[int, Shape] = {}
        for number, row in rows.items():
            shape = _make_shape(row, new[number]) if number in new else held[number]
            is_same = shape.row.archived_at == row.archived_at
            shapes[number] = shape if is_same else shape._replace(row=row)
        if shapes.keys() == held.keys() and all(shape is held[number] for number, shape in shapes.items()):
            return self._index
        return _Index.build(shapes)

    def match(self, wanted: Wanted) -> Shape:
        """Return the one campaign that fits; an error says what does not fit."""
        fitting = [shape for shape in self._find_fitting(wanted) if not shape.archived]
        if len(fitting) == 1:
            return fitting[0]
        raise _refuse_several(fitting) if fitting else self._refuse_none(wanted)

    def list_archived(self, wanted: Wanted) -> list[str]:
        return [shape.row.name for shape in self._find_fitting(wanted) if shape.archived]

    def _find_fitting(self, wanted: Wanted) -> Iterator[Shape]:
        among = wanted.among
        candidates = self._index.find_candidates(wanted) if among is None else self._list_named(among)
        return (shape for shape in candidates if shape.fits(wanted))

    def _list_named(self, among: Collection[str]) -> list[Shape]:
        return [self._index.by_name[name] for name in sorted(among) if name in self._index.by_name]

    def _refuse_none(self, wanted: Wanted) -> ApiError:
        shapes = [*self._index.shapes.values()] if wanted.among is None else self._list_named(wanted.among)
        nearest = nsmallest(MOST_NAMED, shapes, key=lambda shape: shape.count_misfits(wanted))
        problems = [problem for shape in nearest for problem in shape.list_misfits(wanted)]
        which = "" if wanted.among is None else " that this key covers"
        message = f"fits no campaign{which}" if shapes else f"there is no campaign{which}"
        rest = f"; {len(shapes) - MOST_NAMED} others fit no better" if len(shapes) > MOST_NAMED else ""
        hint = f"; {HINT}" if len(shapes) > 1 else ""
        return InvalidError([FieldProblem(field="body", message=f"{message}{rest}{hint}"), *problems])

    def get_shape(self, campaign: int) -> Shape | None:
        return self._index.shapes.get(campaign)

    def get_named(self, name: str) -> Shape | None:
        return self._index.by_name.get(name)

    def list_bulk(self, among: Collection[str] | None) -> list[str]:
        """List the campaigns in use that take part in bulk evaluations, by name."""
        shapes = self._index.shapes.values() if among is None else self._list_named(among)
        return sorted(shape.row.name for shape in shapes if shape.config.bulk_evaluation and not shape.archived)


def _refuse_several(fitting: list[Shape]) -> ApiError:
    fitting.sort(key=lambda shape: shape.row.name)
    names = ", ".join(repr(shape.row.name) for shape in fitting[:MOST_NAMED])
    rest = f" and {len(fitting) - MOST_NAMED} more" if len(fitting) > MOST_NAMED else ""
    problems = [
        FieldProblem(
            field="actions",
            message=f"campaign {shape.row.name!r} has all of them, and its variables are all among contextFeatures",
            allowed=list(shape.config.actions),
        )
        for shape in fitting[:MOST_NAMED]
    ]
    return ConflictError(f"{len(fitting)} campaigns fit: {names}{rest}; {HINT}", problems)


def _make_shape(row: rows.LiveRow, revision: rows.RevisionRow) -> Shape:
    config = CampaignConfig.model_validate_json(revision.config)
    needed = frozenset(variable.name for variable in config.variables if variable.missing == "reject")
    return Shape(row, revision, config, frozenset(config.actions), needed)
