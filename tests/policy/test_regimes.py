"""What each regime looks like, against the same numbers worked out round by round."""

import numpy as np
import pytest

from policy import StagedPolicy, regimes
from policy.changes import adapt_state, add_config_action, retire_config_action, roll_back
from policy.description import WarmStart, get_warm_start
from policy.regimes import describe_regimes, explain_no_regimes, get_likeliest_regime
from tests.policy.test_selection import played


def play(policy, contexts, state=None, at=None):
    """Decide one by one; a reward for all but every tenth round. A call pays while most customers are risky."""
    generator, state = np.random.default_rng(1), state or policy.initial_state()
    for place, context in enumerate(contexts):
        state, made = policy.decide(state, context, at=at and at(state.round))
        risky = sum(one["risk"] == "high" for one in contexts[max(place - 3, 0) : place + 4]) > 3
        if state.round % 10:
            state = policy.reward(
                state, state.round, 2.0 * ((made.action == "call") == risky) + generator.normal(0, 0.3)
            )
    return state


def slowly(policy, state):
    """(share, recent share, mean reward, its weight, expected rewards) regime by regime, with a loop over rounds."""
    count, config = state.belief.size, policy.config
    features, history, units = policy.maps[count], state.history, state.statistics.units
    known = set(history.get_arrivals(0, state.arrived).tolist())
    for h, only in enumerate(np.eye(count)):
        weights = [float(history.beliefs[t, h]) for t in range(state.round)]
        weight = sum(weights[t] for t in known)
        expected = [
            sum(
                weights[t] * float(state.statistics.theta @ features.dense(only, a, history.contexts, t) + units[0])
                for t in range(state.round)
            )
            / sum(weights)
            for a in range(len(config.actions))
        ]
        recent = weights[-300:]
        earned = sum(weights[t] * float(history.rewards[t]) for t in known) / weight
        yield sum(weights) / state.round, sum(recent) / len(recent), earned, weight, expected


@pytest.fixture(scope="module")
def campaigns(small, given, small_contexts):
    """Every kind of statistics, a clock, a rollback, an added and a retired action."""
    made = {}
    for name, changes in {
        "given": {"regimes": 2, "beliefs": given},
        "as decided": {"regimes": 2, "beliefs": {"statistics": "as_decided", "start_round": 60, "every": 50}},
        "smoothed": {"regimes": 2, "beliefs": {"statistics": "smoothed", "start_round": 60, "every": 50}},
        "joint": {"regimes": 2},
        "clock": {"regimes": 2, "beliefs": given, "clock": {"period_seconds": 1800.0}},
    }.items():
        policy = StagedPolicy(small(**changes))
        at = (lambda t: 600.0 * t) if "clock" in changes else None
        made[name] = policy, play(policy, small_contexts(330, 3), at=at)
    policy, state = made["joint"]
    past = play(policy, small_contexts(330, 3)[:200])
    made["rolled back"] = policy, roll_back(policy, state, policy, past)
    policy, state = made["given"]
    wider = StagedPolicy(add_config_action(policy.config, "gift"))
    fewer = StagedPolicy(retire_config_action(wider.config, "mail"))
    made["other actions"] = fewer, play(fewer, small_contexts(60, 4), adapt_state(policy, wider, state))
    return made


KINDS = ["given", "as decided", "smoothed", "joint", "clock", "rolled back", "other actions"]


