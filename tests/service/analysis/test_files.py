"""Files of decisions: imports read what exports write, to the last bit; mistakes are located."""

import json
import struct
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unicodedata import category

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import CampaignConfig
from service.analysis.export_files import FORMATS
from service.analysis.import_files import count_rows, read_rows
from service.base.errors import InvalidError
from service.storage.reading import LoggedDecision

CONFIG = CampaignConfig(
    name="spring",
    actions=["none", "mail"],
    variables=[{"name": "risk", "levels": ["1", "1.0", "high"]}, {"name": "spend", "cuts": [10, 20]}],
)


def write(folder: Path, format: str, config: CampaignConfig, pages: list[list[LoggedDecision]]) -> Path:
    file = folder / f"log.{format}"
    file.write_bytes(b"".join(FORMATS[format][1](config, iter(pages))))
    return file


def logged(round: int, context: dict, **other: object) -> LoggedDecision:
    given = {
        "decision_id": f"d{round}", "decided_at": 1_790_000_000_000_000, "at": None, "subject": "ada",
        "context": json.dumps(context), "excluded_actions": None, "model_version": 3, "mode": "optimistic",
        "action": "mail", "propensity": 0.5, "explanation": '{"belief":[1.0],"scores":[]}', "erased": False,
        "reward": None, "source": None, "after_round": None, "received_at": None,
    }  # fmt: skip
    return LoggedDecision(round, **given | other)


# --- there and back -------------------------------------------------------------------------------------------------

NASTY = ["1", "1.0", "01", "-0", " ", "  x ", '"', '""', "a,b", "a;b", "a\nb", "\r", "\r\n", "\x00", "null", "NaN",
         "None", "true", "=1+1", "#", "\ufeff", "\u2028", "é", "e\u0301", "🦊", "\\", "\\n", "{}", "[]"]  # fmt: skip
TEXTS = st.sampled_from(NASTY) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters=":\x7f"), min_size=1, max_size=8
)
LEVELS = TEXTS.filter(lambda text: all(category(character) != "Cc" for character in text))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = FLOATS | st.integers(-(2**53), 2**53)  # larger ones are rounded by Parquet, as by the policy


@st.composite
def campaigns(draw):
    """A campaign with texts that file formats tend to change, and its decisions."""
    names = draw(st.lists(NAMES, max_size=3, unique=True).filter(lambda names: not {"intercept", "actions"} & {*names}))
    variables = [
        {"name": name, "levels": draw(st.lists(LEVELS, min_size=2, max_size=4, unique=True))}
        if draw(st.booleans())
        else {"name": name, "cuts": [0.5]}
        for name in names
    ]
    actions = draw(st.lists(NAMES, min_size=2, max_size=3, unique=True))
    config = CampaignConfig(name="nasty", actions=actions, variables=variables, signals=[])
    micros = st.integers(-(2**55), 2**55)
    rows = []
    for round in range(1, draw(st.integers(0, 5)) + 1):
        context = {v["name"]: draw(st.sampled_from(v["levels"]) if "levels" in v else NUMBERS) for v in variables}
        rewarded = draw(st.booleans())
        rows.append(
            logged(
                round,
                context,
                decision_id=f"{round} {draw(NAMES)}",
                action=draw(st.sampled_from(actions)),
                propensity=draw(st.just(0.0) | st.floats(1e-300, 1)),
                at=draw(st.none() | micros),
                decided_at=draw(micros),
                excluded_actions=draw(st.none() | st.just(json.dumps(actions[:1]))),
                reward=draw(FLOATS) if rewarded else None,
                source="client" if rewarded else None,
                after_round=draw(st.integers(round, 2**60)) if rewarded else None,
                received_at=draw(micros) if rewarded else None,
                erased=draw(st.integers(0, 9)) == 0,
            )
        )
    return config, rows


def bits(value):
    return struct.pack("<d", value) if isinstance(value, float) else value


def expected(row: LoggedDecision) -> dict:
    fields = {"at": row.at, "decided_at": row.decided_at, "round": row.round}
    if not row.erased:
        fields |= {"propensity": row.propensity or None, "reward": row.reward, "reward_after_round": row.after_round}
    return {
        "context": None if row.erased else {name: bits(value) for name, value in json.loads(row.context).items()},
        "action": row.action,
        "decision_id": row.decision_id,
        **{name: bits(value) for name, value in fields.items() if value is not None},
    }


