"""The policy beside other libraries on the same rounds: python -m benchmarks.policy [--quick].

Every contender gets the rounds in the form it likes best, prepared beforehand; only play is timed.
"""

import argparse
import os
import platform
import random
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from benchmarks import Timing, Verdict, compute_ratio, describe_package, print_table, print_verdicts, time_in_turns
from policy import CampaignConfig, FeatureMap, HmmParameters, StagedPolicy, em, spectral
from policy.encoding import Contexts
from simulator import presets
from simulator.environment import load_environment

FloatArray = npt.NDArray[np.float64]
Actions = Sequence[int] | npt.NDArray[Any]
Player = Callable[[], Actions]  # plays the rounds it was prepared for

PEERS = ("vowpalwabbit", "river", "mabwiser", "contextualbandits", "hmmlearn")
ROUNDS = 50_000
STAGE = 37  # ℓ, and the batch of a peer that learns in batches: both then renew their models equally often
ITERATIONS = 10
# The paper's experiment: φ has 36 columns, z has 51 as published and 72 as the full b ⊗ φ (docs/paper-notes.md).
WORLD = load_environment("credit-card")
ACTIONS = WORLD.actions
ARMS = list(range(len(ACTIONS)))
LEVELS = {variable["name"]: variable["levels"] for variable in WORLD.variables}


class Rounds(NamedTuple):
    """What happens to every contender: contexts, and what each action would earn."""

    levels: npt.NDArray[np.int16]
    symbols: npt.NDArray[np.int16]
    rewards: FloatArray

    def first(self, count: int) -> "Rounds":
        return Rounds(*(column[:count] for column in self))

    def contexts(self) -> Contexts:
        return Contexts(self.levels, np.empty((len(self.levels), 0)), self.symbols)

    def named(self) -> list[dict[str, str]]:
        names = LEVELS.items()
        return [{n: x[i] for (n, x), i in zip(names, row, strict=True)} for row in self.levels.tolist()]

    def one_hot(self) -> FloatArray:
        """21 levels and an intercept: all that a library with one model per action needs."""
        starts = np.cumsum([0, *(len(levels) for levels in LEVELS.values())])
        rows = np.zeros((len(self.levels), starts[-1] + 1))
        np.put_along_axis(rows, self.levels + starts[:-1], 1.0, axis=1)
        rows[:, -1] = 1.0
        return rows


def drawn_rounds() -> Rounds:
    episode = WORLD.draw(ROUNDS, np.random.default_rng(1951))
    return Rounds(episode.contexts.levels, episode.contexts.symbols, episode.rewards)


def campaign(columns: int, stage_length: int) -> CampaignConfig:
    preset = "plain-linucb" if columns == 36 else "known-hmm"
    overrides: dict[str, Any] = {"stage_length": stage_length}
    if columns == 72:
        published = presets.build_config(preset, WORLD, 1951).features.model_dump()
        overrides["features"] = {"shared": [], "per_regime": published["shared"] + published["per_regime"]}
    return presets.build_config(preset, WORLD, 1951, overrides)


# --- contenders: each prepares what it likes and returns the function that plays ----------------------------


def ours_compiled(columns: int, stage_length: int) -> Callable[[Rounds], Player]:
    """Filter, decisions and stage updates, all in the kernels."""

    def prepare(rounds: Rounds) -> Player:
        policy = StagedPolicy(campaign(columns, stage_length))
        start, contexts, count = policy.initial_state(), rounds.contexts(), len(rounds.levels)
        return lambda: policy.play(start, contexts, rounds.rewards).history.actions[:count]

    return prepare


def ours_default(rounds: Rounds) -> Player:
    """The default policy: as above, and all its re-estimations (EM, joint statistics, the number of regimes)."""
    policy = StagedPolicy(presets.build_config("default", WORLD, 1951))
    start, contexts, count = policy.initial_state(), rounds.contexts(), len(rounds.levels)
    return lambda: policy.play(start, contexts, rounds.rewards).history.actions[:count]


