"""Two ways to play a campaign behind one interface: the policy in this process, or a service over HTTP."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from policy import CampaignConfig, Decision, Request, StagedPolicy
from undercurrent_client import BATCH_LIMIT, Client, ClientError, Item, RewardItem, ServiceError
from undercurrent_client import Decision as ServiceDecision

T = TypeVar("T")
Choice = Decision | ServiceDecision


class LocalAgent:
    """The policy in this process."""

    rounds_decided = 0  # before this run; repeating those rounds gives the same answers

    def __init__(self, config: CampaignConfig) -> None:
        self._policy = StagedPolicy(config)
        self._state = self._policy.initial_state()

    def decide(self, contexts: Sequence[Mapping[str, str]]) -> Sequence[Choice]:
        """Decide the next rounds, in order."""
        requests = [Request(context) for context in contexts]
        self._state, decisions = self._policy.decide_batch(self._state, requests)
        return decisions

    def reward(self, rewards: Sequence[tuple[int, float]]) -> None:
        """Accept (round, reward) pairs."""
        for number, reward in rewards:
            self._state = self._policy.reward(self._state, number, reward)


class HttpAgent:
    """A campaign of a service: created if it does not exist, otherwise continued.

    Decision ids are derived from the rounds, so every request can be repeated, after a lost answer or in a later run.
    """

    def __init__(
        self,
        client: Client,
        config: CampaignConfig,
        batch: bool = False,
        advance: Callable[[int], object] | None = None,
    ) -> None:
        """`advance` moves the service's clock by a number of rounds, if it is a rehearsal."""
        self._client, self._name, self._batch, self._advance = client, config.name, batch, advance
        self.late_rewards = 0
        try:
            client.create_campaign(config.model_dump(mode="json"))
        except ServiceError as error:
            if error.status != 409:
                raise
            _require_same_config(client, config)
        campaign = client.get_campaign(config.name)
        self.rounds_decided, self.rewards_received = campaign.round, campaign.rewards_received
        self._round = 0

    def decide(self, contexts: Sequence[Mapping[str, str]]) -> Sequence[Choice]:
        first = self._round + 1
        if self._advance is not None and first > self.rounds_decided:
            self._advance(len(contexts))
        items = [Item(context, self._make_id(first + i)) for i, context in enumerate(contexts)]
        if self._is_sent_singly(first):
            decisions = [self._client.decide(self._name, item.context, decision_id=item.decision_id) for item in items]
        else:
            batches = [self._client.decide_batch(self._name, batch) for batch in _split_batches(items)]
            decisions = [decision for batch in batches for decision in batch.decisions]
        for number, decision in enumerate(decisions, first):
            if decision.round != number:
                raise ClientError(
                    f"the service decided round {number} as round {decision.round} of campaign {self._name}: another"
                    " client is using this campaign; choose another --name"
                )
        self._round += len(items)
        return decisions

    def reward(self, rewards: Sequence[tuple[int, float]]) -> None:
        if self._is_sent_singly(self._round):
            for number, reward in rewards:
                try:
                    self._client.reward(self._name, self._make_id(number), reward)
                except ServiceError as error:
                    self._count_late(error)
            return
        for batch in _split_batches([RewardItem(self._make_id(number), reward) for number, reward in rewards]):
            for result in self._client.reward_batch(self._name, batch):
                if result.error is not None:
                    self._count_late(result.error)

    def _count_late(self, error: ServiceError) -> None:
        """A rehearsal may refuse a reward because its wait is over; anything else is a mistake."""
        if self._advance is None or error.status != 409:
            raise error
        self.late_rewards += 1

    def _is_sent_singly(self, number: int) -> bool:
        """Rounds decided before are always repeated in batches: that is faster and changes nothing."""
        return not self._batch and number > self.rounds_decided

    def _make_id(self, number: int) -> str:
        return f"{self._name}-{number}"


Agent = LocalAgent | HttpAgent


def _require_same_config(client: Client, config: CampaignConfig) -> None:
    """Refuse an existing campaign whose configuration differs once defaults are filled in."""
    stored = CampaignConfig.model_validate(client.get_campaign(config.name).config)
    if stored != config:
        ours, theirs = config.model_dump(), stored.model_dump()
        fields = ", ".join(field for field in ours if ours[field] != theirs[field])
        raise ClientError(
            f"campaign {config.name} exists at {client.url} with a different configuration (different: {fields});"
            " choose another --name"
        )


def _split_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH_LIMIT):
        yield items[start : start + BATCH_LIMIT]
