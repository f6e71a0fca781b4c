"""Hashes of requests (R17), and batches, whose answers equal those of single requests to the byte."""

import json

from hypothesis import given
from hypothesis import strategies as st

from service.engine.encoding import hash_request, hash_requests
from service.engine.requests import DecideItem
from tests.service.playing import CONFIGS, operation

BEYOND_64_BITS = 10**30
ITEM = {"context": {"risk": "low", "revenue": 36_000}}
RICH_ITEM = {
    "context": {"revenue": 36_000.0, "risk": "low"},
    "excluded_actions": ["call", "mail", "call"],
    "subject": "cüstomer 1",
    "at": "2026-03-01T10:00:00+01:00",
}
TOO_LARGE_ITEM = {"context": {"revenue": BEYOND_64_BITS, "risk": [1.5, {"a": None}]}}


def parsed(item):
    return DecideItem.model_validate_json(json.dumps(item))


def test_hashes_never_change():
    """Existing logs contain them; another hash would refuse a valid retry."""
    digests = [hash_request(parsed(item)) for item in (ITEM, RICH_ITEM, TOO_LARGE_ITEM)]
    assert [digest.hex() for digest in digests] == [
        "f17a42e8f63f43367594027eed24c31e",
        "f9a298843042058c4ee64d46ebb5240d",
        "2e9720350fed42bfa6f533eb8abfa5b4",
    ]


def test_hashes_of_many_equal_those_of_each():
    """Also beside a request that JSON cannot encode."""
    each = [parsed(item) for item in (ITEM, RICH_ITEM, ITEM)]
    assert hash_requests(each) == [hash_request(item) for item in each]
    each.append(parsed(TOO_LARGE_ITEM))
    assert hash_requests(each) == [hash_request(item) for item in each]


texts = st.text(st.sampled_from('ab"\\\n\r\x0b\u2028é😀'), max_size=4)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.just(BEYOND_64_BITS)
    | st.floats(allow_nan=False)
    | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
items = st.builds(
    DecideItem.model_construct,
    context=st.dictionaries(texts, values, max_size=3),
    excluded_actions=st.lists(texts, max_size=3).map(tuple),
    subject=st.none() | texts,
    decision_id=st.none(),
    at=st.none(),
)


@given(items)
def test_order_does_not_matter_and_the_subject_does(item):
    turned = dict(reversed(item.context.items()))
    same = item.model_copy(update={"context": turned, "excluded_actions": item.excluded_actions[::-1] * 2})
    other = item.model_copy(update={"subject": f"{item.subject} junior"})
    if "1000000000000000000000000000000" not in repr(item.context):  # beyond 64 bits it is refused
        assert hash_request(same) == hash_request(item)
    assert hash_request(other) != hash_request(item)


def test_a_batch_gets_the_same_bytes_as_single_requests(direct, clock):
    """The second time the answers come from the log."""
    worker = direct()
    worker.post("/campaigns", CONFIGS["waiting"])
    batched = [
        {"decision_id": name, "context": {"season": "spring", "spend": number, "tenure": 1.5}, **more}
        for number, (name, more) in enumerate(
            [
                ("plain", {}),
                ('"quoted" \\ ü 😀', {"excluded_actions": ["call"]}),
                ("line\u2028separator", {"subject": "someone"}),
                *((f"d{i}", {}) for i in range(12)),  # the batch ends stages
            ]
        )
    ]
    (together,) = worker.process(operation("/decide/batch", {"campaign": "waiting", "items": batched}))
    alone = worker.process(*(operation("/decide", {"campaign": "waiting", **item}) for item in batched))
    assert together == b'{"decisions":[%b]}' % b",".join(alone)
    (again,) = direct().process(operation("/decide/batch", {"campaign": "waiting", "items": batched}))
    assert again == together
