"""Compares the answers that callers got with the log, read from the database. Every difference is a finding."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.analysis.verify import find_differences
from service.base.times import format_timestamp
from service.storage.campaigns import find_campaign
from service.storage.store import Store
from service.storage.tables import campaigns, config_revisions, decisions, live, rewards

FINDINGS = {
    "lost": "acknowledged, but not in the log",
    "duplicated": "in the log more often than requested",
    "half": "a request of which only a part is in the log",
    "wrong": "an answer that differs from the log or from the first answer",
    "gap": "a number that is missing or repeated",
    "verify": "stored state that the log does not produce",
}
DECISION_FIELDS = ("round", "model_version", "mode", "action", "propensity", "belief", "scores")
REWARD_FIELDS = ("round", "reward", "source")


def make_key(decision_id: str, reward_id: str | None) -> str:
    """What identifies a reward: the decision, and the id of an amount."""
    return decision_id if reward_id is None else f"{decision_id} {reward_id}"


class Exchange(NamedTuple):
    """A request and the body of its answer, if there was one."""

    path: str
    body: dict[str, Any]
    answer: bytes = b""

    @property
    def campaign(self) -> str:
        return str(self.body["campaign"])

    @property
    def ids(self) -> list[str]:
        """The ids of the decisions that it requests or rewards, with those of amounts."""
        return [make_key(item["decision_id"], item.get("reward_id")) for item in self.items]

    @property
    def is_reward(self) -> bool:
        return self.path.startswith("/reward")

    @property
    def items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.body.get("items", [self.body])
        return items


class Finding(NamedTuple):
    """A difference: its kind (one of FINDINGS) and a description."""

    kind: str
    text: str


class Change(NamedTuple):
    """A change of a campaign's configuration, identified by a unique label, or a rollback to a model version."""

    label: str | None
    restored: int | None
    acknowledged: bool


class Log(NamedTuple):
    """The stored rows of one campaign. Decisions and rewards are keyed by decision id, amounts also by their own."""

    live: Mapping[str, Any]
    decisions: dict[str, Mapping[str, Any]]  # by round
    rewards: dict[str, Mapping[str, Any]]  # by arrival
    revisions: list[Mapping[str, Any]]
    repeated: list[str]  # rows that exist more than once
    gaps: list[str]  # numbers that are missing or beyond the live row's (R1)
    sums: list[str]  # rewards that are not the sum of their amounts, or not followed by the next one


def compare_with_log(
    database_url: str,
    names: Iterable[str],
    acknowledged: Sequence[Exchange],
    unanswered: Sequence[Exchange],
    changes: Mapping[str, Sequence[Change]],
) -> tuple[list[Finding], list[Exchange]]:
    """Check that the log holds what was acknowledged and nothing else, and that it counts without a gap.

    Also returns the unanswered requests that are completely in the log.
    """
    stored = read_logs(database_url)
    logs = {name: stored[name] for name in names}
    findings = [Finding("duplicated", text) for log in logs.values() for text in log.repeated]
    findings += [Finding("gap", text) for log in logs.values() for text in log.gaps]
    findings += [Finding("wrong", text) for log in logs.values() for text in log.sums]
    for exchange in acknowledged:
        findings += compare_exchange(exchange, logs[exchange.campaign])
    committed = []
    for exchange in unanswered:
        log = logs[exchange.campaign]
        findings += _compare_content(exchange, log)
        if _is_stored(exchange, log):
            committed.append(exchange)
            rows = log.rewards if exchange.is_reward else log.decisions
            if missing := [name for name in exchange.ids if name not in rows]:
                findings.append(Finding("half", f"{missing} of {exchange}"))
    for name, log in logs.items():
        requested = [exchange for exchange in (*acknowledged, *committed) if exchange.campaign == name]
        findings += _find_unrequested(log, requested)
    for name, changed in changes.items():
        findings += _compare_changes(logs[name], changed)
    return findings, committed