def ours_one_by_one(rounds: Rounds) -> Player:
    policy = StagedPolicy(campaign(51, STAGE))
    contexts, table = rounds.named(), rounds.rewards.tolist()

    def play() -> Actions:
        state, taken = policy.initial_state(), []
        for context, earned in zip(contexts, table, strict=True):
            state, decision = policy.decide(state, context)
            a = ACTIONS.index(decision.action)
            state = policy.reward(state, decision.round, earned[a])
            taken.append(a)
        return taken

    return play


def sherman_morrison(rounds: Rounds) -> Player:
    """Plain LinUCB (Box D) in numpy, on the 36 columns φ(a, x)."""
    features, alone = FeatureMap(campaign(36, 1)), np.ones(1)
    profiles, which = np.unique(rounds.levels, axis=0, return_inverse=True)
    encoded = Contexts(profiles, np.empty((len(profiles), 0)), np.zeros(len(profiles), np.int16))
    written = [[features.dense(alone, a, encoded, row) for a in ARMS] for row in range(len(profiles))]
    columns = np.array(written)[which.ravel()]

    def play() -> Actions:
        inverse, theta, taken = np.eye(36), np.zeros(36), []
        for phi, earned in zip(columns, rounds.rewards, strict=True):
            products = phi.dot(inverse)
            scores = phi.dot(theta) + 0.6 * np.sqrt(np.einsum("ij,ij->i", products, phi))
            a = int(scores.argmax())
            z, product = phi[a], products[a]
            shrunk = product / (1.0 + product.dot(z))
            theta += shrunk * (earned[a] - z.dot(theta))
            inverse -= product[:, None] * shrunk
            taken.append(a)
        return taken

    return play


def vowpalwabbit(rounds: Rounds) -> Player:
    """Text parsed once a round and labelled after the draw: faster than its other ways in."""
    from vowpalwabbit import LabelType, Workspace

    workspace = Workspace("--cb_explore_adf --epsilon 0.05 -q sa --quiet --random_seed 7")
    actions = [f"|a {name}" for name in ACTIONS]
    # As in ours, only the signals (s) interact with the action (a); the other variables (o) do not.
    others = [name for name in LEVELS if name not in WORLD.signals]
    lines = []
    for context in rounds.levels.tolist():
        levels = {name: f"{name}{level}" for name, level in zip(LEVELS, context, strict=True)}
        signals = " ".join(levels[name] for name in WORLD.signals)
        lines.append([f"shared |s {signals} |o {' '.join(levels[name] for name in others)}", *actions])
    table, draws = rounds.rewards.tolist(), random.Random(7)

    def play() -> Actions:
        taken = []
        for text, earned in zip(lines, table, strict=True):
            examples = workspace.parse(text, LabelType.CONTEXTUAL_BANDIT)
            law = workspace.predict(examples)
            a = draws.choices(ARMS, law)[0]
            examples[1 + a].set_label_string(f"0:{-earned[a]}:{law[a]}")
            workspace.learn(examples)
            workspace.finish_example(examples)
            taken.append(a)
        return taken

    return play


def river(rounds: Rounds) -> Player:
    from river.bandit import LinUCBDisjoint

    bandit, table = LinUCBDisjoint(seed=7), rounds.rewards.tolist()
    rows = [dict.fromkeys(np.flatnonzero(row).tolist(), 1.0) for row in rounds.one_hot()]

    def play() -> Actions:
        taken = []
        for context, earned in zip(rows, table, strict=True):
            a = bandit.pull(ARMS, context=context)
            bandit.update(a, context, earned[a])
            taken.append(a)
        return taken

    return play


def mabwiser(batch: int) -> Callable[[Rounds], Player]:
    def prepare(rounds: Rounds) -> Player:
        from mabwiser.mab import MAB, LearningPolicy

        bandit, rows = MAB(ARMS, LearningPolicy.LinUCB(alpha=0.6), seed=7), rounds.one_hot()
        bandit.fit([0], [0.0], np.zeros((1, rows.shape[1])))  # it predicts only after a first fit
        return in_batches(rounds, rows, batch, bandit.predict, lambda x, a, r: bandit.partial_fit(a, r, x))

    return prepare


