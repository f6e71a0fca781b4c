"""Invalid payloads for every field of every request in the OpenAPI document."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema_rs


class Raw(str):
    """JSON text that Python's encoder does not produce."""


HUGE = "1" + 400 * "0"
# By kind, so that every field meets each of them; numbers that are none stand for the rest of their kind.
WRONG: list[Any] = [
    None, True, 0, -1, 1.5, -0.0, 2**63, Raw(HUGE), Raw("1e400"), Raw("-1e400"), Raw("NaN"), Raw("Infinity"),
    Raw("-Infinity"), "", "text", [], [[]], [None], {}, {"a": {}}, Raw('"\\ud800"'),
]  # fmt: skip

# Text that may stand in a name: it must come back as it is, wherever it is shown.
STRINGS = {
    "sql": "'; DROP TABLE decisions; --",
    "html": "<script>alert(1)</script>",
    "attribute": "\"><img src=x onerror=alert(1)>",
    "template": "{{7*7}}${7*7}<%= 7*7 %>#{7*7}",
    "format": "%s%n{0}{field}%(name)s",
    "path": "../../etc/passwd",
    "slashes": "a//b/./c\\d",
    "percent": "%00%2f%ff",
    "formula": "=HYPERLINK(\"http://127.0.0.1/\")",
    "quotes": "it's \"50 %\" & 'more', \\ \\n",
    "json": "\"},\"admin\":true,{\"",
    "combining": "e\u0301\u0323 Z\u0351\u036b\u0343",
    "right to left": "\u202egnp.exe\u202c \u05d0\u05d1",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "homoglyph": "\u0440aypal",  # its first letter is Cyrillic
    "zero width": "\u200b\ufeffa\u200d",
    "separators": "a\u2028b\u2029c\u0085d",
    "not a character": "\ufdd0\uffff\U0010ffff",
    "spaces": "  two  ",
    "like a number": "1e400",
    "like null": "null",
}  # fmt: skip
# Text that may stand in no name.
NOT_TEXT = {
    "empty": "",
    "very long": "x" * 100_000,
    "nul": "a\x00b",
    "forged line": "a\r\n2026-01-01T00:00:00Z ERROR undercurrent: forged",
    "escape": "\x1b[31mred\x1b]0;title\x07",
    "delete": "a\x7f",
    "surrogate": Raw('"\\ud800"'),
    "pair the wrong way": Raw('"\\udc00\\ud800"'),
}


def _deep(opening: bytes, closing: bytes, depth: int = 100_000) -> bytes:
    return opening * depth + closing * depth


# Whole bodies that no route takes.
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "lists in lists": _deep(b"[", b"]"),
    "lists without an end": b"[" * 100_000,
    "objects in objects": _deep(b'{"a":', b"}").replace(b":}", b":1}"),
    "objects without an end": b'{"a":' * 100_000,
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "half a character": b'{"a": "\xe2\x82"}',
    "too long a form": b'{"a": "\xc0\x80"}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "two values": b"{}{}",
    "a trailing comma": b'{"a": 1,}',
    "a bare NaN": b"NaN",
    "a bare text": b'"text"',
    "a list": b"[]",
    "null": b"null",
    "a NUL inside": b'{"a\x00": 1}',
    "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:/etc/passwd">]><a>&b;</a>',
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00",
}


# --- requests that are good ------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A valid request to a route."""

    method: str
    path: str
    body: Any = None
    query: tuple[tuple[str, str], ...] = ()
    names: tuple[tuple[str, str], ...] = (("name", "nasty"),)

    @property
    def address(self) -> str:
        """Where it goes."""
        path = self.path
        for name, value in self.names:
            path = path.replace(f"{{{name}}}", value)
        return path


