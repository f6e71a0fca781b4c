"""Amounts that add up, corrections, and rewards by subject: over HTTP, on both databases."""

import pytest
import sqlalchemy as sa

from service.api.rewards import CreditAnswer, IdentifiedReward, RewardAnswer
from service.storage.tables import rewards
from tests.service.answers import error_of, good, shaped
from tests.service.playing import verify_campaign

CONTEXT = {"season": "spring"}
CONFIG = {
    "name": "shop",
    "actions": ["none", "mail"],
    "variables": [{"name": "season", "levels": ["spring", "autumn"]}],
    "signals": [],
    "regimes": 1,
    "stage_length": 2,
    "warm_start_rounds": 4,
    "beliefs": {"estimator": "none"},
    "rewards": {"range": [-5, 20], "wait_seconds": 100, "default": 0, "correct_seconds": 1_000},
}


@pytest.fixture
def worker(start):
    return start()


def create(client, **changes):
    assert client.post("/campaigns", json=CONFIG | changes).status_code == 201


def decide(client, name, subject=None):
    body = {"campaign": "shop", "decision_id": name, "context": CONTEXT} | ({"subject": subject} if subject else {})
    return good(client.post("/decide", json=body))


def send(client, path="/reward", **body):
    return client.post(path, json={"campaign": "shop", **body})


def add(client, decision_id, reward, reward_id):
    return send(client, decision_id=decision_id, reward=reward, mode="add", reward_id=reward_id)


def correct(client, decision_id, reward, reward_id):
    return send(client, "/reward/correct", decision_id=decision_id, reward=reward, reward_id=reward_id)


def credit(client, subject, reward, reward_id, **more):
    return send(client, "/reward/subject", subject=subject, reward=reward, reward_id=reward_id, **more)


def stored(client, decision_id):
    return good(client.get(f"/campaigns/shop/decisions/{decision_id}"))


def settle(worker, names=("x", "y", "z")):
    """Decide until a stage has ended since; then the log must replay."""
    for name in names:
        decide(worker.client, name)
    with worker.service.store.reading() as tx:
        assert verify_campaign(tx, "shop") == []
        query = sa.select(rewards.c.round, rewards.c.arrival, rewards.c.replaced_by).order_by(rewards.c.arrival)
        rows = tx.connection.execute(query).all()
    newest = {row.round: row.arrival for row in rows}
    assert [row.arrival for row in rows] == list(range(1, len(rows) + 1))
    assert all((row.replaced_by == 0) == (newest[row.round] == row.arrival) for row in rows)
    return rows


def test_amounts_add_up_each_once(worker):
    client = worker.client
    create(client)
    decide(client, "a")
    first = add(client, "a", 2.5, "sale-1")
    answer = shaped(IdentifiedReward, first)
    assert (answer["reward"], answer["amount"], answer["reward_id"], answer["source"]) == (2.5, 2.5, "sale-1", "client")
    decide(client, "b")
    decide(client, "c")  # the first amount is folded
    second = good(add(client, "a", 4, "sale-2"))
    assert (second["reward"], second["amount"]) == (6.5, 4)
    assert add(client, "a", 2.5, "sale-1").content == first.content
    error = error_of(add(client, "a", 3, "sale-1"), 409)
    assert "sale-1" in error["message"]
    assert error_of(add(client, "a", 14, "sale-3"), 422)["fields"][0]["field"] == "reward"  # the sum is out of range
    assert error_of(send(client, decision_id="a", reward=1, mode="add"), 422)["fields"][0]["field"] == "reward_id"
    assert error_of(send(client, decision_id="a", reward=1, reward_id="x"), 422)["fields"][0]["field"] == "reward_id"
    assert shaped(RewardAnswer, send(client, decision_id="a", reward=6.5))["reward"] == 6.5
    error_of(send(client, decision_id="a", reward=2.5), 409)
    decision = stored(client, "a")
    assert decision["reward"]["reward"] == 6.5
    assert [(each["reward"], each["amount"], each["reward_id"]) for each in decision["reward_history"]] == [
        (2.5, 2.5, "sale-1"),
        (6.5, 4.0, "sale-2"),
    ]
    assert stored(client, "b")["reward_history"] == []
    rows = settle(worker)
    assert [(row.round, row.replaced_by) for row in rows] == [(1, 2), (1, 0)]
    exported = client.get("/campaigns/shop/decisions?format=csv").text.splitlines()
    assert len(exported) == 7  # a line for a decision, whatever the number of its rewards