def contextualbandits(batch: int) -> Callable[[Rounds], Player]:
    def prepare(rounds: Rounds) -> Player:
        from contextualbandits.online import LinUCB

        bandit = LinUCB(len(ARMS), alpha=0.6, fit_intercept=False, random_state=7)
        return in_batches(rounds, rounds.one_hot(), batch, bandit.predict, bandit.partial_fit)

    return prepare


def in_batches(
    rounds: Rounds, rows: FloatArray, batch: int, predict: Callable[..., Any], learn: Callable[..., Any]
) -> Player:
    def play() -> Actions:
        taken = np.empty(len(rows), np.int64)
        for start in range(0, len(rows), batch):
            part = slice(start, start + batch)
            actions = np.atleast_1d(predict(rows[part])).astype(np.int64)
            learn(rows[part], actions, rounds.rewards[part][np.arange(actions.size), actions])
            taken[part] = actions
        return taken

    return play


# Name: rounds that are enough for a rate (--quick), and how to prepare.
OURS = {
    f"ours, compiled, ℓ = {length}, {columns} columns": (ROUNDS, ours_compiled(columns, length))
    for columns in (51, 72)
    for length in (STAGE, 1)
}
LIBRARIES = {
    "vowpalwabbit": (10_000, vowpalwabbit),
    "river": (2_000, river),
    "mabwiser, one by one": (400, mabwiser(1)),
    f"mabwiser, batches of {STAGE}": (10_000, mabwiser(STAGE)),
    "contextualbandits, one by one": (400, contextualbandits(1)),
    f"contextualbandits, batches of {STAGE}": (10_000, contextualbandits(STAGE)),
}
DEFAULT, VOWPAL = "ours, the default policy, 51 columns", "vowpalwabbit"
NUMPY = "numpy Sherman–Morrison, 36 columns"
CONTENDERS: dict[str, tuple[int, Callable[[Rounds], Player]]] = {
    **OURS,
    DEFAULT: (ROUNDS, ours_default),
    f"ours, `decide` + `reward`, ℓ = {STAGE}, 51 columns": (10_000, ours_one_by_one),
    NUMPY: (10_000, sherman_morrison),
    **LIBRARIES,
}


# --- topics -------------------------------------------------------------------------------------------------


def decide_and_learn(rounds: Rounds, quick: bool, repetitions: int) -> list[Verdict]:
    parts, prepared = {}, {}
    for name, (few, prepare) in CONTENDERS.items():
        try:
            prepare(rounds.first(2_000 if name == DEFAULT else 2 * STAGE))()  # imports and compiles, untimed
        except ImportError:
            continue
        parts[name] = rounds.first(few if quick else ROUNDS)
        prepared[name] = lambda prepare=prepare, part=parts[name]: prepare(part)
    timings = time_in_turns("decide + learn", repetitions, prepared)
    # Seconds a round, because contenders may play different numbers of rounds.
    each = {
        name: Timing([s / len(parts[name].levels) for s in timing.seconds], timing.result)
        for name, timing in timings.items()
    }
    fastest = min((name for name in LIBRARIES if name in each), key=lambda name: each[name].median, default=None)
    rows = []
    for name in CONTENDERS:
        if name not in each:
            rows.append([name, "not installed", "", "", "", ""])
            continue
        part, taken = parts[name].rewards, np.asarray(each[name].result)
        rows.append(
            [
                name,
                f"{len(part):,}",
                f"{1.0 / each[name].median:,.0f}",
                f"{compute_ratio(each[fastest], each[name]):.2f}" if fastest else "",
                f"{compute_ratio(each[NUMPY], each[name]):.2f}",
                f"{part[np.arange(len(part)), taken].mean():.3f}",
            ]
        )
    print_table(
        f"Decide + learn: d = 36, H = 2, 3 actions, T = {ROUNDS:,}",
        ("contender", "rounds timed", "rounds/s", "× fastest library", "× numpy", "mean reward"),
        rows,
    )
    print(f"Random actions earn {rounds.rewards.mean():.3f}. Fastest library: {fastest or 'none installed'}.")
    if quick:
        print(f"Where fewer than {ROUNDS:,} rounds were timed, the rate is extrapolated.")
    verdicts = []
    for name in OURS:
        for peer, title in ((fastest, "the fastest library"), (NUMPY, "numpy")):
            target = f"{name}: ≥ 10 × {title}"
            if peer is None:
                verdicts.append(Verdict(target, "none installed", None))
                continue
            reached = compute_ratio(each[peer], each[name])
            verdicts.append(Verdict(target, f"{reached:.1f} ×", reached >= 10.0))
    if VOWPAL in each:
        reached = compute_ratio(each[VOWPAL], each[DEFAULT])
        verdicts.append(Verdict(f"{DEFAULT}: ≥ 1 × {VOWPAL}", f"{reached:.1f} ×", reached >= 1.0))
    return verdicts


