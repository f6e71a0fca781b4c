"""Wrong usage of `undercurrent-sim`: the message names the mistake, and nothing is printed or written."""

import shlex
from pathlib import Path

import pytest

from simulator import cli

# Exit code 2: argparse refuses a flag. Exit code 1: the command refuses its input.
MISTAKES = [
    ("replay --preset greedy", 1, ["'greedy'", "paper-complex", "oracle"]),
    ("replay --environment weather", 1, ["'weather'", "credit-card"]),
    ("replay --seeds 9-5", 2, ["--seeds", "9-5", "1951-1960"]),
    ("replay --seeds 1,,2", 2, ["--seeds", "1,,2"]),
    ("replay --seeds 5-", 2, ["--seeds", "5-"]),
    ("replay --seeds 9007199254740992", 1, ["seed"]),  # 2**53
    ("replay --rounds 0", 2, ["--rounds", "'0'"]),
    ("replay --ridge -1", 1, ["ridge", "-1"]),
    ("replay --ridge much", 2, ["--ridge", "'much'"]),
    ("replay --regimes two", 1, ["'two' is not a number of regimes (allowed: 'auto', or 1 to 8)"]),
    ("replay --bonus-risk 0.1", 1, ["bonus.risk", "complex"]),
    ("replay --beliefs-every {", 2, ["--beliefs-every", "'{'"]),
    ("replay --features [1]", 1, ["features"]),
    ("replay --jobs 0", 1, ["jobs"]),
    ("replay --config missing.json", 1, ["missing.json"]),
    ("replay --preset oracle --url http://127.0.0.1:1", 1, ["the oracle has no campaign"]),
    ("replay --preset oracle --ridge 1", 1, ["the oracle has no configuration", "ridge"]),
    ("replay --key k", 1, ["--key: needs --url"]),
    ("replay --batch stage --name n --concurrency 2", 1, ["--batch, --name, --concurrency: needs --url"]),
    ("replay --url http://127.0.0.1:1", 1, ["no service at http://127.0.0.1:1", "make run"]),
    ("replay --url 127.0.0.1:8000", 1, ["is not the address of a service, like http://127.0.0.1:8000"]),
    ("replay --url http://", 1, ["is not the address of a service"]),
    *[(f"replay --reward-delay={text}", 2, ["like 50, geometric:50"]) for text in ("", "-1", "uniform:5", "nan", ":5")],
    *[(f"replay --reward-loss={text}", 2, ["a share from 0 to 1"]) for text in ("1.1", "x", "nan")],
    ("compare --url http://127.0.0.1:1 --out OUT", 1, ["no service at"]),
    ("compare --environment weather --out OUT", 1, ["'weather'"]),
    ("sweep --out OUT --policies greedy", 1, ["'greedy'", "paper-complex"]),
    ("sweep --out OUT --environment weather", 1, ["'weather'", "credit-card"]),
    ("sweep --out OUT --ridges -1 --jobs 2", 1, ["ridge", "-1"]),
    ("sweep --out OUT --ridges much", 2, ["--ridges", "much"]),
    ("sweep --out OUT --stage-lengths 1.5", 2, ["--stage-lengths", "1.5"]),
    ("report --sweep OUT --out OUT/report", 1, ["OUT contains no sweep", "undercurrent-sim sweep"]),
    ("report --sweep OUT/missing --out OUT/report", 1, ["OUT/missing contains no sweep"]),
    ("bounds --environment weather", 1, ["'weather'", "credit-card"]),
    ("bounds --risk 2", 1, ["risk", "2"]),
    ("bounds --threshold 0", 1, ["threshold", "0"]),
    ("bounds --c0 -1", 1, ["c0", "-1"]),
    ("bounds --risk low", 2, ["--risk", "'low'"]),
]


@pytest.mark.parametrize(("line", "code", "words"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_the_mistake_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, code: int, words: list[str]
) -> None:
    arguments = [part.replace("OUT", str(tmp_path)) for part in shlex.split(line)]
    try:
        exit_code = cli.main(arguments)
    except SystemExit as stop:
        exit_code = stop.code
    out, err = capsys.readouterr()
    assert exit_code == code
    assert out == ""
    assert all(word.replace("OUT", str(tmp_path)) in err for word in words), err
    assert "Traceback" not in err
    assert not [path for path in tmp_path.rglob("*") if path.name != "sweep.json"]
