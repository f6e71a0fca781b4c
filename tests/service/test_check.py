"""`POST /campaigns/check`: what creating a campaign would answer, without creating it."""

import pytest

from policy import CampaignConfig
from service.engine.requests import CAMPAIGN_EXAMPLE as EXAMPLE
from tests.service.answers import error_of, good, shaped


def test_a_check_answers_as_creating_would_and_creates_nothing(shared):
    """With every default; the seed is drawn anew each time, so a given one shows that the rest is the same."""
    body = {**EXAMPLE, "name": "checked", "seed": 5}
    told = shaped(CampaignConfig, shared.post("/campaigns/check", json=body))
    error_of(shared.get("/campaigns/checked"), 404)
    assert good(shared.post("/campaigns", json=body), 201) == told
    assert good(shared.post("/campaigns/check", json=body)) == told  # as a retry
    another = shared.post("/campaigns/check", json={**body, "seed": 6})
    assert error_of(another, 409) == error_of(shared.post("/campaigns", json={**body, "seed": 6}), 409)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Not A Slug"},
        {"actions": ["one"]},
        {"actions": ["same", "same"]},
        {"variables": [{"name": "risk", "levels": ["low"]}, {"name": "revenue", "cuts": [2, "x"]}]},
        {"rewards": {"default": 0}},
        {"surprise": 1},
        {"alerts": {"webhook": "https://hooks.example/x"}},  # there is no secret to sign with
        {"variables": [{"name": f"v{i}", "levels": [str(j) for j in range(99)]} for i in range(64)], "signals": []},
    ],
)
def test_a_check_finds_what_creating_would(shared, change):
    body = {**EXAMPLE, "name": "unchecked", **change}
    checked, created = (shared.post(path, json=body) for path in ("/campaigns/check", "/campaigns"))
    assert checked.status_code == created.status_code == 422
    assert error_of(checked) == error_of(created)
    assert shared.post("/campaigns/check", content=b"{").json() == shared.post("/campaigns", content=b"{").json()
