"""The method once more, plain and slow, from the paper and RULES.md alone: the golden trace is made with it.

Nothing of `policy` is imported. Dense z, the full X³ tensor, every permutation, np.linalg for the rest.
"""

import hashlib
import itertools
import math

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
WARM_START, CONTROL_BY_ROUND, CONTROL_BY_SUBJECT, CONTROL_ACTION, POLICY_ACTION, ROTATION = 1, 2, 3, 4, 5, 6


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def hashed(seed, purpose, counter):
    """64 bits from (seed, purpose, counter) (R11)."""
    h = mix((seed + GOLDEN) & MASK)
    h = mix(((h ^ purpose) + GOLDEN) & MASK)
    return mix(((h ^ counter) + GOLDEN) & MASK)


def uniform(seed, purpose, counter):
    return (hashed(seed, purpose, counter) >> 11) * 2.0**-53


def named(config, name):
    return next(variable for variable in config["variables"] if variable["name"] == name)


def level_of(variable, value):
    """A value equal to a cut belongs to the lower level."""
    if "cuts" in variable:
        return sum(value > cut for cut in variable["cuts"])
    return variable["levels"].index(value)


def level_names(variable):
    if "cuts" in variable:
        return [str(k + 1) for k in range(len(variable["cuts"]) + 1)]
    return list(variable["levels"])


def symbol_of(config, context):
    """Row-major over the signals, the last one fastest (R9)."""
    symbol = 0
    for variable in [named(config, name) for name in config["signals"]]:
        symbol = symbol * len(level_names(variable)) + level_of(variable, context[variable["name"]])
    return symbol


def variable_block(config, name, kept, context):
    variable = named(config, name)
    if "range" in variable:
        low, high = variable["range"]
        return [(context[name] - low) / (high - low)]
    present = level_names(variable)[level_of(variable, context[name])]
    return [1.0 if present == level else 0.0 for level in kept or level_names(variable)]


def term_block(config, term, action, context):
    """One term's columns (R10); the baseline action has none of its own."""
    name, kept = (term, None) if isinstance(term, str) else (term["term"], term["levels"])
    if name == "intercept":
        return [1.0]
    of_action = [1.0 if action == other else 0.0 for other in range(1, len(config["actions"]))]
    if name == "actions":
        return of_action
    if name.startswith("actions:"):
        block = variable_block(config, name.removeprefix("actions:"), kept, context)
        return [indicator * value for indicator in of_action for value in block]
    return variable_block(config, name, kept, context)


def z_of(config, belief, action, context):
    columns = []
    for term in config["features"]["shared"]:
        columns += term_block(config, term, action, context)
    for weight in belief:
        for term in config["features"]["per_regime"]:
            columns += [weight * value for value in term_block(config, term, action, context)]
    return np.array(columns)


def moments(symbols, count):
    """Box C, step 1."""
    x = np.eye(count)[symbols]
    t = len(symbols)
    p31, p32, p312 = np.zeros((count, count)), np.zeros((count, count)), np.zeros((count, count, count))
    for s in range(1, t - 1):
        p31 += np.einsum("i,j->ij", x[s + 1], x[s - 1]) / (t - 2)
        p32 += np.einsum("i,j->ij", x[s + 1], x[s]) / (t - 2)
        p312 += np.einsum("i,j,k->ijk", x[s + 1], x[s - 1], x[s]) / (t - 2)
    return p31, p32, p312


def spectral(symbols, regimes, count, seed):
    """Box C and R7: (transition H×H, emission H×X, rotations drawn); None if all eigenvalues were complex."""
    p31, p32, p312 = moments(symbols, count)
    left, _, right = np.linalg.svd(p31)
    U3, U1 = left[:, :regimes], right.T[:, :regimes]
    U2 = np.linalg.svd(p32)[2].T[:, :regimes]
    for column in range(regimes):  # the sign of a singular vector is arbitrary: its largest entry is positive
        if U2[np.abs(U2[:, column]).argmax(), column] < 0:
            U2[:, column] *= -1

    def contraction(direction):
        contracted = np.einsum("ijk,k->ij", p312, direction)
        return (U3.T @ contracted @ U1) @ np.linalg.inv(U3.T @ p31 @ U1)

    for attempt in range(8):
        philox = np.random.Philox(key=hashed(seed, ROTATION, attempt))
        q, r = np.linalg.qr(np.random.Generator(philox).standard_normal((regimes, regimes)))
        gamma = q * np.sign(np.diag(r))
        eigenvalues, R = np.linalg.eig(contraction(U2 @ gamma[0]))
        if np.iscomplexobj(eigenvalues):
            continue
        L = np.array([np.diag(np.linalg.inv(R) @ contraction(U2 @ row) @ R) for row in gamma])
        E = np.maximum(U2 @ np.linalg.inv(gamma) @ L, 0.0)
        assert (E.sum(axis=0) > 0).all(), "the trace's data clip no column to nothing"
        E = E / E.sum(axis=0)
        # As the authors' published code: from the proper E, by absolute values (policy/spectral.py says why not R7).
        M = np.abs((np.linalg.inv(U3.T @ E) @ R).T)
        return M / M.sum(axis=1, keepdims=True), E.T, attempt + 1
    return None


