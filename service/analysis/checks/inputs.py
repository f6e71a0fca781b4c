"""Do requests say anything: variables that vary, actions that may be chosen, times that go on?"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from service.analysis.checks.finding import ENOUGH_DECISIONS, Finding, Severity
from service.analysis.facts import Facts
from service.engine.fold import SECOND
from service.engine.unit import AHEAD_SECONDS

__all__ = ["actions_left_out", "clock_skew", "constant_inputs"]

ENOUGH_TO_VARY = 100  # decisions: what one customer in ten has is missed by all of them once in 38,000 times
PLAYS_EXPECTED = 20  # decisions an action: chosen evenly, one is missed by all of them with chance e⁻²⁰
BEHIND_SECONDS = 3_600.0  # that times may be old where there is no clock to mislead
PERIODS_BEHIND = 2.0  # and where there is one


def constant_inputs(facts: Facts) -> Iterator[Finding]:
    config, contexts, count = facts.config, facts.state.history.contexts, facts.state.round
    known = np.flatnonzero(contexts.symbols[:count] >= 0)  # an erased context is not known
    if known.size < ENOUGH_TO_VARY:
        return
    signals, numbers = config.signals or (), iter(range(contexts.values.shape[1]))
    still: dict[str, str] = {}
    for place, variable in enumerate(config.variables):
        column = contexts.levels[:count, place] if variable.range is None else contexts.values[:count, next(numbers)]
        first = float(column[known[0]])
        if (column[known] != first).any():
            continue
        if variable.range is None:
            still[variable.name] = variable.level_names[int(first)]
        else:
            low, high = variable.range
            still[variable.name] = f"{low + first * (high - low):g}"
    blind = all(name in still for name in signals)
    for name, value in still.items():
        evidence = {"variable": name, "value": value, "decisions": int(known.size)}
        told = f"{name} has been {value} in all {known.size} decisions"
        if name in signals:
            end = ", and neither does any other: regimes cannot be seen." if blind else "."
            yield Finding(
                "constant_signal",
                "problem" if blind else "warning",
                f"The signal {told}: it says nothing about the regime{end}",
                evidence,
                "Is the right value sent? A number may need other cuts. Otherwise clone the campaign without it.",
            )
        else:
            yield Finding(
                "constant_variable",
                "warning",
                f"The variable {told}: it says nothing about the customer.",
                evidence,
                "Is the right value sent? A number may need other cuts. Otherwise clone the campaign without it.",
            )


def actions_left_out(facts: Facts) -> Iterator[Finding]:
    config, since = facts.config, facts.available_since
    eligible: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    for row, explained in facts.decided:
        eligible.update(score.action for score in explained.scores)
        offered.update(name for name, start in since.items() if row.round > start)
    for name in config.actions:
        plays = facts.plays[name]
        evidence = {"action": name, "decisions": offered[name], "eligible": eligible[name], "plays": plays}
        if name in config.retired_actions:
            yield Finding(
                "action_never_eligible",
                "info",
                f"{name} is retired and never chosen; it was played {plays} times before.",
                evidence,
                'POST …/actions {"action": …} brings it back.',
            )
        elif not eligible[name] and offered[name] >= ENOUGH_DECISIONS:
            yield Finding(
                "action_never_eligible",
                "warning",
                f"{name} was excluded in each of the last {offered[name]} decisions: nothing is learned about it.",
                evidence,
                "Look at the excluded_actions that come with decisions. If they are meant, retire the action.",
            )
        elif not plays and eligible[name] >= PLAYS_EXPECTED * len(since):
            yield Finding(
                "action_never_chosen",
                "warning",
                f"{name} could have been chosen in {eligible[name]} decisions and never was: nothing is known about "
                "it.",
                evidence,
                "Let it be tried: PATCH propensity_floor (to 0.01, say) or control, or clone with more "
                "warm_start_rounds.",
            )


def clock_skew(facts: Facts) -> Iterator[Finding]:
    """Times go forward only (R27): one that goes back is stored as the last one, so that it stands still."""
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
        told = f"has stood still for {still} decisions and {span:.0f} s, because the times sent go back"
    elif behind > allowed:
        told = f"is {behind:.0f} s behind the service's clock in half of {len(timed)} decisions"
    elif behind < -1.0:  # the tolerance is for single requests; half of them ahead is a wrong clock
        told = f"is {-behind:.0f} s ahead of the service's clock in half of {len(timed)} decisions"
    else:
        return
    severity: Severity = "warning" if clock else "info"
    yield Finding(
        "clock_skew",
        severity,
        f"`at` {told}. {'The regimes move with it.' if clock else 'It is only recorded: the campaign has no clock.'}",
        {"decisions": len(timed), "seconds_behind": behind, "same_time": still, "same_time_seconds": span},
        "Send as `at` when it happened, with the time zone and in order; or leave it out: then it is now.",
    )
