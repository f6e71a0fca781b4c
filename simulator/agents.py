"""Two ways to play a campaign, one interface: the policy in this process, or a service over HTTP."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from policy import CampaignConfig, Request, StagedPolicy
from simulator.client import BATCH_LIMIT, Client, ClientError, Item, ServiceError

__all__ = ["Agent", "Choice", "HttpAgent", "LocalAgent"]

T = TypeVar("T")


class Choice(NamedTuple):
    action: str
    belief: Sequence[float]


class Agent(Protocol):
    """Plays one campaign, round after round."""

    known: int  # rounds that were decided before: asked again, they get the same answers

    def decide(self, contexts: Sequence[Mapping[str, str]]) -> list[Choice]:
        """Decide the next rounds, in order."""

    def reward(self, rewards: Sequence[tuple[int, float]]) -> None:
        """Take rewards by round."""


class LocalAgent:
    """The policy in this process."""

    known = 0

    def __init__(self, config: CampaignConfig) -> None:
        self._policy = StagedPolicy(config)
        self._state = self._policy.initial_state()

    def decide(self, contexts: Sequence[Mapping[str, str]]) -> list[Choice]:
        requests = [Request(context) for context in contexts]
        self._state, decisions = self._policy.decide_batch(self._state, requests)
        return [Choice(decision.action, decision.belief) for decision in decisions]

    def reward(self, rewards: Sequence[tuple[int, float]]) -> None:
        for number, reward in rewards:
            self._state = self._policy.reward(self._state, number, reward)


class HttpAgent:
    """A campaign of a service. It is created if it is not there, else taken up where it stands.

    Decision ids follow from the rounds, so every request can be repeated: after a lost answer, or in a later run.
    """

    def __init__(self, client: Client, config: CampaignConfig, batch: bool = False) -> None:
        self._client, self._name, self._batch = client, config.name, batch
        try:
            client.create(config.model_dump(mode="json"))
        except ServiceError as error:
            if error.status != 409:
                raise
            _require_same(client, config)
        found = client.campaign(config.name)
        self.known, self.rewarded = found.round, found.rewards_received
        self._round = 0

    def decide(self, contexts: Sequence[Mapping[str, str]]) -> list[Choice]:
        first = self._round + 1
        items = [Item(self._id(first + i), context) for i, context in enumerate(contexts)]
        if self._one_by_one(first):
            decisions = [self._client.decide(self._name, item.decision_id, item.context) for item in items]
        else:
            decisions = [decision for part in _parts(items) for decision in self._client.decide_batch(self._name, part)]
        for number, decision in enumerate(decisions, first):
            if decision.round != number:
                raise ClientError(
                    f"round {number} of campaign {self._name} became its round {decision.round}: someone else decides"
                    " in it too; choose another --name"
                )
        self._round += len(items)
        return [Choice(decision.action, decision.belief) for decision in decisions]

    def reward(self, rewards: Sequence[tuple[int, float]]) -> None:
        if self._one_by_one(self._round):
            for number, reward in rewards:
                self._client.reward(self._name, self._id(number), reward)
            return
        for part in _parts([(self._id(number), reward) for number, reward in rewards]):
            for result in self._client.reward_batch(self._name, part):
                if result.error is not None:
                    raise result.error

    def _one_by_one(self, number: int) -> bool:
        """Rounds that were decided before are asked in batches in any case: it is faster and changes nothing."""
        return not self._batch and number > self.known

    def _id(self, number: int) -> str:
        return f"{self._name}-{number}"


def _require_same(client: Client, config: CampaignConfig) -> None:
    """A campaign of that name exists; it may have been described in other words, but must be the same."""
    stored = CampaignConfig.model_validate(client.campaign(config.name).config)
    if stored != config:
        wanted, found = config.model_dump(), stored.model_dump()
        fields = ", ".join(field for field in wanted if wanted[field] != found[field])
        raise ClientError(
            f"campaign {config.name} exists at {client.url} with another configuration (another {fields});"
            " choose another --name"
        )


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH_LIMIT):
        yield items[start : start + BATCH_LIMIT]
