"""A client of the service to lift into your own code: it needs httpx and nothing of ours.

    with Client("http://127.0.0.1:8000") as client:
        client.create({"name": "spring-offers", "actions": ["none", "email"], "variables": [...]})
        decision = client.decide("spring-offers", "order-1001", {"risk": "low"})
        client.reward("spring-offers", "order-1001", 1.25)

A request whose answer got lost is sent again under the same decision id: nothing is decided or counted twice.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import httpx

__all__ = [
    "BATCH_LIMIT",
    "Campaign",
    "Client",
    "ClientError",
    "Decision",
    "Health",
    "Item",
    "MismatchError",
    "RewardResult",
    "Score",
    "ServiceError",
    "UnreachableError",
]

BATCH_LIMIT = 1_000  # items that the service takes in one request
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 1.0  # seconds before the next try
STATUSES = {"not_found": 404, "conflict": 409, "gone": 410, "invalid": 422}  # of an item in a batch, by its code
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


class ClientError(Exception):
    """There is no answer to work with.

    ClientError
    ├── UnreachableError   nothing answers at the address, or nothing did for `patience` seconds
    ├── MismatchError      what answers is no Undercurrent service, or one of another version
    └── ServiceError       the service refuses: status, code, message, fields
    """


class UnreachableError(ClientError):
    pass


class MismatchError(ClientError):
    pass


class ServiceError(ClientError):
    """An answer with a status of 400 or more; `fields` say what is wrong where, and what is allowed."""

    def __init__(self, status: int, code: str, message: str, fields: Sequence[Mapping[str, Any]] = ()) -> None:
        self.status, self.code, self.message, self.fields = status, code, message, fields
        told = [
            f"{field['field']}: {field['message']}"
            + (f" (allowed: {field['allowed']})" if field.get("allowed") else "")
            for field in fields
        ]
        super().__init__(f"{'; '.join(told) or message} ({status})")


class Item(NamedTuple):
    """One customer to decide for. `decision_id` is yours: the same one always gets the same answer."""

    decision_id: str
    context: Mapping[str, Any]
    excluded_actions: Sequence[str] = ()
    subject: str | None = None
    at: datetime | None = None

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"decision_id": self.decision_id, "context": dict(self.context)}
        if self.excluded_actions:
            body["excluded_actions"] = list(self.excluded_actions)
        if self.subject is not None:
            body["subject"] = self.subject
        if self.at is not None:
            body["at"] = self.at.isoformat()
        return body


class Score(NamedTuple):
    action: str
    estimate: float
    bonus: float
    score: float


class Decision(NamedTuple):
    """The action to take, how likely it was, and why."""

    decision_id: str
    round: int
    stage: int
    model_version: int
    mode: str
    action: str
    propensity: float
    belief: tuple[float, ...]
    scores: tuple[Score, ...]
    decided_at: str


class RewardResult(NamedTuple):
    """What became of one reward: committed in a round, or refused with an error."""

    decision_id: str
    round: int | None
    error: ServiceError | None


class Campaign(NamedTuple):
    """Where a campaign stands, and its configuration."""

    name: str
    round: int
    model_version: int
    rewards_received: int
    rewards_waiting: int
    failure: str | None
    config: dict[str, Any]


class Health(NamedTuple):
    status: str
    version: str


class Client:
    """One service, over connections that are kept open. A client may be used by one thread at a time.

    After a connection error or a 503 (the database is away) it tries again for up to `patience` seconds.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        patience: float = 60.0,
        *,
        sleep: Callable[[float], object] = time.sleep,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            address = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL:
            address = httpx.URL("")
        if address.scheme not in ("http", "https") or not address.host:
            raise MismatchError(f"{url!r} is not the address of a service, like http://127.0.0.1:8000")
        self.url, self._key, self._patience, self._sleep = str(address), key, patience, sleep
        self._http = httpx.Client(
            base_url=address,
            headers={"authorization": f"Bearer {key}"} if key else None,
            timeout=max(patience, 10.0),
            trust_env=address.host not in LOCAL_HOSTS,  # a company's proxy does not know this machine's services
            transport=transport,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # --- campaigns -------------------------------------------------------------------------------------------

    def create(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Create a campaign; its configuration with every default. The same one again changes nothing."""
        created: dict[str, Any] = self._call("POST", "/campaigns", dict(config))
        return created

    def campaign(self, name: str) -> Campaign:
        found = self._call("GET", f"/campaigns/{quote(name, safe='')}")
        return Campaign(*(found[field] for field in Campaign._fields))

    def model(self, name: str) -> dict[str, Any]:
        """The model in force, in the campaign's own words."""
        found: dict[str, Any] = self._call("GET", f"/campaigns/{quote(name, safe='')}/model")
        return found

    # --- decisions and rewards -------------------------------------------------------------------------------

    def decide(
        self,
        campaign: str,
        decision_id: str,
        context: Mapping[str, Any],
        *,
        excluded_actions: Sequence[str] = (),
        subject: str | None = None,
        at: datetime | None = None,
    ) -> Decision:
        item = Item(decision_id, context, excluded_actions, subject, at)
        return _decision(self._call("POST", "/decide", {"campaign": campaign, **item.body()}))

    def decide_batch(self, campaign: str, items: Iterable[Item]) -> list[Decision]:
        """Up to BATCH_LIMIT decisions, exactly as one by one in that order; all or nothing."""
        body = {"campaign": campaign, "items": [item.body() for item in items]}
        return [_decision(decision) for decision in self._call("POST", "/decide/batch", body)["decisions"]]

    def reward(self, campaign: str, decision_id: str, reward: float) -> int:
        """Say what a decision earned; the round it was made in. The same reward again changes nothing."""
        body = {"campaign": campaign, "decision_id": decision_id, "reward": reward}
        return int(self._call("POST", "/reward", body)["round"])

    def reward_batch(self, campaign: str, rewards: Iterable[tuple[str, float]]) -> list[RewardResult]:
        """Up to BATCH_LIMIT rewards by decision id; each is committed or refused by itself."""
        items = [{"decision_id": decision_id, "reward": reward} for decision_id, reward in rewards]
        answer = self._call("POST", "/reward/batch", {"campaign": campaign, "items": items})
        return [_reward_result(result) for result in answer["results"]]

    # --- the service itself ----------------------------------------------------------------------------------

    def health(self) -> Health:
        """Is it up, and which version is it? Does not wait for one that is not."""
        try:
            found = self._call("GET", "/healthz", patience=0.0)
            return Health(str(found["status"]), str(found["version"]))
        except UnreachableError as error:
            raise UnreachableError(f"no service at {self.url} ({error.__cause__}); start one with `make run`") from None
        except (ServiceError, MismatchError, KeyError, TypeError) as error:
            if isinstance(error, ServiceError) and error.code:
                raise
            raise MismatchError(f"what answers at {self.url} is not an Undercurrent service") from None

    def check_version(self, version: str) -> None:
        """Refuse to talk to a service of another version than the given one."""
        found = self.health().version
        if found != version:
            raise MismatchError(
                f"the service at {self.url} is Undercurrent {found}, this client is {version}; use the same version"
            )

    def _call(self, method: str, path: str, body: Any = None, patience: float | None = None) -> Any:
        """One request, until it is answered."""
        patience = self._patience if patience is None else patience
        failing_since: float | None = None
        wait = SHORTEST_WAIT
        while True:
            problem: ClientError
            pause = wait
            try:
                response = self._http.request(method, path, json=body)
            except httpx.TransportError as error:
                problem = UnreachableError(f"no answer from {self.url} for {patience:g} seconds: {error}")
                problem.__cause__ = error
            else:
                if response.status_code != 503:
                    return self._answer(response)
                problem = self._refusal(response)
                asked = response.headers.get("retry-after", "")
                pause = float(asked) if asked.isdigit() else wait
            now = time.monotonic()
            failing_since = failing_since or now
            if now + pause > failing_since + patience:
                raise problem
            self._sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)

    def _answer(self, response: httpx.Response) -> Any:
        if not response.is_success:
            raise self._refusal(response)
        try:
            return response.json()
        except ValueError:
            raise MismatchError(f"{response.request.url} does not answer with JSON") from None

    def _refusal(self, response: httpx.Response) -> ServiceError:
        """The error that the service tells (its code is empty if what answers tells none)."""
        try:
            told = response.json()["error"]
            code, message, fields = str(told["code"]), str(told["message"]), told.get("fields", ())
        except (ValueError, KeyError, TypeError):
            code, message, fields = "", f"{response.request.url} answers {response.reason_phrase!r}", ()
        if response.status_code in (401, 403):
            wrong = "wrong key" if self._key else "a key is needed"
            return ServiceError(response.status_code, code, f"{wrong} for {self.url}: {message}")
        return ServiceError(response.status_code, code, message, fields)


def _decision(found: Mapping[str, Any]) -> Decision:
    scores = tuple([Score(s["action"], s["estimate"], s["bonus"], s["score"]) for s in found["scores"]])
    return Decision(
        found["decision_id"], found["round"], found["stage"], found["model_version"], found["mode"], found["action"],
        found["propensity"], tuple(found["belief"]), scores, found["decided_at"],
    )  # fmt: skip


def _reward_result(found: Mapping[str, Any]) -> RewardResult:
    committed, error = found.get("committed"), found.get("error")
    refused = None
    if error:
        status = STATUSES.get(error["code"], 400)
        refused = ServiceError(status, error["code"], error["message"], error.get("fields", ()))
    return RewardResult(found["decision_id"], committed["round"] if committed else None, refused)
