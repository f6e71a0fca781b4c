"""The crash tests can fail: each kind of damage to a log is found, and named correctly."""

import sqlite3
from collections import Counter

import pytest

from tests.e2e.findings import Change, Exchange, compare_with_log, find_verify_differences
from tests.e2e.load import CAMPAIGN, open_client

NAME = "checked"
CONTEXT = {"risk": "low", "revenue": 1}
SINGLE = [Exchange("/decide", {"campaign": NAME, "decision_id": i, "context": CONTEXT}) for i in "abcd"]
REWARDS = [Exchange("/reward", {"campaign": NAME, "decision_id": i, "reward": 0.5}) for i in "ab"]
BATCH = Exchange(
    "/decide/batch", {"campaign": NAME, "items": [{"decision_id": i, "context": CONTEXT} for i in ("e", "f")]}
)
CHANGES = {NAME: [Change("calm", None, acknowledged=True)]}


@pytest.fixture(scope="module")
def recorded(shared):
    """The database file and the acknowledged requests. The batch counts as unanswered."""
    with open_client(shared["sqlite"].urls[0]) as client:
        assert client.post("/campaigns", json={"name": NAME} | CAMPAIGN).status_code == 201
        acknowledged = [
            request._replace(answer=client.post(request.path, json=request.body).content)
            for request in (*SINGLE, *REWARDS)
        ]
        assert client.post(BATCH.path, json=BATCH.body).status_code == 200
        assert client.patch(f"/campaigns/{NAME}", json={"regime_labels": ["calm"]}).status_code == 200
    return shared["sqlite"].database_url.removeprefix("sqlite:///"), acknowledged


def damage_copy(source, target, statement):
    """Copy a database without its constraints, and change one row."""
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
    "a missing decision": ("DELETE FROM decisions WHERE OURS AND decision_id = 'c'", {"lost": 1, "gap": 1}),
    "a missing reward": ("DELETE FROM rewards WHERE OURS AND round = 2", {"lost": 1, "gap": 1}),
    "a repeated decision": (
        "INSERT INTO decisions SELECT * FROM decisions WHERE OURS AND round = 3",
        {"duplicated": 1, "gap": 1},
    ),
    "a repeated reward": (
        "INSERT INTO rewards SELECT * FROM rewards WHERE OURS AND round = 2",
        {"duplicated": 1, "gap": 1},
    ),
    "another action": (f"UPDATE decisions SET action = {OTHER} WHERE OURS AND round = 3", {"wrong": 1}),
    "another context": ("UPDATE decisions SET context = '{}' WHERE OURS AND round = 3", {"wrong": 1}),
    "another reward": ("UPDATE rewards SET reward = 0.7 WHERE OURS AND round = 2", {"wrong": 2}),
    "another time": ("UPDATE rewards SET received_at = received_at + 1 WHERE OURS AND round = 2", {"wrong": 1}),
    "a gap in the rounds": ("UPDATE decisions SET round = 9 WHERE OURS AND round = 4", {"wrong": 1, "gap": 2}),
    "half a batch": ("DELETE FROM decisions WHERE OURS AND decision_id = 'f'", {"half": 1, "gap": 1}),
    "an unrequested decision": (
        "UPDATE decisions SET decision_id = 'x' WHERE OURS AND round = 4",
        {"lost": 1, "duplicated": 1},
    ),
    "a missing change": ("DELETE FROM config_revisions WHERE OURS AND revision = 2", {"lost": 1}),
    "an unrequested change": (
        "INSERT INTO config_revisions SELECT * FROM config_revisions WHERE OURS AND revision = 2",
        {"duplicated": 1},
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage, recorded, tmp_path):
    (source, acknowledged), (statement, counts) = recorded, DAMAGE[damage]
    url = damage_copy(source, tmp_path / "damaged.db", statement)
    findings, committed = compare_with_log(url, [NAME], acknowledged, [BATCH], CHANGES)
    assert Counter(finding.kind for finding in findings) == counts, findings
    assert committed == [BATCH]


def test_verify_finds_what_no_answer_shows(recorded, tmp_path):
    source, acknowledged = recorded
    url = damage_copy(source, tmp_path / "damaged.db", "UPDATE live SET belief = '[0.3]' WHERE OURS")
    assert compare_with_log(url, [NAME], acknowledged, [BATCH], CHANGES) == ([], [BATCH])
    assert [finding.kind for finding in find_verify_differences(url, [NAME])] == ["verify"]
    assert find_verify_differences(f"sqlite:///{source}", [NAME]) == []


def test_a_different_answer_is_found(recorded, shared, load):
    """R17: a repeated request gets the same bytes. A refused request is a finding too."""
    (_, (first, *others)), url = recorded, shared["sqlite"].urls[0]
    changed = first._replace(answer=first.answer.replace(b'"round":1', b'"round":2'))
    assert load.repeat([first, *others], url) == []
    assert [finding.kind for finding in load.repeat([changed, *others], url)] == ["wrong"]
    unknown = Exchange("/reward", {"campaign": NAME, "decision_id": "z", "reward": 0.5})
    load.unanswered = [unknown, BATCH]
    assert [finding.kind for finding in load.send_unanswered(url)] == ["wrong"]
    assert load.unanswered == [unknown]
