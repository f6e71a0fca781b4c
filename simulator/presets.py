"""The campaigns that the simulator plays: named presets, any field of which can be overridden.

Every preset becomes an ordinary CampaignConfig, so the same JSON runs in process and over HTTP.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from policy import bounds
from policy.arrays import FloatArray
from policy.config import THEORY_CONSTANTS, CampaignConfig
from policy.encoding import Contexts
from policy.features import FeatureMap
from simulator.environment import Environment

# The paper re-estimates every round. Re-estimating whenever the number of rounds has grown by 2 % gives the same regret
# within the error bars (docs/reproduction.md), with 198 estimates instead of 49,000.
_SPECTRAL = {"estimator": "spectral", "start_round": 1000, "every": {"factor": 1.02}, "statistics": "as_decided"}

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"regimes": "auto"},  # every policy field keeps its default
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


# The two theorems: their bonuses, λ and ℓ, with the environment's own constants.
THEORY = {
    "theory-general": ("theory_general", bounds.general_settings),
    "theory-simplified": ("theory_simplified", bounds.simplified_settings),
}


class TheoryConstants(NamedTuple):
    """What the theorems assume to be known, for an environment and features scaled to norm 1."""

    dimension: int  # d of φ
    features: FloatArray  # one row per (action, cell): φ(a, x) / norm bound
    theta: FloatArray  # one row per regime, for the scaled features
    c_theta: float
    gamma: float
    c_eta: float
    v_eta: float


@cache
def compute_theory_constants(environment: Environment) -> TheoryConstants:
    """Compute the constants of assumptions bound-R-linear, strong-mixing-hmm, idio-noise and SGnoise."""
    config = build_config("plain-linucb", environment, 0)  # with one regime, z is φ itself
    features = FeatureMap(config)
    cells, actions = len(environment.levels), range(len(environment.actions))
    contexts = Contexts(environment.levels, np.empty((cells, 0)), np.zeros(cells, np.int16))
    rows = [features.dense(np.ones(1), action, contexts, cell) for action in actions for cell in range(cells)]
    phi = np.array(rows) / features.norm_bound
    means = environment.means.reshape(len(environment.regimes), -1)
    theta = np.linalg.lstsq(phi, means.T, rcond=None)[0].T
    return TheoryConstants(
        dimension=features.dimension,
        features=phi,
        theta=theta,
        c_theta=float(np.linalg.norm(theta, axis=1).max()),
        gamma=bounds.compute_forgetting_rate(environment.hmm.transition),
        c_eta=environment.noise_std**2,
        v_eta=environment.noise_std,
    )


def _build_theory_preset(preset: str, environment: Environment, rounds: int) -> dict[str, Any]:
    form, settings = THEORY[preset]
    ridge, stage_length = settings(rounds)
    known = {**compute_theory_constants(environment)._asdict(), "risk": 0.05, "horizon": rounds}
    bonus = {"form": form, **{name: known[name] for name in THEORY_CONSTANTS[form]}}
    return {"ridge": ridge, "stage_length": stage_length, "bonus": bonus, "beliefs": _SPECTRAL}


Preset = str | Mapping[str, Any]  # a name, or a configuration


def build_config(
    preset: Preset,
    environment: Environment,
    seed: int,
    overrides: Mapping[str, Any] | None = None,
    rounds: int = 50_000,
) -> CampaignConfig:
    """Build the configuration of a preset on an environment; `overrides` replaces fields, and keys inside sections.

    `rounds` is the horizon T, which only the theory presets use. Re-estimations run inline unless the preset or an
    override says otherwise, so that a run is reproducible in process and at a service (R16).
    """
    fields = {**(_expand_preset(preset, environment, rounds) if isinstance(preset, str) else preset), "seed": seed}
    for field, value in (overrides or {}).items():
        section = fields.get(field)
        if isinstance(section, dict) and isinstance(value, dict):
            # A different form or estimator has different settings, so the preset's settings are dropped.
            kind = {"bonus": "form", "beliefs": "estimator"}.get(field, "")
            kept = {} if kind in value and value[kind] != section.get(kind) else section
            fields[field] = {**kept, **value}
        else:
            fields[field] = value
    beliefs = fields.get("beliefs", {})
    if isinstance(beliefs, dict):  # otherwise CampaignConfig reports the error
        fields["beliefs"] = beliefs = {"estimation": "inline", **beliefs}
        if beliefs.get("estimator") == "given" and "parameters" not in beliefs:
            truth = {name: array.tolist() for name, array in environment.hmm._asdict().items()}
            fields["beliefs"] = {**beliefs, "parameters": truth}
    return CampaignConfig(**fields)


def _expand_preset(preset: str, environment: Environment, rounds: int) -> dict[str, Any]:
    if preset not in PRESETS and preset not in THEORY:
        raise ValueError(f"unknown preset {preset!r}; choose one of {', '.join([*PRESETS, *THEORY])}, oracle")
    chosen = PRESETS[preset] if preset in PRESETS else _build_theory_preset(preset, environment, rounds)
    return {
        "name": preset,
        "actions": environment.actions,
        "variables": [{"name": v["name"], "levels": v["levels"]} for v in environment.variables],
        "signals": environment.signals,
        "regimes": len(environment.regimes),
        # The published map. In the credit-card environment only levels with an effect have an interaction: 51 columns.
        "features": {
            "shared": [variable["name"] for variable in environment.variables],
            "per_regime": ["intercept", "actions", *environment.action_terms],
        },
        **({} if preset == "default" else {"warm_start_rounds": 250}),  # the paper's
        **chosen,
    }


def load_config(file: Path) -> dict[str, Any]:
    """Load a campaign's configuration from a JSON file; the file's name is the default for its name."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{file} is not a JSON object with a campaign's fields")
    return {"name": slugify(file.stem), **fields}


def slugify(text: str) -> str:
    """Turn a text into part of a campaign's name: a-z, 0-9 and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "campaign"


def require_fit(config: CampaignConfig, environment: Environment) -> None:
    """Refuse a campaign with actions or variables that the environment lacks, or with a clock."""
    unknown = sorted(set(config.actions) - set(environment.actions))
    if unknown:
        raise ValueError(f"actions: {environment.name} has no {', '.join(unknown)}, only {list(environment.actions)}")
    names = [variable["name"] for variable in environment.variables]
    unknown = sorted({variable.name for variable in config.variables} - set(names))
    if unknown:
        raise ValueError(f"variables: {environment.name} has no {', '.join(unknown)}, only {names}")
    if config.clock is not None:
        raise ValueError("clock: simulated rounds have no times; remove it from the configuration")