def longest_update(rounds: Rounds, repetitions: int) -> list[Verdict]:
    """The default's re-estimation of all 50,000 rounds: the longest that a decision may have to wait inline."""
    policy = StagedPolicy(presets.build_config("default", WORLD, 1951))
    state = policy.play(policy.initial_state(), rounds.contexts(), rounds.rewards)
    timing = time_in_turns("re-estimation", repetitions, {"it": lambda: lambda: policy.reestimate(state)})["it"]
    slowest = 1e3 * max(timing.seconds)
    print(
        f"\nOne re-estimation of the default at t = {ROUNDS:,}: {1e3 * timing.median:.0f} ms, slowest {slowest:.0f} ms."
    )
    return [Verdict("default: no stage update > 500 ms at t = 50,000", f"{slowest:.0f} ms", slowest <= 500.0)]


def estimation(rounds: Rounds, repetitions: int) -> list[Verdict]:
    """Baum–Welch from one start, a fixed number of iterations; and the estimators as campaigns run them."""
    symbols, fitted = rounds.symbols, "ours, `em.fit`"
    emission = np.random.default_rng(3).dirichlet(np.full(20, 5.0), 2)
    start = HmmParameters(np.array([[0.8, 0.2], [0.2, 0.8]]), emission, np.array([0.5, 0.5]))
    runs: dict[str, Callable[[], Any]] = {
        fitted: lambda: em.fit(symbols, start, ITERATIONS).parameters.emission,
        "ours, `spectral.estimate`": lambda: spectral.estimate(symbols, 2, 20, 7),
        "ours, `em.estimate` (all its starts)": lambda: em.estimate(symbols, 2, 20, 7),
    }
    peers = []
    try:
        for name, kind in (("hmmlearn", "log"), ("hmmlearn, scaling", "scaling")):  # its default, its fastest
            runs[name] = baum_welch(symbols, start, kind)
            peers.append(name)
    except ImportError:
        pass
    for run in runs.values():  # compiles, untimed
        run()
    timings = time_in_turns("estimation", repetitions, {k: lambda run=run: run for k, run in runs.items()})
    peer = min(peers, key=lambda name: timings[name].median, default=None)
    rows = []
    for name, timing in timings.items():
        iteration = "" if "estimate" in name else f"{1e3 * timing.median / ITERATIONS:.2f}"
        times = f"{compute_ratio(timings[peer], timing):.2f}" if peer else ""
        rows.append([name, f"{1e3 * timing.median:.2f}", iteration, times])
    print_table(
        f"Estimation: {ROUNDS:,} steps, 20 symbols, 2 regimes, {ITERATIONS} EM iterations",
        ("contender", "ms", "ms an iteration", "× hmmlearn's faster"),
        rows if peer else [*rows, ["hmmlearn", "not installed", "", ""]],
    )
    if peer is None:
        return [Verdict("EM: ≥ 5 × hmmlearn, per iteration", "not installed", None)]
    apart = float(np.abs(timings[fitted].result - timings[peer].result).max())
    print(f"The two EM fits differ by at most {apart:.0e}. Ours is charged its closing pass as well.")
    verdicts = []
    for name in peers:
        reached = compute_ratio(timings[name], timings[fitted])
        verdicts.append(Verdict(f"EM: ≥ 5 × {name}, per iteration", f"{reached:.1f} ×", reached >= 5.0))
    return verdicts


