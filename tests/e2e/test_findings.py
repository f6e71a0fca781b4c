"""The checker of the crash tests can fail: a log is damaged in every way it knows, and each is found as what it is."""

import sqlite3
from collections import Counter

import pytest

from tests.e2e.findings import Change, find, verify_findings
from tests.e2e.load import CAMPAIGN, Exchange, client_of

NAME = "checked"
CONTEXT = {"risk": "low", "revenue": 1}
SINGLE = [Exchange("/decide", {"campaign": NAME, "decision_id": i, "context": CONTEXT}) for i in "abcd"]
REWARDS = [Exchange("/reward", {"campaign": NAME, "decision_id": i, "reward": 0.5}) for i in "ab"]
BATCH = Exchange(
    "/decide/batch", {"campaign": NAME, "items": [{"decision_id": i, "context": CONTEXT} for i in ("e", "f")]}
)
CHANGES = {NAME: [Change("calm", None, acknowledged=True)]}


@pytest.fixture(scope="module")
def told(shared):
    """The database file, and what was told; of the batch nobody has heard."""
    with client_of(shared["sqlite"].urls[0]) as client:
        assert client.post("/campaigns", json={"name": NAME} | CAMPAIGN).status_code == 201
        acknowledged = [
            asked._replace(answer=client.post(asked.path, json=asked.body).content) for asked in (*SINGLE, *REWARDS)
        ]
        assert client.post(BATCH.path, json=BATCH.body).status_code == 200
        assert client.patch(f"/campaigns/{NAME}", json={"regime_labels": ["calm"]}).status_code == 200
    return shared["sqlite"].database_url.removeprefix("sqlite:///"), acknowledged


def damaged(source, target, statement):
    """A copy of a database without any constraint, and with one row changed behind everybody's back."""
    connection = sqlite3.connect(source)
    connection.execute("VACUUM INTO ?", [str(target)])
    connection.close()
    connection = sqlite3.connect(target)
    for table in ("decisions", "rewards", "config_revisions"):
        connection.execute(f"CREATE TABLE copy AS SELECT * FROM {table}")
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"ALTER TABLE copy RENAME TO {table}")
    if statement:
        ours = f"campaign_id = (SELECT id FROM campaigns WHERE name = '{NAME}')"
        assert connection.execute(statement.replace("OURS", ours)).rowcount == 1
    connection.commit()
    connection.close()
    return f"sqlite:///{target}"


OTHER = "CASE action WHEN 'call' THEN 'none' ELSE 'call' END"
DAMAGE = {
    "nothing": (None, {}),
    "a decision is gone": ("DELETE FROM decisions WHERE OURS AND decision_id = 'c'", {"lost": 1, "gap": 1}),
    "a reward is gone": ("DELETE FROM rewards WHERE OURS AND round = 2", {"lost": 1, "gap": 1}),
    "a decision is there twice": (
        "INSERT INTO decisions SELECT * FROM decisions WHERE OURS AND round = 3",
        {"duplicated": 1, "gap": 1},
    ),
    "a reward is there twice": (
        "INSERT INTO rewards SELECT * FROM rewards WHERE OURS AND round = 2",
        {"duplicated": 1, "gap": 1},
    ),
    "another action": (f"UPDATE decisions SET action = {OTHER} WHERE OURS AND round = 3", {"wrong": 1}),
    "another context": ("UPDATE decisions SET context = '{}' WHERE OURS AND round = 3", {"wrong": 1}),
    "another reward": ("UPDATE rewards SET reward = 0.7 WHERE OURS AND round = 2", {"wrong": 2}),
    "another time": ("UPDATE rewards SET received_at = received_at + 1 WHERE OURS AND round = 2", {"wrong": 1}),
    "a round is left out": ("UPDATE decisions SET round = 9 WHERE OURS AND round = 4", {"wrong": 1, "gap": 2}),
    "half a batch": ("DELETE FROM decisions WHERE OURS AND decision_id = 'f'", {"half": 1, "gap": 1}),
    "nobody asked": (
        "UPDATE decisions SET decision_id = 'x' WHERE OURS AND round = 4",
        {"lost": 1, "duplicated": 1},
    ),
    "a change is gone": ("DELETE FROM config_revisions WHERE OURS AND revision = 2", {"lost": 1}),
    "a change nobody asked for": (
        "INSERT INTO config_revisions SELECT * FROM config_revisions WHERE OURS AND revision = 2",
        {"duplicated": 1},
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage, told, tmp_path):
    (source, acknowledged), (statement, counts) = told, DAMAGE[damage]
    url = damaged(source, tmp_path / "damaged.db", statement)
    found, unheard = find(url, [NAME], acknowledged, [BATCH], CHANGES)
    assert Counter(finding.kind for finding in found) == counts, found
    assert unheard == [BATCH]


def test_verify_is_asked(told, tmp_path):
    """What nobody was told of, and yet is not what the log gives."""
    statement = "UPDATE live SET belief = '[0.3]' WHERE OURS"
    source, acknowledged = told
    url = damaged(source, tmp_path / "damaged.db", statement)
    assert find(url, [NAME], acknowledged, [BATCH], CHANGES) == ([], [BATCH])
    assert [finding.kind for finding in verify_findings(url, [NAME])] == ["verify"]
    assert verify_findings(f"sqlite:///{source}", [NAME]) == []


def test_another_answer_is_found(told, shared, load):
    """R17: asked again, every byte counts; and so does a request that gets no answer at all."""
    (_, (first, *others)), url = told, shared["sqlite"].urls[0]
    changed = first._replace(answer=first.answer.replace(b'"round":1', b'"round":2'))
    assert load.ask_again([first, *others], url) == []
    assert [finding.kind for finding in load.ask_again([changed, *others], url)] == ["wrong"]
    unknown = Exchange("/reward", {"campaign": NAME, "decision_id": "z", "reward": 0.5})
    load.unanswered = [unknown, BATCH]
    assert [finding.kind for finding in load.ask_unanswered(url)] == ["wrong"]
    assert load.unanswered == [unknown]
