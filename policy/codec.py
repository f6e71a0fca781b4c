"""State and estimate ↔ bytes: an open, versioned, checksummed format, readable without this library.

 8 bytes  "UCSTATE" and a newline
 4 bytes  length n of the header, little-endian
 n bytes  header: JSON with `schema`, `kind`, the plain fields, and for each array its dtype and shape, in file order
 …        the arrays, C order, little-endian, one after the other
32 bytes  SHA-256 of everything before
"""

import hashlib
import json
import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from policy.candidates import Candidate
from policy.delays import SLICES
from policy.encoding import Contexts
from policy.errors import CodecError
from policy.exposure import Exposure
from policy.history import Gone, History
from policy.hmm import HmmParameters
from policy.kept import Kept
from policy.kernels import Statistics
from policy.online import OnlineStatistics
from policy.selection import NO_ROUNDS, Estimate, Selection
from policy.state import State

SCHEMA = 3
_MAGIC = b"UCSTATE\n"
_PLAIN = ("round", "next_estimation", "next_update", "model_version", "arrived", "folded", "rebuild", "period")
_LATER = {"trial_end": 0, "trial_first": 0}  # plain fields that older states lack
_WRONG = (KeyError, TypeError, ValueError, IndexError)  # where the checksum is right and the content makes no sense
_CHOICE = ("round", "arrived", "chosen", "trial", "trial_from", "deviations")
_FITTED = ("theta", "units", "gains")
_AGES, _MOMENTS = ("ages", "reached"), ("now", "learned")  # of the exposure
Arrays = dict[str, npt.NDArray[Any]]


def encode(state: State) -> bytes:
    """The state as bytes; equal states give equal bytes."""
    history, rounds = state.history, state.rows
    arrays: Arrays = {"belief": state.belief, **_name_arrays("statistics", state.statistics)}
    if state.hmm is not None:
        arrays |= _name_arrays("hmm", state.hmm)
    arrays |= _name_arrays("history", history.contexts.rows(0, rounds))
    arrays |= {f"history.{name}": getattr(history, name)[:rounds] for name in ("steps", "actions", "beliefs")}
    arrived = history.get_arrival_order(state.arrived)
    arrays |= {"history.arrivals": arrived, "history.rewards": history.list_newest_rewards(state.arrived)}
    revisions, replaced = history.get_revisions(state.arrived)
    if revisions.size:
        arrays |= {"history.revisions": revisions, "history.replaced": replaced}
    if history.is_timed:  # only with a default reward
        arrays |= {"history.times": history.times[:rounds], "history.came": history.list_first_times(state.arrived)}
    if state.exposure is not None:
        arrays |= {f"exposure.{name}": getattr(state.exposure, name) for name in _AGES}
    if history.excluded.size:  # only after a rollback
        arrays["history.excluded"] = history.excluded
    arrays |= _candidate_arrays(state.selection)
    if state.online is not None:
        arrays |= _name_arrays("online", state.online)
    plain = {name: getattr(state, name) for name in _PLAIN}
    plain |= {name: getattr(state, name) for name, absent in _LATER.items() if getattr(state, name) != absent}
    if state.exposure is not None:
        plain |= {name: getattr(state.exposure, name) for name in _MOMENTS}
    if history.first:
        plain["gone"] = list(history.gone)
    return _pack("state", plain | {"selection": _selection_header(state.selection)}, arrays)


def encode_estimate(estimate: HmmParameters | Estimate | OnlineStatistics) -> bytes:
    """The result of a re-estimation as bytes, to be put in force later and elsewhere (R16)."""
    if isinstance(estimate, HmmParameters):
        return _pack("parameters", {}, _name_arrays("hmm", estimate))
    if isinstance(estimate, OnlineStatistics):
        return _pack("online", {}, _name_arrays("online", estimate))
    arrays = {"posterior": estimate.posterior} | _candidate_arrays(estimate.selection)
    return _pack("estimate", {"selection": _selection_header(estimate.selection)}, arrays)


