"""Every method of the clients, as a plan: what is sent, and how the answer is read.

`Client` and `AsyncClient` take their methods from here, without the first parameter.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote, urlencode

from undercurrent_client.errors import MismatchError, ServiceError, UnreachableError, make_item_error
from undercurrent_client.exchange import Call, Core, Plan, Request, encode
from undercurrent_client.messages import (
    Campaign,
    CampaignPage,
    CreditAnswer,
    Decision,
    DecisionBatch,
    Format,
    Health,
    Item,
    OnError,
    RewardAnswer,
    RewardItem,
    RewardMode,
    RewardResult,
    RewardResults,
    make_id,
)
from undercurrent_client.reports import Report

PAGE = 200  # campaigns in one answer


def describe_method(method: Callable[..., object], make: Callable[..., Call[Any]]) -> None:
    """Give a client's method the name, the description and the signature of the call that it makes."""
    method.__name__, method.__doc__ = make.__name__, make.__doc__
    signature = inspect.signature(make)
    first, *others = signature.parameters.values()
    (answer,) = get_args(signature.return_annotation)
    parameters = [first.replace(name="self", annotation=inspect.Parameter.empty), *others]
    signature = signature.replace(parameters=parameters, return_annotation=answer)
    method.__signature__ = signature  # type: ignore[attr-defined]


# --- deciding ---------------------------------------------------------------------------------------------------------


def decide(
    core: Core,
    campaign: str,
    context: Mapping[str, Any],
    *,
    decision_id: str | None = None,
    excluded_actions: Sequence[str] = (),
    subject: str | None = None,
    at: datetime | None = None,
    baseline: str | None = None,
    deadline: float | None = None,
) -> Call[Decision]:
    """Decide which action to take for one customer.

    `decision_id` is your own id, or else a new one; the same id always gets the same answer. With a `baseline`, which
    is the campaign's first action, the caller never waits longer than `deadline` seconds (default: the client's, 0.25):
    then it gets the baseline, marked with `is_baseline`. Without one, the request is repeated until the client's
    patience runs out.
    """
    if baseline is not None and baseline in excluded_actions:
        raise ValueError(f"the baseline {baseline!r} is among the excluded actions")
    item = Item(context, make_id() if decision_id is None else decision_id, excluded_actions, subject, at)
    request = Request("POST", "/decide", encode({"campaign": campaign, **item.to_json()}))
    if baseline is None:
        return Call(core.fetch(request, Decision))

    def fall_back(problem: str) -> Decision:
        return Decision(
            decision_id=item.decision_id, campaign=campaign, action=baseline, mode="baseline", problem=problem
        )

    limit = core.deadline if deadline is None else deadline
    return Call(core.fetch(request, Decision, patience=limit), limit, fall_back)


def decide_batch(
    core: Core, campaign: str, items: Iterable[Item], *, on_error: OnError = "fail"
) -> Call[DecisionBatch]:
    """Decide for up to BATCH_LIMIT customers, exactly as one by one in this order; either all are decided or none.

    With `on_error="skip"` bad items are left out, and listed in `skipped`.
    """
    body: dict[str, Any] = {"campaign": campaign, "items": [item.to_json() for item in items]}
    if on_error != "fail":
        body["on_error"] = on_error
    return Call(core.fetch(Request("POST", "/decide/batch", encode(body)), DecisionBatch))


# --- rewards ----------------------------------------------------------------------------------------------------------


def reward(
    core: Core,
    campaign: str,
    decision_id: str,
    reward: float,
    *,
    mode: RewardMode = "set",
    reward_id: str | None = None,
) -> Call[RewardAnswer]:
    """Report what a decision earned. Repeating the same reward changes nothing.

    With `mode="add"` it is one of several amounts, which add up. `reward_id` is your own id of this amount, or else a
    new one; an amount counts once under its id.
    """
    body = {"campaign": campaign, **RewardItem(decision_id, reward, mode, reward_id).to_json()}
    return Call(core.fetch(Request("POST", "/reward", encode(body)), RewardAnswer))


