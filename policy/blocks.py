"""Wide feature maps: G = Σ z zᵀ + λI by blocks of columns, factored by LAPACK.

Columns of two actions are never non-zero in the same z, so G has no entry between them. With B the blocks of the
actions, C the common one, E what is between them, and Σ z r cut into m_B and m_C,

    S = C - Eᵀ B⁻¹ E,    θ_C = S⁻¹ (m_C - Eᵀ B⁻¹ m_B),    θ_B = B⁻¹ (m_B - E θ_C),

and G⁻¹ is U S⁻¹ Uᵀ, plus B⁻¹ in the blocks of the actions, where U is B⁻¹E in the rows of the actions and -1 in the
common ones. With 16 actions that is a fortieth of the work that all of G at once would be.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from policy.arrays import FloatArray, IndexArray


class Blocks(NamedTuple):
    """Which columns belong together, and where the blocks of G are in its memory."""

    common: IndexArray  # c columns without an action
    actions: IndexArray  # (K - 1) × n: the columns of each action but the baseline
    c: IndexArray  # c × c
    e: IndexArray  # (K - 1) × n × c
    b: IndexArray  # (K - 1) × n × n

    @classmethod
    def of(cls, owners: Sequence[str | None], names: Sequence[str]) -> "Blocks":
        """The blocks of columns with the given owners: one of the actions `names`, or None if common."""
        by_action = [[place for place, owner in enumerate(owners) if owner == name] for name in (None, *names)]
        common, actions = np.array(by_action[0], np.intp), np.array(by_action[1:], np.intp)
        lines = actions[:, :, None] * len(owners)
        return cls(common, actions, common[:, None] * len(owners) + common, lines + common, lines + actions[:, None, :])

    def count_operations(self, *, for_inverse: bool) -> int:
        """What factoring costs, in the unit of costs.py; narrow maps, which the loops factor, cost about as much."""
        (count, width), size = self.actions.shape, self.common.size
        columns = count * width + size
        products = columns * (width * (width + 2 * size) + 2 * size * size)
        if for_inverse:
            products += 2 * columns * (width * width + size * size) + columns * columns * size
        return int(products // 3000 + columns * columns // 25)


class Eliminated(NamedTuple):
    """G after the actions' columns are eliminated."""

    theta: FloatArray  # D
    schur: FloatArray  # S, c × c
    solved: FloatArray  # B⁻¹ times E, m_B and, if the inverse is wanted, 1, side by side: (K - 1) × n × columns


@cache
def use_one_thread() -> None:
    """Keep BLAS to one thread from now on: with more, the last bits depend on their number (R15).

    It also spares the others: threads of BLAS that wait for work keep a processor busy.
    """
    threadpool_limits(1, "blas")


def eliminate(
    blocks: Blocks, gram: FloatArray, moment: FloatArray, null: FloatArray, *, for_inverse: bool = False
) -> Eliminated:
    """Eliminate the actions' columns; gram, null: D × D, see kernels.linucb. moment: D."""
    (count, width), size = blocks.actions.shape, blocks.common.size
    between, ones = gram.take(blocks.e), np.eye(width) if for_inverse else np.empty((width, 0))
    right = np.concatenate(
        [between, moment[blocks.actions][:, :, None], np.broadcast_to(ones, (count, *ones.shape))], axis=2
    )
    solved = np.linalg.solve(gram.take(blocks.b) + null.take(blocks.b[0]), right)
    # One product for all actions: their blocks below each other.
    taken = between.reshape(count * width, size).T @ solved[:, :, : size + 1].reshape(count * width, -1)
    schur = gram.take(blocks.c) + null.take(blocks.c) - taken[:, :size]
    theta = np.empty(moment.size)
    theta[blocks.common] = np.linalg.solve(schur, moment[blocks.common] - taken[:, size])
    theta[blocks.actions] = solved[:, :, size] - solved[:, :, :size] @ theta[blocks.common]
    return Eliminated(theta, schur, solved)


def invert(blocks: Blocks, eliminated: Eliminated, inverse: FloatArray) -> None:
    """Fill the inverse (D × D), given what `eliminate` returned for it."""
    _, schur, solved = eliminated
    size = len(schur)
    reach = np.zeros((size, len(inverse)))  # Uᵀ
    reach[:, blocks.common] = -np.eye(size)
    reach[:, blocks.actions] = solved[:, :, :size].transpose(2, 0, 1)
    reach = np.linalg.solve(np.linalg.cholesky(schur), reach)
    np.matmul(reach.T, reach, out=inverse)  # BLAS knows that this is symmetric
    own = solved[:, :, size + 1 :]
    inverse.put(blocks.b, inverse.take(blocks.b) + (own + own.transpose(0, 2, 1)) / 2.0)