def comparable(row: dict) -> dict:
    """Bits for floats, microseconds for times."""
    values = {name: bits(value) for name, value in row.items()}
    if row["context"] is not None:
        values["context"] = {name: bits(value) for name, value in row["context"].items()}
    for name in {"at", "decided_at"} & row.keys():
        at = row[name] if isinstance(row[name], datetime) else datetime.fromisoformat(row[name])
        values[name] = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return values


def floats(config: CampaignConfig, context: dict) -> dict:
    return {v.name: float(context[v.name]) if v.cuts else context[v.name] for v in config.variables}


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=60)
@given(played=campaigns())
def test_a_file_gives_back_what_was_write(format, played):
    config, rows = played
    if format == "parquet":  # has numbers as floats
        rows = [row._replace(context=json.dumps(floats(config, json.loads(row.context)))) for row in rows]
    wanted = [expected(row) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder), format, config, [rows[i : i + 2] for i in range(0, len(rows), 2)])
        assert [comparable(row) for row in read_rows(file, config)] == wanted
        assert count_rows(file) >= len(rows)
        if format != "csv":  # where a text may hold lines
            assert count_rows(file) == len(rows)


@pytest.mark.parametrize("format", FORMATS)
def test_a_level_sent_as_a_number_is_a_level(tmp_path, format):
    file = write(
        tmp_path, format, CONFIG, [[logged(1, {"risk": 1, "spend": 7}), logged(2, {"risk": "1.0", "spend": 7.5})]]
    )
    first, second = read_rows(file, CONFIG)
    assert first["context"] == {"risk": 1 if format == "ndjson" else "1", "spend": 7}
    assert second["context"] == {"risk": "1.0", "spend": 7.5}


# --- foreign files --------------------------------------------------------------------------------------------------


def rows(tmp_path, name, text):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_rows(file, CONFIG))


def test_a_plain_csv_has_columns_named_like_the_variables(tmp_path):
    text = "\ufeffspend,risk,action,reward,shop\n12,high,mail,1.5,7\n\n3.25,1,none,,\n"  # starts with a BOM
    assert rows(tmp_path, "log.CSV", text) == [
        {"context": {"spend": 12, "risk": "high"}, "action": "mail", "reward": 1.5},
        {"context": {"spend": 3.25, "risk": "1"}, "action": "none"},
    ]


def test_an_empty_cell_is_absent(tmp_path):
    assert rows(tmp_path, "log.csv", "context.risk,context.spend,action,propensity\n,5,mail,\n") == [
        {"context": {"spend": 5}, "action": "mail"}
    ]


def test_a_lenient_campaign_needs_no_column_for_what_may_be_missing(tmp_path):
    optional = [variable.model_dump(mode="json") | {"missing": "level"} for variable in CONFIG.variables]
    lenient = CampaignConfig.model_validate({"name": "l", "actions": ["a", "b"], "variables": optional})
    file = tmp_path / "log.csv"
    file.write_text("context.spend,action,erased\n5,a,false\n,b,false\n,b,true\n")
    assert [row["context"] for row in read_rows(file, lenient)] == [{"spend": 5}, {}, None]
    file.write_text("context.spend,context.more,action\n5,7,a\n")
    with pytest.raises(InvalidError, match="not a variable"):
        list(read_rows(file, lenient))
    ignoring = lenient.model_copy(update={"extra_variables": "ignore"})
    assert [row["context"] for row in read_rows(file, ignoring)] == [{"spend": 5}]


def test_lines_of_json_may_have_fewer_or_more_fields(tmp_path):
    text = '{"action": "mail", "context": {"risk": "high", "spend": 1}, "shop": 3, "reward": 2}\n\n{"action": "none"}'
    assert rows(tmp_path, "log.jsonl", text) == [
        {"context": {"risk": "high", "spend": 1}, "action": "mail", "reward": 2.0},
        {"context": None, "action": "none"},
    ]