def alignments(emission, previous):
    """(largest distance, total, order) of every order, the best first (R6): hat nu_h = tilde nu_order[h]."""
    costs = []
    for order in itertools.permutations(range(len(emission))):
        distances = [np.linalg.norm(previous[h] - emission[order[h]]) for h in range(len(emission))]
        costs.append((max(distances), sum(distances), order))
    return sorted(costs)


def bayes_step(transition, emission, belief, symbol, first):
    """eqs. Bayes-est-1 and Bayes-est-2; a symbol that cannot be is as good as missing."""
    predicted = belief if first else belief @ transition
    joint = predicted * emission[:, symbol]
    return joint / joint.sum() if joint.sum() > 0 else predicted


def filtered(transition, emission, symbols):
    """Beliefs after each symbol, from the uniform law."""
    belief, beliefs = np.full(len(transition), 1 / len(transition)), []
    for s, symbol in enumerate(symbols):
        belief = bayes_step(transition, emission, belief, symbol, first=s == 0)
        beliefs.append(belief)
    return beliefs


def smoothed(transition, emission, symbols):
    """P(h_s | x_1 … x_t) for every s: the filter times what the later symbols say."""
    forward = filtered(transition, emission, symbols)
    after, beliefs = np.ones(len(transition)), []
    for s in reversed(range(len(symbols))):
        beliefs.append(forward[s] * after / (forward[s] * after).sum())
        if s > 0:
            likelihood = emission[:, symbols[s]]
            if (forward[s - 1] @ transition * likelihood).sum() == 0:
                likelihood = np.ones(len(transition))
            after = transition @ (likelihood * after)
            after = after / after.sum()
    return beliefs[::-1]


