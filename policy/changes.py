"""Changes to a campaign that no round makes: of its configuration, of its actions, and back to an earlier model."""

import math
from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from policy.config import CampaignConfig
from policy.defaults import TRIAL_SHARE
from policy.errors import ArgumentError, ConfigError, FieldProblem, FixedError, PolicyError
from policy.features import FeatureMap
from policy.kernels import Statistics
from policy.staged import StagedPolicy
from policy.stages import find_stage_start
from policy.state import State

__all__ = [
    "CHANGEABLE",
    "add_config_action",
    "append_actions",
    "clone_config",
    "patch_config",
    "resume_after_erasure",
    "retire_config_action",
    "roll_back",
]

# What may change without resetting the model. Actions change too, but only as `grown` allows.
CHANGEABLE = (
    "rewards.wait_seconds",
    "rewards.default",
    "control",
    "propensity_floor",
    "bonus.scale",
    "regime_labels",
    "alerts",
    "retention_days",
    "paused",
)
# What depends on other fields unless it is given; first those that depend on others of them.
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
TRIAL_PLAYS = 20  # that a new action gets at least, on average, before only its score speaks for it
_OWN_WAYS = {
    "name": "it is the campaign's identity",
    "actions": "POST …/actions adds one, and a clone has any others",
    "retired_actions": "POST …/actions/retire retires one, POST …/actions brings it back",
}


_DEEPEST = 8  # objects inside objects: a configuration has fewer, so what is deeper is refused when it is validated


