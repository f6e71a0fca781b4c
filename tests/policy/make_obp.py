"""Writes obp_estimates.json: what the Open Bandit Pipeline's estimators say about fixed logs.

    python3 -m venv /tmp/obpenv && /tmp/obpenv/bin/pip install numpy scikit-learn pandas matplotlib seaborn tqdm pyyaml
    /tmp/obpenv/bin/pip install --no-deps obp==0.3.3    # the last release that does not need torch
    /tmp/obpenv/bin/python tests/policy/make_obp.py

It imports nothing of ours, and our environment has no obp: only the numbers meet, in test_evaluation.py. A log is made
from its seed by `Generator.random` alone, so that it is the same on every machine.
"""

import json
from pathlib import Path

import numpy as np

PATH = Path(__file__).with_name("obp_estimates.json")
SHAPES = [(1, 50, 2), (2, 400, 3), (3, 1000, 5), (4, 300, 10)]  # seed, decisions, actions


def log_of(seed, rounds, arms):
    """Rewards, actions, the logging law, a target law, predicted rewards."""
    draw = np.random.default_rng(seed).random
    logging, target = draw((rounds, arms)) + 0.1, draw((rounds, arms)) ** 3
    logging, target = (law / law.sum(axis=1, keepdims=True) for law in (logging, target))
    actions = (logging.cumsum(axis=1) < draw((rounds, 1))).sum(axis=1)
    predictions = 3.0 * draw((rounds, arms)) - 1.0
    rewards = predictions[np.arange(rounds), actions] + draw(rounds) - 0.3
    return rewards, actions, logging, target, predictions


def main():
    import obp
    from obp.ope import DoublyRobust, InverseProbabilityWeighting, SelfNormalizedInverseProbabilityWeighting

    logs = []
    for seed, rounds, arms in SHAPES:
        rewards, actions, logging, target, predictions = log_of(seed, rounds, arms)
        given = {
            "reward": rewards,
            "action": actions,
            "position": np.zeros(rounds, int),
            "pscore": logging[np.arange(rounds), actions],
            "action_dist": target[:, :, None],
        }
        predicted = {"estimated_rewards_by_reg_model": predictions[:, :, None]}
        ips, dr = InverseProbabilityWeighting(), DoublyRobust()
        terms = {"ips": ips._estimate_round_rewards(**given), "dr": dr._estimate_round_rewards(**given, **predicted)}
        logs.append(
            {
                "seed": seed,
                "rounds": rounds,
                "arms": arms,
                "reward_sum": float(rewards.sum()),  # to see that the log is the same
                "ips": float(ips.estimate_policy_value(**given)),
                "snips": float(SelfNormalizedInverseProbabilityWeighting().estimate_policy_value(**given)),
                "dr": float(dr.estimate_policy_value(**given, **predicted)),
            }
            | {f"{name}_error": float(each.std(ddof=1) / rounds**0.5) for name, each in terms.items()}
        )
    PATH.write_text(json.dumps({"obp": obp.__version__, "logs": logs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
