"""Reward queues: the file survives everything, and each reward has one outcome."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from undercurrent_client import AsyncClient, AsyncRewardQueue, Client, QueueError, RewardQueue, ServiceError
from undercurrent_client.ledger import Ledger

NEVER = 1e6  # seconds until the queue sends by itself


class Books:
    """A service that notes each reward once, like the real one, and is away while `away` is set."""

    def __init__(self) -> None:
        self.rewards: dict[tuple[str, str], float] = {}
        self.amounts: dict[tuple[str, str, str], float] = {}
        self.batches: list[int] = []
        self.away, self.forgets_answers = False, 0
        self.whole: httpx.Response | None = None  # the answer to every batch

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("refused")
        if self.whole is not None:
            return self.whole
        body = json.loads(request.content)
        if request.url.path == "/reward/correct":
            return self._correct(**body)
        self.batches.append(len(body["items"]))
        results = [self._take(body["campaign"], **item) for item in body["items"]]
        if self.forgets_answers:
            self.forgets_answers -= 1
            raise httpx.ReadError("lost")
        return httpx.Response(200, json={"results": results})

    def _correct(self, campaign: str, decision_id: str, reward: float, reward_id: str) -> httpx.Response:
        if (campaign, decision_id) not in self.rewards:
            error = {"code": "conflict", "message": "too late", "fields": []}
            return httpx.Response(409, json={"error": error})
        self.rewards[campaign, decision_id] = reward
        committed = {"decision_id": decision_id, "round": 1, "reward": reward, "amount": reward, "reward_id": reward_id}
        return httpx.Response(200, json=committed)

    def _take(
        self, campaign: str, decision_id: str, reward: float, mode: str = "set", reward_id: str | None = None
    ) -> dict[str, Any]:
        if mode == "add":
            assert reward_id is not None
            self.amounts[campaign, decision_id, reward_id] = reward
            committed = {"decision_id": decision_id, "round": 1, "reward": reward, "reward_id": reward_id}
            return {"decision_id": decision_id, "committed": committed, "error": None}
        if decision_id.startswith("unknown"):
            error = {"code": "not_found", "message": "no such decision", "fields": []}
            return {"decision_id": decision_id, "committed": None, "error": error}
        assert self.rewards.setdefault((campaign, decision_id), reward) == reward
        committed = {"decision_id": decision_id, "round": len(self.rewards), "reward": reward, "received_at": ""}
        return {"decision_id": decision_id, "committed": committed, "error": None}

    def client(self, patience: float = 0.0) -> Client:
        return Client("http://service.test", patience=patience, transport=httpx.MockTransport(self.answer))


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rewards.jsonl"


def test_rewards_are_sent_in_batches_by_campaign(books, file):
    outcomes = []
    with (
        books.client() as client,
        RewardQueue(client, file, every=NEVER, on_result=lambda *one: outcomes.append(one)) as queue,
    ):
        for number in range(1_500):
            queue.add("a" if number % 3 else "b", f"d{number}", number)
        queue.add("a", "unknown", 1.0)
        assert len(queue) == 1_501
        assert queue.flush() == (1_500, 1)
        assert len(queue) == 0
    assert len(books.rewards) == 1_500
    assert books.batches == [334, 666, 335, 166]
    refused = [result for _, result in outcomes if result.error is not None]
    assert [(one.decision_id, one.error.status) for one in refused] == [("unknown", 404)]
    assert file.read_bytes() == b""


def test_a_thread_sends_by_itself(books, file):
    with books.client() as client, RewardQueue(client, file, every=0.01) as queue:
        queue.add("a", "d1", 1.0)
        while len(queue):
            pass
    assert books.rewards == {("a", "d1"): 1.0}


def test_rewards_wait_in_the_file_while_the_service_is_away(books, file, caplog):
    books.away = True
    with books.client() as client:
        with RewardQueue(client, file, every=NEVER) as queue:
            queue.add("a", "d1", 1.0)
        assert "1 rewards stay in the file" in caplog.text
        assert books.rewards == {}
        books.away = False
        with RewardQueue(client, file, every=NEVER) as queue:
            assert len(queue) == 1
    assert books.rewards == {("a", "d1"): 1.0}
    assert file.read_bytes() == b""


def test_a_lost_answer_counts_nothing_twice(books, file):
    books.forgets_answers = 1
    with books.client() as client, RewardQueue(client, file, every=NEVER) as queue:
        queue.add("a", "d1", 1.0)
    with books.client() as client, RewardQueue(client, file, every=NEVER):
        pass
    assert books.rewards == {("a", "d1"): 1.0}
    assert books.batches == [1, 1]


@pytest.mark.parametrize(("status", "left"), [(404, 0), (422, 0), (401, 1), (403, 1), (500, 1), (503, 1)])
def test_a_batch_refused_as_a_whole(books, file, status, left):
    """What is wrong with the rewards is their outcome. What is wrong with the key or the service can be repaired."""
    error = {"error": {"code": "code", "message": "no", "fields": []}}
    books.whole = httpx.Response(status, json=error)
    with books.client() as client, RewardQueue(client, file, every=NEVER) as queue:
        queue.add("a", "d1", 1.0)
        if left:
            with pytest.raises(ServiceError):
                queue.flush()
        else:
            assert queue.flush() == (0, 1)
        assert len(queue) == left


def test_the_asynchronous_queue(books, file):
    async def play() -> None:
        sent = asyncio.Event()
        transport = httpx.MockTransport(books.answer)
        async with (
            AsyncClient("http://service.test", patience=0.0, transport=transport) as client,
            AsyncRewardQueue(client, file, every=0.01, on_result=lambda *one: sent.set()) as queue,
        ):
            queue.add("a", "d1", 1.0)
            await sent.wait()
            queue.add("a", "d2", 2.0)
            books.away = True

    asyncio.run(play())
    assert books.rewards == {("a", "d1"): 1.0}
    books.away = False
    with books.client() as client, RewardQueue(client, file):
        pass
    assert books.rewards == {("a", "d1"): 1.0, ("a", "d2"): 2.0}


def test_amounts_and_corrections_are_sent_in_order_and_count_once(books, file):
    outcomes = []
    books.forgets_answers = 1
    with books.client() as client:
        with RewardQueue(client, file, every=NEVER) as queue:
            queue.add("a", "d1", 1.0)
            queue.add("a", "d1", 2.0, mode="add")
            queue.add("a", "d1", 2.0, mode="add", reward_id="own")
            queue.add_correction("a", "d1", 3.0, reward_id="cancelled")
            queue.add_correction("a", "unknown", 3.0)
            queue.add("a", "d2", 4.0)
        assert "d1" in file.read_text(encoding="utf-8")
        with RewardQueue(client, file, every=NEVER, on_result=lambda _, result: outcomes.append(result)) as queue:
            assert queue.flush() == (5, 1)
    assert books.batches == [3, 3, 1]
    assert books.rewards == {("a", "d1"): 3.0, ("a", "d2"): 4.0}
    assert list(books.amounts.values()) == [2.0, 2.0]  # the lost answer repeated neither
    assert [one.reward_id for one in outcomes][2:4] == ["own", "cancelled"]
    assert [one.error.status for one in outcomes if one.error is not None] == [409]


# --- the file ---------------------------------------------------------------------------------------------------------


def read_waiting(file: Path) -> list[str]:
    with Ledger(file) as ledger:
        return [entry.item["decision_id"] for entry in ledger.list_waiting(1_000)]


def test_every_prefix_of_a_file_can_be_read(file):
    """Whenever the process was killed, the rewards whose line is complete wait, but for those that were answered."""
    with Ledger(file) as ledger:
        for number in range(4):
            ledger.add("a", {"decision_id": f"d{number}", "reward": 1.0})
        ledger.settle(ledger.list_waiting(2))
        ledger.add("ä", {"decision_id": "d4", "reward": 1.0})
    whole = file.read_bytes()
    assert read_waiting(file) == ["d2", "d3", "d4"]
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n")
        added = min(lines, 4) + (lines == 6)
        assert read_waiting(file) == [f"d{number}" for number in range(2 if lines >= 5 else 0, added)]
        with Ledger(file) as ledger:
            ledger.add("a", {"decision_id": "new", "reward": 1.0})
        assert read_waiting(file)[-1] == "new"


def test_a_long_file_is_written_anew(file, monkeypatch):
    monkeypatch.setattr("undercurrent_client.ledger.MOST_DONE", 10)
    with Ledger(file, durable=True) as ledger:
        for number in range(30):
            ledger.add("a", {"decision_id": f"d{number}", "reward": 1.0})
        for _ in range(4):
            ledger.settle(ledger.list_waiting(5))
        ledger.add("a", {"decision_id": "last", "reward": 1.0})
    assert len(file.read_bytes().splitlines()) < 20
    assert read_waiting(file) == [f"d{number}" for number in range(20, 30)] + ["last"]


def test_a_damaged_file_and_a_second_user_are_refused(file):
    with Ledger(file), pytest.raises(QueueError, match="in use"):
        Ledger(file)
    file.write_bytes(b'{"n": 1, "campaign": "a", "item": {}}\nnonsense\n')
    with pytest.raises(QueueError, match="line 2"):
        Ledger(file)


KILLED = """
import sys
from undercurrent_client.ledger import Ledger
ledger = Ledger(sys.argv[1])
for number in range(10_000_000):
    ledger.add("a", {"decision_id": f"d{number}", "reward": 1.0})
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_reward(file):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    added = [int(process.stdout.readline()) for _ in range(500)]
    process.kill()
    added += [int(line) for line in process.stdout.read().splitlines()]
    process.wait()
    process.stdout.close()
    with Ledger(file) as ledger:
        waiting = [entry.item["decision_id"] for entry in ledger.list_waiting(10**9)]
    assert waiting[: len(added)] == [f"d{number}" for number in added]
    assert len(waiting) - len(added) in (0, 1)
