"""The types of the arrays that the library passes around, by what they hold."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
IndexArray = NDArray[np.intp]  # positions, as numpy returns them
SmallInts = NDArray[np.int16]  # levels, symbols, actions, steps of the chain
BoolArray = NDArray[np.bool_]
