"""Changes to a campaign between rounds: to its configuration, to its actions, and back to an earlier model."""

import math
from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from policy.config import CampaignConfig
from policy.defaults import TRIAL_SHARE
from policy.delays import SLICES
from policy.errors import ArgumentError, ConfigError, FieldProblem, FixedError, PolicyError
from policy.exposure import Waiting, start_exposure
from policy.history import History
from policy.selection import Selection
from policy.staged import StagedPolicy
from policy.state import State, find_stage_start
from policy.widening import widen_state
from policy.window import restore_candidates

# The fields that may change without resetting the model. Variables may only gain levels; actions have routes of their
# own.
CHANGEABLE = (
    "variables",
    "extra_variables",
    "rewards.wait_seconds",
    "rewards.default",
    "rewards.while_waiting",
    "rewards.correct_seconds",
    "rewards.credit",
    "control",
    "propensity_floor",
    "bonus.scale",
    "beliefs.window_rounds",
    "regime_labels",
    "alerts",
    "retention_days",
    "paused",
    "bulk_evaluation",
)
# The fields whose defaults depend on other fields, in an order in which each comes before those it depends on.
DERIVED = (
    "features",
    "signals",
    "regimes",
    "bonus.scale",
    "bonus.form",
    "beliefs.start_round",
    "beliefs.every",
    "beliefs.statistics",
)
TRIAL_PLAYS = 20  # at least this many on average for a new action, before it must win by its score alone
_REASONS = {
    "name": "it is the campaign's identity",
    "actions": "POST …/actions adds one, and a clone has any others",
    "retired_actions": "POST …/actions/retire retires one, POST …/actions brings it back",
}


_DEEPEST = 8  # nested objects to merge; a configuration has fewer, so validation refuses anything deeper


