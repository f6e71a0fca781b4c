"""The paper's method as a pure library: staged LinUCB on estimated HMM beliefs. No I/O, no clock.

>>> from policy import CampaignConfig, StagedPolicy
>>> config = CampaignConfig(
...     name="cards",
...     actions=["nothing", "call"],
...     variables=[{"name": "risk", "levels": ["low", "high"]}, {"name": "income", "cuts": [10, 36]}],
...     seed=7,
... )
>>> policy = StagedPolicy(config)
>>> state = policy.initial_state()
>>> state, decision = policy.decide(state, {"risk": "low", "income": 36})
>>> decision.round, decision.mode, decision.propensity
(1, 'warm_start', 0.5)
>>> state = policy.reward(state, decision.round, 1.25)
"""

from policy.codec import decode, encode
from policy.config import CampaignConfig
from policy.description import describe
from policy.errors import (
    ArgumentError,
    CodecError,
    ConfigError,
    ContextError,
    FieldProblem,
    FixedError,
    PolicyError,
    RewardError,
)
from policy.features import FeatureMap
from policy.hmm import HmmParameters
from policy.staged import StagedPolicy
from policy.state import Decision, PastRound, Request, Score, State

__all__ = [
    "ArgumentError",
    "CampaignConfig",
    "CodecError",
    "ConfigError",
    "ContextError",
    "Decision",
    "FeatureMap",
    "FieldProblem",
    "FixedError",
    "HmmParameters",
    "PastRound",
    "PolicyError",
    "Request",
    "RewardError",
    "Score",
    "StagedPolicy",
    "State",
    "decode",
    "describe",
    "encode",
]
