"""How rounds leave a campaign's window: the last rounds stay as rows, and sums are kept of older ones (kept.py).

Rows leave at re-estimations, many at a time, so that the cost is spread and follows from the log alone. They leave with
the posterior of the estimate of that moment, for every candidate. A candidate that is new has no part of the rounds
that had left before.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from policy import hmm, joint, kernels, noise
from policy.arrays import FloatArray
from policy.candidates import Candidate, Fitted
from policy.exposure import Waiting
from policy.features import FeatureMap
from policy.history import History
from policy.hmm import NO_EVIDENCE, HmmParameters
from policy.joint import Design, Fit, Rounds
from policy.kept import Kept

SPARE = 4  # rows leave when there are a quarter more than the window has


def count_leaving(window: int | None, history: History, rounds: int, waiting: Waiting | None) -> int:
    """The number of rows that leave when the first `rounds` rounds are estimated.

    A round stays as long as it waits for its reward, and the last one of the estimate always stays.
    """
    rows = rounds - history.first
    if window is None or rows <= window + window // SPARE:
        return 0
    leaving = rows - window
    if waiting is not None:
        leaving = min(leaving, int(waiting.reached.min()) - history.first)
    return max(0, min(leaving, rows - 1))


def keep_leaving(candidates: Sequence[Candidate], fits: Sequence[Fitted], leaving: int) -> tuple[Candidate, ...]:
    """The candidates with what they keep of the first rounds of their data; the fits are theirs, one each."""
    return tuple(
        candidate._replace(kept=keep_rounds(*fit, leaving, together=candidate.joint))
        for candidate, fit in zip(candidates, fits, strict=True)
    )


def keep_rounds(data: Rounds, design: Design, fit: Fit, leaving: int, *, together: bool) -> Kept:
    """What is kept once the first rounds of a fit's data have left, with the part of rounds before them.

    `together`: is the fit one of symbols and rewards together, in which regimes count as if they were seen?
    """
    part = data.take_first(leaving)
    rows, parameters = part.symbols.size, fit.hmm
    posterior = np.ascontiguousarray(fit.posterior[:rows])
    law = parameters.initial if data.kept is None else data.kept.edge
    filtered = np.empty_like(posterior)
    kernels.filter_path(
        parameters.transition, parameters.emission, law, part.steps, part.symbols,
        np.ascontiguousarray(fit.evidence[:rows]), filtered,
    )  # fmt: skip
    vertices = rows if together else 0
    gram, moment = joint.sum_rounds(part, design, 0.0, posterior, vertices)
    ones = part._replace(rewards=np.where(np.isnan(part.rewards), np.nan, 1.0))
    residuals, played, largest = noise.sum_residuals(part, design, fit.theta, posterior, vertices)
    known = ~np.isnan(part.rewards)
    weights, rewards = part.shares[known], part.rewards[known]
    new = Kept(
        transitions=_count_moves(parameters, law, part, filtered, posterior),
        emissions=_count_symbols(parameters, part, posterior),
        edge=filtered[-1].copy(),
        gram=gram,
        moment=moment,
        columns=joint.sum_rounds(ones, design, 0.0, posterior, vertices)[1],
        rewards=np.array([data.centre, known.sum(), weights.sum(), weights @ rewards, part.squares, largest]),
        actions=np.array([residuals, played, noise.count_deviations(part, residuals.size)], np.float64),
    )
    return new if data.kept is None else data.kept.add(new)


def _count_moves(
    parameters: HmmParameters, law: FloatArray, part: Rounds, filtered: FloatArray, posterior: FloatArray
) -> FloatArray:
    """Expected moves of the chain into each row, in the form of Rauch, Tung and Striebel (kernels.forward_backward)."""
    moves = part.steps > 0
    before = np.vstack((law, filtered[:-1]))[moves]
    predicted = before @ parameters.transition
    ratio = np.divide(posterior[moves], predicted, out=np.zeros_like(predicted), where=predicted > 0.0)
    counts: FloatArray = parameters.transition * (before.T @ ratio)
    return counts


def _count_symbols(parameters: HmmParameters, part: Rounds, posterior: FloatArray) -> FloatArray:
    seen = part.symbols != hmm.MISSING
    codes, size = part.symbols[seen], parameters.emission.shape[1]
    return np.array([np.bincount(codes, weights, size) for weights in posterior[seen].T])


def restore_candidates(
    maps: Mapping[int, FeatureMap],
    past: History,
    candidates: Sequence[Candidate],
    rounds: int,
    arrived: int,
    first: int,
    waiting: Waiting | None,
) -> tuple[Candidate, ...]:
    """The candidates of an earlier state (`rounds`, `arrived`), for a window that begins later, after round `first`.

    What the earlier state had of the rounds in between leaves with its model. Of the rounds that it had not seen
    nothing is kept: their rewards are excluded by the rollback anyway (R21). The chain only moves on for them.
    """
    leaving, base = min(first, rounds) - past.first, candidates[0].kept
    data = joint.gather(maps[1], past, past.first + leaving, arrived, waiting, base)
    restored = []
    for candidate in candidates:
        own = data.add_kept(candidate.kept)
        design = joint.make_design(maps[candidate.regimes], data.contexts, data.actions)
        kept = keep_rounds(own, design, _expect(own, design, candidate), leaving, together=candidate.joint)
        steps = max(first - rounds, 0)
        edge = kept.edge @ np.linalg.matrix_power(candidate.hmm.transition, steps)
        restored.append(candidate._replace(kept=kept._replace(edge=edge / edge.sum())))
    return tuple(restored)


def _expect(data: Rounds, design: Design, candidate: Candidate) -> Fit:
    """A candidate as it was fitted, with the posterior of the data's rows."""
    start = candidate.hmm if data.kept is None else candidate.hmm._replace(initial=data.kept.edge)
    centre, deviation = candidate.units
    shape = data.symbols.size, candidate.regimes
    evidence, posterior = NO_EVIDENCE, np.empty(shape)
    if candidate.joint:
        evidence = np.empty(shape)
        rewards = data.rewards + (data.centre - centre)
        kernels.reward_evidence(
            data.profiles, rewards, data.shares, joint.predict(design, candidate.theta), deviation, evidence
        )
    unused = np.empty_like(start.transition), np.empty_like(start.emission)
    kernels.forward_backward((0,) * candidate.regimes, *start, data.steps, data.symbols, evidence, posterior, *unused)
    return Fit(candidate.hmm, candidate.theta, float(deviation), posterior, (), evidence)
