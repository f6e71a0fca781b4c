"""State ↔ bytes: the format read by hand as its description says, and every kind of damage refused."""

import hashlib
import json
import math
import struct

import numpy as np
import pytest

from policy import CodecError, StagedPolicy, decode, encode
from policy.codec import SCHEMA

EM = {"estimator": "em", "start_round": 40, "every": 9, "statistics": "smoothed"}


@pytest.fixture(scope="module")
def played(small, small_contexts):
    """A policy and a state with everything in it: an estimate, late and missing rewards, a waiting rebuild."""
    policy = StagedPolicy(small(beliefs=EM, stage_length=8))
    state = policy.initial_state()
    for t, context in enumerate(small_contexts(60), start=1):
        state, _ = policy.decide(state, context)
        if t % 3 == 0:
            state = policy.reward(state, t - 2, 0.5 * t)
        elif t % 3 == 1 and t > 10:
            state = policy.reward(state, t - 8, -0.25 * t)
    assert state.hmm is not None
    assert state.rebuild
    assert 0 < state.folded < state.arrived < state.round
    return policy, state


def read_by_hand(data):
    """The format with nothing but the standard library: (header, {name: flat list of numbers})."""
    assert data[:8] == b"UCSTATE\n"
    (length,) = struct.unpack("<I", data[8:12])
    header = json.loads(data[12 : 12 + length])
    formats = {"<f8": "d", "<i8": "q", "<i2": "h"}
    place, arrays = 12 + length, {}
    for name, dtype, shape in header["arrays"]:
        layout = f"<{math.prod(shape)}{formats[dtype]}"
        arrays[name] = list(struct.unpack_from(layout, data, place))
        place += struct.calcsize(layout)
    assert data[place:] == hashlib.sha256(data[:place]).digest()
    return header, arrays


def rewritten(data, **changes):
    """The same state with fields of its header replaced (None removes one) and a valid checksum."""
    (length,) = struct.unpack("<I", data[8:12])
    header = json.loads(data[12 : 12 + length]) | changes
    text = json.dumps({name: value for name, value in header.items() if value is not None}).encode()
    body = data[:8] + struct.pack("<I", len(text)) + text + data[12 + length : -32]
    return body + hashlib.sha256(body).digest()


def test_the_format_is_readable_without_the_library(played):
    _, state = played
    header, arrays = read_by_hand(encode(state))
    assert header["schema"] == SCHEMA == 3
    for name in ("round", "next_estimation", "model_version", "arrived", "folded", "rebuild", "period"):
        assert header[name] == getattr(state, name)
    assert arrays["belief"] == state.belief.tolist()
    for name, array in state.statistics._asdict().items():
        assert arrays[f"statistics.{name}"] == array.ravel().tolist()
    for name, array in state.hmm._asdict().items():
        assert arrays[f"hmm.{name}"] == array.ravel().tolist()
    history, rounds = state.history, state.round
    for name, array in history.contexts._asdict().items():
        assert arrays[f"history.{name}"] == array[:rounds].ravel().tolist()
    assert header["selection"] is None  # joint statistics only
    assert arrays["history.steps"] == history.steps[:rounds].tolist()
    assert arrays["history.actions"] == history.actions[:rounds].tolist()
    assert arrays["history.beliefs"] == history.beliefs[:rounds].ravel().tolist()
    known = dict(zip(arrays["history.arrivals"], arrays["history.rewards"], strict=True))
    assert len(known) == state.arrived
    for row, reward in enumerate(history.rewards[:rounds].tolist()):
        assert (row not in known and math.isnan(reward)) or known[row] == reward


def test_round_trip(played):
    policy, state = played
    data = encode(state)
    copy = decode(data)
    assert encode(copy) == data
    assert (copy.round, copy.arrived, copy.folded, copy.rebuild) == (60, state.arrived, state.folded, True)
    assert type(copy.round) is int
    assert type(copy.rebuild) is bool
    for mine, theirs in zip(state.statistics, copy.statistics, strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine == theirs).all()
        assert theirs.flags.writeable
    empty = policy.initial_state()
    assert encode(decode(encode(empty))) == encode(empty)
    assert decode(encode(empty)).hmm is None


