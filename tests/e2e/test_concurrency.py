"""Many callers at once, of one process or of two: rounds count without a gap, and a request has one answer."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx
import pytest
import sqlalchemy as sa

from service.cli.commands import main
from tests.e2e.load import CAMPAIGN, PATIENCE_SECONDS, open_client
from tests.service.answers import good

INSTANTS = 5 * int(os.environ.get("UNDERCURRENT_EXAMPLES", "40"))  # `make machine`: 1,000


@pytest.mark.parametrize(("campaigns", "answers"), [(1, 150), (50, 400)])
def test_sixteen_callers(deployment, load, campaigns, answers):
    """R1, R18, R19, R23: each campaign counts its own rounds, even if one transaction serves several campaigns.

    R14: also during the load, the stored state is what the log produces.
    """
    url, names = deployment.urls[0], [f"of-{campaigns}-{number}" for number in range(campaigns)]
    load.start([url], load.create_campaigns(url, *names), callers=16)
    for _ in range(3):
        load.wait_for_answers(answers)
        assert main(["verify", names[0], "--database-url", deployment.database_url]) == 0
    load.stop()
    assert load.unanswered == load.refusals == []
    assert load.check(deployment.database_url) == []
    assert {exchange.campaign for exchange in load.acknowledged} == set(names)


def test_four_workers_share_campaigns(new_database, launch, load):
    """R1, R15, R17, R19, R23: workers hold nothing but caches, so a caller may use any of them, or several at once.

    Single requests and batches, reads, the same request to two servers at once, and all requests again in the end.
    """
    database_url = new_database("postgresql")
    servers = [launch(database_url, "--workers", "2") for _ in range(2)]
    urls, names = [server.url for server in servers], [f"shared-{number}" for number in range(16)]
    for place, url in enumerate(urls):
        load.create_campaigns(url, *names[place::2])
    load.play_rounds(urls[0], names[1], 400)  # its regimes are estimated before the load
    load.play_rounds(urls[1], names[2], 980)  # it takes its first snapshot under load
    load.start(urls, names, callers=16, max_steps=20)
    load.join()
    assert load.unanswered == load.refusals == []
    load.repeat_all(*urls)
    assert load.check(database_url) == []
    assert {exchange.campaign for exchange in load.acknowledged} == set(names)
    assert {exchange.path for exchange in load.acknowledged} == {"/decide", "/decide/batch", "/reward", "/reward/batch"}
    assert "Traceback" not in "".join(server.read_complaints() for server in servers)


def test_two_servers_create_one_campaign(shared):
    """R11, R17: created on both at the same time and without a seed, it exists once, and both answers are the same."""

    def create(client: httpx.Client, name: str) -> tuple[int, bytes]:
        answer = client.post("/campaigns", json={"name": name} | CAMPAIGN)
        return answer.status_code, answer.content

    first_url, second_url = shared["postgresql"].urls
    with open_client(first_url) as first, open_client(second_url) as second, ThreadPoolExecutor(2) as pool:
        for number in range(20):
            one, other = pool.map(create, (first, second), [f"twice-{number}"] * 2)
            assert one[0] == 201, one
            assert other == one


def test_one_id_sent_twice_at_the_same_instant(deployment):
    """R17: the two requests, to two servers on PostgreSQL, make one decision and have the same answer."""
    ids, together = [f"d{number}" for number in range(INSTANTS)], Barrier(2, timeout=PATIENCE_SECONDS)

    def decide_all(url: str) -> list[dict]:
        answers = []
        with open_client(url) as client:
            for name in ids:
                together.wait()
                body = {"campaign": "instant", "decision_id": name, "context": {"risk": "low", "revenue": 1}}
                answers.append(good(client.post("/decide", json=body)))
        return answers

    with open_client(deployment.urls[0]) as client, ThreadPoolExecutor(2) as pool:
        good(client.post("/campaigns", json={"name": "instant"} | CAMPAIGN), 201)
        one, other = pool.map(decide_all, (deployment.urls[0], deployment.urls[-1]))
        assert one == other
        assert [decision["round"] for decision in one] == list(range(1, len(ids) + 1))
        assert good(client.get("/campaigns/instant"))["round"] == len(ids)


def test_nobody_waits_for_a_campaign_of_another_worker(shared):
    """R19: while another transaction holds a campaign, only its own requests wait; the others are answered."""
    database_url, (server, *_) = shared["postgresql"]

    def decide(campaign: str) -> dict:
        with open_client(server.url) as client:
            return good(client.post("/decide", json={"campaign": campaign, "context": {"risk": "low", "revenue": 1}}))

    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with open_client(server.url) as client, ThreadPoolExecutor(1) as pool:
        for name in ("held", "free"):
            good(client.post("/campaigns", json={"name": name} | CAMPAIGN), 201)
        with engine.begin() as connection:
            held = "SELECT 1 FROM live WHERE campaign_id = (SELECT id FROM campaigns WHERE name = 'held') FOR UPDATE"
            connection.execute(sa.text(held))
            waiting = pool.submit(decide, "held")
            assert [decide("free")["round"] for _ in range(50)] == list(range(1, 51))
            good(client.get("/healthz"))
            assert not waiting.done()
        assert waiting.result()["round"] == 1