def _pack(kind: str, plain: dict[str, Any], arrays: Arrays) -> bytes:
    parts = {name: np.ascontiguousarray(a, a.dtype.newbyteorder("<")) for name, a in arrays.items()}
    described = [[name, a.dtype.str, list(a.shape)] for name, a in parts.items()]
    header = json.dumps({"schema": SCHEMA, "kind": kind, **plain, "arrays": described}, separators=(",", ":")).encode()
    body = b"".join([_MAGIC, struct.pack("<I", len(header)), header, *(a.tobytes() for a in parts.values())])
    return body + hashlib.sha256(body).digest()


def _name_arrays(prefix: str, parts: HmmParameters | Statistics | Contexts | OnlineStatistics | Kept) -> Arrays:
    return {f"{prefix}.{name}": array for name, array in parts._asdict().items()}


def _candidate_arrays(selection: Selection | None) -> Arrays:
    arrays: Arrays = {}
    for i, candidate in enumerate(selection.candidates if selection else ()):
        arrays |= _name_arrays(f"candidates.{i}.hmm", candidate.hmm)
        arrays |= {f"candidates.{i}.{name}": getattr(candidate, name) for name in _FITTED}
        if candidate.kept is not None:
            arrays |= _name_arrays(f"candidates.{i}.kept", candidate.kept)
    if selection is not None and selection.reached.any():
        arrays["candidates.reached"] = selection.reached
    return arrays


def _selection_header(selection: Selection | None) -> dict[str, Any] | None:
    if selection is None:
        return None
    plain = {name: getattr(selection, name) for name in _CHOICE}
    if selection.first:
        plain["first"] = selection.first
    return {**plain, "joint": [candidate.joint for candidate in selection.candidates]}


def _read_hmm(arrays: Arrays, prefix: str = "") -> HmmParameters:
    return HmmParameters(*(arrays[f"{prefix}hmm.{name}"] for name in HmmParameters._fields))


def _read_online(arrays: Arrays) -> OnlineStatistics:
    return OnlineStatistics(*(arrays[f"online.{name}"] for name in OnlineStatistics._fields))


def _selection(header: dict[str, Any] | None, arrays: Arrays) -> Selection | None:
    if header is None:
        return None
    candidates = tuple(
        Candidate(
            hmm=_read_hmm(arrays, f"candidates.{i}."),
            joint=joint,
            kept=_read_kept(arrays, f"candidates.{i}.kept"),
            **{name: arrays[f"candidates.{i}.{name}"] for name in _FITTED},
        )
        for i, joint in enumerate(header["joint"])
    )
    # States from before deviations were counted go on as they were: without a search for some.
    choice = {name: header[name] for name in _CHOICE if name in header or name != "deviations"}
    choice["first"] = header.get("first", 0)
    if not all(type(number) is int and number >= 0 for number in choice.values()):
        raise ValueError("a choice is not a whole number")
    if not header["chosen"] < len(candidates):
        raise ValueError("the candidate in use does not exist")
    return Selection(candidates=candidates, reached=arrays.get("candidates.reached", NO_ROUNDS), **choice)


def _read_kept(arrays: Arrays, prefix: str) -> Kept | None:
    if f"{prefix}.edge" not in arrays:
        return None
    return Kept(*(arrays[f"{prefix}.{name}"] for name in Kept._fields))


def _read_gone(header: dict[str, Any]) -> Gone:
    gone = Gone(*header.get("gone", ()))
    if not all(type(number) is int for number in gone):
        raise ValueError("what has left is not a whole number")
    return gone


def _read_exposure(header: dict[str, Any], arrays: Arrays) -> Exposure | None:
    if "exposure.ages" not in arrays:
        return None
    ages, reached = (arrays[f"exposure.{name}"] for name in _AGES)
    if not ages.shape == reached.shape == (SLICES,):
        raise ValueError("not as many slices as there are")
    return Exposure(ages=ages, reached=reached, **{name: header[name] for name in _MOMENTS})


