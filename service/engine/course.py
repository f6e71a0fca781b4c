"""What happens to a campaign between two rounds, in one fixed order, whether it happens now or is replayed."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from policy import StagedPolicy, State

# The kinds of events that change the course of a campaign, so that a replay must know them.
FAILED_UPDATE = "failed_update"
FAILED_ESTIMATION = "failed_estimation"
FAILED_PUBLICATION = "failed_publication"  # the job then has no round of publication
SKIPPED_ESTIMATION = "skipped_estimation"  # because the previous job was still running


class Position(NamedTuple):
    """A campaign at one point of its log: the revision of its configuration, the policy built from it, the state."""

    revision: int
    policy: StagedPolicy
    state: State


class Course(ABC):
    """A campaign in motion: its policy, its state, and the steps between two rounds."""

    policy: StagedPolicy
    state: State

    def cross(self, now: int) -> None:
        """Take the steps that are due before the next round, which is decided at `now` (R20), if any are."""
        if self.state.rounds_ahead:
            return
        self.state = self.policy.pass_time(self.state, now)
        if self.state.is_update_due:
            self.publish()
        if self.state.is_estimation_due:
            self.estimate()
        if self.state.is_update_due:
            self.update()

    @abstractmethod
    def publish(self) -> None:
        """Put the result of a finished job in force (R16)."""

    @abstractmethod
    def estimate(self) -> None:
        """Re-estimate the regimes, or leave it to a job (R3, R16)."""

    @abstractmethod
    def update(self) -> None:
        """Run the update that ends a stage (R1)."""
