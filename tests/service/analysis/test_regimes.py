"""`GET …/regimes`: every number recomputed from the log and the model, and labels that follow their regime."""

import itertools
import random

import pytest

from service.api.regimes import Regimes
from tests.service.answers import good, shaped
from tests.service.playing import GIVEN, PLAIN, SEASONS

NUMBERS = itertools.count(1)
WARM, COLD = SEASONS[:2], SEASONS[2:]


class Played:
    """A campaign whose regime changes every 25 rounds: customers differ, and mail pays in one of the two."""

    def __init__(self, client, **config):
        self.client, self.chance, self.round = client, random.Random(2), 0
        self.name = f"regimes-{next(NUMBERS)}"
        good(client.post("/campaigns", json={**PLAIN, "name": self.name, **config}), 201)

    def play(self, count, flip=False):
        draw = self.chance.random
        for _ in range(count // 5):
            items = []
            for _ in range(5):
                self.round += 1
                warm = (self.round // 25 % 2 == 0) != flip
                season = self.chance.choice((WARM if warm else COLD) if draw() < 0.9 else SEASONS)
                context = {"season": season, "spend": self.chance.choice((3, 36.5, 80)), "tenure": round(8 * draw(), 2)}
                items.append({"decision_id": f"d{self.round}", "context": context})
            made = self.post("/decide/batch", items=items)["decisions"]
            rewards = [
                {"decision_id": one["decision_id"], "reward": round(self.earned(one) + 0.2 * draw(), 3)}
                for one in made
                if draw() > 0.1
            ]
            if rewards:
                self.post("/reward/batch", items=rewards)
        return self

    @staticmethod
    def earned(made):
        return float((made["action"] == "mail") == (made["round"] // 25 % 2 == 0))

    def post(self, path, **body):
        return good(self.client.post(path, json={"campaign": self.name, **body}))

    def patch(self, **change):
        return good(self.client.patch(f"/campaigns/{self.name}", json=change))

    def regimes(self):
        return shaped(Regimes, self.client.get(f"/campaigns/{self.name}/regimes"))


def expect_reward(model, context, action, regime):
    """The reward of an action in a regime, by the model's coefficients."""
    levels = {"season": context["season"], "spend": str(1 + sum(context["spend"] > cut for cut in (20, 50)))}
    expected = model["centre"]
    for part in model["coefficients"]:
        if part["action"] in (None, action) and part["regime"] in (None, regime):
            variable = part["term"].removeprefix("actions:")
            number = context["tenure"] / 8 if variable == "tenure" else 1.0
            expected += part["estimate"] * (levels[variable] == part["level"] if variable in levels else number)
    return expected


def test_every_number_from_the_log_and_the_model(shared):
    """With given parameters beliefs are never recomputed, so the log contains everything."""
    labels = ["summer", "winter"]
    beliefs = {"estimator": "given", "parameters": GIVEN}
    played = Played(shared, regimes=2, beliefs=beliefs, regime_labels=labels).play(100)
    found = played.regimes()
    model = good(shared.get(f"/campaigns/{played.name}/model"))
    log = [good(shared.get(f"/campaigns/{played.name}/decisions/d{t}")) for t in range(1, 101)]
    assert (found["round"], found["model_version"], found["note"], found["labels_note"]) == (
        100, model["model_version"], None, None,
    )  # fmt: skip
    assert (found["duration_unit"], found["recent_rounds"]) == ("decisions", 300)
    for h, regime in enumerate(found["regimes"]):
        weights = [row["belief"][h] for row in log]
        rewarded = [(w, row["reward"]["reward"]) for w, row in zip(weights, log, strict=True) if row["reward"]]
        assert (regime["regime"], regime["label"]) == (h + 1, labels[h])
        assert regime["share"] == regime["recent_share"] == pytest.approx(sum(weights) / 100)
        assert regime["reward_weight"] == pytest.approx(sum(w for w, _ in rewarded))
        assert regime["mean_reward"] == pytest.approx(sum(w * r for w, r in rewarded) / regime["reward_weight"])
        assert regime["belief"] == pytest.approx(weights[-1])
        assert regime["long_run_share"] == pytest.approx([2 / 3, 1 / 3][h])
        assert regime["expected_duration"] == pytest.approx([10, 5][h])
        assert [s["symbol"]["season"] for s in regime["typical"][:2]] == list((WARM, COLD)[h])
        assert {one["level"] for one in regime["more_often"]} == set((WARM, COLD)[h])
        for reward in regime["expected_rewards"]:
            total = sum(
                weight * expect_reward(model, row["context"], reward["action"], h + 1)
                for weight, row in zip(weights, log, strict=True)
            )
            assert reward["expected_reward"] == pytest.approx(total / sum(weights), abs=1e-9)
        best = max(regime["expected_rewards"], key=lambda reward: reward["expected_reward"])
        assert regime["best_action"] == best["action"]
        assert f"best action: {best['action']} (expected {best['expected_reward']:.3g})." in regime["words"]
        assert regime["words"].startswith(f"Regime {h + 1} ('{labels[h]}'): about {100 * regime['share']:.0f} %")
    likeliest = [row["belief"].index(max(row["belief"])) for row in log]
    run = len(list(itertools.takewhile(lambda regime: regime == likeliest[-1], reversed(likeliest))))
    assert found["current"] == {
        "regime": likeliest[-1] + 1,
        "label": labels[likeliest[-1]],
        "belief": pytest.approx(max(log[-1]["belief"])),
        "since_round": 101 - run,
    }
    assert found["regimes"][0]["best_action"] == "mail"  # as the rewards are drawn


@pytest.mark.parametrize(
    "config",
    [
        {"regimes": 2, "beliefs": {"statistics": "smoothed", "start_round": 60, "every": 20}},
        {"regimes": 2, "beliefs": {"statistics": "as_decided", "start_round": 60, "every": 20}},
        {"regimes": 2},
    ],
    ids=["smoothed", "as decided", "joint"],
)
def test_labels_follow_their_regime_through_re_estimations(shared, config):
    """R6, also when the customers of one regime become the more frequent ones."""
    played = Played(shared, **config, **({} if "beliefs" in config else {"warm_start_rounds": 40})).play(150)
    before = played.regimes()
    assert len(before["regimes"]) == 2
    names = [
        "summer" if set(WARM) & {one["level"] for one in regime["more_often"]} else "winter"
        for regime in before["regimes"]
    ]
    assert sorted(names) == ["summer", "winter"]
    played.patch(regime_labels=names)
    for flip in (False, True, True, False):
        played.play(50, flip)
        found = played.regimes()
        assert found["labels_note"] is None
        for regime in found["regimes"]:
            seen = {one["level"] for one in regime["more_often"]}
            assert seen <= set(WARM if regime["label"] == "summer" else COLD), regime
            assert seen
    stages = good(shared.get(f"/campaigns/{played.name}/stages", params={"limit": 200}))["stages"]
    estimations = [stage for stage in stages if stage["kind"] == "estimation" and stage["round"] > 150]
    assert len(estimations) >= 5


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_a_note_says_why_labels_may_not_fit(client):
    played = Played(client, regimes=2, warm_start_rounds=40, regime_labels=["summer", "winter"]).play(150)
    assert played.regimes()["labels_note"].startswith("The labels were set before the regimes were estimated.")
    played.patch(regime_labels=["winter", "summer"])
    assert played.regimes()["labels_note"] is None
    version = good(client.get(f"/campaigns/{played.name}"))["model_version"]
    played.play(20)
    good(client.post(f"/campaigns/{played.name}/rollback", json={"model_version": version}))
    assert "rolled back" in played.regimes()["labels_note"]
    played.patch(regime_labels=["cold", "hot"])
    assert played.regimes()["labels_note"] is None

    early = Played(client, regimes=2, warm_start_rounds=40).play(60)
    assert early.regimes()["regimes"] == []  # one regime is in use
    early.patch(regime_labels=["summer", "winter"])
    early.play(90)
    assert early.regimes()["labels_note"].startswith("The labels were set at round 60, with 1 regime in use; now there")


@pytest.mark.parametrize(
    ("config", "rounds", "note"),
    [
        ({"regimes": 1}, 0, "The campaign has one regime."),
        ({}, 0, "The regimes have not been estimated yet. The next attempt is before round 16."),
        ({}, 60, "One regime is in use: more cannot be told apart yet."),
        ({"regimes": 2, "beliefs": {"estimator": "none"}}, 20, "The regimes are never estimated"),
    ],
)
def test_without_regimes_a_note_says_why(shared, config, rounds, note):
    found = Played(shared, **config).play(rounds).regimes()
    assert (found["regimes"], found["current"], found["labels_note"]) == ([], None, None)
    assert found["note"].startswith(note)


def test_a_clock_gives_durations_in_time(shared):
    beliefs = {"estimator": "given", "parameters": GIVEN}
    found = Played(shared, regimes=2, beliefs=beliefs, clock={"period_seconds": 3600}).play(10).regimes()
    assert found["duration_unit"] == "periods"
    assert [regime["expected_seconds"] for regime in found["regimes"]] == pytest.approx([36_000, 18_000])
    assert "for some 10 hours at a stretch" in found["regimes"][0]["words"]
    assert found["regimes"][0]["best_action"] is None  # the warm start is not over
    assert found["regimes"][0]["words"].endswith("best action: not known yet.")
