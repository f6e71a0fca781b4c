"""Settings of the process itself, each with the gain that was measured for it.

The C library keeps freed memory in the gaps between blocks that are still in use. Long-lived histories grow among
short-lived answers, so the gaps grow with the age of a worker and look like a leak. Python cannot close them itself.
"""

import ctypes
import gc
import sys

_ARENA_MAX = -8  # glibc's M_ARENA_MAX
# For how long a thread may keep the GIL from the event loop. With a thread that never releases it, 16 decisions at a
# time took 0.4 ms each; with Python's default of 5 ms they took 0.9 to 1.5.
SWITCH_SECONDS = 0.0005


def settle_process() -> None:
    """Prepare a worker's process; call it after the kernels are loaded."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # the compiler leaves 130,000 objects that stay; visiting them takes 0.2 s each time


def share_one_heap() -> bool:
    """Let all threads share one heap; call it before starting any. Returns False if the C library is not GNU's.

    Otherwise each thread has its own, and the others cannot use what it has freed: 25 of a worker's 185 MiB after
    minutes of mixed requests, against 2 of 170. Python's global lock keeps the threads from contending for the heap.
    """
    limit = getattr(ctypes.CDLL(None), "mallopt", None)
    return limit is not None and bool(limit(_ARENA_MAX, 1))


def release_memory() -> bool:
    """Return free pages, in a few milliseconds. False if there were none, or the C library is not GNU's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
