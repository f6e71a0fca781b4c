"""Box C: spectral estimation of the HMM from the symbol history, and the alignment step.

The third moment is projected before it is summed, so the work is O(t·H² + X·H³) and the memory O(X²).
"""

from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from policy import kernels
from policy.arrays import FloatArray, IndexArray
from policy.errors import ArgumentError
from policy.hmm import HmmParameters, check_symbols

_ROTATIONS = 8  # draws of Γ before giving up


class NotEstimable(NamedTuple):
    """The data do not determine the model yet; the previous estimate stays (R7)."""

    reason: str


def random_stream(seed: int, purpose: int, counter: int) -> np.random.Generator:
    """A numpy generator keyed by the campaign's hash (R11), for what is drawn outside the kernels."""
    return np.random.Generator(np.random.Philox(key=int(kernels.hash_counter(seed, purpose, counter))))


@lru_cache(maxsize=1024)
def _rotation(regimes: int, seed: int, attempt: int) -> FloatArray:
    """Γ: a random rotation derived from the campaign's seed."""
    gaussian = random_stream(seed, kernels.ROTATION_DRAW, attempt).standard_normal((regimes, regimes))
    q, r = np.linalg.qr(gaussian)
    rotation: FloatArray = q * np.sign(np.diag(r))  # unique, hence Haar distributed
    return rotation


def estimate(symbols: npt.ArrayLike, regimes: int, count: int, seed: int) -> HmmParameters | NotEstimable:
    """Box C on symbols in 0 … count-1 (-1 missing), post-processed as in R7; the initial law is uniform.

    R7 would clip M̃ at 0 after fixing its rows' arbitrary signs. We depart from it: absolute values, and M̃ computed
    from the E already made proper. That is what the code behind the published tables does (the repository the paper
    names, src/hmm_spectral_direct.py), and for a reason: a row clipped to (1, 0) makes a regime absorbing and the
    belief stick for hundreds of rounds. Best cell, published 246 (9), over 24 seeds: 317 (44) clipped, 240 (20)
    this way.
    """
    if not 1 <= regimes <= count:
        raise ArgumentError("regimes", f"{regimes}", f"1 to the number of symbols, {count}")
    observed = check_symbols(symbols, count)
    p31, p32 = np.empty((count, count)), np.empty((count, count))
    used = kernels.pair_counts(observed, p31, p32)
    if used < regimes:
        return NotEstimable(f"{used} complete triples of symbols; at least {regimes} are needed")
    p31 /= used
    p32 /= used
    # Step 2: the leading singular vectors.
    try:
        left, weights, right = np.linalg.svd(p31)
        turned2 = np.linalg.svd(p32)[2]
    except np.linalg.LinAlgError:
        return NotEstimable("the singular value decomposition did not converge")
    u3, u1 = np.ascontiguousarray(left[:, :regimes]), np.ascontiguousarray(right[:regimes].T)
    if weights[regimes - 1] <= 1e-12 * weights[0]:
        return NotEstimable(f"the symbols show fewer than {regimes} regimes so far")
    u2 = np.ascontiguousarray(turned2[:regimes].T)
    # Γ turns U₂'s columns, whose signs LAPACK leaves open: fix them, so that machines agree (R15).
    u2 *= np.sign(u2[np.abs(u2).argmax(axis=0), np.arange(regimes)])
    # Step 3's tensor, projected: B(U₂ Γ_h) = Σ_k Γ_{h,k} moments[:, :, k] · (U₃ᵀ P₃₁ U₁)⁻¹.
    moments = np.empty((regimes, regimes, regimes))
    kernels.triple_moments(observed, u3, u1, u2, moments)
    moments /= used
    projected = u3.T @ p31 @ u1
    reason = "no rotation gave a decomposition"
    for attempt in range(_ROTATIONS):
        try:
            result = _decompose(_rotation(regimes, seed, attempt), moments, projected, u2, u3)
        except np.linalg.LinAlgError:
            reason = "a matrix of the decomposition is singular"
            continue
        if isinstance(result, HmmParameters):
            return result
        reason = result.reason
    return NotEstimable(reason)


def count_operations(rounds: int, symbols: int) -> int:
    """What `estimate` costs, in the unit of costs.py: the singular value decompositions, and a pass over the rounds."""
    return symbols**3 // 80 + rounds // 10 + 1000


def _decompose(
    gamma: FloatArray, moments: FloatArray, projected: FloatArray, u2: FloatArray, u3: FloatArray
) -> HmmParameters | NotEstimable:
    """Steps 3 to 5 of Box C for one rotation Γ (H × H).

    moments: H × H × H. projected: U₃ᵀ P₃₁ U₁, H × H. u2, u3: X × H.
    """
    regimes = gamma.shape[0]
    b = (gamma @ moments.transpose(0, 2, 1)).transpose(1, 0, 2) @ np.linalg.inv(projected)
    eigenvalues, r = np.linalg.eig(b[0])
    if np.iscomplexobj(eigenvalues) and np.abs(eigenvalues.imag).max() > 0.0:
        return NotEstimable("the eigenvalues are complex")
    r = np.ascontiguousarray(r.real)
    # Step 4: row h of L is the diagonal of R⁻¹ B(U₂ Γ_h) R.
    diagonals = np.diagonal(np.linalg.solve(r, b @ r), axis1=1, axis2=2)
    # Step 5. Γ is a rotation, so Γ⁻¹ = Γᵀ.
    e = (u2 @ gamma.T @ diagonals).clip(min=0.0)
    totals = e.sum(axis=0)
    if not (np.isfinite(totals).all() and (totals > 0.0).all()):
        return NotEstimable("a regime's emission probabilities clip to nothing")
    e /= totals
    m = np.abs(np.linalg.solve(u3.T @ e, r).T)
    totals = m.sum(axis=1)
    if not (np.isfinite(totals).all() and (totals > 0.0).all()):
        return NotEstimable("a regime's transition probabilities are not finite")
    return HmmParameters(m / totals[:, None], np.ascontiguousarray(e.T), np.full(regimes, 1.0 / regimes))


def align(new: HmmParameters, previous: HmmParameters) -> tuple[HmmParameters, IndexArray]:
    """Number the new regimes like the previous ones (R6); also returns the order: regime h was order[h].

    The order minimises the largest L2 distance between emissions, then the total distance among pairs within that
    distance. If every regime has its own nearest one, that order is the best. If there were fewer regimes before, those
    are matched and the new ones come last.
    """
    (regimes, symbols), (before, as_before) = new.emission.shape, previous.emission.shape
    if regimes < before or symbols != as_before:
        raise ArgumentError(
            "new", f"emission {(regimes, symbols)}", f"{previous.emission.shape}, as before, or more rows"
        )
    distances = np.zeros((regimes, regimes))  # new regimes are equally near to every place
    distances[:before] = np.linalg.norm(previous.emission[:, None, :] - new.emission[None, :, :], axis=2)
    order: IndexArray = distances.argmin(axis=1)
    if np.unique(order).size < order.size:
        orders = _list_orders(regimes)
        taken = distances[np.arange(regimes), orders]
        largest, totals = taken.max(axis=1), taken.cumsum(axis=1)[:, -1]
        order = orders[np.where(largest == largest.min(), totals, np.inf).argmin()]
    return new.permute(order), order


@lru_cache(maxsize=8)
def _list_orders(regimes: int) -> IndexArray:
    """All orders of the regimes (H! × H). At H ≤ 8 that beats importing an assignment solver."""
    return np.array(list(permutations(range(regimes))), np.intp)
