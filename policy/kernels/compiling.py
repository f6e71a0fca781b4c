"""How the kernels are compiled, and where numba keeps the machine code.

numba notices an edit only in the file of the outermost function. A kernel calls helpers in other files of this package,
so the cache folder is named after a hash of all its sources: any edit means a new folder, and everything is compiled
again. Folders of older sources are left where they are (about 3 MB each; `make clean` removes those in the source
tree), because a process of the previous version may still be using one.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import numba
from numba import njit

_SOURCES = Path(__file__).parent
_numba: Any = numba.config  # its attributes are set at run time, so mypy cannot know them


def _hash_sources() -> str:
    """A short hash of the names and contents of this package's files."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _find_cache_folder() -> str:
    """The folder for these sources, in the first of three places that can be written to.

    NUMBA_CACHE_DIR comes first if it is set, then `__pycache__` beside the sources, then the user's cache.
    """
    name = f"undercurrent-{_hash_sources()}"
    chosen = [Path(_numba.CACHE_DIR)] if _numba.CACHE_DIR else []
    for place in (*chosen, _SOURCES / "__pycache__", Path("~/.cache")):
        try:
            folder = (place / name).expanduser().absolute()
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # not writable, or there is no home directory
            continue
        if os.access(folder, os.W_OK):
            return str(folder)
    raise RuntimeError("no folder for the compiled kernels is writable: set NUMBA_CACHE_DIR to one that is")


_CACHE_FOLDER = _find_cache_folder()


def jit(function: Any) -> Any:
    """Compile a kernel at its first call, or load it from the cache.

    The folder is set only while numba takes note of it, so that other packages keep their own. `fastmath` is never
    used: sums must run in the order written (R15).
    """
    others, _numba.CACHE_DIR = _numba.CACHE_DIR, _CACHE_FOLDER
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    finally:
        _numba.CACHE_DIR = others


def inline(function: Any) -> Any:
    """Merge a small piece of a hot loop into its callers, where arrays need no reference counting."""
    return njit(nogil=True, error_model="numpy", inline="always")(function)
