"""Freed memory is returned to the system, and a worker does that by itself."""

import subprocess
import sys

import psutil
import pytest

from service.base.process import release_memory
from service.engine import background
from tests.service.playing import eventually

THREADS = 3
# Threads allocate at the same time, then the C library lists its heaps.
LIST_HEAPS = """
import ctypes, os, sys, threading
from service.base.process import share_one_heap
limited, threads = map(int, sys.argv[1:])
assert not limited or share_one_heap()
library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
together = threading.Barrier(threads + 1)
def allocate():
    library.free(ctypes.c_void_p(library.malloc(100_000)))
    together.wait()
    together.wait()
library.malloc.restype = ctypes.c_void_p
for _ in range(threads):
    threading.Thread(target=allocate).start()
together.wait()
out = ctypes.c_void_p(library.fdopen(1, b"w"))
library.malloc_info(0, out)
library.fflush(out)
together.wait()
"""
PIECES, SIZE = 20_000, 2_000  # bytes of each: too large for Python's own allocator


def resident():
    return psutil.Process().memory_info().rss


@pytest.mark.skipif(sys.platform != "linux", reason="only the GNU library has gaps to close")
def test_gaps_are_released():
    """A few pieces remain among many that were freed."""
    pieces = [bytes(SIZE) for _ in range(PIECES)]
    few = pieces[::20]
    pieces.clear()
    with_gaps = resident()
    assert release_memory()
    assert with_gaps - resident() > PIECES * SIZE / 2
    assert len(few) == PIECES / 20


@pytest.mark.skipif(sys.platform != "linux", reason="only the GNU library has a heap for each thread")
@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.slow
def test_threads_share_a_heap(limited):
    """In another process, because it cannot be undone."""
    process = subprocess.run(
        [sys.executable, "-c", LIST_HEAPS, str(int(limited)), str(THREADS)], capture_output=True, text=True, check=True
    )
    assert (process.stdout.count("<heap nr=") == 1) == limited


def test_a_worker_releases_memory_regularly(start, monkeypatch):
    times = []
    monkeypatch.setattr(background, "TIDY_SECONDS", 0.05)
    monkeypatch.setattr(background, "release_memory", lambda: times.append(release_memory()))
    start()
    eventually(lambda: len(times) > 1, "released twice")
