"""Many callers at once, of one process or of two: one order of rounds, one answer to each request."""

from concurrent.futures import ThreadPoolExecutor

import httpx

from service.cli.commands import main
from tests.e2e.load import CAMPAIGN, client_of


def test_sixteen_callers_of_one_campaign(served, load):
    """R1, R18, R19: rounds 1…n without gap or repeat, and every caller's answer is the stored one."""
    url = served.urls[0]
    load.start([url], load.create(url, "sixteen"), callers=16, most_steps=25)
    load.join()
    assert load.unanswered == load.refusals == []
    assert load.check(served.database_url) == []


def test_fifty_campaigns_at_once(served, load):
    """R18, R19, R23: each has rounds 1…n of its own, also where one transaction serves many of them."""
    url, names = served.urls[0], [f"fifty-{number}" for number in range(50)]
    load.start([url], load.create(url, *names), callers=16, most_steps=20)
    load.join()
    assert load.unanswered == load.refusals == []
    assert load.check(served.database_url) == []
    assert {told.campaign for told in load.acknowledged} == set(names)


def test_verify_while_a_campaign_goes_on(served, load):
    """R14: what is stored at any one moment is what the log gives at that moment."""
    url = served.urls[0]
    load.start([url], load.create(url, "verified"))
    for _ in range(4):
        load.wait_for(25)
        assert main(["verify", "verified", "--database-url", served.database_url]) == 0
    load.stop()
    assert load.unanswered == load.refusals == []
    assert load.check(served.database_url) == []


def test_two_processes_share_campaigns(shared, load):
    """R15, R17, R19: no gap, no repeat, no lost reward, and one answer to a request that both get at the same time."""
    database_url, urls = shared["postgresql"].database_url, shared["postgresql"].urls
    campaigns = load.create(urls[0], "summer", "winter")
    load.age(urls[1], "summer", 400)  # one of them has estimated its regimes before
    load.start(urls, campaigns, most_steps=30, twins=True)
    load.join()
    assert load.unanswered == load.refusals == []
    assert load.check(database_url) == []


def test_two_processes_create_one_campaign(shared):
    """R11, R17: asked of both at the same time and without a seed, it is created once, and both tell the same."""

    urls = shared["postgresql"].urls

    def create(client: httpx.Client, name: str) -> tuple[int, bytes]:
        answer = client.post("/campaigns", json={"name": name} | CAMPAIGN)
        return answer.status_code, answer.content

    with client_of(urls[0]) as first, client_of(urls[1]) as second, ThreadPoolExecutor(2) as pool:
        for number in range(20):
            one, other = pool.map(create, (first, second), [f"twice-{number}"] * 2)
            assert one[0] == 201, one
            assert other == one