@pytest.mark.parametrize("kind", KINDS)
def test_against_a_loop_over_all_rounds(campaigns, kind):
    policy, state = campaigns[kind]
    found = describe_regimes(policy, state)
    assert [one.regime for one in found] == [1, 2]
    for h, (one, (share, recent, earned, weight, expected)) in enumerate(
        zip(found, slowly(policy, state), strict=True)
    ):
        assert (one.share, one.recent_share) == pytest.approx((share, recent))
        assert (one.mean_reward, one.reward_weight) == pytest.approx((earned, weight))
        assert one.belief == state.belief[h]
        assert [told.action for told in one.expected_rewards] == list(policy.config.actions)
        assert [told.expected_reward for told in one.expected_rewards] == pytest.approx(expected, abs=1e-12)
        retired = [told.action in policy.config.retired_actions for told in one.expected_rewards]
        assert [told.retired for told in one.expected_rewards] == retired
        ranked = [
            (e, a) for e, a in zip(expected, policy.config.actions, strict=True) if a != "mail" or not any(retired)
        ]
        assert one.best_action == max(ranked)[1]
        law = state.hmm.emission[h]
        assert [symbol.probability for symbol in one.typical] == sorted(law, reverse=True)[:3]
        stay = state.hmm.transition[h, h]
        assert one.expected_duration == pytest.approx(1 / (1 - stay))
        assert one.expected_seconds == (pytest.approx(1800 / (1 - stay)) if kind == "clock" else None)
    assert sum(one.share for one in found) == pytest.approx(1)
    assert sum(one.long_run_share for one in found) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_levels_seen_more_often(campaigns, kind):
    policy, state = campaigns[kind]
    found = describe_regimes(policy, state)
    tables = state.hmm.emission.reshape(2, 3, 3)
    names = {"risk": ["low", "mid", "high"], "income": ["1", "2", "3"]}
    for h, one in enumerate(found):
        expected = []
        for axis, (signal, levels) in enumerate(names.items()):
            laws = tables.sum(axis=2 - axis)
            average = sum(other.share * law for other, law in zip(found, laws, strict=True))
            expected += [
                (signal, level, laws[h, i], average[i])
                for i, level in enumerate(levels)
                if laws[h, i] - average[i] >= 0.05
            ]
        expected.sort(key=lambda row: row[3] - row[2])
        assert [row[:2] for row in one.more_often] == [row[:2] for row in expected]
        assert [row[2:] for row in one.more_often] == [pytest.approx(row[2:]) for row in expected]
    assert any(one.more_often for one in found)


def test_one_sentence_a_regime(campaigns, small, given):
    policy, state = campaigns["given"]
    labelled = StagedPolicy(small(regimes=2, beliefs=given, regime_labels=["calm", "storm"]))
    first, second = describe_regimes(labelled, state)
    (call,) = (told.expected_reward for told in second.expected_rewards if told.action == second.best_action)
    assert (first.label, second.label) == ("calm", "storm")
    assert second.words == (
        f"Regime 2 ('storm'): about {100 * second.share:.0f} % of the time, for some 4.0 decisions at a stretch;"
        f" customers are more often income=3, risk=high; best action: {second.best_action} (expected {call:.3g})."
    )
    assert describe_regimes(policy, state)[1].words.startswith("Regime 2: about ")
    policy, state = campaigns["clock"]
    assert "for some 5.0 hours at a stretch" in describe_regimes(policy, state)[0].words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0.5 seconds"), (119, "120 seconds"), (7_300, "2.0 hours"), (864_000, "10 days"), (9e7, "1,000 days")],
)
def test_spans_of_time(seconds, words):
    assert regimes._format_span(seconds) == words


def test_before_any_round_there_is_only_the_model(small, given):
    policy = StagedPolicy(small(regimes=2, beliefs=given))
    first, second = describe_regimes(policy, policy.initial_state())
    assert (first.share, first.recent_share, first.mean_reward, first.reward_weight) == (None, None, None, 0.0)
    assert (first.best_action, first.expected_rewards) == (None, ())
    assert second.words.endswith("best action: not known yet.")
    assert get_likeliest_regime(policy.initial_state()) == (2, 0.7, None)


def test_since_when_a_regime_is_the_likeliest(campaigns):
    for policy, state in campaigns.values():
        found = get_likeliest_regime(state)
        assert found.regime == int(state.belief.argmax()) + 1
        since = state.round  # at least the last round, whose record may have been recomputed
        while since > 1 and state.history.beliefs[since - 2].argmax() + 1 == found.regime:
            since -= 1
        if state.history.beliefs[state.round - 1].argmax() + 1 == found.regime:
            assert found.since_round == since
        else:
            assert found.since_round == state.round
        assert explain_no_regimes(policy, state) is None


