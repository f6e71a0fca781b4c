"""Memory that is no longer used goes back to the system.

The C library keeps what was freed in gaps between what is still used. Long-lived histories grow among the short-lived
answers, so the gaps become more for as long as a worker lives, and look like a leak. Python itself cannot close them.
"""

import ctypes

__all__ = ["give_back"]


def give_back() -> bool:
    """Return whole free pages, in a few milliseconds. False if anything was too little, or the library is not GNU's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
