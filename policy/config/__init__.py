"""The declarative, validated, frozen configuration of a campaign, a module per group of settings.

Only `name`, `actions` and `variables` are required. Every default is filled in when the configuration is made, so what
is stored and shown is complete. A mistake raises `ConfigError` with one problem per mistake.
"""

from policy.config.beliefs import Beliefs, Clock, GrowthFactor
from policy.config.bonus import THEORY_CONSTANTS, Bonus
from policy.config.campaign import CampaignConfig
from policy.config.features import Term, Variable
from policy.config.rules import Control, Rewards
from policy.config.types import (
    ACTIONS,
    INTERCEPT,
    LARGEST_REWARD,
    MAX_COLUMNS,
    MISSING,
    MOST_ROUNDS,
    OTHER,
    PLAIN_TEXT,
    Slug,
)

__all__ = [
    "ACTIONS",
    "INTERCEPT",
    "LARGEST_REWARD",
    "MAX_COLUMNS",
    "MISSING",
    "MOST_ROUNDS",
    "OTHER",
    "PLAIN_TEXT",
    "THEORY_CONSTANTS",
    "Beliefs",
    "Bonus",
    "CampaignConfig",
    "Clock",
    "Control",
    "GrowthFactor",
    "Rewards",
    "Slug",
    "Term",
    "Variable",
]
