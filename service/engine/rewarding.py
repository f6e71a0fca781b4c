"""The rewards that clients report: one for a decision, amounts that add up, corrections, and credit by subject (R2).

Each method either takes a reward or refuses it; if it refuses, nothing has changed.
"""

from collections.abc import Sequence

from policy import RewardError
from service.base.errors import EXPECTED, ConflictError, FieldProblem, GoneError, InvalidError, NotFoundError
from service.base.times import SECOND, format_duration
from service.engine.boundaries import Boundaries
from service.engine.requests import Correction, RewardItem
from service.engine.sales import Sale, Taken
from service.storage.crediting import read_credited, read_decisions_to_credit
from service.storage.reading import read_reward_history
from service.storage.rows import KnownDecision, KnownReward, RewardRow

MOST_CREDITED = 1_000  # decisions that share one reward


class LateError(ConflictError):
    """A reward came too late to be taken."""


class Rewards(Boundaries):
    """A unit of work that takes rewards."""

    def add_known(self, known: dict[str, KnownDecision]) -> None:
        """Add decisions that the log has. For decisions of this transaction, the memory is newer."""
        self.known = known | self.known

    def reward(self, item: RewardItem | Correction) -> Taken:
        """Take the reward of a decision, or one more amount, or correct it."""
        if isinstance(item, Correction):
            return self._correct(item)
        return self._add(item) if item.mode == "add" else self._set(item)

    def _set(self, item: RewardItem) -> Taken:
        """Take the only reward of a decision: the first one counts."""
        if item.reward_id is not None:
            message, allowed = "only goes with mode add", 'none, or "mode": "add" if amounts add up'
            raise InvalidError([FieldProblem(field="reward_id", message=message, allowed=allowed)])
        known = self._find(item.decision_id)
        booked = self.close_book(known)
        if booked.reward is None:
            return self._take(known, item.reward, "client")
        if booked.reward == item.reward:
            self.repeated += 1
            return _describe(booked)
        if booked.source == "default":
            raise self._explain_late(known)
        if (first := self._find_first(known)) is not None and first.reward == item.reward:
            self.repeated += 1  # sent again after it was added to or corrected
            return Taken(item.decision_id, known.round, item.reward, first.source, first.received_at)
        got = f"Decision {item.decision_id!r} got the reward {known.reward!r} before"
        allowed = f"{known.reward!r}, or more amounts with mode add, or a correction (POST /reward/correct)"
        if self.policy.config.rewards.correct_seconds is None:
            allowed += " once rewards.correct_seconds is set"
        problem = FieldProblem(field="reward", message=f"{item.reward!r} is another one", allowed=allowed)
        raise ConflictError(f"{got}; it cannot change. Allowed: {allowed}", [problem])

    def _find_first(self, known: KnownDecision) -> RewardRow | None:
        """Find the only reward of a decision, if other ones have replaced it."""
        if known.reward_id is None:
            return None
        logged = read_reward_history(self._tx, self.row.campaign_id, [known.round]).get(known.round, [])
        own = (row for row in self.rows.rewards if row.round == known.round)
        return next((row for row in (*logged, *own) if row.reward_id is None and row.source == "client"), None)

    def _add(self, item: RewardItem) -> Taken:
        """Add an amount to the reward of a decision."""
        if item.reward_id is None:
            raise InvalidError([FieldProblem(field="reward_id", message="is required", allowed=EXPECTED["reward_id"])])
        known = self._find(item.decision_id)
        if (earlier := self._identified.get((known.round, item.reward_id))) is not None:
            return self._repeat(known, earlier, item.reward, "client")
        if self._is_late(known):
            raise self._explain_late(known)
        return self._take(known, self._sum_up(known, item.reward), "client", item.reward, item.reward_id)

    def _correct(self, item: Correction) -> Taken:
        """Replace the reward of a decision by the right one."""
        known = self._find(item.decision_id)
        if (earlier := self._identified.get((known.round, item.reward_id))) is not None:
            return self._repeat(known, earlier, item.reward, "correction")
        seconds = self.policy.config.rewards.correct_seconds
        if seconds is None:
            allowed = "set rewards.correct_seconds, for how many seconds after a decision"
            problem = FieldProblem(field="reward", message="corrections are not allowed", allowed=allowed)
            raise ConflictError(f"Campaign {self.row.name} takes no corrections; {allowed}", [problem])
        if self.now > known.decided_at + int(seconds * SECOND):
            message = f"came later than rewards.correct_seconds ({format_duration(seconds)}) after the decision"
            raise _make_late_error(
                item.decision_id, message, "nothing any more; a greater rewards.correct_seconds would allow it"
            )
        return self._take(known, item.reward, "correction", item.reward, item.reward_id)

    def _find(self, decision_id: str) -> KnownDecision:
        known = self.known.get(decision_id)
        if known is None:
            raise NotFoundError(f"Campaign {self.row.name} has no decision {decision_id!r}")
        if known.erased:
            raise GoneError(f"Decision {decision_id!r} was erased")
        return known

    def _repeat(self, known: KnownDecision, earlier: KnownReward, amount: float, source: str) -> Taken:
        """Answer a repeated reward as it was answered the first time."""
        if (earlier.sent, earlier.source) != (amount, source):
            raise _make_repetition_error(earlier.reward_id)
        self.repeated += 1
        return _describe_identified(known.decision_id, earlier)

    def _is_late(self, known: KnownDecision) -> bool:
        """Has the wait for this decision's reward ended?"""
        return known.source == "default" or self.wait.is_over(known.decided_at)

    def _explain_late(self, known: KnownDecision) -> LateError:
        rules, booked = self.policy.config.rewards, self.close_book(known)
        message = (
            f"came later than rewards.wait_seconds ({format_duration(rules.wait_seconds or 0.0)}) after the decision"
        )
        by_default = " by default" if booked.source == "default" else ""
        message += f", which counts as {booked.reward!r}{by_default}"
        allowed = "POST /reward/correct"
        if rules.correct_seconds is None:
            allowed += ", once rewards.correct_seconds is set: for how many seconds after a decision"
        return _make_late_error(known.decision_id, message, allowed)

    def _sum_up(self, known: KnownDecision, amount: float) -> float:
        """Add an amount to the reward of a decision, if the campaign can take the sum."""
        try:
            return self.policy.check_reward((known.reward or 0.0) + amount)
        except RewardError as error:
            if known.reward is None:
                raise
            (problem,) = error.problems
            message = f"the sum {problem.message}"
            raise InvalidError([FieldProblem(field=problem.field, message=message, allowed=problem.allowed)]) from None

    def _take(
        self, known: KnownDecision, value: float, source: str, amount: float | None = None, reward_id: str | None = None
    ) -> Taken:
        value = float(value)
        self.take_reward(
            known.round, value, source, amount=amount, reward_id=reward_id, is_revision=known.source is not None
        )
        rewarded = known._replace(reward=value, source=source, received_at=self.now, reward_id=reward_id)
        self.known[known.decision_id] = rewarded
        if reward_id is not None:
            row = self.rows.rewards[-1]
            self._identified[known.round, reward_id] = KnownReward(*(getattr(row, x) for x in KnownReward._fields))
        return _describe(rewarded)._replace(amount=None if reward_id is None else amount, reward_id=reward_id)

    # --- by subject ----------------------------------------------------------------------------------------------

    def credit(self, sale: Sale) -> list[Taken]:
        """Credit a reward to a subject's decisions by the rule `rewards.credit`."""
        if (earlier := self._find_credited(sale)) is not None:
            self.repeated += 1
            return earlier
        rule, wait = self.policy.config.rewards.credit, self.wait
        since = 0 if wait.default is None else sale.at - wait.microseconds
        decided = read_decisions_to_credit(
            self._tx, self.row.campaign_id, sale.subject, since, sale.at, 1 if rule == "last" else MOST_CREDITED
        )
        names = [known.decision_id for known in decided]
        names += [
            row.decision_id
            for row in self.rows.decisions  # of this transaction
            if row.subject == sale.subject and since <= row.decided_at <= sale.at
        ]
        self.add_known({known.decision_id: known for known in decided})
        return self._share(sale, [self.known[name] for name in names])

    def _share(self, sale: Sale, decided: Sequence[KnownDecision]) -> list[Taken]:
        """Share a reward among decisions, in order."""
        if not decided:
            seconds = self.policy.config.rewards.wait_seconds
            within = "" if seconds is None else f" within {format_duration(seconds)} (rewards.wait_seconds) before it"
            message = f"has no decision{within}"
            allowed = "the subject of a decision; a correction names its decision (POST /reward/correct)"
            nothing = f"Nothing to credit: in campaign {self.row.name} this subject {message}"
            raise NotFoundError(nothing, [FieldProblem(field="subject", message=message, allowed=allowed)])
        open_ones = [known for known in decided if not self._is_late(known)]
        if not open_ones:
            raise self._explain_late(decided[-1])
        rule = self.policy.config.rewards.credit
        chosen = {"last": open_ones[-1:], "first": open_ones[:1], "even": open_ones[-MOST_CREDITED:]}[rule]
        amount = sale.reward / len(chosen)
        for known in chosen:  # before any of them changes
            if (known.round, sale.reward_id) in self._identified:
                raise _make_repetition_error(sale.reward_id)
            self._sum_up(known, amount)
        taken = [self._take(known, self._sum_up(known, amount), "subject", amount, sale.reward_id) for known in chosen]
        self._credited[sale.reward_id] = sale, taken
        return taken

    def _find_credited(self, sale: Sale) -> list[Taken] | None:
        """Find what was credited under an id, in this transaction or before, if it is the same reward."""
        if sale.reward_id in self._credited:
            earlier, taken = self._credited[sale.reward_id]
            if (earlier.subject, earlier.reward) != (sale.subject, sale.reward):
                raise _make_repetition_error(sale.reward_id)
            return taken
        logged = read_credited(self._tx, self.row.campaign_id, sale.reward_id)
        for each in logged:
            self._identified.setdefault((each.reward.round, sale.reward_id), each.reward)
        credited = [each for each in logged if each.reward.source == "subject"]
        if not credited:
            return None
        share = sale.reward / len(credited)
        if any((each.subject, each.reward.sent) != (sale.subject, share) for each in credited):
            raise _make_repetition_error(sale.reward_id)
        return [_describe_identified(each.decision_id, each.reward) for each in credited]


def _make_repetition_error(reward_id: str) -> ConflictError:
    problem = FieldProblem(field="reward_id", message="was used before for another reward", allowed="a new id")
    told = f"reward_id {reward_id!r} was used before for another reward; use a new id for a new one"
    return ConflictError(told, [problem])


def _make_late_error(decision_id: str, message: str, allowed: str) -> LateError:
    problem = FieldProblem(field="reward", message=message, allowed=allowed)
    return LateError(f"The reward of decision {decision_id!r} {message}; allowed: {allowed}", [problem])


def _describe_identified(decision_id: str, earlier: KnownReward) -> Taken:
    """Describe a reward with an id as it was described the first time."""
    assert earlier.reward is not None
    described = Taken(decision_id, earlier.round, earlier.reward, earlier.source, earlier.received_at)
    return described._replace(amount=earlier.sent, reward_id=earlier.reward_id)


def _describe(known: KnownDecision) -> Taken:
    assert known.reward is not None
    assert known.source is not None
    assert known.received_at is not None
    return Taken(known.decision_id, known.round, known.reward, known.source, known.received_at)