def _read_revisions(arrays: Arrays) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    if "history.revisions" not in arrays:
        return None
    revisions, replaced = arrays["history.revisions"], arrays["history.replaced"]
    if revisions.shape != replaced.shape:
        raise ValueError("revisions and what they replaced differ in number")
    return revisions, replaced


def decode(data: bytes) -> State:
    """The state that `encode` wrote; a CodecError says what is wrong with anything else."""
    try:
        _, header, arrays = _unpack(data, "state")
        statistics = Statistics(*(arrays[f"statistics.{name}"] for name in Statistics._fields))
        parameters = _read_hmm(arrays) if "hmm.transition" in arrays else None
        history = History.restore(
            *(arrays[f"history.{n}"] for n in ("levels", "values", "symbols", "steps", "actions", "beliefs")),
            arrivals=arrays["history.arrivals"],
            rewards=arrays["history.rewards"],
            excluded=arrays.get("history.excluded"),
            revisions=_read_revisions(arrays),
            gone=_read_gone(header),
            times=(arrays["history.times"], arrays["history.came"]) if "history.times" in arrays else None,
        )
        fields = {name: header[name] for name in _PLAIN} | {name: header.get(name, _LATER[name]) for name in _LATER}
        fields["selection"] = _selection(header["selection"], arrays)
        fields["online"] = _read_online(arrays) if "online.counts" in arrays else None
        fields["exposure"] = _read_exposure(header, arrays)
        return State(belief=arrays["belief"], hmm=parameters, statistics=statistics, history=history, **fields)
    except _WRONG as error:
        raise CodecError("state", f"not understood: {error!r:.100}", f"a state of schema {SCHEMA}") from None


def decode_estimate(data: bytes) -> HmmParameters | Estimate | OnlineStatistics:
    """The estimate that `encode_estimate` wrote."""
    try:
        kind, header, arrays = _unpack(data, "parameters", "estimate", "online")
        if kind == "parameters":
            return _read_hmm(arrays)
        if kind == "online":
            return _read_online(arrays)
        chosen = _selection(header["selection"], arrays)
        if chosen is None:
            raise ValueError("no selection")
        return Estimate(chosen, arrays["posterior"])
    except _WRONG as error:
        raise CodecError("estimate", f"not understood: {error!r:.100}", f"an estimate of schema {SCHEMA}") from None


def _unpack(data: bytes, *kinds: str) -> tuple[str, dict[str, Any], Arrays]:
    if not isinstance(data, bytes) or len(data) < len(_MAGIC) + 36 or not data.startswith(_MAGIC):
        raise CodecError("state", "not the bytes of a state", "what policy.encode wrote")
    body, checksum = data[:-32], data[-32:]
    if hashlib.sha256(body).digest() != checksum:
        raise CodecError("state", "damaged: the checksum does not match", "the bytes as they were written")
    start = len(_MAGIC) + 4
    (length,) = struct.unpack_from("<I", body, len(_MAGIC))
    header = json.loads(body[start : start + length])
    if header["schema"] != SCHEMA:
        raise CodecError("schema", f"{header['schema']}", f"{SCHEMA}, the version of this library")
    if header["kind"] not in kinds:
        raise CodecError("kind", f"{header['kind']!r:.60}", " or ".join(kinds))
    offset = start + length
    arrays = {}
    for name, dtype, shape in header["arrays"]:
        count = math.prod(shape)
        native = np.dtype(dtype).newbyteorder("=")
        arrays[name] = np.frombuffer(body, dtype, count, offset).reshape(shape).astype(native)
        offset += count * native.itemsize
    if offset != len(body):
        raise ValueError("the arrays do not fill the file")
    return header["kind"], header, arrays
