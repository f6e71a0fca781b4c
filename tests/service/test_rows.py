"""Row types and tables: a new column is a change of both, and of nothing that depends on an order."""

import pytest

from service.storage.rows import TABLES, KnownDecision, LiveRow, build_rows
from service.storage.tables import campaigns, decisions, live, rewards


@pytest.mark.parametrize("kind", TABLES)
def test_a_row_type_has_the_columns_of_its_table(kind):
    assert kind._fields == tuple(TABLES[kind].c.keys())


def test_joined_rows_have_fields_of_their_tables():
    assert set(KnownDecision._fields) <= {*decisions.c.keys(), *rewards.c.keys()}
    assert set(LiveRow._fields) >= set(live.c.keys())
    assert set(LiveRow._fields) <= {*live.c.keys(), *campaigns.c.keys()}


def test_rows_are_built_from_named_columns():
    columns = {name: [name] * 2 for name in KnownDecision._fields[:10]}
    first, second = build_rows(KnownDecision, **columns)
    assert first == second == KnownDecision(*KnownDecision._fields[:10])
    with pytest.raises(TypeError, match="mood"):
        build_rows(KnownDecision, **columns, mood=["good"])
    with pytest.raises(KeyError, match="campaign_id"):
        list(build_rows(KnownDecision, round=[1]))
