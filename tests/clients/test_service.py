"""The Python clients and the real service: a day in the life, and a service that is killed in between."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from service.engine.requests import CAMPAIGN_EXAMPLE
from tests.service.playing import eventually
from tests.simulator.conftest import Server
from undercurrent_client import (
    AsyncClient,
    AsyncRewardQueue,
    Client,
    ConflictError,
    InvalidError,
    Item,
    NotFoundError,
    RewardItem,
    RewardQueue,
    __version__,
)

CUSTOMER = {"risk": "low", "revenue": 36_000}
ROUNDS = 1_000
PATIENCE = 600.0  # seconds; on a busy machine a service may take long to start


def test_the_whole_surface(launch, new_database, tmp_path):
    server = launch(new_database("sqlite"))
    with Client(server.url) as client:
        client.check_version(__version__)
        assert client.check_campaign(CAMPAIGN_EXAMPLE)["actions"][0] == "none"
        config = client.create_campaign(CAMPAIGN_EXAMPLE)
        assert config == client.get_campaign("spring-offers").config
        decision = client.decide("spring-offers", CUSTOMER, subject="s-1", baseline="none", deadline=PATIENCE)
        assert not decision.is_baseline
        assert decision == client.decide("spring-offers", CUSTOMER, decision_id=decision.decision_id, subject="s-1")
        items = [Item(CUSTOMER), Item({"risk": "odd", "revenue": 1}), Item(CUSTOMER, excluded_actions=["call"])]
        with pytest.raises(InvalidError) as raised:
            client.decide_batch("spring-offers", items)
        assert raised.value.fields[0].field == "items[1].context.risk"
        assert raised.value.fields[0].allowed == ["low", "middle", "high"]
        batch = client.decide_batch("spring-offers", items, on_error="skip")
        assert [one.decision_id for one in batch.decisions] == [items[0].decision_id, items[2].decision_id]
        assert [(one.item, one.error.code) for one in batch.skipped] == [(1, "invalid")]
        assert client.reward("spring-offers", decision.decision_id, 1.25).reward == 1.25
        rewards = [RewardItem(items[0].decision_id, 2.0), RewardItem(decision.decision_id, 2.0), RewardItem("x", 1.0)]
        good, *bad = client.reward_batch("spring-offers", rewards)
        assert good.committed.reward == 2.0
        assert [type(one.error) for one in bad] == [ConflictError, NotFoundError]
        assert client.change_campaign("spring-offers", {"control": {"share": 0.1}}).config["control"]["share"] == 0.1
        assert client.report("spring-offers").decisions.total == 3
        log = client.export("spring-offers", tmp_path / "log.ndjson").read_text(encoding="utf-8").splitlines()
        assert json.loads(log[0])["decision_id"] == decision.decision_id
        assert [one.name for one in client.list_campaigns()] == ["spring-offers"]
        assert client.archive_campaign("spring-offers").archived_at
        assert client.list_campaigns() == []
        assert client.list_campaigns(archived=True)[0].rewards_received == 2
        client.unarchive_campaign("spring-offers")
        client.archive_campaign("spring-offers")
        client.delete_campaign("spring-offers")
        with pytest.raises(NotFoundError):
            client.get_campaign("spring-offers")


CHANGING = {
    **CAMPAIGN_EXAMPLE,
    "name": "changing",
    "rewards": {"range": [-10, 100], "wait_seconds": 604_800, "default": 0, "correct_seconds": 2_592_000},
}


def test_rewards_that_change(launch, new_database, tmp_path):
    server = launch(new_database("sqlite"))
    with Client(server.url, patience=PATIENCE) as client:
        client.create_campaign(CHANGING)
        one = client.decide("changing", CUSTOMER, subject="someone").decision_id
        added = client.reward("changing", one, 30, mode="add", reward_id="sale-1")
        assert added == client.reward("changing", one, 30, mode="add", reward_id="sale-1")
        assert (added.amount, added.reward_id, added.reward, added.source) == (30, "sale-1", 30, "client")
        assert client.reward("changing", one, 12, mode="add").reward == 42
        with pytest.raises(ConflictError, match=r"^reward_id: "):
            client.reward("changing", one, 31, mode="add", reward_id="sale-1")
        corrected = client.correct("changing", one, 12, reward_id="cancelled-1")
        assert corrected == client.correct("changing", one, 12, reward_id="cancelled-1")
        assert (corrected.source, corrected.reward) == ("correction", 12)
        (credited,) = client.reward_subject("changing", "someone", 20, reward_id="sale-3")
        assert (credited,) == client.reward_subject("changing", "someone", 20, reward_id="sale-3")
        assert (credited.decision_id, credited.source, credited.amount, credited.reward) == (one, "subject", 20, 32)
        with pytest.raises(NotFoundError, match=r"^subject: "):
            client.reward_subject("changing", "nobody", 20)
        items = [RewardItem(one, 1, "add"), RewardItem(one, 1, "add"), RewardItem(one, 1000, "add", "much")]
        for _ in range(2):  # repeated, they change nothing
            *good, bad = client.reward_batch("changing", items)
            assert [result.committed.reward for result in good] == [33, 34]
            assert (bad.reward_id, type(bad.error)) == ("much", InvalidError)
        with RewardQueue(client, tmp_path / "rewards") as queue:
            queue.add("changing", one, 6, mode="add")
            queue.add_correction("changing", one, 5)
        assert client.reward_subject("changing", "someone", 1)[0].reward == 6


def restart_midway(server: Server, campaign: str) -> threading.Thread:
    """Kill the service once a third of the rounds is decided, and start it again."""

    def interrupt() -> None:
        eventually(lambda: server.get_round(campaign) >= ROUNDS / 3, "played")
        server.kill()
        server.start()

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def check_log(client: Client, campaign: str, answers: dict[str, str], folder: Path) -> None:
    """Nothing lost, nothing twice: the log has each decision as it was answered, with its own reward."""
    state = client.get_campaign(campaign)
    assert (state.round, state.rewards_received) == (ROUNDS, ROUNDS)
    lines = client.export(campaign, folder / "log").read_text(encoding="utf-8").splitlines()
    logged = {row["decision_id"]: (row["action"], row["reward"]) for row in map(json.loads, lines)}
    assert len(lines) == len(logged) == ROUNDS
    assert logged == {f"d{number}": (answers[f"d{number}"], float(number % 7)) for number in range(ROUNDS)}


def test_nothing_is_lost_or_doubled_when_the_service_is_killed(launch, new_database, tmp_path):
    server = launch(new_database("sqlite"))
    answers: dict[str, str] = {}
    with Client(server.url, patience=PATIENCE) as client:
        client.create_campaign({**CAMPAIGN_EXAMPLE, "name": "killed"})
        interrupting = restart_midway(server, "killed")
        with RewardQueue(client, tmp_path / "rewards", every=0.05) as queue:
            for number in range(ROUNDS):
                decision = client.decide("killed", CUSTOMER, decision_id=f"d{number}")
                answers[decision.decision_id] = decision.action
                queue.add("killed", decision.decision_id, number % 7)
        interrupting.join()
        check_log(client, "killed", answers, tmp_path)


def test_the_asynchronous_client_loses_and_doubles_nothing_either(launch, new_database, tmp_path):
    server = launch(new_database("sqlite"))
    answers: dict[str, str] = {}

    async def play() -> None:
        async with (
            AsyncClient(server.url, patience=PATIENCE) as client,
            AsyncRewardQueue(client, tmp_path / "rewards", every=0.05) as queue,
        ):
            numbers = iter(range(ROUNDS))

            async def decide() -> None:
                for number in numbers:
                    decision = await client.decide("killed", CUSTOMER, decision_id=f"d{number}")
                    answers[decision.decision_id] = decision.action
                    queue.add("killed", decision.decision_id, number % 7)

            await asyncio.gather(*(decide() for _ in range(8)))

    with Client(server.url, patience=PATIENCE) as client:
        client.create_campaign({**CAMPAIGN_EXAMPLE, "name": "killed"})
        interrupting = restart_midway(server, "killed")
        asyncio.run(play())
        interrupting.join()
        check_log(client, "killed", answers, tmp_path)