def test_a_decoded_state_is_independent_of_the_bytes_and_of_its_twin(played, small_contexts):
    policy, state = played
    data = encode(state)
    one, two = decode(data), decode(data)
    for context in small_contexts(30, seed=5):
        one, _ = policy.decide(one, context)
    assert encode(two) == data
    waiting = next(t for t in range(1, 61) if math.isnan(two.history.rewards[t - 1]))
    assert decode(encode(policy.reward(two, waiting, 3.0))).history.rewards[waiting - 1] == 3.0


# --- candidates ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def selected(small, small_contexts):
    """A policy with joint statistics on a clock, and a state of it with several candidates."""
    beliefs = {"start_round": 21, "every": {"factor": 1.3}}
    policy = StagedPolicy(small(beliefs=beliefs, clock={"period_seconds": 60}, regimes=2))
    state, generator = policy.initial_state(), np.random.default_rng(1)
    for t, context in enumerate(small_contexts(160), start=1):
        state, _ = policy.decide(state, context, at=40.0 * t)
        if t % 4:
            state = policy.reward(state, t, generator.normal())
    assert len(state.selection.candidates) == 3
    return policy, state


def test_candidates_round_trip(selected, small_contexts):
    policy, state = selected
    data = encode(state)
    header, arrays = read_by_hand(data)
    chosen = state.selection
    fields = ("round", "arrived", "chosen", "trial", "trial_from", "deviations")
    assert header["selection"] == {name: getattr(chosen, name) for name in fields} | {"joint": [False, False, True]}
    assert header["period"] == state.period == 160 * 40 // 60
    for i, candidate in enumerate(chosen.candidates):
        for name, array in (*candidate.hmm._asdict().items(),):
            assert arrays[f"candidates.{i}.hmm.{name}"] == array.ravel().tolist()
        for name in ("theta", "units", "gains"):
            assert arrays[f"candidates.{i}.{name}"] == getattr(candidate, name).tolist()
    copy = decode(data)
    assert encode(copy) == data
    assert copy.period == state.period
    for mine, theirs in zip(chosen.candidates, copy.selection.candidates, strict=True):
        assert (mine.regimes, mine.joint) == (theirs.regimes, theirs.joint)
        assert all((a == b).all() for a, b in zip((*mine.hmm, *mine[1:4]), (*theirs.hmm, *theirs[1:4]), strict=True))
    assert copy.selection._replace(candidates=()) == chosen._replace(candidates=())
    assert type(copy.selection.candidates[0].joint) is bool
    for t, context in enumerate(small_contexts(80, 3), start=161):  # past the next re-estimation
        state, mine = policy.decide(state, context, at=40.0 * t)
        copy, theirs = policy.decide(copy, context, at=40.0 * t)
        assert mine == theirs
        state, copy = (policy.reward(s, t, 0.1) for s in (state, copy))
    assert state.selection.round > chosen.round
    assert encode(copy) == encode(state)


def test_a_state_from_before_deviations_were_counted_goes_on_without_a_search(selected):
    """It has one noise for all actions until its next re-estimation."""
    policy, state = selected
    older = state._replace(statistics=state.statistics._replace(units=state.statistics.units[:2]))
    header, _ = read_by_hand(encode(older))
    plain = {name: value for name, value in header["selection"].items() if name != "deviations"}
    copy = decode(rewritten(encode(older), selection=plain))
    assert copy.selection.is_varied
    scores = policy.preview(copy, {"risk": "low", "income": 5, "region": "north", "tenure": 1.0}, at=1e4).scores
    assert all(score.bonus > 0.0 for score in scores)


# --- damage --------------------------------------------------------------------------------------------------


