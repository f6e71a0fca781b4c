"""What callers were told beside what is stored: every difference is a finding, and all of them are counted."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from service.analysis.verify import differences
from service.base.times import timestamp
from service.storage.store import Store
from tests.e2e.log import Log, read_logs

if TYPE_CHECKING:
    from tests.e2e.load import Exchange

__all__ = ["FINDINGS", "Change", "Finding", "committed_rewards", "exchange_findings", "find", "verify_findings"]

FINDINGS = {
    "lost": "acknowledged and not in the log",
    "duplicated": "in the log more often than it was asked for",
    "half": "a request of which only a part is in the log",
    "wrong": "an answer that is not what is stored, or not the first one",
    "gap": "a number that is missing, or one too many",
    "verify": "not what folding the log gives",
}
TOLD = ("round", "model_version", "mode", "action", "propensity", "belief", "scores")


class Finding(NamedTuple):
    """Something that must not be: its kind, one of FINDINGS, and what it is."""

    kind: str
    text: str


class Change(NamedTuple):
    """A change of a campaign, which carries no id: a label that no other has, or the version that was gone back to."""

    label: str | None
    restored: int | None
    acknowledged: bool


def find(
    database_url: str,
    campaigns: Iterable[str],
    acknowledged: Sequence["Exchange"],
    unanswered: Sequence["Exchange"],
    changes: Mapping[str, Sequence[Change]] | None = None,
) -> tuple[list[Finding], list["Exchange"]]:
    """All that was answered is in the log as it was answered, and nothing else; the log counts without a gap.

    Also gives the requests that were not answered and are in the log all the same, as a whole.
    """
    stored = read_logs(database_url, strict=False)
    logs = {name: stored[name] for name in campaigns}
    found = [Finding("duplicated", text) for log in logs.values() for text in log.repeated]
    found += [Finding("gap", text) for log in logs.values() for text in log.gaps]
    unheard = []
    for told in acknowledged:
        found += exchange_findings(told, logs[told.campaign])
    for asked in unanswered:
        log = logs[asked.campaign]
        found += _content_findings(asked, log)
        if _is_stored(asked, log):
            unheard.append(asked)
            rows = log.rewards if asked.rewards else log.decisions
            if missing := [name for name in asked.ids if name not in rows]:
                found.append(Finding("half", f"{missing} of {asked}"))
    asked_of: dict[str, list[Exchange]] = {name: [] for name in logs}
    for asked in (*acknowledged, *unheard):
        asked_of[asked.campaign].append(asked)
    for name, log in logs.items():
        found += _unasked(log, asked_of[name])
    for name, made in (changes or {}).items():
        found += _change_findings(logs[name], made)
    return found, unheard


def verify_findings(database_url: str, campaigns: Iterable[str]) -> list[Finding]:
    """What `undercurrent verify` says of them (R14)."""
    found = []
    store = Store(database_url)
    for name in campaigns:
        with store.scanning() as tx:
            stored = tx.campaign(name)
            assert stored is not None
            found += [Finding("verify", f"{name}: {text}") for text in differences(tx, stored[0])]
    store.close()
    return found


def exchange_findings(told: "Exchange", log: Log) -> list[Finding]:
    """It must be in the log as a whole, just as it was answered."""
    found = list(_content_findings(told, log))
    answer = json.loads(told.answer)
    if not told.rewards:
        for decision in answer.get("decisions", [answer]):
            row = log.decisions.get(decision["decision_id"])
            if row is None:
                found.append(Finding("lost", f"decision {decision}"))
            elif _decision(row) != {field: decision[field] for field in (*TOLD, "decided_at")}:
                found.append(Finding("wrong", f"told {decision}, stored {row}"))
        return found
    for name, committed in zip(told.ids, committed_rewards(told), strict=True):
        row = log.rewards.get(name)
        if row is None:
            found.append(Finding("lost", f"reward of {name!r}, told {committed}"))
        elif committed is None:  # refused: it had come too late (R20)
            if row["source"] != "default":
                found.append(Finding("wrong", f"the reward of {name!r} was refused, stored {row}"))
        elif _reward(row) != {field: committed[field] for field in ("round", "reward", "source", "received_at")}:
            found.append(Finding("wrong", f"told {committed}, stored {row}"))
    return found


def _decision(row: Mapping[str, Any]) -> dict[str, Any]:
    return {field: row[field] for field in TOLD} | {"decided_at": timestamp(row["decided_at"])}


def _reward(row: Mapping[str, Any]) -> dict[str, Any]:
    return {field: row[field] for field in ("round", "reward", "source")} | {
        "received_at": timestamp(row["received_at"])
    }


def committed_rewards(told: "Exchange") -> list[Mapping[str, Any] | None]:
    """The committed reward of each item; None where it was refused."""
    answer = json.loads(told.answer)
    if "results" in answer:
        return [result["committed"] for result in answer["results"]]
    return [None if "error" in answer else answer]


def _is_stored(asked: "Exchange", log: Log) -> bool:
    if asked.rewards:
        return any(name in log.rewards and log.rewards[name]["source"] == "client" for name in asked.ids)
    return any(name in log.decisions for name in asked.ids)


def _content_findings(asked: "Exchange", log: Log) -> Iterator[Finding]:
    """What is there of a request must be what it asked for, unless a default reward came before it (R20)."""
    rows = log.rewards if asked.rewards else log.decisions
    for item in asked.items:
        row = rows.get(item["decision_id"])
        if row is None or (asked.rewards and row["source"] == "default"):
            continue
        if asked.rewards:
            same = (row["reward"], row["source"]) == (item["reward"], "client")
        else:
            same = json.loads(row["context"]) == item["context"]
        if not same:
            yield Finding("wrong", f"asked {item}, stored {row}")


def _unasked(log: Log, asked: Sequence["Exchange"]) -> Iterator[Finding]:
    """What is in the log was asked for, once; default rewards the service gives by itself."""
    paid = [name for name, row in log.rewards.items() if row["source"] != "default"]
    for what, names, wanted in (
        ("decision", list(log.decisions), [name for one in asked if not one.rewards for name in one.ids]),
        ("reward", paid, [name for one in asked if one.rewards for name in one.ids]),
    ):
        for name in (Counter(names) - Counter(wanted)).elements():
            yield Finding("duplicated", f"nobody asked for the {what} of {name!r}")


def _change_findings(log: Log, changes: Sequence[Change]) -> Iterator[Finding]:
    """The revisions are the changes that were made, in their order; of those nobody has heard, some."""
    rest = [(next(iter(json.loads(row["config"])["regime_labels"]), None), row["restored"]) for row in log.revisions]
    rest = rest[1:]  # the first is the campaign's creation
    for change in changes:
        stored = rest[0] if rest else (None, None)
        if (change.restored is not None and stored[1] == change.restored) or (
            change.label is not None and stored == (change.label, None)
        ):
            rest.pop(0)
        elif change.acknowledged:
            yield Finding("lost", f"{change}: the log goes on with {rest[:1]}")
    for revision in rest:
        yield Finding("duplicated", f"nobody asked for the change {revision}")