# --- when there is nothing to tell ------------------------------------------------------------------------------


def test_why_there_are_no_regimes(small, small_contexts):
    def told(policy, state):
        assert describe_regimes(policy, state) == ()
        return explain_no_regimes(policy, state)

    policy = StagedPolicy(small(regimes=1))
    assert told(policy, policy.initial_state()) == "The campaign has one regime."
    policy = StagedPolicy(small(regimes=2, beliefs={"estimator": "none"}))
    assert "never estimated" in told(policy, play(policy, small_contexts(30, 1)))
    policy = StagedPolicy(small(regimes=2, beliefs={"statistics": "smoothed", "start_round": 60, "every": 50}))
    state = play(policy, small_contexts(30, 1))
    assert told(policy, state) == "The regimes have not been estimated yet. The next attempt is before round 60."
    policy = StagedPolicy(small())
    state = play(policy, small_contexts(40, 1))
    assert told(policy, state).startswith("One regime is in use: more cannot be told apart yet.")
    assert policy.estimator.explain_missing(state) == "fewer than 75 rounds so far"
    policy, state, _ = played("iid", 4001, 1_000)
    assert told(policy, state).startswith("One regime is in use: more were tried and did not improve predictions.")


@pytest.mark.parametrize(
    ("changes", "rounds", "reason"),
    [
        ({}, 10, "3 more rewards are needed"),
        ({"clock": {"period_seconds": 60.0}}, 100, "fewer than 20 periods of the clock so far"),
        ({}, 100, "fewer than 2 different symbols so far"),
        ({"regimes": 3}, 100, "fewer than 3 different symbols so far"),
        ({"regimes": 2, "beliefs": {"statistics": "smoothed"}}, 100, "fewer than 2 different symbols so far"),
        ({"regimes": 2, "beliefs": {"estimator": "spectral"}}, 100, "the symbols show fewer than 2 regimes so far"),
    ],
)
def test_what_an_estimate_lacks(small, changes, rounds, reason):
    """Every customer is the same, so nothing tells regimes apart."""
    policy = StagedPolicy(small(**changes))
    state = policy.initial_state()
    for t in range(rounds):
        state, made = policy.decide(state, {"risk": "low", "income": 5, "region": "north", "tenure": 3}, at=float(t))
        if t < 3 or rounds > 10:
            state = policy.reward(state, made.round, float(t % 2))
    assert policy.estimator.explain_missing(state) == reason
    estimable = StagedPolicy(small(regimes=2, beliefs={"statistics": "smoothed", "start_round": 4, "every": 50}))
    varied = play(estimable, [{"risk": r, "income": 5, "region": "north", "tenure": 3} for r in ("low", "high") * 20])
    assert estimable.estimator.explain_missing(varied) is None


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("warm", "length"), [(12, 5), (0, 5), (7, 1), (2, 20)])
def test_the_warm_start_ends_when_it_says(small, small_contexts, joint, warm, length):
    """R8: what it says is missing agrees with the mode of the next decision, whatever the rewards do."""
    beliefs = {} if joint else {"estimator": "none"}
    policy = StagedPolicy(small(regimes=1, warm_start_rounds=warm, stage_length=length, beliefs=beliefs, signals=[]))
    generator, state, seen = np.random.default_rng(warm), policy.initial_state(), set()
    for context in small_contexts(80, 2):
        told = get_warm_start(policy, policy.cross(state))
        state, made = policy.decide(state, context)
        over = told is None or not any(told[:3])  # what else it waits for, it waits for in some rounds only
        assert (made.mode == "warm_start") != over or (told is not None and told.deviations), told
        seen.add(made.mode)
        if generator.random() < 0.3:
            state = policy.reward(state, made.round, 1.0 + generator.normal())
    assert seen == {"warm_start", "optimistic"}
    fresh = get_warm_start(policy, policy.initial_state())
    assert fresh == WarmStart(max(warm, length + 1), max((warm + 1) // 2, 4 if joint else 0), joint, 0)
