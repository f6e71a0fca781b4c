"""Row types and tables: a new column is a change of both, and of nothing that depends on an order."""

import pytest

from service.storage.rows import TABLES, DecisionRow, KnownDecision, LiveRow
from service.storage.tables import campaigns, decisions, live, rewards


@pytest.mark.parametrize("kind", TABLES)
def test_a_row_type_has_the_columns_of_its_table(kind):
    assert kind._fields == tuple(TABLES[kind].c.keys())


def test_joined_rows_have_fields_of_their_tables():
    assert set(KnownDecision._fields) <= {*decisions.c.keys(), *rewards.c.keys()}
    assert set(LiveRow._fields) >= set(live.c.keys())
    assert set(LiveRow._fields) <= {*live.c.keys(), *campaigns.c.keys()}


def test_what_is_known_of_a_new_decision_comes_from_its_row():
    row = DecisionRow(*DecisionRow._fields)
    assert KnownDecision.from_row(row) == KnownDecision(*KnownDecision._fields[:10])
