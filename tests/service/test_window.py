"""Campaigns that are longer than their window: restarts, jobs, rollbacks, erasures and verification read the log."""

import pytest

import service.engine.boundaries
from policy import encode
from policy.changes import patch_config
from service.engine.operations import Change
from service.engine.preparation import prepare_rollback
from service.storage.tables import models
from tests.service.playing import CONFIGS, Script, on_sqlite
from tests.service.test_subjects import erase, state_of

WINDOW = 1_000
CONFIG = CONFIGS["default"] | {"beliefs": {"every": 250, "window_rounds": WINDOW}}
WAITING = CONFIG | {"rewards": {"range": [-2, 2], "wait_seconds": 5, "default": 0.25}}


class LongScript(Script):
    """Mostly batches, so that a thousand rounds take little time."""

    sizes = (1, 40, 90)


def play(worker, script, until):
    """Play, with all background work done at once."""
    while script.round < until:
        script.step(worker.post)
        worker.finish_all()


def assert_same_everywhere(direct, worker, name):
    """A restart and a verification find what the living campaign has, to the bit (R15)."""
    assert worker.differences(name) == []
    assert encode(state_of(direct(), name)) == encode(state_of(worker, name))


@on_sqlite
@pytest.mark.parametrize("config", [CONFIG, WAITING], ids=["plain", "waiting"])
@pytest.mark.parametrize("in_jobs", [False, True], ids=["inline", "jobs"])
def test_the_log_stays_the_truth(direct, clock, monkeypatch, config, in_jobs):
    if in_jobs:
        monkeypatch.setattr(service.engine.boundaries, "INLINE_OPERATIONS", 0)
    worker = direct()
    script = LongScript(config, clock).create(worker.post)
    play(worker, script, 1_500)
    early = [row["version"] for row in worker.rows(models) if row["round"] <= 700][-1]
    late = [row["version"] for row in worker.rows(models)][-1]
    play(worker, script, 2_000)
    assert state_of(worker, script.name).history.first > 700
    assert_same_everywhere(direct, worker, script.name)
    worker = direct()  # goes on from a snapshot
    play(worker, script, 2_300)
    worker.process(prepare_rollback(worker.campaigns, script.name, late))
    play(worker, script, 2_600)
    worker.process(prepare_rollback(worker.campaigns, script.name, early))  # to a model from before the window
    play(worker, script, 3_000)
    assert_same_everywhere(direct, worker, script.name)
    assert erase(worker, script.name) > 0  # of rounds that have left, too
    assert state_of(worker, script.name).history.first > 0
    play(worker, script, 3_200)
    assert_same_everywhere(direct, worker, script.name)


@on_sqlite
def test_a_window_for_a_campaign_that_runs(direct, clock):
    """Until the change all rounds are in memory; from the next re-estimation on, only the last ones."""
    worker = direct()
    script = LongScript(CONFIG | {"beliefs": {"every": 250}}, clock).create(worker.post)
    play(worker, script, 1_600)
    patch = {"beliefs": {"window_rounds": WINDOW}}
    worker.process(Change(script.name, lambda config: patch_config(config, patch)))
    assert state_of(worker, script.name).history.first == 0
    play(worker, script, 2_000)
    assert state_of(worker, script.name).history.first > 0
    assert_same_everywhere(direct, worker, script.name)