def test_parquet_of_other_types(tmp_path):
    table = pa.table(
        {
            "risk": pa.array(["high", "1"]).dictionary_encode(),
            "spend": pa.array([3, None], pa.int32()),
            "action": ["mail", "none"],
            "reward": pa.array([0.1, 0.5], pa.float32()),
            "at": pa.array([1_790_000_000_000_000_123, None], pa.timestamp("ns", "UTC")),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    first, second = read_rows(tmp_path / "log.parquet", CONFIG)
    assert first["context"] == {"risk": "high", "spend": 3}
    assert first["at"] == datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
    assert second == {"context": {"risk": "1"}, "action": "none", "reward": 0.5}


HEADER = "risk,spend,action,reward,reward_after_round,erased\n"
GOOD = "high,1,mail,1,1,\n"


@pytest.mark.parametrize(
    ("name", "text", "where", "message"),
    [
        ("log.txt", "", "log.txt", "unknown file type"),
        ("log.csv", "", "log.csv, header", "no column action"),
        ("log.csv", "risk,action\n", "log.csv, header", "no column for the variable 'spend'"),
        ("log.csv", "context.risk,context.spend,context.x,action\n", "log.csv, header", "'context.x' is not a vari"),
        ("log.csv", "risk,spend,risk,action\n", "log.csv, header", "'risk' more than once"),
        ("log.csv", HEADER + GOOD + "high,1,mail\n", "log.csv, line 3", "3 cells"),
        ("log.csv", HEADER + '"a\nb",x,mail,1,1,\n', "log.csv, line 3, spend", "'x' is not a number"),
        ("log.csv", HEADER + 'high,"3,5",mail,1,1,\n', "log.csv, line 2, spend", "'3,5' is not a number"),
        ("log.csv", HEADER + "high,1_0,mail,1,1,\n", "log.csv, line 2, spend", "'1_0' is not a number"),
        ("log.csv", HEADER + "high,1,mail,nan,1,\n", "log.csv, line 2, reward", "'nan' is not a number"),
        ("log.csv", HEADER + "high,1,mail,1,1.5,\n", "log.csv, line 2, reward_after_round", "not a whole number"),
        ("log.csv", HEADER + "high,1,mail,1,1,yes\n", "log.csv, line 2, erased", "not true or false"),
        ("log.csv", HEADER + GOOD + "high,1,,1,1,\n", "log.csv, line 3", "has no action"),
        ("log.csv", HEADER + 'high,1,"mail\n', "log.csv, line 2", "unexpected end"),
        ("log.csv", HEADER.encode() + b"\xff,1,mail,1,1,\n", "log.csv, after line", "not UTF-8"),
        ("log.ndjson", '{"action": "mail"}\n[1]\n', "log.ndjson, line 2", "Expected `object`"),
        ("log.ndjson", "{", "log.ndjson, line 1", "truncated"),
        ("log.ndjson", b'{"action": "\xff"}', "log.ndjson, line 1", "utf-8"),
        ("log.ndjson", '{"action": 3}', "log.ndjson, line 1, action", "3 is not text"),
        ("log.ndjson", '{"action": "mail", "reward": true}', "log.ndjson, line 1, reward", "True is not a number"),
        ("log.ndjson", '{"action": "mail", "context": [1]}', "log.ndjson, line 1, context", "not an object"),
        ("log.parquet", "PAR?", "log.parquet", "cannot be read"),
    ],
)  # fmt: skip
def test_a_mistake_is_located(tmp_path, name, text, where, message):
    with pytest.raises(InvalidError) as caught:
        rows(tmp_path, name, text)
    (problem,) = caught.value.fields
    assert problem.field.startswith(where)
    assert message in problem.message


def test_a_mistake_in_parquet_names_the_row(tmp_path):
    table = pa.table({"risk": ["high"] * 2, "spend": ["1", "x"], "action": ["mail"] * 2})
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(InvalidError, match=r"log\.parquet, row 2, spend: 'x' is not a number"):
        list(read_rows(tmp_path / "log.parquet", CONFIG))


def test_a_missing_file(tmp_path):
    with pytest.raises(InvalidError, match=r"log\.csv: cannot be read: No such file"):
        list(read_rows(tmp_path / "log.csv", CONFIG))


def test_a_variable_named_like_a_column_needs_the_prefix(tmp_path):
    config = CampaignConfig(name="odd", actions=["a", "b"], variables=[{"name": "reward", "levels": ["x", "y"]}])
    file = tmp_path / "log.csv"
    file.write_text("reward,action\nx,a\n")
    with pytest.raises(InvalidError, match="no column for the variable 'reward'") as caught:
        list(read_rows(file, config))
    assert caught.value.fields[0].allowed == ["context.reward"]
    file.write_text("context.reward,action,reward\nx,a,2\n")
    assert list(read_rows(file, config)) == [{"context": {"reward": "x"}, "action": "a", "reward": 2.0}]
