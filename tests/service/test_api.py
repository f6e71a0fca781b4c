"""The API as its callers see it, on both databases."""

CAMPAIGN = {
    "name": "spring",
    "actions": ["none", "email", "call"],
    "variables": [{"name": "risk", "levels": ["low", "high"]}, {"name": "revenue", "cuts": [10, 36]}],
    "seed": 7,
}


def test_decide_and_reward(client):
    assert client.post("/campaigns", json=CAMPAIGN).status_code == 201
    answer = client.post(
        "/decide", json={"campaign": "spring", "context": {"risk": "low", "revenue": 36}, "decision_id": "a"}
    )
    assert answer.status_code == 200, answer.text
    body = {"campaign": "spring", "decision_id": "a", "reward": 1.5}
    assert client.post("/reward", json=body).status_code == 200
    for i in range(30):
        answer = client.post(
            "/decide", json={"campaign": "spring", "context": {"risk": "low", "revenue": 36}, "decision_id": f"a{i}"}
        )
        assert answer.status_code == 200
    assert client.get("/campaigns/spring").json()["round"] == 31
