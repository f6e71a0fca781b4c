"""From the UCI file "Default of Credit Card Clients" to a risk score to counts of clients per profile.

The package ships the result, `data/credit_card_profiles.csv`, with its attribution; `load_profiles` reads it.
The UCI file is not shipped: `undercurrent-sim prepare FILE` derives the same table from a downloaded copy.
"""

import csv
import io
import itertools
import math
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.arrays import FloatArray, IntArray

CLIENTS = 30_000
DEFAULT = "DEFAULT_PAYMENT_NEXT_MONTH"
AMOUNT = 10_000_000  # far above any amount in the data set; a larger one means a damaged file

# Columns in UCI's order, with the range of allowed values. UCI also calls them X1 to X23 and Y. Its description
# lists fewer codes for education, marriage and payment delay than the file contains; these ranges cover the file.
COLUMNS: dict[str, tuple[int, int]] = {
    "ID": (0, CLIENTS),
    "LIMIT_BAL": (1, AMOUNT),
    "SEX": (1, 2),
    "EDUCATION": (0, 6),
    "MARRIAGE": (0, 3),
    "AGE": (18, 100),
    **{f"PAY_{month}": (-2, 9) for month in (0, 2, 3, 4, 5, 6)},
    **{f"BILL_AMT{month}": (-AMOUNT, AMOUNT) for month in range(1, 7)},
    **{f"PAY_AMT{month}": (0, AMOUNT) for month in range(1, 7)},
    DEFAULT: (0, 1),
}
INDEX = {name: index for index, name in enumerate(COLUMNS)}
UCI_NAMES = {name: "ID" if name == "ID" else "Y" if name == DEFAULT else f"X{INDEX[name]}" for name in COLUMNS}
NAMES = {name: name for name in COLUMNS} | {uci: name for name, uci in UCI_NAMES.items()}

# The profile's variables and levels, in the paper's order.
LEVELS: dict[str, tuple[str, ...]] = {
    "age": ("1", "2", "3", "4", "5"),
    "education": ("others", "high school", "university", "graduate school"),
    "marital_status": ("single", "married", "other"),
    "revenue": ("1", "2", "3", "4"),
    "risk": ("1", "2", "3", "4", "5"),
}
SHAPE = tuple(len(levels) for levels in LEVELS.values())
AGE_CUTS = (27, 31, 37, 43)
REVENUE_CUTS = (10_000, 36_000, 54_000)
# Levels by UCI code: 1 graduate school, 2 university, 3 high school; 1 married, 2 single; all others: other.
EDUCATION_LEVEL = np.array([0, 3, 2, 1, 0, 0, 0])
MARITAL_LEVEL = np.array([2, 1, 0, 2])

# This version, seed, tree method and single thread reproduce the shipped table bit for bit.
XGBOOST_VERSION = "3.2.0"
ROUNDS = 1111
XGBOOST_PARAMETERS = {
    "objective": "reg:logistic",
    "eta": 0.01,
    "max_depth": 3,
    "min_child_weight": 10,
    "subsample": 0.8,
    "colsample_bytree": 1,
    "tree_method": "hist",
    "nthread": 1,
    "seed": 1989,
}
PUBLISHED_RISK_CUTS = (0.0864, 0.1248, 0.1748, 0.3136)

HOW_TO_GET_IT = (
    'Download "Default of Credit Card Clients" (data set 350) from the UCI Machine Learning Repository, '
    "https://archive.ics.uci.edu/dataset/350, and pass the .xls (unzipped) or the .csv, unchanged."
)


class PrepareError(Exception):
    """The file is not the UCI table, or an optional package is missing; the message says what to do."""


def _make_error(path: Path, problem: str) -> PrepareError:
    return PrepareError(f"{path}: {problem}. {HOW_TO_GET_IT}")


