"""Memory that was freed is given back, and a worker does so by itself."""

import sys

import psutil
import pytest

from service import background
from service.memory import give_back
from tests.service.playing import eventually

PIECES, SIZE = 20_000, 2_000  # bytes of each: more than Python's own allocator takes


def resident():
    return psutil.Process().memory_info().rss


@pytest.mark.skipif(sys.platform != "linux", reason="only the GNU library has gaps to close")
def test_gaps_are_given_back():
    """Few pieces stay among many that were freed."""
    pieces = [bytes(SIZE) for _ in range(PIECES)]
    few = pieces[::20]
    pieces.clear()
    with_gaps = resident()
    assert give_back()
    assert with_gaps - resident() > PIECES * SIZE / 2
    assert len(few) == PIECES / 20


def test_a_worker_gives_back_now_and_then(start, monkeypatch):
    times = []
    monkeypatch.setattr(background, "TIDY_SECONDS", 0.05)
    monkeypatch.setattr(background, "give_back", lambda: times.append(give_back()))
    start()
    eventually(lambda: len(times) > 1, "given back twice")
