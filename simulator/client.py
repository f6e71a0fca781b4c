"""A client of the service that you can copy into your own code: it needs httpx and nothing else from this project.

    with Client("http://127.0.0.1:8000") as client:
        client.create_campaign({"name": "spring-offers", "actions": ["none", "email"], "variables": [...]})
        decision = client.decide("spring-offers", "order-1001", {"risk": "low"})
        client.reward("spring-offers", "order-1001", 1.25)

A request whose answer was lost is sent again with the same decision id, so nothing is decided or counted twice.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import httpx

BATCH_LIMIT = 1_000  # most items the service accepts in one request
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 1.0  # seconds before a retry
# The HTTP status that stands for the error code of one item in a batch.
STATUSES = {"not_found": 404, "conflict": 409, "gone": 410, "invalid": 422}
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


class ClientError(Exception):
    """The service gave no usable answer.

    ClientError
    ├── UnreachableError   nothing answers at the address, or nothing answered for `patience` seconds
    ├── MismatchError      the server is not an Undercurrent service, or has a different version
    └── ServiceError       the service refused the request: status, code, message, fields
    """


class UnreachableError(ClientError):
    pass


class MismatchError(ClientError):
    pass


class ServiceError(ClientError):
    """An answer with a status other than 2xx. `fields` says which fields are wrong, why, and what is allowed."""

    def __init__(self, status: int, code: str, message: str, fields: Sequence[Mapping[str, Any]] = ()) -> None:
        self.status, self.code, self.message, self.fields = status, code, message, fields
        problems = [
            f"{field['field']}: {field['message']}"
            + (f" (allowed: {field['allowed']})" if field.get("allowed") else "")
            for field in fields
        ]
        super().__init__(f"{'; '.join(problems) or message} ({status})")


class Item(NamedTuple):
    """One customer to decide for. You choose `decision_id`; the same id always gets the same answer."""

    decision_id: str
    context: Mapping[str, Any]
    excluded_actions: Sequence[str] = ()
    subject: str | None = None
    at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
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
    """The action to take, its probability, and the scores behind it."""

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
    """The outcome of one reward: the round it was committed to, or the error that refused it."""

    decision_id: str
    round: int | None
    error: ServiceError | None


class Campaign(NamedTuple):
    """A campaign's progress and its configuration."""

    name: str
    round: int
    model_version: int
    rewards_received: int
    rewards_waiting: int
    failure: str | None
    config: dict[str, Any]


class Client:
    """A connection to one service. Use a client in one thread at a time.

    After a connection error or a 503 (temporarily unavailable) it retries for up to `patience` seconds.
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
            trust_env=address.host not in LOCAL_HOSTS,  # a company proxy cannot reach services on this machine
            transport=transport,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def create_campaign(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Create a campaign and return its configuration with all defaults. Repeating the call changes nothing."""
        return dict(self._call("POST", "/campaigns", dict(config)))

    def get_campaign(self, name: str) -> Campaign:
        answer = self._call("GET", f"/campaigns/{quote(name, safe='')}")
        return Campaign(**{field: answer[field] for field in Campaign._fields})

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
        return _parse_decision(self._call("POST", "/decide", {"campaign": campaign, **item.to_json()}))

    def decide_batch(self, campaign: str, items: Iterable[Item]) -> list[Decision]:
        """Make up to BATCH_LIMIT decisions, the same as one by one in that order; either all are made or none."""
        body = {"campaign": campaign, "items": [item.to_json() for item in items]}
        return [_parse_decision(decision) for decision in self._call("POST", "/decide/batch", body)["decisions"]]

    def reward(self, campaign: str, decision_id: str, reward: float) -> int:
        """Report what a decision earned and return its round. Repeating the same reward changes nothing."""
        body = {"campaign": campaign, "decision_id": decision_id, "reward": reward}
        return int(self._call("POST", "/reward", body)["round"])

    def reward_batch(self, campaign: str, rewards: Iterable[tuple[str, float]]) -> list[RewardResult]:
        """Report up to BATCH_LIMIT (decision id, reward) pairs; each is committed or refused on its own."""
        items = [{"decision_id": decision_id, "reward": reward} for decision_id, reward in rewards]
        answer = self._call("POST", "/reward/batch", {"campaign": campaign, "items": items})
        return [_parse_reward_result(result) for result in answer["results"]]

    def get_version(self) -> str:
        """Return the service's version. Does not retry."""
        try:
            return str(self._call("GET", "/healthz", patience=0.0)["version"])
        except UnreachableError as error:
            raise UnreachableError(f"no service at {self.url} ({error.__cause__}); start one with `make run`") from None
        except (ServiceError, MismatchError, KeyError, TypeError) as error:
            if isinstance(error, ServiceError) and error.code:
                raise
            raise MismatchError(f"the server at {self.url} is not an Undercurrent service") from None

    def check_version(self, version: str) -> None:
        """Refuse to talk to a service whose version differs."""
        if (theirs := self.get_version()) != version:
            raise MismatchError(
                f"the service at {self.url} is Undercurrent {theirs}, this client is {version}; use the same version"
            )

    def _call(self, method: str, path: str, body: Any = None, patience: float | None = None) -> Any:
        """Send one request, and retry it until it is answered or `patience` runs out."""
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
                    return self._read_answer(response)
                problem = self._make_error(response)
                retry_after = response.headers.get("retry-after", "")
                pause = float(retry_after) if retry_after.isdigit() else wait
            now = time.monotonic()
            failing_since = failing_since or now
            if now + pause > failing_since + patience:
                raise problem
            self._sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)

    def _read_answer(self, response: httpx.Response) -> Any:
        if not response.is_success:
            raise self._make_error(response)
        try:
            return response.json()
        except ValueError:
            raise MismatchError(f"{response.request.url} does not answer with JSON") from None

    def _make_error(self, response: httpx.Response) -> ServiceError:
        """Turn a refusal into an error. The code is empty if the answer is not in the service's error format."""
        try:
            error = response.json()["error"]
            code, message, fields = str(error["code"]), str(error["message"]), error.get("fields", ())
        except (ValueError, KeyError, TypeError):
            code, message, fields = "", f"{response.request.url} answers {response.reason_phrase!r}", ()
        if response.status_code in (401, 403):
            wrong = "wrong key" if self._key else "a key is needed"
            return ServiceError(response.status_code, code, f"{wrong} for {self.url}: {message}")
        return ServiceError(response.status_code, code, message, fields)


def _parse_decision(answer: Mapping[str, Any]) -> Decision:
    known = {field: answer[field] for field in Decision._fields}
    scores = tuple(Score(**{field: score[field] for field in Score._fields}) for score in answer["scores"])
    return Decision(**{**known, "belief": tuple(answer["belief"]), "scores": scores})


def _parse_reward_result(answer: Mapping[str, Any]) -> RewardResult:
    if not (error := answer.get("error")):
        return RewardResult(answer["decision_id"], answer["committed"]["round"], None)
    status = STATUSES.get(error["code"], 400)
    refusal = ServiceError(status, error["code"], error["message"], error.get("fields", ()))
    return RewardResult(answer["decision_id"], None, refusal)
