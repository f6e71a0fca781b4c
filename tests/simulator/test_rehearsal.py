"""A month is rehearsed over real HTTP: the service's clock moves with the rounds (docs/simulator.md)."""

import json
from contextlib import closing
from datetime import datetime

import httpx
import pytest

from service.base.settings import Settings, SettingsError
from service.cli.serve import serve
from service.storage.store import Store
from simulator import cli
from tests.e2e.server import launch_servers
from tests.service.answers import good
from tests.service.test_auth import make

DAY = 86_400.0
WAITING = {
    "name": "month",
    "actions": ["Wait", "Discount", "Call"],
    "variables": [{"name": "traffic", "levels": ["low", "normal", "high", "peak"]}],
    "rewards": {"wait_seconds": 4 * DAY, "default": 0},
}


def get_days(time: str) -> float:
    return datetime.fromisoformat(time).timestamp() / DAY


def test_a_month_with_late_rewards_passes_in_seconds(tmp_path, capsys):
    """Rewards come days later; those after the wait are refused, and their rounds have the default."""
    config = tmp_path / "month.json"
    config.write_text(json.dumps(WAITING))
    replay = ["replay", "--environment", "nelson", "--config", str(config), "--rounds", "120", "--seeds", "1", "--json"]
    with launch_servers(tmp_path / "servers") as launch:
        url = launch(f"sqlite:///{tmp_path}/rehearsal.db", "--rehearsal").url
        assert cli.main([*replay, "--url", url, "--days", "30", "--reward-delay-days", "2"]) == 0
        with httpx.Client(base_url=url, verify=False) as client:
            log = client.get("/campaigns/month-1/decisions").text
            report = good(client.get("/campaigns/month-1/diagnostics"))
            now = good(client.post("/rehearsal/clock", json={"advance_seconds": DAY}))["now"]
            assert client.post("/rehearsal/clock", json={"advance_seconds": -1}).status_code == 422
    rows = [json.loads(line) for line in log.splitlines()]
    assert get_days(rows[-1]["decided_at"]) - get_days(rows[0]["decided_at"]) == pytest.approx(29.75, abs=0.02)
    assert get_days(now) - get_days(rows[-1]["decided_at"]) == pytest.approx(1.0, abs=0.02)
    sent = [row for row in rows if row["reward_source"] == "client"]
    delays = [get_days(row["reward_received_at"]) - get_days(row["decided_at"]) for row in sent]
    assert 60 < len(sent) < 116
    assert 0.5 < sum(delays) / len(delays) < max(delays) <= 4.0
    assert {row["reward_source"] for row in rows[:90]} == {"client", "default"}
    assert "late_rewards" in {finding["code"] for finding in report["findings"]}
    capsys.readouterr()


def test_a_rehearsal_needs_a_service_and_one_campaign_at_a_time(capsys):
    for flags in (["--days", "30"], ["--reward-delay-days", "2", "--url", "http://127.0.0.1:1"]):
        assert cli.main(["replay", "--rounds", "5", "--seeds", "1", *flags]) != 0
        assert "a rehearsal needs --url, --days" in capsys.readouterr().err


def test_a_service_without_rehearsal_refuses_to_move_its_clock(tmp_path, capsys):
    with launch_servers(tmp_path) as launch:
        url = launch(f"sqlite:///{tmp_path}/ordinary.db").url
        assert cli.main(["replay", "--rounds", "5", "--seeds", "1", "--url", url, "--days", "30"]) != 0
    assert "start it with --rehearsal" in capsys.readouterr().err


def test_no_rehearsal_with_keys_or_workers_or_for_other_machines(tmp_path):
    reports = list[str]()
    url = f"sqlite:///{tmp_path}/keys.db"
    assert serve(Settings(database_url=url, host="0.0.0.0", rehearsal=True), lambda _, text: reports.append(text)) == 1
    with closing(Store(url)) as store:
        make(store)
    assert serve(Settings(database_url=url, rehearsal=True), lambda _, text: reports.append(text)) == 1
    assert "can be reached from elsewhere" in "".join(reports)
    assert "has keys" in reports[-1]
    several = {"UNDERCURRENT_WORKERS": "2", "UNDERCURRENT_REHEARSAL": "1"}
    with pytest.raises(SettingsError, match="UNDERCURRENT_REHEARSAL"):
        Settings.load(several | {"UNDERCURRENT_DATABASE_URL": "postgresql://u@h/d"}, {})
