"""The `prepare` command: reading and checking the UCI file, levels, and the table of profile counts."""

import csv
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import xlwt

from simulator import prepare as step
from simulator.prepare import PrepareError, load_profiles, read_table, run_prepare, write_counts

# The UCI table is not in the repository; where the project is developed, it lies next to the checkout.
UCI_FILE = Path(__file__).resolve().parents[3] / "shared" / "data" / "uci_credit_card_default.csv"
SHIPPED = Path(step.__file__).parent / "data" / "credit_card_profiles.csv"

PAYMENTS = [f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6)]
AMOUNTS = [f"{kind}_AMT{month}" for kind in ("BILL", "PAY") for month in range(1, 7)]
NAMES = ["ID", "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *PAYMENTS, *AMOUNTS]
NAMES.append("default payment next month")
CODES = ["ID", *(f"X{number}" for number in range(1, 24)), "Y"]
CLIENTS = [
    [1, 20000, 2, 2, 1, 24, 2, 2, -1, -1, -2, -2, 3913, 3102, 689, 0, 0, 0, 0, 689, 0, 0, 0, 0, 1],
    [2, 500000, 1, 6, 0, 79, -1, 8, 0, 0, 0, 2, -2682, 1725, 2682, 3272, 3455, 3261, 0, 9, 8, 7, 0, 6, 1],
    [3, 90000, 2, 0, 3, 34, 0, 0, 0, 0, 0, 0, 29239, 14027, 13559, 1, 2, 3, 1518, 15, 1, 1, 1, 5, 0],
]


def write_csv(path: Path, *rows: list) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def change(row: int, column: str, value: object) -> list[list]:
    """The three clients with one value replaced."""
    clients = [list(client) for client in CLIENTS]
    clients[row][NAMES.index(column)] = value
    return clients


HEADERS = {
    "codes": [CODES],
    "names": [NAMES],
    "unnamed id": [["", *CODES[1:]]],
    "both rows": [["", *CODES[1:]], NAMES],
    "byte order mark and dots": [["\ufeffID", *NAMES[1:-1], "default.payment.next.month"]],
}


def test_every_kind_of_csv_is_understood(tmp_path: Path) -> None:
    contents = {name: [*headers, *CLIENTS] for name, headers in HEADERS.items()}
    contents["columns and clients in another order"] = [row[::-1] for row in (NAMES, *CLIENTS[::-1])]
    contents["numbers and empty rows of a spreadsheet"] = [CODES, *change(1, "LIMIT_BAL", "5.00E+05"), []]
    for name, rows in contents.items():
        np.testing.assert_array_equal(read_table(write_csv(tmp_path / name, *rows), clients=3), CLIENTS, err_msg=name)


def write_xls(path: Path) -> Path:
    """A workbook laid out like the original: codes, names, clients."""
    book = xlwt.Workbook()
    sheet = book.add_sheet("Data")
    for row, values in enumerate([["", *CODES[1:]], NAMES, *CLIENTS]):
        for column, value in enumerate(values):
            sheet.write(row, column, value)
    book.save(str(path))
    return path


def test_an_xls_is_read_like_the_csv_whatever_its_name(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_table(write_xls(tmp_path / "clients.xls"), clients=3), CLIENTS)
    np.testing.assert_array_equal(read_table(write_xls(tmp_path / "download"), clients=3), CLIENTS)


WRONG_VALUES = [
    ("LIMIT_BAL", 0, "1 to 10000000"),
    ("SEX", 3, "1 to 2"),
    ("EDUCATION", 7, "0 to 6"),
    ("MARRIAGE", -1, "0 to 3"),
    ("AGE", 17, "18 to 100"),
    ("AGE", 34.5, "18 to 100"),
    ("AGE", "young", "18 to 100"),
    ("PAY_0", -3, "-2 to 9"),
    ("BILL_AMT6", "", "-10000000 to 10000000"),
    ("PAY_AMT1", "nan", "0 to 10000000"),
    ("PAY_AMT2", "inf", "0 to 10000000"),
    ("default payment next month", 2, "0 to 1"),
]


def test_a_value_out_of_range_is_named(tmp_path: Path) -> None:
    for column, value, allowed in WRONG_VALUES:
        with pytest.raises(PrepareError) as caught:
            read_table(write_csv(tmp_path / "clients.csv", NAMES, *change(2, column, value)), clients=3)
        message = str(caught.value)
        assert f"column {column.upper().replace(' ', '_')} has '{value}' in client row 3; " in message
        assert f"allowed: whole numbers from {allowed}." in message
        assert "archive.ics.uci.edu/dataset/350" in message


BAD_TABLES = {  # what the message says, and the rows
    r"column AGE \(or X5\) is missing; the header is: ID, LIMIT_BAL, SEX": [r[:5] + r[6:] for r in (NAMES, *CLIENTS)],
    r"column AGE \(or X5\) appears 2 times": [[*row, row[5]] for row in (CODES, *CLIENTS)],
    "column ID is missing": [row[1:] for row in (CODES, *CLIENTS)],
    "no header row": CLIENTS,
    "no header row.": [],
    "has 2 rows of clients, needs exactly 3": [CODES, *CLIENTS[:2]],
    "client row 2 has 24 values, needs 25": [CODES, CLIENTS[0], CLIENTS[1][:-1], CLIENTS[2]],
    "column ID has a repeated value": [NAMES, *change(2, "ID", 1)],
}


@pytest.mark.parametrize("words", BAD_TABLES)
def test_wrong_columns_and_rows_are_named(tmp_path: Path, words: str) -> None:
    with pytest.raises(PrepareError, match=words):
        read_table(write_csv(tmp_path / "bad.csv", *BAD_TABLES[words]), clients=3)


def test_missing_and_unreadable_files_are_explained(tmp_path: Path) -> None:
    (tmp_path / "clients.zip").write_bytes(b"PK\x03\x04\xff\xfe\x00")
    (tmp_path / "clients.xls").write_bytes(write_xls(tmp_path / "whole.xls").read_bytes()[:700])
    for name, words in {
        "absent.xls": r"absent\.xls: cannot be read \(No such file or directory\)\. Download",
        ".": "cannot be read",
        "clients.zip": r"neither an \.xls nor a \.csv file .* \(unzipped\)",
        "clients.xls": r"damaged \.xls file",
    }.items():
        with pytest.raises(PrepareError, match=words):
            read_table(tmp_path / name)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xlrd", None)  # makes the import fail as if it were not installed
    with pytest.raises(PrepareError, match=r"needs xlrd: pip install 'undercurrent\[prepare\]'"):
        read_table(write_xls(tmp_path / "clients.xls"), clients=3)
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(PrepareError, match=r"needs xgboost: pip install 'undercurrent\[prepare\]'"):
        step.fit_default_probability(np.array(CLIENTS))


def test_the_command_reports_an_error_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "counts.csv"
    assert run_prepare(write_csv(tmp_path / "few.csv", CODES, *CLIENTS), out) == 1
    printed = capsys.readouterr()
    assert "has 3 rows of clients, needs exactly 30,000" in printed.err
    assert (printed.out, out.exists()) == ("", False)


def levels_of(column: str, values: list[int]) -> list[list[int]]:
    """Level indices (age, education, marital status, revenue) for different values of one column."""
    return np.transpose(step.read_levels(np.array([change(0, column, value)[0] for value in values]))).tolist()


def test_a_value_equal_to_a_cut_belongs_to_the_lower_level() -> None:
    ages = levels_of("AGE", [21, 27, 28, 31, 32, 37, 38, 43, 44, 79])
    assert [levels[0] for levels in ages] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    # Revenue is a fifth of the limit: 10K, 36K and 54K are limits of 50K, 180K and 270K.
    limits = [10_000, 50_000, 50_001, 180_000, 180_001, 270_000, 270_001, 1_000_000]
    assert [levels[3] for levels in levels_of("LIMIT_BAL", limits)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert step.cut(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), (0.2, 0.4)).tolist() == [0, 0, 1, 1, 2]


def test_codes_of_education_and_marriage() -> None:
    names = step.LEVELS["education"]
    education = [names[levels[1]] for levels in levels_of("EDUCATION", list(range(7)))]
    assert education == ["others", "graduate school", "university", "high school", "others", "others", "others"]
    names = step.LEVELS["marital_status"]
    marital = [names[levels[2]] for levels in levels_of("MARRIAGE", list(range(4)))]
    assert marital == ["other", "married", "single", "other"]


def test_the_shipped_table_is_complete_and_in_order(tmp_path: Path) -> None:
    with SHIPPED.open(encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["age", "education", "marital_status", "revenue", "risk", "count"]
    assert len(rows) == 1_200
    assert [tuple(row[:5]) for row in rows] == list(itertools.product(*step.LEVELS.values()))
    assert sum(int(row[5]) for row in rows) == 30_000
    counts = load_profiles()
    assert counts.shape == (5, 4, 3, 4, 5)
    assert counts.ravel().tolist() == [int(row[5]) for row in rows]
    # The environment draws a client of any given risk and revenue, so none of the 20 may be empty.
    assert counts.sum(axis=(0, 1, 2)).min() > 0
    # Quintiles of 30,000 clients.
    assert np.abs(counts.sum(axis=(0, 1, 2, 3)) - 6_000).max() <= 1
    write_counts(counts, tmp_path / "counts.csv")
    assert (tmp_path / "counts.csv").read_bytes() == SHIPPED.read_bytes()


if UCI_FILE.is_file():

    def test_the_uci_file_gives_the_shipped_table_bit_for_bit(tmp_path, capsys) -> None:
        out = tmp_path / "counts.csv"
        assert run_prepare(UCI_FILE, out) == 0
        assert out.read_bytes() == SHIPPED.read_bytes()
        printed = capsys.readouterr().out
        for words in (
            "computed   0.0855 0.1239 0.1750 0.3150",
            "published  0.0864 0.1248 0.1748 0.3136",
            "1,200 profile cells, 30,000 clients",
            "Identical to the shipped table.",
        ):
            assert words in printed
