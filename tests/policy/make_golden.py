"""Writes golden_trace.json (`python -m tests.policy.make_golden`): customers and the reference's answers."""

import json
from pathlib import Path

import numpy as np

from tests.policy.reference import Reference

PATH = Path(__file__).with_name("golden_trace.json")
ROUNDS = 203  # 29 stages of 7
DATA_SEED = 34  # found by search: what test_golden.py asks of the trace holds, with margins
OUTAGES = ((58, 79), (135, 166))  # no reward arrives in these rounds: batches may span stage ends
STORED_UPDATES = (8, 50, 113, 141, 197)  # rounds whose update is stored in full; the others leave a digest

CONFIG = {
    "name": "golden-trace",
    "actions": ["none", "mail", "call"],
    "variables": [
        {"name": "risk", "levels": ["low", "high"]},
        {"name": "spend", "cuts": [20.0, 50.0]},
        {"name": "tenure", "range": [0.0, 8.0]},
        {"name": "channel", "levels": ["web", "shop", "app"]},
    ],
    "signals": ["risk", "spend"],
    "regimes": 3,
    "features": {
        "shared": ["risk", "tenure", "channel", "actions:tenure", {"term": "actions:channel", "levels": ["app"]}],
        "per_regime": ["intercept", "actions", {"term": "actions:spend", "levels": ["1", "3"]}],
    },
    "stage_length": 7,
    "ridge": 0.3,
    "bonus": {"form": "complex", "scale": 0.02},
    "warm_start_rounds": 24,
    "beliefs": {"estimator": "spectral", "start_round": 50, "every": 13, "statistics": "as_decided"},
    "rewards": {"range": [-3.0, 3.0]},
    "control": {"share": 0.2, "kind": "uniform"},
    "propensity_floor": 0.05,
    "seed": 7,
}

TRANSITION = np.array([[0.90, 0.06, 0.04], [0.05, 0.88, 0.07], [0.06, 0.06, 0.88]])
EMISSION = np.array(  # symbols: risk low × spend 1, 2, 3, then risk high × spend 1, 2, 3
    [[0.46, 0.36, 0.06, 0.05, 0.04, 0.03], [0.05, 0.06, 0.42, 0.36, 0.06, 0.05], [0.04, 0.05, 0.06, 0.07, 0.36, 0.42]]
)
EFFECTS = np.array([[0.2, 0.9, -0.5], [0.1, -0.4, 0.8], [0.3, 0.2, 0.1]])  # of each action in each regime
SPENDS = ([0.0, 7.5, 20.0], [20.5, 36.0, 50.0], [50.5, 64.0, 99.0])  # levels 1, 2, 3; a cut is of the lower one


def simulated(data_seed, config=CONFIG, rounds=ROUNDS):
    """The trace's rows: what arrives, what is asked, and the reference's answer; and the reference itself.

    Only `Generator.random` is used and numbers are rounded, so that the inputs are the same on every machine.
    """
    draw = np.random.default_rng(data_seed).random
    reference, regime, pending, rows = Reference(config), 0, [], []
    for t in range(1, rounds + 1):
        regime = int(np.searchsorted(TRANSITION[regime].cumsum(), draw()))
        symbol = int(np.searchsorted(EMISSION[regime].cumsum(), draw()))
        context = {
            "risk": ["low", "high"][symbol // 3],
            "spend": SPENDS[symbol % 3][int(3 * draw())],
            "tenure": round(16 * draw()) / 2,
            "channel": ["web", "shop", "app"][int(3 * draw())],
        }
        excluded = [config["actions"][int(3 * draw())]] if draw() < 0.2 else []
        subject = f"customer-{int(12 * draw())}" if draw() < 0.4 else None
        row = {
            "rewards": [[s, value] for due, s, value in pending if due <= t],
            "context": context,
            "excluded": excluded,
            "subject": subject,
        }
        pending = [arrival for arrival in pending if arrival[0] > t]
        for s, value in row["rewards"]:
            reference.reward(s, value)
        row["expected"] = reference.decide(context, excluded, subject)
        rows.append(row)
        mean = EFFECTS[regime, reference.actions[-1]] + 0.1 * context["tenure"] / 8
        value = round(mean + 0.6 * (draw() - 0.5), 3)
        kind, delay = draw(), draw()
        if kind > 0.12:  # else the reward never comes
            # Half come at once, half up to six stages later; the first rounds' all do: a longer warm start.
            late = kind > 0.55 or t <= 12
            due = t + (8 + int(34 * delay) if late else 1 + int(3 * delay))
            due = next((last + 1 for first, last in OUTAGES if first <= due <= last), due)
            pending.append((due, t, value))
            pending.sort(key=lambda arrival: (arrival[0], -arrival[1]))  # of those due together, the newest first
    return rows, reference


def document():
    rows, reference = simulated(DATA_SEED)
    upper = np.triu_indices(len(reference.G))
    updates = []
    for update in reference.updates:
        G, theta = np.array(update.pop("G")), update.pop("theta")
        full = update["round"] in STORED_UPDATES
        updates.append(update | ({"G_upper": G[upper].tolist(), "theta": theta} if full else {}))
    return {"config": CONFIG, "rounds": rows, "updates": updates, "estimations": reference.estimations}


def written(trace):
    """One round, update or re-estimation a line."""
    lists = {name: ",\n".join(json.dumps(row) for row in trace[name]) for name in trace if name != "config"}
    parts = [f'"config": {json.dumps(trace["config"])}', *(f'"{name}": [\n{rows}\n]' for name, rows in lists.items())]
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    PATH.write_text(written(document()), encoding="utf-8")
