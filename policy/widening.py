"""States made wider: for actions and levels that a campaign has gained between two rounds.

No round has had the new actions or levels, so G has nothing but λ in their columns, and what was learned stays:
estimates and bonuses of what there was before are the same.
"""

import math

import numpy as np

from policy import linucb
from policy.arrays import FloatArray, IndexArray
from policy.config import CampaignConfig, Variable
from policy.encoding import Contexts
from policy.errors import ConfigError
from policy.features import FeatureMap
from policy.history import History
from policy.hmm import HmmParameters
from policy.kernels import Statistics
from policy.staged import StagedPolicy
from policy.state import State


def widen_state(before: StagedPolicy, after: StagedPolicy, state: State) -> State:
    """The state with columns, level indices and symbols of the policy after; the same if it has no others."""
    has_new_levels = _list_effects(before) != _list_effects(after)
    if not has_new_levels and before.config.actions == after.config.actions:
        return state
    regimes, selection = state.belief.size, state.selection
    most = max([regimes, *(c.regimes for c in selection.candidates)] if selection else [regimes])
    if most not in after.maps:
        message = f"too many columns for the {most} regimes that the campaign has learned"
        raise ConfigError.of("features", message, "clone the campaign with fewer terms or levels")
    widen_columns = _refactor_columns if has_new_levels else _append_columns
    statistics = widen_columns(
        state.statistics, *_match_columns(before, after, regimes), after.maps[regimes], after.ridge
    )
    fresh = len(after.config.actions) - len(before.config.actions)
    if fresh and len(statistics.units) > 2:  # nothing is known about a new action's noise: as large as any
        noises = np.append(statistics.units, np.full(fresh, statistics.units[1:].max()))
        statistics = statistics._replace(units=noises)
    if selection is not None:
        candidates = tuple(
            c._replace(
                hmm=_widen_emission(before.config, after.config, c.hmm, state.round),
                theta=_spread(c.theta, *_match_columns(before, after, c.regimes), 0.0),
                kept=c.kept
                and c.kept.widen(
                    _match_columns(before, after, c.regimes),
                    _match_symbols(before.config, after.config),
                    len(after.config.actions),
                ),
            )
            for c in selection.candidates
        )
        selection = selection._replace(candidates=candidates)
    return state._replace(
        hmm=state.hmm and _widen_emission(before.config, after.config, state.hmm, state.round),
        statistics=statistics,
        selection=selection,
        online=state.online and state.online.widen(*_match_symbols(before.config, after.config)),
        model_version=state.model_version + 1,
        history=_recode_history(before, after, state),
    )


def widen_to_read(policy: StagedPolicy, state: State, newest: CampaignConfig) -> tuple[StagedPolicy, State]:
    """An earlier model that can read the contexts its campaign has accepted since then.

    A level that is new counts as `other` if the model knows that, else it changes none of the model's predictions.
    """
    variables = [
        old.model_copy(
            update={
                "levels": old.levels if old.unseen == "other" else new.levels,
                "missing": new.missing,
                "unseen": old.unseen if old.unseen == "other" else new.unseen,
                "outside": "reject" if old.range is None else "clip",
            }
        ).model_dump(mode="json")
        for old, new in zip(policy.config.variables, newest.variables, strict=True)
    ]
    fields = policy.config.model_dump(mode="json") | {"variables": variables, "extra_variables": "ignore"}
    reader = StagedPolicy(CampaignConfig.model_validate(fields))
    return reader, widen_state(policy, reader, state)


def _list_effects(policy: StagedPolicy) -> list[tuple[str | None, ...]]:
    return [variable.effects for variable in policy.config.variables]


# --- columns ----------------------------------------------------------------------------------------------------------


def _match_columns(before: StagedPolicy, after: StagedPolicy, regimes: int) -> tuple[IndexArray, int]:
    """The positions of the old columns among the new ones, and the number of new ones."""
    places = {column: place for place, column in enumerate(after.maps[regimes].column_parts)}
    old = before.maps[regimes].column_parts
    return np.array([places[column] for column in old], np.intp), len(places)


