"""The campaigns that the simulator compares, as configurations: presets by name, any field overridden.

Every preset is an ordinary CampaignConfig, so the same JSON runs in process and over HTTP.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policy import bounds
from policy.config import THEORY_CONSTANTS, CampaignConfig
from policy.features import Contexts, FeatureMap
from simulator.environment import Environment

__all__ = [
    "PRESETS",
    "THEORY",
    "Preset",
    "TheoryConstants",
    "campaign",
    "load_config",
    "paper_features",
    "require_fit",
    "slug",
    "theory_constants",
]

FloatArray = npt.NDArray[np.float64]

# The paper re-estimates every round; doing so whenever the rounds have grown by 2 % gives the same regret within the
# error bars (docs/reproduction.md) with 198 estimates instead of 49,000.
_SPECTRAL = {
    "estimator": "spectral",
    "start_round": 1000,
    "every": {"factor": 1.02},
    "statistics": "as_decided",
}

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"regimes": "auto"},  # what a campaign gets that names only actions, variables, signals (and features)
    "paper-complex": {
        "stage_length": 37,
        "ridge": 1.0,
        "bonus": {"form": "complex", "scale": 5e-4},
        "beliefs": _SPECTRAL,
    },
    "paper-simplified": {
        "stage_length": 37,
        "ridge": 0.1,
        "bonus": {"form": "simplified", "scale": 5e-3},
        "beliefs": _SPECTRAL,
    },
    "plain-linucb": {
        "regimes": 1,
        "stage_length": 1,
        "ridge": 0.1,
        "bonus": {"form": "plain", "scale": 0.05},
        "beliefs": {"estimator": "none"},
    },
    "known-hmm": {
        "stage_length": 37,
        "ridge": 1.0,
        "bonus": {"form": "complex", "scale": 5e-4},
        "beliefs": {"estimator": "given"},
    },
}


# The two theorems as they stand: their bonuses, λ and ℓ, with the environment's own constants.
THEORY = {"theory-general": "theory_general", "theory-simplified": "theory_simplified"}


def paper_features(environment: Environment) -> dict[str, list[Any]]:
    """The published experiment's map: main effects shared, intercept and action terms per regime.

    The credit-card environment's interactions keep only the levels with a coefficient other than 0: 51 columns.
    """
    mains = [variable["name"] for variable in environment.variables]
    return {"shared": mains, "per_regime": ["intercept", "actions", *environment.action_terms]}


class TheoryConstants(NamedTuple):
    """What the theorems assume known, for an environment and a feature map scaled to norm 1."""

    dimension: int  # d of φ
    features: FloatArray  # a row per (action, cell): φ(a, x) / norm bound
    theta: FloatArray  # a row per regime, of the scaled features
    c_theta: float
    gamma: float
    c_eta: float
    v_eta: float


@cache
def theory_constants(environment: Environment) -> TheoryConstants:
    """The constants of assumptions bound-R-linear, strong-mixing-hmm, idio-noise and SGnoise."""
    config = campaign("plain-linucb", environment, 0)  # H = 1: z is φ itself
    features = FeatureMap(config)
    levels = environment.levels
    contexts = Contexts(levels, np.empty((len(levels), 0)), np.zeros(len(levels), np.int16))
    alone = np.ones(1)
    rows = [
        features.dense(alone, action, contexts, cell)
        for action in range(len(environment.actions))
        for cell in range(len(levels))
    ]
    phi = np.array(rows) / features.norm_bound
    means = environment.means.reshape(len(environment.regimes), -1)
    theta = np.linalg.lstsq(phi, means.T, rcond=None)[0].T
    variance = environment.noise_std**2
    return TheoryConstants(
        features.dimension,
        phi,
        theta,
        float(np.linalg.norm(theta, axis=1).max()),
        bounds.forgetting_rate(environment.hmm.transition),
        variance,
        environment.noise_std,
    )


def _theory_preset(preset: str, environment: Environment, rounds: int) -> dict[str, Any]:
    form = THEORY[preset]
    settings = bounds.general_settings if preset == "theory-general" else bounds.simplified_settings
    ridge, stage_length = settings(rounds)
    known = {**theory_constants(environment)._asdict(), "risk": 0.05, "horizon": rounds}
    bonus = {"form": form, **{name: known[name] for name in THEORY_CONSTANTS[form]}}
    return {"ridge": ridge, "stage_length": stage_length, "bonus": bonus, "beliefs": _SPECTRAL}


Preset = str | Mapping[str, Any]  # by name, or a configuration of one's own


def campaign(
    preset: Preset,
    environment: Environment,
    seed: int,
    overrides: Mapping[str, Any] | None = None,
    rounds: int = 50_000,
) -> CampaignConfig:
    """The configuration of a preset on an environment; `overrides` replace fields, sections key by key.

    `rounds` is the horizon T, which only the theorems' presets use. Re-estimations run inline unless the preset or an
    override says otherwise, so that a run is reproducible wherever it is played (R16).
    """
    fields = {**(_fields(preset, environment, rounds) if isinstance(preset, str) else preset), "seed": seed}
    for field, value in (overrides or {}).items():
        section = fields.get(field)
        if isinstance(section, dict) and isinstance(value, dict):
            # Another form or estimator has other settings: the preset's go with the preset's.
            kind = {"bonus": "form", "beliefs": "estimator"}.get(field, "")
            kept = {} if kind in value and value[kind] != section.get(kind) else section
            fields[field] = {**kept, **value}
        else:
            fields[field] = value
    beliefs = fields.get("beliefs", {})
    if isinstance(beliefs, dict):  # else the configuration says what is wrong with it
        fields["beliefs"] = beliefs = {"estimation": "inline", **beliefs}
        if beliefs.get("estimator") == "given" and "parameters" not in beliefs:
            truth = {name: array.tolist() for name, array in environment.hmm._asdict().items()}
            fields["beliefs"] = {**beliefs, "parameters": truth}
    return CampaignConfig(**fields)


def _fields(preset: str, environment: Environment, rounds: int) -> dict[str, Any]:
    if preset not in PRESETS and preset not in THEORY:
        raise ValueError(f"unknown preset {preset!r}; there are {', '.join([*PRESETS, *THEORY])} and oracle")
    chosen = PRESETS[preset] if preset in PRESETS else _theory_preset(preset, environment, rounds)
    return {
        "name": preset,
        "actions": environment.actions,
        "variables": [{"name": v["name"], "levels": v["levels"]} for v in environment.variables],
        "signals": environment.signals,
        "regimes": len(environment.regimes),
        "features": paper_features(environment),
        **({} if preset == "default" else {"warm_start_rounds": 250}),  # the paper's
        **chosen,
    }


def load_config(file: Path) -> dict[str, Any]:
    """A configuration of one's own, like the one that creates a campaign; without a name it gets the file's."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{file} does not hold an object with a campaign's fields")
    return {"name": slug(file.stem), **fields}


def slug(text: str) -> str:
    """The text as (part of) a campaign's name: a-z, 0-9 and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "campaign"


def require_fit(config: CampaignConfig, environment: Environment) -> None:
    """An environment can only play a campaign about its own actions and variables, and its rounds have no times."""
    unknown = sorted(set(config.actions) - set(environment.actions))
    if unknown:
        raise ValueError(f"actions: {environment.name} has no {', '.join(unknown)}, only {list(environment.actions)}")
    names = [variable["name"] for variable in environment.variables]
    unknown = sorted({variable.name for variable in config.variables} - set(names))
    if unknown:
        raise ValueError(f"variables: {environment.name} has no {', '.join(unknown)}, only {names}")
    if config.clock is not None:
        raise ValueError("clock: an environment's rounds have no times; take it out of the configuration")