def _merge(whole: Mapping[str, Any], patch: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Replace some fields as RFC 7396 merges JSON: objects field by field, null for the default."""
    result = dict(whole)
    for name, value in patch.items():
        if isinstance(value, Mapping) and depth < _DEEPEST:
            inside = result.get(name)
            result[name] = _merge(inside if isinstance(inside, Mapping) else {}, value, depth + 1)
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def patch_config(config: CampaignConfig, patch: Mapping[str, Any]) -> CampaignConfig:
    """The configuration after a change to a running campaign; FixedError names the fields that cannot change."""
    before = config.model_dump(mode="json")
    merged = _merge(before, patch)
    try:
        changed = CampaignConfig.model_validate(merged)
    except PolicyError:  # report fields that cannot change first: their new value need not be valid
        _refuse_fixed(before, _keep_known(before, merged))
        _refuse_other_variables(config, merged.get("variables"))
        raise
    _refuse_fixed(before, changed.model_dump(mode="json"))
    _refuse_lost_levels(config, changed)
    return changed


def _keep_known(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """`before` with the values of `after`, without unknown fields and without objects in place of values."""
    known = dict(before)
    for name in before.keys() & after.keys():
        was, value = before[name], after[name]
        if isinstance(was, dict) and isinstance(value, dict):
            known[name] = _keep_known(was, value)
        elif not isinstance(was, dict) and not isinstance(value, dict):
            known[name] = value
    return known


def _refuse_fixed(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise FixedError if the two differ in a field that cannot change."""
    before, after = ({name: copy(value) for name, value in fields.items()} for fields in (before, after))
    for field in CHANGEABLE:
        part, _, inner = field.partition(".")
        for fields in (before, after):
            if not inner:
                del fields[part]
            elif isinstance(fields[part], dict):
                fields[part].pop(inner, None)
    if fixed := [field for name in before for field in _list_differences(name, before[name], after[name])]:
        problems = [FieldProblem(name, _REASONS.get(name, "cannot change"), list(CHANGEABLE)) for name in fixed]
        raise FixedError(problems)


def _refuse_other_variables(config: CampaignConfig, variables: Any) -> None:
    """Raise FixedError if a list of variables, valid or not, is of others."""
    names = [variable.name for variable in config.variables]
    listed = variables if isinstance(variables, list) else [None]
    given = [each.get("name") if isinstance(each, Mapping) else None for each in listed]
    if None not in given and given != names:
        raise FixedError([FieldProblem("variables", "none can be added, removed or renamed", names)])


def _refuse_lost_levels(before: CampaignConfig, after: CampaignConfig) -> None:
    """Raise FixedError unless the variables are the same, but for more levels and how numbers out of range count."""
    _refuse_other_variables(before, [{"name": variable.name} for variable in after.variables])
    allowed = "all its levels, and more; missing: level; unseen: other; outside: reject | clip"
    problems = [
        FieldProblem(f"variables[{i}]", f"{new.name} can gain levels, and change in nothing else", allowed)
        for i, (old, new) in enumerate(zip(before.variables, after.variables, strict=True))
        if (old.cuts, old.range) != (new.cuts, new.range) or not set(old.effects) <= set(new.effects)
    ]
    if problems:
        raise FixedError(problems)


def _list_differences(name: str, before: Any, after: Any) -> list[str]:
    if before == after:
        return []
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [name]
    inner = dict.fromkeys((*before, *after))
    return [f"{name}.{field}" for field in inner if before.get(field) != after.get(field)]


def clone_config(config: CampaignConfig, patch: Mapping[str, Any]) -> CampaignConfig:
    """The configuration of a new campaign like this one, with its own name, seed and any other change.

    Fields at their default follow the change: a new variable also enters the default features. Settings that belong to
    a choice go with it: the scale of a bonus with its form, given parameters with their estimator.
    """
    active = [action for action in config.actions if action not in config.retired_actions]
    fresh = {"name": None, "seed": None, "paused": None, "retired_actions": None, "actions": active}
    kept, wanted = _drop_derived(config), fresh | dict(patch)
    if _get_given(patch, "bonus", "form") not in (None, config.bonus.form):
        kept["bonus"] = {}
    if _get_given(patch, "beliefs", "estimator") not in (None, config.beliefs.estimator):
        kept["beliefs"].pop("parameters", None)
    clone = CampaignConfig.model_validate(_merge(kept, wanted))
    if clone.bonus.form != config.bonus.form and _get_given(patch, "bonus", "scale") is None:
        kept["bonus"].pop("scale", None)  # the default form changed because of another field
        clone = CampaignConfig.model_validate(_merge(kept, wanted | {"seed": clone.seed}))
    return clone


def _get_given(patch: Mapping[str, Any], part: str, field: str) -> Any:
    inside = patch.get(part)
    return inside.get(field) if isinstance(inside, Mapping) else None


def _drop_derived(config: CampaignConfig) -> dict[str, Any]:
    """The configuration without the fields that its other fields imply."""
    kept = config.model_dump(mode="json")
    for field in DERIVED:
        part, _, inner = field.partition(".")
        without = _merge(kept, {part: {inner: None} if inner else None})
        try:
            if CampaignConfig.model_validate(without) == config:
                kept = without
        except ConfigError:  # this field is required
            pass
    return kept


def add_config_action(config: CampaignConfig, action: str) -> CampaignConfig:
    """The configuration with one more action, or with a retired one back in use."""
    fields = config.model_dump(mode="json")
    fields["retired_actions"] = [name for name in config.retired_actions if name != action]
    if action not in config.actions:
        fields["actions"] = [*config.actions, action]
    return CampaignConfig.model_validate(fields)


def add_config_level(config: CampaignConfig, variable: str, level: str) -> CampaignConfig:
    """The configuration with one more level of a variable."""
    levelled = {v.name: v.levels for v in config.variables if v.cuts is None and v.levels is not None}
    levels = levelled.get(variable)
    if levels is None:
        raise ConfigError.of("variable", f"{variable!r} is not a variable with levels", list(levelled))
    if level in levels:
        return config
    if config.beliefs.parameters is not None and variable in (config.signals or ()):
        message = f"{variable!r} is a signal, and beliefs.parameters has no emission for another level"
        raise ConfigError.of("variable", message, "clone the campaign with other parameters")
    fields = config.model_dump(mode="json")
    for each in fields["variables"]:
        if each["name"] == variable:
            each["levels"] = [*levels, level]
    return CampaignConfig.model_validate(fields)


def retire_config_action(config: CampaignConfig, action: str) -> CampaignConfig:
    """The configuration with an action retired."""
    if action in config.retired_actions:
        return config
    left = [name for name in config.actions[1:] if name not in config.retired_actions]
    if action not in left:
        wrong = (
            "is the baseline, which cannot be retired"
            if action == config.actions[0]
            else "is not an action of this campaign"
        )
        raise ConfigError.of("action", f"{action!r} {wrong}", left)
    if len(left) == 1:
        raise ConfigError.of("action", "only the baseline would be left", "pause or archive the campaign")
    retired = [*config.retired_actions, action]
    return CampaignConfig.model_validate(config.model_dump(mode="json") | {"retired_actions": retired})


def adapt_state(before: StagedPolicy, after: StagedPolicy, state: State) -> State:
    """The state after its configuration has changed: actions appended, retired or brought back, levels added.

    What was learned stays (widening.py). The bonus of a new action may not suffice against an action that earns much,
    so it begins with a trial (`State.trial_end`). The trial ends early when no action needs it. An action that is
    brought back after few plays gets a trial too.
    """
    was, actions = before.config.actions, after.config.actions
    if actions[: len(was)] != was or after.ridge != before.ridge:
        raise ArgumentError("actions", f"{list(actions)}", f"more after {list(was)}")
    state = _adapt_exposure(before, after, widen_state(before, after, state))
    return _update_trial(before, after, state) if actions == was else _start_trial(after, state, len(was))


def _adapt_exposure(before: StagedPolicy, after: StagedPolicy, state: State) -> State:
    """The state after the default reward, the wait, or what counts meanwhile has changed.

    The next stage update counts all rounds anew. Rounds that were decided while there was no default count in full.
    """
    was, rules = before.config.rewards, after.config.rewards
    exposure = start_exposure(rules)
    unchanged = (was.default, was.wait_seconds, was.while_waiting) == (
        rules.default,
        rules.wait_seconds,
        rules.while_waiting,
    )
    history, counters = state.history, state.statistics.counters.copy()
    if rules.default is None and history.is_timed:
        history = history.copy(state.round, state.arrived)
        history.forget_times()
    if unchanged or (exposure is None and state.exposure is None):
        return state if history is state.history else state._replace(history=history)
    if (exposure is None) != (state.exposure is None):
        counters[0] = counters[0] * SLICES if state.exposure is None else counters[0] // SLICES
    if exposure is not None and state.exposure is not None:
        exposure = exposure._replace(now=state.exposure.now)
    return state._replace(
        history=history,
        statistics=state.statistics._replace(counters=counters),
        rebuild=state.rebuild or state.round > 0,
        exposure=exposure,
    )


def _update_trial(before: StagedPolicy, after: StagedPolicy, state: State) -> State:
    """The state after actions were retired or brought back."""
    actions, was, retired = after.config.actions, before.config.retired_actions, after.config.retired_actions
    if retired == was:  # most changes are of other fields: do not look at every round
        return state
    plays = np.bincount(state.history.actions[: state.rows], minlength=len(actions))
    for place, action in enumerate(actions):
        if action in was and action not in retired and plays[place] < TRIAL_PLAYS:
            return _start_trial(after, state, place)
    if state.trial_end > state.round and set(actions[state.trial_first :]) <= set(retired):
        length = after.config.stage_length
        return state._replace(trial_end=-(-state.round // length) * length)
    return state


def _start_trial(policy: StagedPolicy, state: State, first: int) -> State:
    """Put the actions from position `first` on trial.

    The trial lasts until the end of the stage by which each has been played TRIAL_PLAYS times or more on average.
    """
    config = policy.config
    active = len(config.actions) - len(config.retired_actions)
    rounds = math.ceil(TRIAL_PLAYS * active / (TRIAL_SHARE * (1.0 - config.control.share)))
    end = -(-(state.round + rounds) // config.stage_length) * config.stage_length
    if state.trial_end > state.round:  # extend the trial that is under way
        first = min(first, state.trial_first)
    return state._replace(trial_end=end, trial_first=first)


def roll_back(policy: StagedPolicy, state: State, before: StagedPolicy, past: State) -> State:
    """Put the model of `past`, an earlier state of the campaign under the policy `before`, in force again (R21).

    Rounds and rewards stay. Rewards folded since then are excluded for good, also from recomputations; those still
    waiting are folded by the next update. With a default reward, so are rounds that have entered since then. A reward
    revised since then counts as it did, until it is revised again. Beliefs are those of the earlier model, as after a
    re-estimation (R5). Actions newer than the model start over.
    """
    if not (past.round <= state.round and past.folded <= state.folded and past.model_version <= state.model_version):
        raise ArgumentError("past", f"is of round {past.round}", f"an earlier state, up to round {state.round}")
    unestimated = policy.estimator.is_required(past) and not policy.estimator.is_required(state)
    renewed = set(policy.config.actions) - set(before.config.actions) - set(policy.config.retired_actions)
    entered = past.round if past.exposure is None else int(past.exposure.reached[0])
    past = adapt_state(before, policy, past)
    history, exposure = _restore_rewards(state, past), None
    if past.exposure is not None and state.exposure is not None:
        rows = np.arange(entered, state.exposure.reached[0]) - history.first
        history.excluded = np.union1d(history.excluded, rows[rows >= 0])
        exposure = state.exposure._replace(reached=past.exposure.reached)
    state = state._replace(
        belief=policy.estimator.restore_belief(state, past, history),
        hmm=past.hmm,
        statistics=past.statistics,
        model_version=state.model_version + 1,
        history=history,
        rebuild=past.rebuild,
        selection=_restore_selection(policy, history, past),
        online=past.online,
        exposure=exposure,
        # Without an estimate joint statistics decide at random (R8), so the next one is due at once.
        next_estimation=find_stage_start(state.round + 2, policy.config.stage_length)
        if unestimated
        else state.next_estimation,
    )
    return _start_trial(policy, state, len(before.config.actions)) if renewed else state


def _restore_rewards(state: State, past: State) -> History:
    """The state's history with the rewards that the past state had folded; those folded since then are excluded."""
    history, was = state.history.copy(state.round, state.arrived), past.history
    left = history.first - was.first  # rows of the past state that have left since then
    excluded = was.excluded[was.excluded >= left] - left
    history.excluded = np.union1d(excluded, history.get_first_arrivals(past.folded, state.folded))
    rewards, staying = np.full(state.rows, np.nan), max(past.round - history.first, 0)
    rewards[:staying] = was.copy_rewards(past.folded)[left : left + staying]
    history.take_back(past.folded, state.folded, rewards)
    if history.first:  # those that have left are excluded too: the past state's rewards are what counts
        missing = history.count_first_arrivals(state.folded) - past.counted
        history.gone = history.gone._replace(excluded=history.gone.excluded + missing)
    return history


def _restore_selection(policy: StagedPolicy, history: History, past: State) -> Selection | None:
    """The past state's candidates for the window of today's history."""
    if past.selection is None or history.first <= past.history.first:
        return past.selection
    exposure, default = past.exposure, policy.config.rewards.default
    waiting = None if exposure is None or default is None else Waiting(default, exposure.reached)
    was = past.history.copy(past.round, past.folded)  # without what later states have added to it
    candidates = restore_candidates(
        policy.maps, was, past.selection.candidates, past.round, past.folded, history.first, waiting
    )
    return past.selection._replace(candidates=candidates, first=history.first)


def resume_after_erasure(policy: StagedPolicy, state: State) -> State:
    """The state rebuilt after an erasure (R22), ready to go on.

    The rewards left may be too few for an estimate. Then joint statistics decide at random again (R8), and the next
    estimate is due at once.
    """
    if not policy.estimator.is_required(state):
        return state
    return state._replace(next_estimation=find_stage_start(state.round + 1, policy.config.stage_length))