def _merged(whole: Mapping[str, Any], patch: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Some fields replaced, as RFC 7396 merges JSON: objects by field, null for the default."""
    result = dict(whole)
    for name, value in patch.items():
        if isinstance(value, Mapping) and depth < _DEEPEST:
            inside = result.get(name)
            result[name] = _merged(inside if isinstance(inside, Mapping) else {}, value, depth + 1)
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def patch_config(config: CampaignConfig, patch: Mapping[str, Any]) -> CampaignConfig:
    """The configuration after a change that a living campaign can take; FixedError names what it cannot."""
    before = config.model_dump(mode="json")
    merged = _merged(before, patch)
    try:
        changed = CampaignConfig.model_validate(merged)
    except PolicyError:  # what cannot change at all is told first: it need not be right
        _refuse_fixed(before, _known(before, merged))
        raise
    _refuse_fixed(before, changed.model_dump(mode="json"))
    return changed


def _known(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What some fields would be, but for those that there are not, and parts that are no parts."""
    known = dict(before)
    for name in before.keys() & after.keys():
        was, value = before[name], after[name]
        if isinstance(was, dict) and isinstance(value, dict):
            known[name] = _known(was, value)
        elif not isinstance(was, dict) and not isinstance(value, dict):
            known[name] = value
    return known


def _refuse_fixed(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise FixedError if they differ in anything but what may change."""
    before, after = ({name: copy(value) for name, value in fields.items()} for fields in (before, after))
    for field in CHANGEABLE:
        part, _, inner = field.partition(".")
        for fields in (before, after):
            if not inner:
                del fields[part]
            elif isinstance(fields[part], dict):
                fields[part].pop(inner, None)
    if fixed := [field for name in before for field in _differing(name, before[name], after[name])]:
        problems = [FieldProblem(name, _OWN_WAYS.get(name, "cannot change"), list(CHANGEABLE)) for name in fixed]
        raise FixedError(problems)


def _differing(name: str, before: Any, after: Any) -> list[str]:
    if before == after:
        return []
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [name]
    inner = dict.fromkeys((*before, *after))
    return [f"{name}.{field}" for field in inner if before.get(field) != after.get(field)]


def clone_config(config: CampaignConfig, patch: Mapping[str, Any]) -> CampaignConfig:
    """The configuration of a new campaign like this one, with its own name, seed and any other change.

    What is as it would be by default follows the change: another variable is used, not only asked for. What belongs to
    a choice goes with it: the scale of a bonus to its form, given parameters to their estimator.
    """
    active = [action for action in config.actions if action not in config.retired_actions]
    fresh = {"name": None, "seed": None, "paused": None, "retired_actions": None, "actions": active}
    kept, wanted = _underived(config), fresh | dict(patch)
    if _given(patch, "bonus", "form") not in (None, config.bonus.form):
        kept["bonus"] = {}
    if _given(patch, "beliefs", "estimator") not in (None, config.beliefs.estimator):
        kept["beliefs"].pop("parameters", None)
    clone = CampaignConfig.model_validate(_merged(kept, wanted))
    if clone.bonus.form != config.bonus.form and _given(patch, "bonus", "scale") is None:
        kept["bonus"].pop("scale", None)  # the form has followed another change
        clone = CampaignConfig.model_validate(_merged(kept, wanted | {"seed": clone.seed}))
    return clone


def _given(patch: Mapping[str, Any], part: str, field: str) -> Any:
    inside = patch.get(part)
    return inside.get(field) if isinstance(inside, Mapping) else None


def _underived(config: CampaignConfig) -> dict[str, Any]:
    """The configuration without what its other fields give anyway."""
    kept = config.model_dump(mode="json")
    for field in DERIVED:
        part, _, inner = field.partition(".")
        without = _merged(kept, {part: {inner: None} if inner else None})
        try:
            if CampaignConfig.model_validate(without) == config:
                kept = without
        except ConfigError:  # it must be given
            pass
    return kept


def add_config_action(config: CampaignConfig, action: str) -> CampaignConfig:
    """The configuration with another action, or with a retired one back in use."""
    fields = config.model_dump(mode="json")
    fields["retired_actions"] = [name for name in config.retired_actions if name != action]
    if action not in config.actions:
        fields["actions"] = [*config.actions, action]
    return CampaignConfig.model_validate(fields)


def retire_config_action(config: CampaignConfig, action: str) -> CampaignConfig:
    """The configuration with an action retired."""
    if action in config.retired_actions:
        return config
    left = [name for name in config.actions[1:] if name not in config.retired_actions]
    if action not in left:
        wrong = "is the baseline, which stays" if action == config.actions[0] else "is no action of this campaign"
        raise ConfigError([FieldProblem("action", f"{action!r} {wrong}", left)])
    if len(left) == 1:
        raise ConfigError([FieldProblem("action", "only the baseline would be left", "pause or archive the campaign")])
    retired = [*config.retired_actions, action]
    return CampaignConfig.model_validate(config.model_dump(mode="json") | {"retired_actions": retired})


def append_actions(before: StagedPolicy, after: StagedPolicy, state: State) -> State:
    """The state of a campaign to whose actions others were appended.

    No round has played the new actions, so G + P (kernels.linucb) splits into a block of the old columns and one of
    the new: what was estimated stays to the bit, and the new columns are as before any reward. Their bonus alone may
    not be enough to outdo an action that earns much, so they begin with a trial (`State.trial_end`). It ends when no
    action is left that needs it; one that is brought back without having been tried gets its own.
    """
    if after.config.actions == before.config.actions:
        return _tried(before, after, state)
    if after.config.actions[: len(before.config.actions)] != before.config.actions or after.ridge != before.ridge:
        raise ArgumentError("actions", f"{list(after.config.actions)}", f"more after {list(before.config.actions)}")
    regimes, selection = state.belief.size, state.selection
    if selection is not None:
        candidates = tuple(
            c._replace(theta=_spread(c.theta, *_columns(before, after, c.regimes), 0.0)) for c in selection.candidates
        )
        selection = selection._replace(candidates=candidates)
    statistics = _grown(state.statistics, *_columns(before, after, regimes), after.maps[regimes], after.ridge)
    state = state._replace(statistics=statistics, selection=selection, model_version=state.model_version + 1)
    return _on_trial(after, state, len(before.config.actions))


def _tried(before: StagedPolicy, after: StagedPolicy, state: State) -> State:
    """The state after some actions were retired or brought back."""
    actions, was, retired = after.config.actions, before.config.retired_actions, after.config.retired_actions
    if retired == was:  # most changes are others: no need to look at every round
        return state
    plays = np.bincount(state.history.actions[: state.round], minlength=len(actions))
    for place, action in enumerate(actions):
        if action in was and action not in retired and plays[place] < TRIAL_PLAYS:
            return _on_trial(after, state, place)
    if state.trial_end > state.round and set(actions[state.trial_first :]) <= set(retired):
        length = after.config.stage_length
        return state._replace(trial_end=-(-state.round // length) * length)
    return state


def _on_trial(policy: StagedPolicy, state: State, first: int) -> State:
    """The state with the action at that place, and later ones, on trial.

    Up to the end of the stage by which each has been played TRIAL_PLAYS times, on average or more often.
    """
    config = policy.config
    active = len(config.actions) - len(config.retired_actions)
    rounds = math.ceil(TRIAL_PLAYS * active / (TRIAL_SHARE * (1.0 - config.control.share)))
    end = -(-(state.round + rounds) // config.stage_length) * config.stage_length
    if state.trial_end > state.round:  # together with those that are on trial already
        first = min(first, state.trial_first)
    return state._replace(trial_end=end, trial_first=first)


def _columns(before: StagedPolicy, after: StagedPolicy, regimes: int) -> tuple[npt.NDArray[np.intp], int]:
    """Where the old columns are among the new ones, and how many these are."""
    places = {column: place for place, column in enumerate(after.maps[regimes].column_parts)}
    old = before.maps[regimes].column_parts
    return np.array([places[column] for column in old], np.intp), len(places)


def _spread(
    vector: npt.NDArray[np.float64], places: npt.NDArray[np.intp], size: int, rest: float
) -> npt.NDArray[np.float64]:
    wide = np.full(size, rest)
    wide[places] = vector
    return wide


def _grown(old: Statistics, places: npt.NDArray[np.intp], size: int, features: FeatureMap, ridge: float) -> Statistics:
    block, fresh = np.ix_(places, places), np.setdiff1d(np.arange(size), places)
    factored = old.counters[1] >= 0
    gram, inverse = np.eye(size) * ridge, np.eye(size) / ridge
    if factored:  # (λI + P)⁻¹ = (I - P)/λ + P/(1 + λ)
        rest = np.ix_(fresh, fresh)
        inverse[rest] += features.plan.null[rest] * (1.0 / (1.0 + ridge) - 1.0 / ridge)
    gram[block], inverse[block] = old.gram, old.inverse
    return Statistics(
        gram,
        _spread(old.moment, places, size, 0.0),
        inverse,
        _spread(old.theta, places, size, 0.0 if factored else 1.0 / ridge),
        old.counters.copy(),
        old.units.copy(),
    )


def roll_back(policy: StagedPolicy, state: State, before: StagedPolicy, past: State) -> State:
    """The state with the model of an earlier one of the same campaign, under the policy of then, in force again (R21).

    Rounds and rewards stay. Rewards that were folded since then are excluded for good, also from recomputations;
    those that still wait are folded by the next update. Beliefs are the earlier model's, as after a re-estimation (R5).
    Actions that are newer than the model begin anew.
    """
    if not (past.round <= state.round and past.folded <= state.folded and past.model_version <= state.model_version):
        raise ArgumentError("past", f"is of round {past.round}", f"an earlier state, up to round {state.round}")
    unestimated = policy.estimator.is_required(past) and not policy.estimator.is_required(state)
    renewed = set(policy.config.actions) - set(before.config.actions) - set(policy.config.retired_actions)
    past = append_actions(before, policy, past)
    history = state.history.copy(state.round, state.arrived)
    order = history.get_arrival_order(state.folded)
    history.excluded = np.union1d(past.history.excluded, order[past.folded :])
    state = state._replace(
        belief=policy.estimator.restore_belief(state, past, history),
        hmm=past.hmm,
        statistics=past.statistics,
        model_version=state.model_version + 1,
        history=history,
        rebuild=past.rebuild,
        selection=past.selection,
        # Without an estimate joint statistics decide at random: the next one must not wait for its turn (R8).
        next_estimation=find_stage_start(state.round + 2, policy.config.stage_length)
        if unestimated
        else state.next_estimation,
    )
    return _on_trial(policy, state, len(before.config.actions)) if renewed else state


def resume_after_erasure(policy: StagedPolicy, state: State) -> State:
    """The state, made anew without someone's rounds (R22), as it goes on.

    Too few rewards may be left for the estimates that there were. Then joint statistics decide at random again (R8),
    and the next estimate must not wait for its turn.
    """
    if not policy.estimator.is_required(state):
        return state
    return state._replace(next_estimation=find_stage_start(state.round + 1, policy.config.stage_length))