def _spread(vector: FloatArray, places: IndexArray, size: int, rest: float) -> FloatArray:
    wide = np.full(size, rest)
    wide[places] = vector
    return wide


def _append_columns(old: Statistics, places: IndexArray, size: int, features: FeatureMap, ridge: float) -> Statistics:
    """Columns of new actions: G + P (kernels.linucb) splits into a block of the old columns and one of the new, so
    that estimates stay to the last bit."""
    block, fresh = np.ix_(places, places), np.setdiff1d(np.arange(size), places)
    factored = linucb.is_current(old)
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


def _refactor_columns(old: Statistics, places: IndexArray, size: int, features: FeatureMap, ridge: float) -> Statistics:
    """Columns of new levels: the old levels of a variable are no longer collinear with the intercept, so P is another
    and G + P is factored anew. Neither θ̂ nor G⁻¹z depends on P: estimates stay, and bonuses but for rounding."""
    wide = _append_columns(old, places, size, features, ridge)
    if linucb.is_current(old):
        theta = wide.theta.copy()
        linucb.factor(wide, features, ridge)
        wide.theta[:] = theta
    return wide


# --- levels and symbols -----------------------------------------------------------------------------------------------


def _match_levels(before: Variable, after: Variable) -> IndexArray:
    """The new index of each level."""
    return np.array([after.effects.index(effect) for effect in before.effects], np.intp)


def _recode_history(before: StagedPolicy, after: StagedPolicy, state: State) -> History:
    """The history with the level indices and symbols of the policy after, and room for its regimes."""
    history, rounds = state.history, state.rows
    if _list_effects(before) == _list_effects(after) and before.features.regimes == after.features.regimes:
        return history
    old, regimes = history.contexts.rows(0, rounds), after.features.regimes
    pairs = zip(before.config.variables, after.config.variables, strict=True)
    columns = [_match_levels(*pair)[old.levels[:, i]] for i, pair in enumerate(pairs)]
    levels = np.array(columns, np.int16).reshape(len(columns), rounds).T
    contexts = after.features.find_symbols(Contexts(np.ascontiguousarray(levels), old.values, old.symbols))
    beliefs = np.zeros((rounds, regimes))
    beliefs[:, : history.beliefs.shape[1]] = history.beliefs[:rounds, :regimes]
    arrivals = history.get_arrival_order(state.arrived)
    return History.restore(
        *contexts,
        history.steps[:rounds],
        history.actions[:rounds],
        beliefs,
        arrivals=arrivals,
        rewards=history.list_newest_rewards(state.arrived),
        excluded=history.excluded,
        revisions=history.get_revisions(state.arrived),
        times=(history.times[:rounds], history.list_first_times(state.arrived)),
        gone=history.gone,
    )


def _widen_emission(before: CampaignConfig, after: CampaignConfig, hmm: HmmParameters, rounds: int) -> HmmParameters:
    """The parameters with the new symbols, which are as likely in one regime as in another.

    So they say nothing about the regime until the next estimate, and what the others say stays. Each gets the weight
    of one round among all so far: with none at all, an estimate could not start from here.
    """
    places, size = _match_symbols(before, after)
    if size == places.size and (places[:-1] < places[1:]).all():
        return hmm
    share = 1.0 / (rounds + size)
    emission = np.full((hmm.emission.shape[0], size), share)
    emission[:, places] = hmm.emission * (1.0 - (size - places.size) * share)
    return hmm._replace(emission=emission)


def _match_symbols(before: CampaignConfig, after: CampaignConfig) -> tuple[IndexArray, int]:
    """The new number of each old symbol, and how many there are now."""
    pairs = [(_find(before, name), _find(after, name)) for name in before.signals or ()]
    places = np.zeros(1, np.intp)
    for old, new in pairs:  # R9: row-major, the last signal fastest
        places = (places[:, None] * len(new.effects) + _match_levels(old, new)).ravel()
    return places, math.prod(len(new.effects) for _, new in pairs)


def _find(config: CampaignConfig, name: str) -> Variable:
    return next(variable for variable in config.variables if variable.name == name)