class Reference:
    """Box A on estimated beliefs under the project's rules; takes a complete configuration as plain JSON."""

    def __init__(self, config):
        self.config = config
        self.regimes = config["regimes"]
        self.contexts, self.symbols, self.actions, self.beliefs = [], [], [], []
        self.rewards, self.folded, self.rebuild = {}, set(), False
        self.hmm, self.belief = None, np.full(self.regimes, 1 / self.regimes)
        self.next_estimation, self.model_version = config["beliefs"]["start_round"], 0
        self.symbol_count = math.prod(len(level_names(named(config, name))) for name in config["signals"])
        some = {v["name"]: v.get("levels", v.get("cuts", v.get("range")))[0] for v in config["variables"]}
        d = len(z_of(config, self.belief, 0, some))
        self.G, self.moment = config["ridge"] * np.eye(d), np.zeros(d)
        self.theta = np.ones(d) / config["ridge"]  # Box A, initialization
        self.updates, self.estimations = [], []

    def reward(self, round_, value):
        assert 1 <= round_ <= len(self.actions)
        assert round_ not in self.rewards
        self.rewards[round_] = value

    def decide(self, context, excluded=(), subject=None):
        t = len(self.actions) + 1
        stage_length = self.config["stage_length"]
        if t >= self.next_estimation:
            self.reestimate(t)
        if t > 1 and (t - 1) % stage_length == 0:
            self.update(t)
        symbol = symbol_of(self.config, context)
        if self.hmm is not None:
            self.belief = bayes_step(*self.hmm, self.belief, symbol, first=False)
        stage, inverse = math.ceil(t / stage_length), np.linalg.inv(self.G)
        eligible = [a for a, name in enumerate(self.config["actions"]) if name not in excluded]
        estimates, bonuses, scale = {}, {}, self.config["bonus"]["scale"]
        for a in eligible:
            z = z_of(self.config, self.belief, a, context)
            estimates[a] = float(z @ self.theta)
            # eq. simplified-boxa, the complex form
            bonuses[a] = float(scale * stage * math.sqrt(stage_length) * np.linalg.norm(inverse @ z))
        scores = {a: estimates[a] + bonuses[a] for a in eligible}
        action, mode, propensity = self.choose(t, scores, subject)
        self.contexts.append(context)
        self.symbols.append(symbol)
        self.actions.append(action)
        self.beliefs.append(self.belief)
        everything = range(len(self.config["actions"]))
        return {
            "stage": stage,
            "model_version": self.model_version,
            "belief": self.belief.tolist(),
            "mode": mode,
            "action": self.config["actions"][action],
            "propensity": propensity,
            "estimates": [estimates.get(a) for a in everything],
            "bonuses": [bonuses.get(a) for a in everything],
        }

    def choose(self, t, scores, subject):
        """R8, R11, R12, R13."""
        seed, share = self.config["seed"], self.config["control"]["share"]
        floor = self.config["propensity_floor"]
        k, warm_rounds = len(scores), self.config["warm_start_rounds"]
        even = dict.fromkeys(scores, 1 / k)
        if t <= max(warm_rounds, self.config["stage_length"] + 1) or 2 * len(self.folded) < warm_rounds:
            return drawn(even, uniform(seed, WARM_START, t)), "warm_start", 1 / k
        best = [a for a in scores if scores[a] == max(scores.values())]
        law = {a: floor + (1 - k * floor) * (1 / len(best) if a in best else 0.0) for a in scores}
        if subject is None:
            ticket = uniform(seed, CONTROL_BY_ROUND, t)
        else:
            digest = hashlib.sha256(subject.encode()).digest()
            ticket = uniform(seed, CONTROL_BY_SUBJECT, int.from_bytes(digest[:8], "big"))
        if ticket < share:
            mode, action = "control", drawn(even, uniform(seed, CONTROL_ACTION, t))
        else:
            mode, action = "optimistic", drawn(law, uniform(seed, POLICY_ACTION, t))
        return action, mode, share * even[action] + (1 - share) * law[action]

    def update(self, t):
        """The update that ends a stage (R1, R2; eq. estimate-theta)."""
        if self.rebuild:
            self.G = self.config["ridge"] * np.eye(len(self.G))
            self.moment = np.zeros(len(self.G))
            self.folded, self.rebuild = set(), False
        for s in sorted(self.rewards.keys() - self.folded):
            z = z_of(self.config, self.beliefs[s - 1], self.actions[s - 1], self.contexts[s - 1])
            self.G = self.G + np.outer(z, z)
            self.moment = self.moment + z * self.rewards[s]
            self.folded.add(s)
        self.theta = np.linalg.solve(self.G, self.moment)
        self.model_version += 1
        self.updates.append(
            {
                "round": t,
                "folded": len(self.folded),
                "trace": float(np.trace(self.G)),
                "sum": float(self.G.sum()),
                "norm": float(np.linalg.norm(self.G)),
                "theta_norm": float(np.linalg.norm(self.theta)),
                "G": self.G.tolist(),
                "theta": self.theta.tolist(),
            }
        )

    def reestimate(self, t):
        """R3–R6. The past that `statistics` recomputes counts from the next stage update on."""
        self.next_estimation = t + self.config["beliefs"]["every"]
        found = spectral(self.symbols, self.regimes, self.symbol_count, self.config["seed"])
        if found is None:
            self.estimations.append({"round": t, "rotations": 8, "order": None})
            return
        transition, emission, rotations = found
        costs = [(0.0, 0.0, tuple(range(self.regimes)))]
        if self.hmm is not None:
            costs = alignments(emission, self.hmm[1])
        order = list(costs[0][2])
        self.hmm = transition[np.ix_(order, order)], emission[order]
        statistics = self.config["beliefs"]["statistics"]
        past = self.symbols[-300:] if statistics == "as_decided" else self.symbols
        self.belief = filtered(*self.hmm, past)[-1]
        if statistics != "as_decided":
            of_record = {"refiltered": filtered, "smoothed": smoothed}[statistics]
            self.beliefs = list(of_record(*self.hmm, self.symbols))
            self.rebuild = True
        self.model_version += 1
        self.estimations.append(
            {
                "round": t,
                "rotations": rotations,
                "order": order,
                "largest_distance": costs[0][0],
                "runner_up": costs[1][0] if len(costs) > 1 else None,
                "transition": self.hmm[0].tolist(),
                "emission": self.hmm[1].tolist(),
            }
        )


def drawn(law, number):
    """The last action of positive probability whose cumulative probability before it is at most `number`."""
    before, chosen = 0.0, None
    for action, probability in law.items():
        if probability > 0 and before <= number:
            chosen = action
        before += probability
    return chosen


def replay(config, rounds):
    """Expected answers of the trace's rounds, and the updates and re-estimations between them."""
    reference = Reference(config)
    answers = []
    for row in rounds:
        for round_, value in row["rewards"]:
            reference.reward(round_, value)
        answers.append(reference.decide(row["context"], row["excluded"], row["subject"]))
    return answers, reference