def correct(
    core: Core, campaign: str, decision_id: str, reward: float, *, reward_id: str | None = None
) -> Call[RewardAnswer]:
    """Replace the reward of a decision by what it earned altogether, after a cancelled or a late sale.

    The campaign's `rewards.correct_seconds` says for how long. `reward_id` is your own id of this correction, or else a
    new one.
    """
    item = make_correction(decision_id, reward, reward_id)
    return Call(send_correction(core, campaign, item))


def make_correction(decision_id: str, reward: float, reward_id: str | None) -> dict[str, Any]:
    """Make a correction as the service expects it."""
    return {"decision_id": decision_id, "reward": reward, "reward_id": make_id() if reward_id is None else reward_id}


def send_correction(
    core: Core, campaign: str, item: Mapping[str, Any], patience: float | None = None
) -> Plan[RewardAnswer]:
    """Send one correction."""
    request = Request("POST", "/reward/correct", encode({"campaign": campaign, **item}))
    return (yield from core.fetch(request, RewardAnswer, patience))


def reward_subject(
    core: Core,
    campaign: str,
    subject: str,
    reward: float,
    *,
    reward_id: str | None = None,
    at: datetime | None = None,
) -> Call[tuple[RewardAnswer, ...]]:
    """Report what a person earned, without naming a decision; return the decisions that it was credited to.

    The campaign's `rewards.credit` says which: the last one, the first, or all evenly. `reward_id` is your own id of
    this amount, or else a new one. `at` is when it was earned, if not now.
    """
    body: dict[str, Any] = {"campaign": campaign, "subject": subject, "reward": reward}
    body["reward_id"] = make_id() if reward_id is None else reward_id
    if at is not None:
        body["at"] = at.isoformat()
    return Call(_credit(core, Request("POST", "/reward/subject", encode(body))))


def _credit(core: Core, request: Request) -> Plan[tuple[RewardAnswer, ...]]:
    answer = yield from core.fetch(request, CreditAnswer)
    return answer.credited


def reward_batch(core: Core, campaign: str, items: Iterable[RewardItem]) -> Call[list[RewardResult]]:
    """Report up to BATCH_LIMIT rewards; each is committed or refused on its own."""
    return Call(send_rewards(core, campaign, [item.to_json() for item in items]))


def send_rewards(
    core: Core, campaign: str, items: Sequence[Mapping[str, Any]], patience: float | None = None
) -> Plan[list[RewardResult]]:
    """Send a batch of rewards, and return the outcome of each."""
    request = Request("POST", "/reward/batch", encode({"campaign": campaign, "items": items}))
    answer = yield from core.fetch(request, RewardResults, patience)
    return [
        RewardResult(
            one.decision_id,
            one.committed,
            None if one.error is None else make_item_error(one.error),
            item.get("reward_id"),
        )
        for item, one in zip(items, answer.results, strict=True)
    ]


# --- campaigns --------------------------------------------------------------------------------------------------------