def test_a_batch_adds_and_sets_item_by_item(worker):
    client = worker.client
    create(client)
    for name in "ab":
        decide(client, name)
    items = [
        {"decision_id": "a", "reward": 1, "mode": "add", "reward_id": "1"},
        {"decision_id": "a", "reward": 2, "mode": "add", "reward_id": "2"},
        {"decision_id": "a", "reward": 1, "mode": "add", "reward_id": "1"},
        {"decision_id": "b", "reward": 5},
        {"decision_id": "b", "reward": 1, "mode": "add", "reward_id": "1"},
        {"decision_id": "b", "reward": 7},
        {"decision_id": "a", "reward": 1, "mode": "add"},
    ]
    for _ in range(2):
        results = good(client.post("/campaigns/shop/reward/batch", json={"items": items}))["results"]
        told = [result["committed"] and result["committed"]["reward"] for result in results]
        assert told in ([1, 3, 1, 5, 6, None, None], [1, 3, 1, None, 6, None, None])
    assert [(row.round, row.replaced_by) for row in settle(worker)] == [(1, 2), (1, 0), (2, 4), (2, 0)]


def test_corrections_have_their_time(worker, clock):
    client = worker.client
    create(client)
    for name in "abcd":
        decide(client, name)
    reported = send(client, decision_id="a", reward=10)
    first = correct(client, "a", 0, "cancelled")
    assert shaped(IdentifiedReward, first)["source"] == "correction"
    assert correct(client, "a", 0, "cancelled").content == first.content
    error_of(correct(client, "a", 1, "cancelled"), 409)
    assert send(client, decision_id="a", reward=10).content == reported.content  # a retry that comes late
    error_of(send(client, decision_id="a", reward=9), 409)
    error_of(correct(client, "a", 21, "too much"), 422)
    error_of(correct(client, "nobody", 1, "1"), 404)
    clock.advance(200)
    settle(worker)
    late = error_of(add(client, "b", 3, "sale"), 409)
    assert "/reward/correct" in late["message"]
    assert good(correct(client, "b", 3, "sale"))["reward"] == 3
    assert stored(client, "b")["reward"]["reward"] == 3
    settle(worker, "uvw")
    clock.advance(1_000)
    assert "correct_seconds" in error_of(correct(client, "a", 5, "again"), 409)["message"]
    assert correct(client, "a", 0, "cancelled").content == first.content  # a retry still gets its answer
    (finding,) = [
        each for each in good(client.get("/campaigns/shop/diagnostics"))["findings"] if each["code"] == "late_rewards"
    ]
    assert finding["message"].startswith("2 late rewards refused")
    assert 'undercurrent_rewards_total{campaign="shop",outcome="late"} 2.0' in client.get("/metrics").text
    good(client.patch("/campaigns/shop", json={"rewards": {"correct_seconds": None}}))
    assert "set rewards.correct_seconds" in error_of(correct(client, "z", 5, "again"), 409)["message"]
    error_of(client.patch("/campaigns/shop", json={"rewards": {"correct_seconds": 99}}), 422)


@pytest.mark.parametrize(("rule", "amounts"), [("last", [0, 0, 9]), ("first", [9, 0, 0]), ("even", [3, 3, 3])])
def test_a_subjects_decisions_are_credited(worker, clock, rule, amounts):
    client = worker.client
    create(client, rewards=CONFIG["rewards"] | {"credit": rule})
    decide(client, "early", "anna")
    clock.advance(60)
    names = ["a", "b", "c"]
    for name in names:
        decide(client, name, "anna")
        decide(client, f"other {name}", "bert")
        clock.advance(1)
    clock.advance(50)  # the wait for the early one is over
    first = credit(client, "anna", 9, "sale")
    told = {each["decision_id"]: each["amount"] for each in shaped(CreditAnswer, first)["credited"]}
    assert [told.get(name, 0) for name in names] == amounts
    assert credit(client, "anna", 9, "sale").content == first.content
    error_of(credit(client, "anna", 8, "sale"), 409)
    error_of(credit(client, "bert", 9, "sale"), 409)
    assert (
        good(credit(client, "anna", 3, "more"))["credited"][-1]["reward"] == max(amounts) * 4 / 3
        if rule == "even"
        else 1
    )
    assert [(stored(client, name)["reward"] or {"reward": 0})["reward"] > 0 for name in names] == [
        a > 0 for a in amounts
    ]
    assert "Nothing to credit" in error_of(credit(client, "nobody", 1, "1"), 404)["message"]
    assert "Nothing to credit" in error_of(credit(client, "anna", 1, "2", at="2001-01-01T00:00:00Z"), 404)["message"]
    error_of(credit(client, "anna", 1_000, "3"), 422)
    clock.advance(200)
    error_of(credit(client, "anna", 1, "4"), 404)
    settle(worker)


def test_two_workers_credit_and_add_once(start, database_url):
    workers = [start() for _ in range(2 if database_url.startswith("postgresql") else 1)]
    client = workers[0].client
    create(client)
    decide(client, "a", "anna")
    for i in range(3):
        for worker in workers:
            assert good(add(worker.client, "a", 1, f"sale-{i}"))["reward"] == 2 * i + 1
            assert good(credit(worker.client, "anna", 1, f"credit-{i}"))["credited"][0]["reward"] == 2 * i + 2
    for worker in workers:
        assert stored(worker.client, "a")["reward"]["reward"] == 6
        assert good(add(worker.client, "a", 1, "sale-0"))["reward"] == 1
    settle(workers[-1])


