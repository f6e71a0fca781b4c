"""Many callers at once, of one process or of two: rounds count without a gap, and a request has one answer."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.cli.commands import main
from tests.e2e.load import CAMPAIGN, open_client


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


def test_two_servers_share_campaigns(shared, load):
    """R1, R15, R17, R19, R23: servers hold nothing but caches, so a caller may use either or both at once.

    Single requests and batches, reads, the same request to both at once, and all requests again in the end.
    """
    database_url, servers = shared["postgresql"]
    urls, names = [server.url for server in servers], [f"shared-{number}" for number in range(8)]
    for place, url in enumerate(urls):
        load.create_campaigns(url, *names[place::2])
    load.play_rounds(urls[0], names[1], 400)  # its regimes are estimated before the load
    load.play_rounds(urls[1], names[2], 980)  # it takes its first snapshot under load
    load.start(urls, names, callers=12, max_steps=35)
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