def find_verify_differences(database_url: str, names: Iterable[str]) -> list[Finding]:
    """What `undercurrent verify` reports for these campaigns (R14)."""
    findings = []
    with closing(Store(database_url)) as store:
        for name in names:
            with store.scanning() as tx:
                stored = find_campaign(tx, name)
                assert stored is not None
                findings += [Finding("verify", f"{name}: {text}") for text in find_differences(tx, stored)]
    return findings


def compare_exchange(exchange: Exchange, log: Log) -> list[Finding]:
    """The log must hold the whole request, just as it was answered."""
    findings = list(_compare_content(exchange, log))
    if exchange.is_reward:
        return findings + list(_compare_rewards(exchange, log))
    answer = json.loads(exchange.answer)
    for decision in answer.get("decisions", [answer]):
        row = log.decisions.get(decision["decision_id"])
        if row is None:
            findings.append(Finding("lost", f"decision {decision}"))
        elif not _pick(row, DECISION_FIELDS, "decided_at").items() <= decision.items():
            findings.append(Finding("wrong", f"answered {decision}, stored {row}"))
    return findings


def _compare_rewards(exchange: Exchange, log: Log) -> Iterator[Finding]:
    for name, committed in zip(exchange.ids, get_committed_rewards(exchange), strict=True):
        row = log.rewards.get(name)
        if row is None and committed is None:  # it came too late (R20)
            continue
        if row is None:
            yield Finding("lost", f"reward of {name!r}, answered {committed}")
        elif committed is None:  # it came too late, so only a default of an earlier version may be there
            if row["source"] != "default":
                yield Finding("wrong", f"the reward of {name!r} was refused, stored {row}")
        elif not _pick(row, REWARD_FIELDS, "received_at").items() <= committed.items():
            yield Finding("wrong", f"answered {committed}, stored {row}")


def _pick(row: Mapping[str, Any], fields: Iterable[str], time: str) -> dict[str, Any]:
    """The fields of a row, and its time in the form that answers give it."""
    return {field: row[field] for field in fields} | {time: format_timestamp(row[time])}


def get_committed_rewards(exchange: Exchange) -> list[Mapping[str, Any] | None]:
    """The committed reward of each item; None where it was refused."""
    answer = json.loads(exchange.answer)
    if "results" in answer:
        return [result["committed"] for result in answer["results"]]
    return [None if "error" in answer else answer]


def _is_stored(exchange: Exchange, log: Log) -> bool:
    if exchange.is_reward:
        return any(name in log.rewards and log.rewards[name]["source"] == "client" for name in exchange.ids)
    return any(name in log.decisions for name in exchange.ids)


def _compare_content(exchange: Exchange, log: Log) -> Iterator[Finding]:
    """The log must hold the values of the request, unless a default reward came first (R20)."""
    rows = log.rewards if exchange.is_reward else log.decisions
    for item in exchange.items:
        row = rows.get(make_key(item["decision_id"], item.get("reward_id")))
        if row is None or (exchange.is_reward and row["source"] == "default"):
            continue
        if exchange.is_reward:
            sent = row["reward"] if row["amount"] is None else row["amount"]
            is_same = (sent, row["source"]) == (item["reward"], "client")
        else:
            is_same = json.loads(row["context"]) == item["context"]
        if not is_same:
            yield Finding("wrong", f"requested {item}, stored {row}")


def _find_unrequested(log: Log, requested: Sequence[Exchange]) -> Iterator[Finding]:
    """Rows that nobody requested. The service adds default rewards by itself."""
    rewarded = [name for name, row in log.rewards.items() if row["source"] != "default"]
    for kind, stored, is_reward in (("decision", list(log.decisions), False), ("reward", rewarded, True)):
        wanted = [name for exchange in requested if exchange.is_reward == is_reward for name in exchange.ids]
        for name in (Counter(stored) - Counter(wanted)).elements():
            yield Finding("duplicated", f"nobody requested the {kind} of {name!r}")


