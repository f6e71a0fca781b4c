"""The paper's numbers as data: the three published tables and the credit-card environment's parameters."""

import csv
import json
from collections import Counter
from importlib.resources import files

import numpy as np
import pytest

from simulator.prepare import LEVELS

DATA = files("simulator") / "data"
RIDGES = [1e-9, 0.001, 0.01, 0.1, 1, 10, 100]
SCALES = [5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 5e-1]
Cell = tuple[str, int, float, float]


@pytest.fixture(scope="module")
def cells() -> dict[Cell, tuple[int, int, bool]]:
    """(policy, stage length, ridge, scale) -> mean, two standard errors, printed in bold."""
    rows = csv.DictReader((DATA / "paper_tables.csv").read_text(encoding="utf-8").splitlines())
    return {
        (row["policy"], int(row["stage_length"]), float(row["ridge"]), float(row["scale"])): (
            int(row["mean"]),
            int(row["two_se"]),
            row["best"] == "1",
        )
        for row in rows
    }


@pytest.fixture(scope="module")
def environment() -> dict:
    return json.loads((DATA / "credit_card.json").read_text(encoding="utf-8"))


def test_every_cell_of_the_three_grids_is_there(cells: dict) -> None:
    blocks = [("plain-linucb", 1)]
    blocks += [(form, length) for form in ("paper-complex", "paper-simplified") for length in (1, 15, 37, 224)]
    assert set(cells) == {(*block, ridge, scale) for block in blocks for ridge in RIDGES for scale in SCALES}
    assert len(cells) == 42 + 2 * 4 * 42
    lines = (DATA / "paper_tables.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(cells)


BEST = [
    ("plain-linucb", 1, 0.1, 0.05, 754, 16),
    ("paper-complex", 1, 0.001, 5e-5, 258, 11),
    ("paper-complex", 15, 1, 5e-4, 252, 8),
    ("paper-complex", 37, 1, 5e-4, 246, 9),
    ("paper-complex", 224, 1, 5e-4, 299, 13),
    ("paper-simplified", 1, 0.001, 5e-3, 271, 14),
    ("paper-simplified", 15, 0.01, 5e-3, 279, 15),
    ("paper-simplified", 37, 0.1, 5e-3, 288, 17),
    ("paper-simplified", 224, 10, 0.05, 296, 8),
]
TELLING = [
    ("paper-complex", 37, 1, 0.05, 2634, 7),
    ("paper-complex", 37, 1, 0.5, 4227, 5),
    ("paper-complex", 37, 100, 5e-6, 659, 12),
    ("paper-simplified", 37, 1, 0.5, 1503, 9),
    ("paper-simplified", 224, 100, 0.5, 1252, 8),
    ("plain-linucb", 1, 1e-9, 5e-6, 917, 45),
]


@pytest.mark.parametrize("published", BEST + TELLING)
def test_published_values(cells: dict, published: tuple) -> None:
    assert cells[published[:4]][:2] == published[4:]


def test_the_bold_cells_are_the_best_of_each_table_and_stage_length(cells: dict) -> None:
    bold = {cell for cell, (_, _, best) in cells.items() if best}
    assert bold == {published[:4] for published in BEST}
    assert Counter(cell[:2] for cell in bold) == Counter({cell[:2] for cell in cells})
    for best in bold:
        rivals = [mean for cell, (mean, _, _) in cells.items() if cell[:2] == best[:2]]
        assert cells[best][0] == min(rivals)


def test_environment_is_well_formed(environment: dict) -> None:
    assert environment["regimes"] == ["Inflation", "Recession"]
    assert environment["actions"] == ["No action", "Call", "Email"]
    assert {variable["name"]: tuple(variable["levels"]) for variable in environment["variables"]} == LEVELS
    assert [variable["name"] for variable in environment["variables"]] == list(LEVELS)
    assert environment["signals"] == ["risk", "revenue"]
    assert environment["noise_std"] == 0.2


def test_the_chain_starts_from_its_stationary_law(environment: dict) -> None:
    transition, initial = np.array(environment["transition"]), np.array(environment["initial"])
    np.testing.assert_array_equal(transition, [[0.85, 0.15], [0.2, 0.8]])
    np.testing.assert_allclose(initial, [4 / 7, 3 / 7], rtol=1e-15)
    np.testing.assert_allclose(initial @ transition, initial, rtol=1e-14)


def test_emissions_are_laws_over_risk_and_revenue(environment: dict) -> None:
    emission = np.array(environment["emission"])
    assert emission.shape == (2, 20)
    np.testing.assert_allclose(emission.sum(axis=1), 1, atol=0.002)
    by_risk_and_revenue = emission.reshape(2, 5, 4)
    assert by_risk_and_revenue[0, 2, 3] == 0.1634  # inflation, risk 3, revenue 4
    assert by_risk_and_revenue[0, 4, 3] == 0.0002
    assert by_risk_and_revenue[1, 4, 2] == 0.1423  # recession, risk 5, revenue 3
    assert by_risk_and_revenue[1, 0, 1] == 0.0373


def test_reward_coefficients(environment: dict) -> None:
    rewards = environment["rewards"]
    assert list(rewards) == environment["regimes"]
    for coefficients in rewards.values():
        assert set(coefficients) == {"intercept", *LEVELS, "actions", "actions:risk", "actions:revenue"}
        for name, levels in LEVELS.items():
            assert len(coefficients[name]) == len(levels)
        for term in ("actions", "actions:risk", "actions:revenue"):
            assert list(coefficients[term]) == environment["actions"][1:]
        assert {len(effects) for effects in coefficients["actions:risk"].values()} == {5}
        assert {len(effects) for effects in coefficients["actions:revenue"].values()} == {4}
        assert coefficients["marital_status"] == [0, 0, 0.033]
    inflation, recession = rewards["Inflation"], rewards["Recession"]
    # The main effects of the context are the same in both regimes; the intercept and the actions differ.
    assert all(inflation[name] == recession[name] for name in LEVELS)
    assert (inflation["intercept"], recession["intercept"]) == (0.05, 0.017)
    assert inflation["actions"] == {"Call": -0.2, "Email": 0.025}
    assert recession["actions"] == {"Call": 0.15, "Email": -0.1}
    assert inflation["actions:risk"]["Call"] == [-0.2, -0.1, 0, 0.3, 0.4]
    assert recession["actions:risk"]["Email"] == [0.15, 0.1, 0, 0.1, 0.05]
    assert inflation["actions:revenue"]["Email"] == [-0.1, 0, 0, 0.025]
    assert recession["actions:revenue"]["Call"] == [-0.2, 0, 0, 0.1]