def prepare(path: Path) -> tuple[IntArray, FloatArray]:
    """Count the clients of the UCI file, an .xls or .csv as downloaded, by profile; and the four risk cuts."""
    table = read_table(path)
    probability = fit_default_probability(table)
    risk_cuts = np.quantile(probability, (0.2, 0.4, 0.6, 0.8))
    cells = np.ravel_multi_index((*read_levels(table), cut(probability, risk_cuts)), SHAPE)
    return np.bincount(cells, minlength=math.prod(SHAPE)).reshape(SHAPE), risk_cuts


def write_counts(counts: IntArray, out: Path) -> None:
    """Write one line per cell, empty cells included; the last variable changes fastest."""
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*LEVELS, "count"))
        cells = itertools.product(*LEVELS.values())
        writer.writerows((*cell, count) for cell, count in zip(cells, counts.flat, strict=True))


def load_profiles() -> IntArray:
    """Load the shipped counts, 5 × 4 × 3 × 4 × 5 in the order of `LEVELS`."""
    text = (files("simulator") / "data" / "credit_card_profiles.csv").read_text(encoding="utf-8")
    counts = [int(row["count"]) for row in csv.DictReader(io.StringIO(text))]
    return np.array(counts, dtype=np.int64).reshape(SHAPE)


def run_prepare(path: Path, out: Path) -> int:
    """Run `undercurrent-sim prepare`: write the table, print the cut points, compare with the shipped table."""
    try:
        counts, risk_cuts = prepare(path)
        differences = int((counts != load_profiles()).sum())  # before writing: `out` may be the shipped file
        write_counts(counts, out)
    except (PrepareError, OSError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    print("Risk score: quintiles of the predicted probability of default")
    for source, cuts in (("computed", risk_cuts), ("published", PUBLISHED_RISK_CUTS)):
        print(f"  {source:<10}", *(f"{value:.4f}" for value in cuts))
    print(f"{counts.size:,} profile cells, {counts.sum():,} clients: {out}")
    if differences:
        print(
            f"Differs from the shipped table in {differences} cells. The shipped table was made with XGBoost "
            f"{XGBOOST_VERSION}, this one with {_import_optional('xgboost').__version__}."
        )
    else:
        print("Identical to the shipped table.")
    return 0


def cut(values: NDArray[Any], cuts: Sequence[float] | FloatArray) -> IntArray:
    """Return level indices from 0; a value equal to a cut belongs to the lower level."""
    return np.searchsorted(cuts, values, side="left")


def read_levels(table: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the level indices of age, education, marital status and revenue, which need no model."""
    return (
        cut(table[:, INDEX["AGE"]], AGE_CUTS),
        EDUCATION_LEVEL[table[:, INDEX["EDUCATION"]]],
        MARITAL_LEVEL[table[:, INDEX["MARRIAGE"]]],
        # Revenue is 0.2 * LIMIT_BAL; scaling the cuts instead keeps the comparison in whole numbers.
        cut(table[:, INDEX["LIMIT_BAL"]], [5 * revenue for revenue in REVENUE_CUTS]),
    )


def fit_default_probability(table: IntArray) -> FloatArray:
    """Fit each client's probability of default with XGBoost, on every column except ID and SEX."""
    xgboost, tqdm = _import_optional("xgboost"), _import_optional("tqdm")
    _, education, marital_status, _ = read_levels(table)
    not_numeric = ("ID", "SEX", "EDUCATION", "MARRIAGE", DEFAULT)
    numeric = table[:, [INDEX[name] for name in COLUMNS if name not in not_numeric]]
    features = np.hstack([numeric, np.eye(4)[education], np.eye(3)[marital_status]])
    matrix = xgboost.DMatrix(features, label=table[:, INDEX[DEFAULT]])
    callback: Any = xgboost.callback.TrainingCallback

    with tqdm.tqdm(total=ROUNDS, desc="Risk score", unit="tree", disable=None) as bar:

        class Progress(callback):  # type: ignore[misc]
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                bar.update()
                return False  # do not stop

        model = xgboost.train(XGBOOST_PARAMETERS, matrix, ROUNDS, callbacks=[Progress()])
    return np.asarray(model.predict(matrix), dtype=np.float64)


def read_table(path: Path, clients: int = CLIENTS) -> IntArray:
    """Read and check the file: one row per client in the order of ID, columns in the order of `COLUMNS`."""
    rows = _read_rows(path)
    named = [index for index, row in enumerate(rows[:2]) if any(_match_column(text) for text in row)]
    if not named:
        raise _make_error(path, "no header row with the names LIMIT_BAL, SEX, ... or X1, X2, ...")
    header, body = rows[named[-1]], rows[named[-1] + 1 :]
    position = _locate_columns(path, header)
    if len(body) != clients:
        raise _make_error(path, f"has {len(body):,} rows of clients, needs exactly {clients:,}")
    for number, row in enumerate(body, start=1):
        if len(row) != len(header):
            raise _make_error(path, f"client row {number} has {len(row)} values, needs {len(header)}")
    columns = [_check_column(path, name, [row[position[name]] for row in body]) for name in COLUMNS]
    ids = columns[INDEX["ID"]]
    if len(np.unique(ids)) != clients:
        raise _make_error(path, "column ID has a repeated value")
    # The fit samples by row, so the result depends on the order of the rows.
    return np.column_stack(columns)[np.argsort(ids)]


def _read_rows(path: Path) -> list[list[str]]:
    """Read all non-empty rows as text. The first bytes, not the name, decide the kind of file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _make_error(path, f"cannot be read ({error.strerror})") from error
    if content.startswith(b"\xd0\xcf\x11\xe0"):
        xlrd = _import_optional("xlrd")
        try:
            sheet = xlrd.open_workbook(file_contents=content).sheet_by_index(0)
        except Exception as error:  # xlrd raises many kinds of errors for a damaged workbook
            raise _make_error(path, f"damaged .xls file ({error})") from error
        rows = [[str(value) for value in sheet.row_values(index)] for index in range(sheet.nrows)]
    else:
        try:
            rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise _make_error(path, f"neither an .xls nor a .csv file ({error})") from error
    return [row for row in rows if any(text.strip() for text in row)]


def _match_column(text: str) -> str | None:
    """Return the column that a header cell stands for, in either of UCI's naming schemes."""
    return NAMES.get(text.strip().upper().replace(" ", "_").replace(".", "_"))


def _locate_columns(path: Path, header: list[str]) -> dict[str, int]:
    """Return the position of each column."""
    names = [_match_column(text) for text in header]
    if "ID" not in names and not header[0].strip():
        names[0] = "ID"  # files with the header X1, X2, ... leave this cell empty
    for name, uci in UCI_NAMES.items():
        if (count := names.count(name)) != 1:
            problem = "is missing" if not count else f"appears {count} times"
            also = "" if uci == name else f" (or {uci})"
            raise _make_error(path, f"column {name}{also} {problem}; the header is: {', '.join(header)}")
    return {name: names.index(name) for name in COLUMNS}


def _check_column(path: Path, name: str, texts: list[str]) -> IntArray:
    """Convert one column to whole numbers and check their range."""
    low, high = COLUMNS[name]
    values = np.array([_parse_number(text) for text in texts])
    is_valid = (values >= low) & (values <= high) & (values == np.floor(values))  # false for NaN
    if not is_valid.all():
        client = int(np.argmin(is_valid))
        problem = f"column {name} has {texts[client]!r} in client row {client + 1}"
        raise _make_error(path, f"{problem}; allowed: whole numbers from {low} to {high}")
    return values.astype(np.int64)


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _import_optional(module: str) -> Any:
    """Import a package that only `prepare` needs, so that it can stay out of a plain installation."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PrepareError(f"this step needs {module}: pip install 'undercurrent[prepare]'") from error