def baum_welch(symbols: npt.NDArray[np.int16], start: HmmParameters, implementation: str) -> Callable[[], Any]:
    from hmmlearn.hmm import CategoricalHMM

    observed = symbols.astype(np.int64)[:, None]

    def run() -> Any:
        model = CategoricalHMM(
            2, n_iter=ITERATIONS, tol=-np.inf, params="te", init_params="", implementation=implementation
        )
        model.startprob_, model.transmat_, model.emissionprob_ = (
            start.initial,
            start.transition,
            start.emission,
        )
        return model.fit(observed).emissionprob_

    return run


def one_decide(rounds: Rounds, repetitions: int) -> list[Verdict]:
    """Single calls early and late, a stage of each in turn, with every reward given."""
    policy = StagedPolicy(campaign(51, STAGE))
    contexts, table = rounds.named(), rounds.rewards.tolist()
    starts = {}
    for t in (27 * STAGE, 1081 * STAGE):  # 999 and 39,997: a stage begins
        part = rounds.first(t)
        starts[t] = policy.play(policy.initial_state(), part.contexts(), part.rewards)
    ended: dict[int, list[float]] = {t: [] for t in starts}
    between: dict[int, list[float]] = {t: [] for t in starts}
    given: dict[int, list[float]] = {t: [] for t in starts}
    for _ in tqdm(range(repetitions), desc="one decide", leave=False):
        states = dict(starts)
        for stage in range(11):
            for t, state in states.items():
                for place in range(STAGE):
                    context, earned = contexts[state.round], table[state.round]
                    begun = perf_counter_ns()
                    state, decision = policy.decide(state, context)
                    decided = perf_counter_ns()
                    reward = earned[ACTIONS.index(decision.action)]
                    rewarding = perf_counter_ns()
                    state = policy.reward(state, decision.round, reward)
                    rewarded = perf_counter_ns()
                    if stage > 0:  # the first one copies the history, as it goes back to an older state
                        (between if place else ended)[t].append((decided - begun) / 1e3)
                        given[t].append((rewarded - rewarding) / 1e3)
                states[t] = state
    # Medians: a call that the machine interrupted says nothing about the call.
    calls = {
        "`decide`": [statistics.median(times) for times in between.values()],
        "`decide` that ends a stage": [statistics.median(times) for times in ended.values()],
        "`reward`": [statistics.median(times) for times in given.values()],
    }
    plain, ends = calls["`decide`"], calls["`decide` that ends a stage"]
    shared = [(end + (STAGE - 1) * call) / STAGE for end, call in zip(ends, plain, strict=True)]
    calls[f"`decide`, updates shared by their {STAGE} rounds"] = shared
    print_table(
        f"One call of the Python API: 51 columns, ℓ = {STAGE}, median µs",
        ("call", "t ≈ 1,000", "t ≈ 40,000", "late / early"),
        [[name, f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}"] for name, (a, b) in calls.items()],
    )
    growth = plain[1] / plain[0]
    return [
        Verdict("one `decide`: < 20 µs", f"{max(plain):.1f} µs", max(plain) < 20.0),
        Verdict("one `decide` with its share of updates: < 20 µs", f"{max(shared):.1f} µs", max(shared) < 20.0),
        Verdict("one `decide`: independent of t (≤ 1.2 ×)", f"{growth:.2f} ×", growth <= 1.2),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="in a minute: fewer rounds for slow peers")
    quick = parser.parse_args().quick
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs ({load} at the start), one thread.")
    print(", ".join(describe_package(package) for package in ("numpy", "numba", *PEERS)) + ".")
    rounds = drawn_rounds()
    verdicts = decide_and_learn(rounds, quick, repetitions=5 if quick else 3)
    verdicts += longest_update(rounds, repetitions=5 if quick else 15)
    verdicts += estimation(rounds, repetitions=5 if quick else 15)
    verdicts += one_decide(rounds, repetitions=5 if quick else 15)
    print_verdicts(verdicts)


if __name__ == "__main__":
    main()