CONFIG: dict[str, Any] = {
    "name": "nasty",
    "actions": ["none", "mail", "call"],
    "variables": [
        {"name": "season", "levels": ["summer", "winter"]},
        {"name": "spend", "cuts": [20, 50]},
        {"name": "tenure", "range": [0, 8]},
    ],
    "signals": ["season"],
    "regimes": 2,
    "stage_length": 5,
    "warm_start_rounds": 10,
    "rewards": {"range": [-2, 2], "wait_seconds": 600, "default": 0, "correct_seconds": 1e9},
    "beliefs": {
        "estimator": "given",
        "parameters": {
            "transition": [[0.9, 0.1], [0.2, 0.8]], "emission": [[0.8, 0.2], [0.2, 0.8]], "initial": [0.5, 0.5],
        },
    },
    "regime_labels": ["calm", "storm"],
    "seed": 1,
}  # fmt: skip
CONTEXT = {"season": "summer", "spend": 36.5, "tenure": 2}
LEVEL = {"variable": "season", "level": "winter"}  # there already: a signal with given parameters gains none
TRIED = {"context": CONTEXT, "excluded_actions": ["call"], "subject": "s1", "at": "2026-09-21T00:00:00Z"}
ITEM = {"decision_id": "d1", **TRIED}
ROW = {
    "context": CONTEXT, "action": "mail", "reward": 1, "propensity": 0.5, "at": "2026-09-21T00:00:00Z",
    "decided_at": "2026-09-21T00:00:00Z", "decision_id": "i1", "subject": "s1", "round": 1, "reward_after_round": 1,
}  # fmt: skip
RANK = {
    "actions": [{"id": "none", "features": []}, {"id": "mail", "features": []}],
    "contextFeatures": [CONTEXT],
    "excludedActions": ["mail"],
    "eventId": "d1",
    "deferActivation": False,
}
EVENT = (("eventId", "d1"),)
BETWEEN = (("from", "2026-09-21T00:00:00Z"), ("to", "2027-09-21T00:00:00Z"))
PAGE = (("limit", "5"), ("cursor", "1"))
CORRECTION = {"decision_id": "d1", "reward": 1, "reward_id": "c1"}
CREDIT = {"subject": "s1", "reward": 0.5, "reward_id": "c2"}
ASKED = [
    Asked("POST", "/decide", {"campaign": "nasty", **ITEM}),
    Asked("POST", "/decide/batch", {"campaign": "nasty", "items": [ITEM]}),
    Asked("POST", "/reward", {"campaign": "nasty", "decision_id": "d1", "reward": 1}),
    Asked("POST", "/reward/correct", {"campaign": "nasty", **CORRECTION}),
    Asked("POST", "/reward/subject", {"campaign": "nasty", **CREDIT}),
    Asked("POST", "/reward/batch", {"campaign": "nasty", "items": [{"decision_id": "d1", "reward": 1}]}),
    Asked("POST", "/campaigns/{name}/decide", {"campaign": "nasty", **ITEM}),
    Asked("POST", "/campaigns/{name}/decide/batch", {"items": [ITEM]}),
    Asked("POST", "/campaigns/{name}/reward", {"campaign": "nasty", "decision_id": "d1", "reward": 1}),
    Asked("POST", "/campaigns/{name}/reward/correct", CORRECTION),
    Asked("POST", "/campaigns/{name}/reward/subject", CREDIT),
    Asked("POST", "/campaigns/{name}/reward/batch", {"items": [{"decision_id": "d1", "reward": 1}]}),
    Asked("POST", "/personalizer/v1.0/rank", RANK),
    Asked("POST", "/personalizer/v1.0/events/{eventId}/reward", {"value": 1}, names=EVENT),
    Asked("POST", "/personalizer/v1.0/events/{eventId}/activate", names=EVENT),
    Asked("GET", "/campaigns", query=(("limit", "5"), ("cursor", "a"), ("archived", "false"))),
    Asked("POST", "/campaigns", CONFIG),
    Asked("POST", "/campaigns/check", CONFIG),
    Asked("GET", "/audit", query=(*PAGE, *BETWEEN, ("campaign", "nasty"))),
    Asked("GET", "/campaigns/{name}"),
    Asked("PATCH", "/campaigns/{name}", {"control": {"share": 0.1}}),
    Asked("DELETE", "/campaigns/{name}", query=(("confirm", "nasty"),)),
    Asked("GET", "/campaigns/{name}/decisions", query=(("format", "csv"), *BETWEEN)),
    Asked("GET", "/campaigns/{name}/decisions/{decision_id}", names=(("name", "nasty"), ("decision_id", "d1"))),
    Asked("GET", "/campaigns/{name}/model"),
    Asked("GET", "/campaigns/{name}/stages", query=PAGE),
    Asked("GET", "/campaigns/{name}/revisions", query=PAGE),
    Asked("GET", "/campaigns/{name}/alerts", query=PAGE),
    Asked("GET", "/campaigns/{name}/report", query=(*BETWEEN, ("model_version", "1"))),
    Asked("GET", "/campaigns/{name}/regimes"),
    Asked("GET", "/campaigns/{name}/diagnostics"),
    Asked("GET", "/campaigns/{name}/series", query=(*BETWEEN, ("points", "50"), ("beliefs", "now"))),
    Asked("POST", "/campaigns/{name}/preview", TRIED),
    Asked("POST", "/campaigns/{name}/explain", {"decision_id": "d1"}),
    Asked("POST", "/campaigns/{name}/archive"),
    Asked("POST", "/campaigns/{name}/unarchive"),
    Asked("POST", "/campaigns/{name}/rollback", {"model_version": 1}),
    Asked("POST", "/campaigns/{name}/actions", {"action": "call"}),
    Asked("POST", "/campaigns/{name}/actions/retire", {"action": "call"}),
    Asked("POST", "/campaigns/{name}/levels", LEVEL),
    Asked("POST", "/campaigns/{name}/import", {"import_id": "i", "rows": [ROW]}),
    Asked("POST", "/campaigns/{name}/clone", {"name": "nasty-2", "actions": ["nothing", "mail"]}),
    Asked("POST", "/subjects/erase", {"subject": "nobody"}),
    Asked("POST", "/subjects/export", {"subject": "nobody"}),
    Asked("GET", "/metrics"),
    Asked("GET", "/healthz"),
    Asked("GET", "/readyz"),
]  # fmt: skip