def _compare_changes(log: Log, changes: Sequence[Change]) -> Iterator[Finding]:
    """The revisions must be the acknowledged changes, in order, and any of the unacknowledged ones."""
    revisions = [
        (next(iter(json.loads(row["config"])["regime_labels"]), None), row["restored"])
        for row in log.revisions[1:]  # the first is the campaign's creation
    ]
    for change in changes:
        label, restored = revisions[0] if revisions else (None, None)
        if (change.restored is not None and restored == change.restored) or (
            change.label is not None and (label, restored) == (change.label, None)
        ):
            revisions.pop(0)
        elif change.acknowledged:
            yield Finding("lost", f"{change}: the next revision is {revisions[:1]}")
    for revision in revisions:
        yield Finding("duplicated", f"nobody requested the change {revision}")


# --- reading the log -------------------------------------------------------------------------------------------------


def read_logs(database_url: str) -> dict[str, Log]:
    """Read all campaigns by name in one transaction."""
    with closing(Store(database_url)) as store, store.reading() as tx:
        rows = tx.connection.execute(sa.select(campaigns.c.name, campaigns.c.id)).all()
        return {name: _read_log(tx.connection, campaign_id) for name, campaign_id in rows}


def _read_log(connection: sa.Connection, campaign_id: int) -> Log:
    def select(query: sa.Select[Any]) -> list[dict[str, Any]]:
        return [dict(row) for row in connection.execute(query).mappings()]

    is_rewarded = (decisions.c.campaign_id == rewards.c.campaign_id) & (decisions.c.round == rewards.c.round)
    decided = select(sa.select(decisions).where(decisions.c.campaign_id == campaign_id).order_by(decisions.c.round))
    rewarded = select(
        sa.select(rewards, decisions.c.decision_id)
        .join_from(rewards, decisions, is_rewarded, isouter=True)
        .where(rewards.c.campaign_id == campaign_id)
        .order_by(rewards.c.arrival)
    )
    for row in rewarded:
        row["key"] = row["decision_id"] and make_key(row["decision_id"], row["reward_id"])
    revisions = sa.select(config_revisions).where(config_revisions.c.campaign_id == campaign_id)
    (live_row,) = select(sa.select(live).where(live.c.campaign_id == campaign_id))
    return Log(
        live_row,
        {row["decision_id"]: row | json.loads(row["explanation"]) for row in decided},
        {row["key"]: row for row in rewarded if row["key"] is not None},  # else the decision is lost
        select(revisions.order_by(config_revisions.c.revision)),
        [
            f"{kind} of {name!r} exists {times} times"
            for kind, key, rows in (("decision", "decision_id", decided), ("reward", "key", rewarded))
            for name, times in Counter(row[key] for row in rows).items()
            if times > 1 and name is not None
        ],
        [
            *_find_gaps("round", [row["round"] for row in decided], live_row["round"]),
            *_find_gaps("arrival", [row["arrival"] for row in rewarded], live_row["arrived"]),
        ],
        list(_find_wrong_sums(rewarded)),
    )


def _find_wrong_sums(rewarded: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    newest: dict[int, Mapping[str, Any]] = {}
    for row in rewarded:
        before = newest.get(row["round"])
        if before is not None and row["arrival"] not in (before["arrival"], before["replaced_by"]):
            yield f"{before} is followed by {row}"
        if row["amount"] is not None and (before is None or before["reward"] + row["amount"] != row["reward"]):
            yield f"{row} is not the sum after {before}"
        newest[row["round"]] = row
    yield from (f"{row} is not in force" for row in newest.values() if row["replaced_by"])


def _find_gaps(what: str, numbers: list[int], last: int) -> list[str]:
    """Each of 1…last must occur once, and nothing else."""
    times = Counter(numbers)
    return [
        *(f"{what} {number} is missing" for number in range(1, last + 1) if not times[number]),
        *(f"{what} {number} is repeated" for number in sorted(times) if times[number] > 1),
        *(f"{what} {number} is after the last one" for number in sorted(times) if not 1 <= number <= last),
    ]