def create_campaign(core: Core, config: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """Create a campaign, and return its configuration with all defaults. Repeating the call changes nothing."""
    return Call(core.fetch(Request("POST", "/campaigns", encode(dict(config))), dict[str, Any]))


def check_campaign(core: Core, config: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """Check whether a campaign could be created: the same answer and errors, but nothing is created."""
    return Call(core.fetch(Request("POST", "/campaigns/check", encode(dict(config))), dict[str, Any]))


def get_campaign(core: Core, name: str) -> Call[Campaign]:
    """Return the current state of a campaign, and its configuration."""
    return Call(core.fetch(Request("GET", _make_path(name)), Campaign))


def list_campaigns(core: Core, *, archived: bool = False) -> Call[list[Campaign]]:
    """Return the campaigns that the key covers, by name: those in use, or the archived ones."""
    return Call(_collect_campaigns(core, archived))


def _collect_campaigns(core: Core, archived: bool) -> Plan[list[Campaign]]:
    found: list[Campaign] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": str(PAGE), "archived": str(archived).lower()} | ({"cursor": cursor} if cursor else {})
        page = yield from core.fetch(Request("GET", f"/campaigns?{urlencode(query)}"), CampaignPage)
        found += page.campaigns
        cursor = page.next_cursor
    return found


def change_campaign(core: Core, name: str, changes: Mapping[str, Any]) -> Call[Campaign]:
    """Change the configuration of a live campaign, and return its new state."""
    return Call(core.fetch(Request("PATCH", _make_path(name), encode(dict(changes))), Campaign))


def archive_campaign(core: Core, name: str) -> Call[Campaign]:
    """Close a campaign. It still takes rewards for its decisions."""
    return Call(core.fetch(Request("POST", f"{_make_path(name)}/archive"), Campaign))


def unarchive_campaign(core: Core, name: str) -> Call[Campaign]:
    """Reopen an archived campaign."""
    return Call(core.fetch(Request("POST", f"{_make_path(name)}/unarchive"), Campaign))


def delete_campaign(core: Core, name: str) -> Call[None]:
    """Delete an archived campaign with all its decisions, rewards and models. This cannot be undone."""
    return Call(_delete(core, Request("DELETE", f"{_make_path(name)}?{urlencode({'confirm': name})}")))


def _delete(core: Core, request: Request) -> Plan[None]:
    yield from core.ask(request)


# --- reading ----------------------------------------------------------------------------------------------------------


def report(core: Core, name: str, *, start: datetime | None = None, to: datetime | None = None) -> Call[Report]:
    """Return the report of a campaign: its decisions, rewards, lift over control and the value of other policies."""
    return Call(core.fetch(Request("GET", f"{_make_path(name)}/report{_make_query(start, to)}"), Report))


def export(
    core: Core,
    name: str,
    file: str | PathLike[str],
    *,
    format: Format = "ndjson",
    start: datetime | None = None,
    to: datetime | None = None,
) -> Call[Path]:
    """Write all decisions of a campaign with their rewards to a file. The file is there once it is complete."""
    path = f"{_make_path(name)}/decisions{_make_query(start, to, format=format)}"
    return Call(_export(core, Path(file), path))


def _export(core: Core, file: Path, path: str) -> Plan[Path]:
    part = file.with_name(f"{file.name}.part")
    try:
        yield from core.ask(Request("GET", path, None, part))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file


def get_version(core: Core) -> Call[str]:
    """Return the service's version. Does not retry."""
    return Call(_get_version(core))


def _get_version(core: Core) -> Plan[str]:
    try:
        health = yield from core.fetch(Request("GET", "/healthz"), Health, patience=0.0)
    except UnreachableError as error:
        raise UnreachableError(f"no service at {core.url} ({error.__cause__}); start one with `make run`") from None
    except (ServiceError, MismatchError) as error:
        if isinstance(error, ServiceError) and error.code:
            raise
        raise MismatchError(f"the server at {core.url} is not an Undercurrent service") from None
    return health.version


def check_version(core: Core, version: str) -> Call[None]:
    """Refuse to talk to a service whose version differs."""
    return Call(_check_version(core, version))


def _check_version(core: Core, version: str) -> Plan[None]:
    theirs = yield from _get_version(core)
    if theirs != version:
        raise MismatchError(
            f"the service at {core.url} is Undercurrent {theirs}, this client is {version}; use the same version"
        )


def _make_path(campaign: str) -> str:
    return f"/campaigns/{quote(campaign, safe='')}"


def _make_query(start: datetime | None, to: datetime | None, **more: str) -> str:
    query = {name: time.isoformat() for name, time in (("from", start), ("to", to)) if time is not None} | more
    return f"?{urlencode(query)}" if query else ""