EVALUATION = {"context": {"targetingKey": "s1", "decision_id": "f1", **CONTEXT}}
# The requests of OpenFeature's protocol, whose contexts may hold anything.
EVALUATIONS = [
    Asked("POST", "/ofrep/v1/evaluate/flags/{name}", EVALUATION),
    Asked("POST", "/ofrep/v1/evaluate/flags", EVALUATION),
    Asked("GET", "/ofrep/v1/configuration"),
]


# --- the fields of their bodies --------------------------------------------------------------------------------


class Place(NamedTuple):
    """A field of a body: its path, and what the document allows there."""

    way: tuple[str | int, ...]
    schema: dict[str, Any]

    @property
    def kinds(self) -> list[dict[str, Any]]:
        """What it may be, one by one."""
        return _kinds(self.schema)

    @property
    def text(self) -> bool:
        """May it be any text, as far as its kind goes?"""
        return any(one.get("type") == "string" and not one.keys() & {"enum", "const"} for one in self.kinds)


def _kinds(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = schema.get("anyOf", schema.get("oneOf", [schema]))
    return [deeper for one in found for deeper in (_kinds(one) if one is not schema else [one])]


def places(document: dict[str, Any], schema: dict[str, Any], way: tuple[str | int, ...] = ()) -> Iterator[Place]:
    """Yield every field of a body, nested ones too, and the first item of a list."""
    if "$ref" in schema:
        yield from places(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], way)
        return
    if way:
        yield Place(way, schema)
    for one in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        yield from (place for place in places(document, one, way) if place.way != way)
    for name, inner in schema.get("properties", {}).items():
        yield from places(document, inner, (*way, name))
    if inner := schema.get("items") or next(iter(schema.get("prefixItems", ())), None):
        yield from places(document, inner, (*way, 0))


def wrong(document: dict[str, Any], place: Place) -> list[Any]:
    """Return the values that the document does not allow there; NaN and infinity are never allowed."""
    allowed = jsonschema_rs.Draft202012Validator({**place.schema, "components": document["components"]}).is_valid
    return [value for value in WRONG if isinstance(value, Raw) or not allowed(value)]


def put(body: Any, way: tuple[str | int, ...], value: Any) -> Any:
    """Return the body with another value at that path, creating what is missing on the way."""
    if not way:
        return value
    first, *rest = way
    if isinstance(first, int):
        items = body if isinstance(body, list) and body else [None]
        return [put(items[0], tuple(rest), value), *items[1:]]
    fields = body if isinstance(body, dict) else {}
    return {**fields, first: put(fields.get(first), tuple(rest), value)}


def encoded(body: Any) -> bytes:
    """Encode the body as JSON, with the raw parts in their places."""
    raws: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(value)
            return f"\x01{len(raws) - 1}"
        if isinstance(value, dict):
            return {name: marked(inner) for name, inner in value.items()}
        return [marked(inner) for inner in value] if isinstance(value, list | tuple) else value

    text = json.dumps(marked(body), ensure_ascii=False)
    for number, raw in enumerate(raws):
        text = text.replace(f'"\\u0001{number}"', raw)
    return text.encode()
