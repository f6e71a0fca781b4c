"""An independent model of the rules (docs/rules.md): what a campaign must answer and show, given its requests.

It does not compute scores. What is drawn at random (action, mode outside the warm start) is taken from the answer and
checked against the rules. Times are microseconds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

SECOND = 1_000_000
AHEAD = 60 * SECOND  # how far `at` may be in the future (R27)
TRIAL_PLAYS, TRIAL_FLOOR = 20, 0.5  # of a new action (R12)
SEASONS = ("spring", "autumn", "winter")


class Refused(Exception):  # noqa: N818 - what the service must answer, not a mistake
    """The answer must be an error with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} expected")
        self.status = status


def told(micros: int | None) -> str | None:
    """Format a time as the API does."""
    if micros is None:
        return None
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def canonical(item: Mapping[str, Any]) -> Any:
    """Return what makes two requests equal (R17)."""
    context = {
        name: str(int(value)) if isinstance(value, int | float) and value == int(value) else value
        for name, value in item["context"].items()
    }
    at = item.get("at")
    when = None if at is None else datetime.fromisoformat(at)
    return sorted(context.items(), key=str), frozenset(item.get("excluded_actions", ())), item.get("subject"), when


@dataclass
class Reward:
    value: float
    source: str
    received_at: int


@dataclass
class Round:
    """A decision: its request, what the rules demand, and the answer once there is one."""

    number: int
    item: Mapping[str, Any]
    request: Any
    at: int | None
    model_version: int
    warm: bool | None
    eligible: tuple[str, ...]
    floor: float
    control: Mapping[str, Any]
    decided_at: int
    answer: dict[str, Any] = field(default_factory=dict)
    raw: bytes = b""  # of the answer, if the request was for it alone
    reward: Reward | None = None
    erased: bool = False
    first: dict[str, Any] = field(default_factory=dict)  # the answer to the only reward without an id
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)  # the answers to rewards with an id, by the id

    @property
    def decision_id(self) -> str:
        return str(self.item["decision_id"])


@dataclass(frozen=True)
class Version:
    """A published model, as far as the rules determine it."""

    kind: str
    round: int
    folded: int  # arrivals folded, those that do not count among them
    counted: int
    excluded: frozenset[int]
    estimated: bool
    actions: tuple[str, ...]
    published_at: int
    restored: int | None = None