def refused(data):
    with pytest.raises(CodecError) as caught:
        decode(data)
    (problem,) = caught.value.problems
    assert problem.allowed
    return problem


def test_other_bytes_are_refused(played):
    for data in (
        b"",
        b"UCSTATE\n",
        b"\x00" * 400,
        b"PK\x03\x04" + b"x" * 400,
        b"ucstate\n" + b"x" * 99,
        None,
        "UCSTATE\n",
    ):
        assert refused(data).field == "state"
    body = b"UCSTATE2" + encode(played[1])[8:-32]
    assert "not the bytes of a state" in refused(body + hashlib.sha256(body).digest()).message


@pytest.mark.parametrize("schema", [0, 2, 999, "3"])
def test_another_schema_version_is_named(played, schema):
    problem = refused(rewritten(encode(played[1]), schema=schema))
    assert problem.field == "schema"
    assert str(schema) in problem.message
    assert str(SCHEMA) in problem.allowed


def test_truncated_or_extended_bytes_and_any_flipped_bit_are_refused(played):
    data = encode(played[1])
    for length in [*range(60), len(data) // 2, len(data) - 33, len(data) - 1]:
        refused(data[:length])
    assert "checksum" in refused(data + b"\x00").message
    for place in [*range(20), *np.random.default_rng(0).integers(20, len(data), 200), len(data) - 1]:
        damaged = bytearray(data)
        damaged[place] ^= 1 << (int(place) % 8)
        refused(bytes(damaged))


def test_a_header_that_makes_no_sense_is_refused_though_its_checksum_is_right(played):
    data = encode(played[1])
    arrays = [["<f8", [10**9]], ["<q9", [2]], ["|O", [2]]]
    for changes in (
        *({field: None} for field in ("schema", "round", "arrays")),
        *({"arrays": wrong} for wrong in ([], 5, *([["belief", *array]] for array in arrays))),
    ):
        refused(rewritten(data, **changes))
    for header in (b"{", b"[]", b"\xff\xfe"):
        body = data[:8] + struct.pack("<I", len(header)) + header + data[200:-32]
        refused(body + hashlib.sha256(body).digest())
    body = data[:8] + struct.pack("<I", 2**31) + data[12:-32]
    refused(body + hashlib.sha256(body).digest())


def damaged(data, name, change):
    """The same state with one entry of the header's list of arrays replaced, its checksum right again."""
    (length,) = struct.unpack("<I", data[8:12])
    arrays = json.loads(data[12 : 12 + length])["arrays"]
    place = next(i for i, entry in enumerate(arrays) if entry[0] == name)
    arrays[place : place + 1] = change(arrays[place])
    return rewritten(data, arrays=arrays)


@pytest.mark.parametrize("name", ["hmm.transition", "hmm.emission", "hmm.initial", "theta", "units", "gains"])
def test_candidates_that_are_incomplete_are_refused(selected, name):
    data = encode(selected[1])
    renamed = lambda entry: [["candidates.9.x", *entry[1:]]]  # noqa: E731
    assert "not understood" in refused(damaged(data, f"candidates.1.{name}", renamed)).message
    too_long = lambda entry: [[entry[0], entry[1], [*entry[2][:-1], 10**9]]]  # noqa: E731
    assert "not understood" in refused(damaged(data, f"candidates.2.{name}", too_long)).message


def test_a_selection_that_makes_no_sense_is_refused(selected):
    data = encode(selected[1])
    header, _ = read_by_hand(data)
    refused(rewritten(data, selection=[]))
    for changes in (
        *({"joint": joint} for joint in (None, [False] * 4, 3)),
        *({"chosen": chosen} for chosen in (None, 3, -4, 1.5, "1")),
        *({field: None} for field in ("trial", "round")),
    ):
        wrong = {name: value for name, value in (header["selection"] | changes).items() if value is not None}
        refused(rewritten(data, selection=wrong))
