"""Do requests carry information: variables that vary, actions that can be chosen, times that move on?"""

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from service.analysis.checks import ENOUGH_DECISIONS, Finding
from service.analysis.facts import Facts
from service.base.times import SECOND
from service.engine.unit import AHEAD_SECONDS

ENOUGH_TO_VARY = 100  # decisions: all of them miss a level of one customer in ten once in 38,000 cases
PLAYS_EXPECTED = 20  # per action: if choices were even, all would miss one action with probability e⁻²⁰
BEHIND_SECONDS = 3_600.0  # by how much times may lag in a campaign without a clock
PERIODS_BEHIND = 2.0  # by how many periods in a campaign with a clock
LEAST_REFUSED = 5  # decides: fewer are somebody's experiment
REFUSED_SHARE = 0.01
MOST_NAMED = 3  # values that a message names


def check_variables(facts: Facts) -> Iterator[Finding]:
    decisions, constant = _find_constants(facts)
    signals = facts.config.signals or ()
    is_blind = all(name in constant for name in signals)
    for name, value in constant.items():
        evidence = {"variable": name, "value": value, "decisions": decisions}
        observed = f"{name} was {value} in all {decisions} decisions"
        advice = "Check that the right value is sent. A number may need other cuts. Or clone the campaign without it."
        if name in signals:
            rest = " Neither does any other signal, so the regimes cannot be told apart." if is_blind else ""
            message = f"The signal {observed}: it says nothing about the regime.{rest}"
            yield Finding("constant_signal", "problem" if is_blind else "warning", message, evidence, advice)
        else:
            message = f"The variable {observed}: it says nothing about the customer."
            yield Finding("constant_variable", "warning", message, evidence, advice)


def _find_constants(facts: Facts) -> tuple[int, dict[str, str]]:
    """The number of decisions whose context is known, and the value of each variable that never varied in them."""
    contexts, count = facts.state.history.contexts, facts.state.rows
    known = np.flatnonzero(contexts.symbols[:count] >= 0)  # the context of an erased decision is unknown
    constant: dict[str, str] = {}
    if known.size < ENOUGH_TO_VARY:
        return int(known.size), constant
    numbers = iter(range(contexts.values.shape[1]))
    for place, variable in enumerate(facts.config.variables):
        column = contexts.levels[:count, place] if variable.range is None else contexts.values[:count, next(numbers)]
        first, level = float(column[known[0]]), variable.effects[int(contexts.levels[known[0], place])]
        if (column[known] != first).any() or (contexts.levels[known, place] != contexts.levels[known[0], place]).any():
            continue
        if variable.range is None or level is not None:
            constant[variable.name] = str(level)
        else:
            low, high = variable.range
            constant[variable.name] = f"{low + first * (high - low):g}"
    return int(known.size), constant


def check_refused(facts: Facts) -> Iterator[Finding]:
    refusals = facts.refusals
    if refusals is None or refusals.refused < LEAST_REFUSED or refusals.refused < REFUSED_SHARE * refusals.requests:
        return
    shares = {refused: count / refusals.requests for refused, count in refusals.values.items()}
    named = [f"{field}={value}" for field, value in list(shares)[:MOST_NAMED]]
    rest = f" and {len(shares) - len(named)} more" if len(shares) > len(named) else ""
    yield Finding(
        "decides_refused",
        "warning",
        f"{100 * refusals.refused / refusals.requests:.2g} % of requests refused: {', '.join(named)}{rest}.",
        {
            "decides": round(refusals.requests),
            "refused": round(refusals.refused),
            "shares": {f"{field}={value}": round(share, 4) for (field, value), share in shares.items()},
        },
        "Send what the campaign expects, or let it accept more: POST …/levels adds a level; PATCH changes missing, "
        "unseen and outside of a variable, and extra_variables.",
    )


def check_actions(facts: Facts) -> Iterator[Finding]:
    config, since = facts.config, _find_first_rounds(facts)
    eligible, offered = Counter[str](), Counter[str]()
    counts = np.bincount(facts.state.history.actions[: facts.state.rows], minlength=len(config.actions)).tolist()
    for row, explanation in facts.decided:
        eligible.update(score.action for score in explanation.scores)
        offered.update(name for name, start in since.items() if row.round > start)
    for name, plays in zip(config.actions, counts, strict=True):
        evidence = {"action": name, "decisions": offered[name], "eligible": eligible[name], "plays": plays}
        if name in config.retired_actions:
            message = f"{name} is retired and no longer chosen; it was chosen {plays} times before."
            advice = 'To bring it back, POST …/actions {"action": …}.'
            yield Finding("action_never_eligible", "info", message, evidence, advice)
        elif not eligible[name] and offered[name] >= ENOUGH_DECISIONS:
            message = f"{name} was excluded from the last {offered[name]} decisions: nothing is learned about it."
            advice = "Check the excluded_actions of the requests. If they are intended, retire the action."
            yield Finding("action_never_eligible", "warning", message, evidence, advice)
        elif not plays and eligible[name] >= PLAYS_EXPECTED * len(since):
            message = f"{name} was eligible in {eligible[name]} decisions and never chosen: nothing is known about it."
            advice = "To have it tried, PATCH propensity_floor or control, or clone with more warm_start_rounds."
            yield Finding("action_never_chosen", "warning", message, evidence, advice)


def _find_first_rounds(facts: Facts) -> dict[str, int]:
    """The round after which each action became available. Retired actions have none."""
    since: dict[str, int] = {}
    for revision in facts.tx.read_revisions(facts.campaign, 0):
        config = msgspec.json.decode(revision.config)
        active = [name for name in config["actions"] if name not in config.get("retired_actions", ())]
        since = {name: since.get(name, revision.round) for name in active}
    return since


def check_clock(facts: Facts) -> Iterator[Finding]:
    """Times never go back (R27): an earlier time is stored as the last one, so the stored time stands still."""
    clock = facts.config.clock
    timed = [(row.at, row.decided_at) for row in facts.log if row.at is not None and row.mode != "imported"]
    if len(timed) < ENOUGH_DECISIONS:
        return
    at, decided = np.array(timed, np.float64).T / SECOND
    behind = float(np.median(decided - at))
    others = np.flatnonzero(at != at[-1])
    first = int(others[-1]) + 1 if others.size else 0
    still, span = int(at.size - first), float(decided[-1] - decided[first])
    allowed = max(AHEAD_SECONDS, PERIODS_BEHIND * clock.period_seconds) if clock else BEHIND_SECONDS
    if still >= ENOUGH_DECISIONS and span > allowed:
        problem = f"has stood still for {still} decisions and {span:.0f} s, because the times sent go back"
    elif behind > allowed:
        problem = f"is at least {behind:.0f} s behind the service's clock in half of {len(timed)} decisions"
    elif behind < -1.0:  # single requests may be further ahead, but not half of them
        problem = f"is at least {-behind:.0f} s ahead of the service's clock in half of {len(timed)} decisions"
    else:
        return
    effect = "The regimes move with it." if clock else "It is only recorded, because the campaign has no clock."
    yield Finding(
        "clock_skew",
        "warning" if clock else "info",
        f"`at` {problem}. {effect}",
        {"decisions": len(timed), "seconds_behind": behind, "same_time": still, "same_time_seconds": span},
        "Send the time of the event as `at`, with a time zone and in order. Or leave it out: then the time is now.",
    )