class Campaign:
    """One campaign under the rules."""

    def __init__(self, config: Mapping[str, Any], now: int) -> None:
        self.config = dict(config)
        self.created_at = self.clock = now
        self.archived_at: int | None = None
        self.rounds: list[Round] = []
        self.by_id: dict[str, Round] = {}
        self.arrivals: list[int] = []  # rounds in the order of their rewards
        self.folded = 0
        self.has_waited = False  # then what counts depends on the law of delays, which is not modelled
        self.excluded: frozenset[int] = frozenset()
        self.versions: list[Version] = []
        self.revisions: list[dict[str, Any]] = []  # as GET …/revisions shows them, with the names of changed fields
        self.last_at = -math.inf
        self.next_update = self.length + 1
        self.estimated = False
        beliefs, self.next_estimation = self.config["beliefs"], 0
        if self.joint:
            self.next_estimation = self._stage_start(beliefs["start_round"])
        elif beliefs["estimator"] in ("em", "online_em", "spectral") and self.config["regimes"] != 1:
            self.next_estimation = beliefs["start_round"]
        self.trial_end = self.trial_first = 0
        self.assigned: dict[str, tuple[float, float]] = {}  # where a subject's draw for control must lie (R13)
        self._note_waiting()
        self._revise(now, frozenset(config))

    @property
    def length(self) -> int:
        return int(self.config["stage_length"])

    @property
    def joint(self) -> bool:
        return bool(self.config["beliefs"]["statistics"] == "joint")

    @property
    def active(self) -> list[str]:
        return [name for name in self.config["actions"] if name not in self.config["retired_actions"]]

    @property
    def counted(self) -> int:
        """Count the rewards in the model (R2, R21, R22)."""
        return len(self._usable(self.arrivals[: self.folded], self.excluded))

    @property
    def _first_rewards(self) -> int:
        """Count the rewards that joint statistics need for their first estimate (R8)."""
        return max(4, (int(self.config["warm_start_rounds"]) + 1) // 2)

    def _usable(self, rounds: Sequence[int], excluded: frozenset[int]) -> list[int]:
        own = dict.fromkeys(rounds)  # a round may have several rewards
        return [number for number in own if number not in excluded and not self.rounds[number - 1].erased]

    def _stage_start(self, round: int) -> int:
        return math.ceil((round - 1) / self.length) * self.length + 1

    # --- decisions ---------------------------------------------------------------------------------------------

    def decide(self, items: Sequence[Mapping[str, Any]], now: int) -> list[Round]:
        """Return the rounds that must be answered, old and new; all or none (R17, R18)."""
        fresh: dict[str, Any] = {}
        for item in items:
            name, request = item["decision_id"], canonical(item)
            known = self.by_id.get(name)
            if known is not None and known.erased:
                raise Refused(410)
            if request != (known.request if known else fresh.setdefault(name, request)):
                raise Refused(409)
        if fresh:
            if self.archived_at is not None or self.config["paused"]:
                raise Refused(409)
            now = max(now, self.clock)
            new = {item["decision_id"]: item for item in reversed(items) if item["decision_id"] in fresh}
            for item in new.values():
                self._check(item, now)
            for name in fresh:
                self._decide_one(new[name], now)
            self.clock = now
        return [self.by_id[item["decision_id"]] for item in items]

    def _check(self, item: Mapping[str, Any], now: int) -> None:
        season, spend = item["context"].get("season"), item["context"].get("spend")
        if item.get("at") is not None and _micros(item["at"]) > now + AHEAD:
            raise Refused(422)
        if season not in SEASONS or not isinstance(spend, int | float):
            raise Refused(422)
        excluded = set(item.get("excluded_actions", ()))
        if excluded - set(self.config["actions"]) or excluded >= set(self.active):
            raise Refused(422)

    def _decide_one(self, item: Mapping[str, Any], now: int) -> None:
        self._cross(now)
        t = len(self.rounds) + 1
        at = now if self.config["clock"] is not None else None
        if item.get("at") is not None:
            at = _micros(item["at"])
        if at is not None:
            at = self.last_at = int(max(at, self.last_at))
        eligible = tuple(name for name in self.active if name not in item.get("excluded_actions", ()))
        floor = self.config["propensity_floor"]
        if t <= self.trial_end:
            floor = max(floor, TRIAL_FLOOR / len(self.active))
        self.rounds.append(
            Round(
                t, item, canonical(item), at, len(self.versions), self._warm(t), eligible, floor,
                dict(self.config["control"]), now,
            )
        )  # fmt: skip
        self.by_id[item["decision_id"]] = self.rounds[-1]

    def _warm(self, t: int) -> bool | None:
        """R8; None if it cannot be said."""
        rounds = self.config["warm_start_rounds"]
        if self.joint and not self.estimated:
            return True
        if t > max(rounds, self.length + 1) and self.has_waited:
            return None
        return t <= max(rounds, self.length + 1) or 2 * self.counted < rounds

    def _cross(self, now: int) -> None:
        """Take the steps that are due before the next round, in their order."""
        t = len(self.rounds) + 1
        update = self.next_update <= t
        if 0 < self.next_estimation <= t:
            self._estimate(t, now)
        if update:
            self.folded = len(self.arrivals)
            self._publish("update", now)
            self.next_update = (len(self.rounds) // self.length + 1) * self.length + 1

    def _estimate(self, t: int, now: int) -> None:
        """R3; with joint statistics at a stage's end, and not before there are enough rewards."""
        every = self.config["beliefs"]["every"]
        due = math.ceil(t * every["factor"]) if isinstance(every, dict) else t + every
        if not self.joint:
            seen = {round.item["context"]["season"] for round in self.rounds if not round.erased}
            if len(seen) >= self.config["regimes"]:
                self._publish("estimation", now)
            self.next_estimation = max(due, t + 1)
            return
        if not self.estimated and len(self._usable(self.arrivals, self.excluded)) < self._first_rewards:
            self.next_estimation = self._stage_start(t + 1)
            return
        self.estimated, self.folded = True, len(self.arrivals)
        self._publish("estimation", now)
        self.next_estimation = self._stage_start(max(due, t + 1))

    def _publish(self, kind: str, now: int, restored: int | None = None) -> None:
        self.versions.append(
            Version(
                kind, len(self.rounds), self.folded, self.counted, self.excluded, self.estimated,
                tuple(self.config["actions"]), now, restored,
            )
        )  # fmt: skip

    def answered(self, round: Round, answer: dict[str, Any]) -> None:
        """Check an answer against the rules; a repeated one must be unchanged."""
        if round.answer:
            assert answer == round.answer
            return
        expected = {
            "decision_id": round.decision_id,
            "campaign": self.config["name"],
            "round": round.number,
            "stage": math.ceil(round.number / self.length),
            "model_version": round.model_version,
            "decided_at": told(round.decided_at),
        }
        assert {name: answer[name] for name in expected} == expected
        assert tuple(score["action"] for score in answer["scores"]) == round.eligible
        assert answer["action"] in round.eligible
        assert math.isclose(sum(answer["belief"]), 1.0, abs_tol=1e-9)
        assert min(answer["belief"]) >= 0.0
        self._check_chance(round, answer)
        round.answer = answer

    def _check_chance(self, round: Round, answer: dict[str, Any]) -> None:
        """R8, R12, R13."""
        mode, count, share = answer["mode"], len(round.eligible), round.control["share"]
        if round.warm:
            assert (mode, answer["propensity"]) == ("warm_start", 1 / count)
            return
        if mode == "warm_start":  # a search (R8): the model does not follow how much the rewards have varied
            assert round.warm is None or (self.joint and _may_search(round.number))
            assert answer["propensity"] == 1 / count
            return
        assert mode == "optimistic" or (mode == "control" and share > 0)
        scores = {score["action"]: score["score"] for score in answer["scores"]}
        top = max(scores.values())
        best = [action for action, score in scores.items() if top - score <= 1e-9 * max(1.0, abs(top))]
        control = 1 / count
        if round.control["kind"] == "baseline":
            control = float(answer["action"] == round.eligible[0])
        # Scores are told after rounding: of those that look alike, any number may be the highest.
        shares = [1 / ties for ties in range(1, len(best) + 1)] if answer["action"] in best else [0.0]
        if len(best) > 1:
            shares.append(0.0)
        chances = [share * control + (1 - share) * (round.floor + (1 - count * round.floor) * s) for s in shares]
        assert any(math.isclose(answer["propensity"], chance, rel_tol=1e-12) for chance in chances)
        assert 0 < answer["propensity"] <= 1
        if (subject := round.item.get("subject")) is not None:
            low, high = self.assigned.get(subject, (0.0, 1.0))
            low, high = (low, min(high, share)) if mode == "control" else (max(low, share), high)
            assert low < high, f"{mode} for a subject whose draw is in [{low}, {high})"
            self.assigned[subject] = low, high

    # --- rewards -----------------------------------------------------------------------------------------------

    def reward(self, decision_id: str, value: float, now: int) -> dict[str, Any]:
        """Return what the answer must be."""
        round = self._find(decision_id)
        booked = self.get_reward(round, now)
        if booked is None:
            self._require_within([value])
            self.clock = max(now, self.clock)
            self._take(round, value, "client", self.clock)
            round.first = self._tell(round, now)
        elif round.first.get("reward") == value and booked.value != value:
            return round.first  # a retry, although the reward has changed since
        elif booked.value != value:
            raise Refused(409)
        return self._tell(round, now)

    def add(self, decision_id: str, amount: float, reward_id: str, now: int) -> dict[str, Any]:
        """R2: one of several amounts."""
        round = self._find(decision_id)
        if reward_id in round.sent:
            return self._repeat(round, reward_id, amount, "client")
        now = max(now, self.clock)
        if self._is_late(round, now):
            raise Refused(409)
        total = (round.reward.value if round.reward else 0.0) + amount
        self._require_within([total])
        return self._take_sent(round, total, amount, reward_id, "client", now)

    def correct(self, decision_id: str, value: float, reward_id: str, now: int) -> dict[str, Any]:
        round = self._find(decision_id)
        if reward_id in round.sent:
            return self._repeat(round, reward_id, value, "correction")
        now, seconds = max(now, self.clock), self.config["rewards"]["correct_seconds"]
        if seconds is None or now > round.decided_at + int(seconds * SECOND):
            raise Refused(409)
        self._require_within([value])
        return self._take_sent(round, value, value, reward_id, "correction", now)

    def credit(self, subject: str, value: float, reward_id: str, now: int) -> list[dict[str, Any]]:
        """Credit a reward to the decisions for a subject."""
        credited = [r for r in self.rounds if r.sent.get(reward_id, {}).get("source") == "subject"]
        if credited:
            if any(round.item["subject"] != subject for round in credited):
                raise Refused(409)
            return [self._repeat(round, reward_id, value / len(credited), "subject") for round in credited]
        now, wait = max(now, self.clock), self.config["rewards"]["wait_seconds"]
        since = 0 if wait is None else now - int(wait * SECOND)
        among = [round for round in self.rounds_of(subject) if since <= round.decided_at]
        if not among:
            raise Refused(404)
        among = [round for round in among if not self._is_late(round, now)]
        rule = self.config["rewards"]["credit"]
        chosen = {"last": among[-1:], "first": among[:1], "even": among}[rule]
        if not chosen or any(reward_id in round.sent for round in chosen):
            raise Refused(409)
        amount = value / len(chosen)
        totals = [(round.reward.value if round.reward else 0.0) + amount for round in chosen]
        self._require_within(totals)
        return [
            self._take_sent(round, total, amount, reward_id, "subject", now)
            for round, total in zip(chosen, totals, strict=True)
        ]

    def _find(self, decision_id: str) -> Round:
        round = self.by_id.get(decision_id)
        if round is None:
            raise Refused(404)
        if round.erased:
            raise Refused(410)
        return round

    def _require_within(self, totals: Sequence[float]) -> None:
        limits = self.config["rewards"]["range"]
        if limits is not None and not all(limits[0] <= total <= limits[1] for total in totals):
            raise Refused(422)

    def _is_late(self, round: Round, now: int) -> bool:
        wait = self.config["rewards"]["wait_seconds"]
        return wait is not None and now >= round.decided_at + int(wait * SECOND)

    def _repeat(self, round: Round, reward_id: str, amount: float, source: str) -> dict[str, Any]:
        answer = round.sent[reward_id]
        if (answer["amount"], answer["source"]) != (amount, source):
            raise Refused(409)
        return answer

    def _take_sent(
        self, round: Round, total: float, amount: float, reward_id: str, source: str, now: int
    ) -> dict[str, Any]:
        self.clock = now
        self._take(round, total, source, now)
        round.sent[reward_id] = self._tell(round, now) | {"amount": amount, "reward_id": reward_id}
        return round.sent[reward_id]

    def _tell(self, round: Round, now: int) -> dict[str, Any]:
        reward = self.told_reward(round, now)
        assert reward is not None
        return {"decision_id": round.decision_id, "campaign": self.config["name"], "round": round.number, **reward}

    def _take(self, round: Round, value: float, source: str, now: int) -> None:
        round.reward = Reward(value, source, now)
        self.arrivals.append(round.number)

    def get_reward(self, round: Round, now: int) -> Reward | None:
        """Return the reward of a round, which is the default once its wait is over (R20)."""
        rules = self.config["rewards"]
        if round.reward is not None or round.erased or rules["default"] is None:
            return round.reward
        end = round.decided_at + int(rules["wait_seconds"] * SECOND)
        return Reward(rules["default"], "default", end) if end <= max(now, self.clock) else None

    def told_reward(self, round: Round, now: int) -> dict[str, Any] | None:
        reward = self.get_reward(round, now)
        if reward is None:
            return None
        return {"reward": reward.value, "source": reward.source, "received_at": told(reward.received_at)}

    # --- changes -----------------------------------------------------------------------------------------------

    def _note_waiting(self) -> None:
        self.has_waited = self.has_waited or self.config["rewards"]["default"] is not None

    def _revise(self, now: int, changed: frozenset[str] = frozenset(), **what: int) -> None:
        self.clock = max(now, self.clock)
        self.revisions.append(
            {
                "revision": len(self.revisions) + 1,
                "round": len(self.rounds),
                "changed": changed,
                "restored_model_version": what.get("restored"),
                "erased_decisions": what.get("erased"),
                "created_at": told(self.clock),
            }
        )

    def change(self, changes: Mapping[str, Any], now: int) -> None:
        """Change some fields of the configuration to other valid values (R14)."""
        self._require_open()
        different = frozenset(name for name, value in changes.items() if self.config[name] != value)
        if not different:
            return
        before = self.config
        self.config = before | changes
        self._note_waiting()
        if self.config["actions"] != before["actions"]:
            self._grow(len(before["actions"]))
            self._publish("actions", max(now, self.clock))
        for action in before["retired_actions"]:
            plays = sum(round.answer["action"] == action for round in self.rounds)
            if action in self.active and plays < TRIAL_PLAYS:
                self._grow(self.config["actions"].index(action))
        if len(self.rounds) < self.trial_end and self.active[-1] in self.config["actions"][: self.trial_first]:
            self.trial_end = math.ceil(len(self.rounds) / self.length) * self.length  # all on trial were given up
        self._revise(now, different)

    def _grow(self, first: int) -> None:
        """Add the actions from that index on, which are tried evenly with the others for a while (R12)."""
        if len(self.rounds) < self.trial_end:
            first = min(first, self.trial_first)
        self.trial_first = first
        plays = TRIAL_FLOOR * (1 - self.config["control"]["share"]) / len(self.active)
        self.trial_end = math.ceil((len(self.rounds) + math.ceil(TRIAL_PLAYS / plays)) / self.length) * self.length

    def add_action(self, action: str, now: int) -> None:
        config = self.config
        if action in config["actions"]:
            retired = [name for name in config["retired_actions"] if name != action]
            self.change({"retired_actions": retired}, now)
        elif config["propensity_floor"] * (len(config["actions"]) + 1) > 1:
            raise Refused(422)
        else:
            self.change({"actions": [*config["actions"], action]}, now)

    def retire_action(self, action: str, now: int) -> None:
        retired = self.config["retired_actions"]
        if action not in retired and (action not in self.active[1:] or len(self.active) == 2):
            raise Refused(422)
        self.change({"retired_actions": [*retired, *({action} - {*retired})]}, now)

    def roll_back(self, version: int, now: int) -> None:
        """R21."""
        if not 1 <= version < len(self.versions):
            raise Refused(422)
        if self.revisions[-1]["restored_model_version"] == version and self.versions[-1].kind == "rollback":
            return  # a retry
        self._require_open()
        past = self.versions[version - 1]
        first = set(self.arrivals[past.folded : self.folded]) - set(self.arrivals[: past.folded])
        self.excluded = past.excluded | first
        if self.estimated and not past.estimated:
            self.next_estimation = self._stage_start(len(self.rounds) + 2)
        self.estimated = past.estimated
        if set(self.active) - set(past.actions):
            self._grow(len(past.actions))
        self._publish("rollback", max(now, self.clock), version)
        self._revise(now, restored=version)

    def archive(self, archived: bool, now: int) -> None:
        if archived != (self.archived_at is not None):
            self.archived_at = max(now, self.clock) if archived else None

    def _require_open(self) -> None:
        if self.archived_at is not None:
            raise Refused(409)

    # --- people ------------------------------------------------------------------------------------------------

    def rounds_of(self, subject: str) -> list[Round]:
        return [round for round in self.rounds if round.item.get("subject") == subject and not round.erased]

    def erase(self, subject: str, now: int) -> int:
        """R22."""
        gone = self.rounds_of(subject)
        for round in gone:
            round.erased, round.sent = True, {}
        if gone:
            self._estimate_again()
            self._publish("erasure", max(now, self.clock))
            self._revise(now, erased=len(gone))
        return len(gone)

    def _estimate_again(self) -> None:
        """Find which estimates exist without the erased data; if none, the next stage tries again."""
        if not self.joint:
            return
        before, self.versions, self.estimated = self.versions, [], False
        for version in before:
            if version.restored is not None:
                self.estimated = self.versions[version.restored - 1].estimated
            elif version.kind == "estimation" and not self.estimated:
                left = self._usable(self.arrivals[: version.folded], version.excluded)
                self.estimated = len(left) >= self._first_rewards
            self.versions.append(replace(version, estimated=self.estimated))
        if not self.estimated:
            self.next_estimation = self._stage_start(len(self.rounds) + 1)

    # --- what it shows -----------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        """Return GET /campaigns/NAME, without the belief."""
        return {
            "name": self.config["name"],
            "paused": self.config["paused"],
            "archived_at": told(self.archived_at),
            "round": len(self.rounds),
            "stage": math.ceil(len(self.rounds) / self.length),
            "model_version": len(self.versions),
            "rewards_received": len(self.arrivals),
            "rewards_waiting": len(self.arrivals) - self.folded,
            "updated_at": told(self.clock),
            "failure": None,
            "created_at": told(self.created_at),
            "config": self.config,
        }

    @property
    def stages(self) -> Iterator[dict[str, Any]]:
        """Return GET …/stages, newest first, without what depends on the machine and on scores."""
        for number, version in reversed(list(enumerate(self.versions, 1))):
            yield {
                "model_version": number,
                "kind": version.kind,
                "round": version.round,
                "stage": version.round // self.length + 1,
                "rewards_folded": ANY if self.has_waited else version.counted,
                "published_at": told(version.published_at),
            }


def _may_search(t: int) -> bool:
    """Is t one of the rounds that belong to the warm start while rewards have not varied (R8)?"""
    return math.floor(2 * math.sqrt(100 * t)) > math.floor(2 * math.sqrt(100 * (t - 1)))


def _micros(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * SECOND)