def test_an_erasure_takes_every_reward_and_its_id(worker):
    client = worker.client
    create(client)
    for name in "abcd":
        decide(client, name, "anna" if name == "a" else None)
    good(add(client, "a", 2, "order of anna"))
    good(add(client, "a", 3, "another"))
    good(send(client, decision_id="b", reward=1))
    settle(worker)
    kept = good(client.post("/subjects/export", json={"subject": "anna"}))["campaigns"][0]["decisions"][0]
    assert [each["reward_id"] for each in kept["reward_history"]] == ["order of anna", "another"]
    good(client.post("/subjects/erase", json={"subject": "anna"}))
    with worker.service.store.reading() as tx:
        left = tx.connection.execute(sa.select(rewards).order_by(rewards.c.arrival)).mappings().all()
    assert [(row["reward"], row["amount"], row["reward_id"]) for row in left] == [(None,) * 3] * 2 + [(1.0, None, None)]
    error_of(add(client, "a", 2, "order of anna"), 410)
    error_of(correct(client, "a", 2, "x"), 410)
    settle(worker, "uvw")


LATE = {"correct_seconds": None}
REFUSALS = [
    # The reward, the rules, the status, the field, what is said of it, and what would be allowed.
    ("/reward", {"mode": "add"}, {}, 422, "reward_id", "is required", "your id of this amount"),
    ("/reward/correct", {}, {}, 422, "reward_id", "is required", "your id of this amount"),
    ("/reward/subject", {"subject": "anna", "reward_id": "x", "at": "2026-11-18T00:00:00"}, {}, 422, "at", "zone", "Z"),
    ("/reward", {"reward_id": "x"}, {}, 422, "reward_id", "mode add", '"mode": "add"'),
    ("/reward", {"reward": 21, "decision_id": "b"}, {}, 422, "reward", "21.0 is out of rewards.range", "[-5.0, 20.0]"),
    ("/reward", {"mode": "add", "reward": 18, "reward_id": "x"}, {}, 422, "reward", "the sum 22.0 is out of", "20.0]"),
    ("/reward", {"mode": "add", "reward_id": "sale"}, {}, 409, "reward_id", "used before", "a new id"),
    ("/reward", {}, LATE, 409, "reward", "3.0 is another one", "once rewards.correct_seconds is set"),
    ("/reward/correct", {"reward_id": "x"}, LATE, 409, "reward", "not allowed", "set rewards.correct_seconds"),
    ("/reward/correct", {"reward_id": "sale"}, {}, 409, "reward_id", "used before", "a new id"),
    ("/reward/subject", {"reward_id": "x", "subject": "bert"}, {}, 404, "subject", "no decision within 100 s", "corr"),
    ("late", {"decision_id": "b"}, {}, 409, "reward", "rewards.wait_seconds (100 s)", "POST /reward/correct"),
    ("late", {"mode": "add", "reward_id": "x"}, LATE, 409, "reward", "counts as 4.0", "rewards.correct_seconds is set"),
]


@pytest.mark.parametrize(("path", "changed", "rules", "status", "field", "wrong", "allowed"), REFUSALS)
def test_a_refusal_names_the_field_what_was_wrong_and_what_would_be_allowed(
    worker, clock, path, changed, rules, status, field, wrong, allowed
):
    client = worker.client
    create(client, rewards=CONFIG["rewards"] | rules)
    decide(client, "a", "anna")
    decide(client, "b")
    good(add(client, "a", 4, "sale"))
    if path == "late":
        clock.advance(200)
        path = "/reward"
    body = {"reward": 3} | ({} if path == "/reward/subject" else {"decision_id": "a"}) | changed
    error = error_of(send(client, path, **body), status)
    (problem,) = error["fields"]
    assert problem["field"] == field
    assert wrong in problem["message"]
    assert allowed in str(problem["allowed"])
    settle(worker)


@pytest.mark.parametrize(
    ("damage", "told"),
    [({"replaced_by": 7}, "replaced_by is 7, the log gives 0"), ({"amount": 2.0}, "its amounts give 3.0")],
)
def test_verify_checks_sums_and_what_replaced_what(worker, damage, told):
    client = worker.client
    create(client)
    decide(client, "a")
    for i in range(2):
        good(add(client, "a", 1, f"{i}"))
    with worker.service.store.writing() as tx:
        tx.connection.execute(sa.update(rewards).where(rewards.c.arrival == 2).values(damage))
    with worker.service.store.reading() as tx:
        assert any(told in text for text in verify_campaign(tx, "shop"))
