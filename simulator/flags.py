"""Command-line flags that several commands share, and the values they stand for."""

import argparse
import json
import os
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simulator.delivery import Delivery
    from simulator.runs import Remote


class Commands(Protocol):
    """What `ArgumentParser.add_subparsers` returns."""

    def add_parser(self, name: str, *, help: str, description: str) -> argparse.ArgumentParser: ...


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON, like 37 or " + '{"factor": 1.02}') from None


# Flags that set a field of the configuration: flag, path of the field, parser. Flags are named after the fields.
FIELDS: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    ("--stage-length", ("stage_length",), int),
    ("--ridge", ("ridge",), float),
    ("--warm-start-rounds", ("warm_start_rounds",), int),
    ("--regimes", ("regimes",), lambda text: int(text) if text.isdigit() else text),  # or auto
    ("--propensity-floor", ("propensity_floor",), float),
    ("--bonus-form", ("bonus", "form"), str),
    ("--bonus-scale", ("bonus", "scale"), float),
    ("--bonus-risk", ("bonus", "risk"), float),
    ("--bonus-horizon", ("bonus", "horizon"), int),
    ("--bonus-c-theta", ("bonus", "c_theta"), float),
    ("--bonus-gamma", ("bonus", "gamma"), float),
    ("--bonus-c-eta", ("bonus", "c_eta"), float),
    ("--bonus-v-eta", ("bonus", "v_eta"), float),
    ("--beliefs-estimator", ("beliefs", "estimator"), str),
    ("--beliefs-start-round", ("beliefs", "start_round"), int),
    ("--beliefs-every", ("beliefs", "every"), _parse_json),
    ("--beliefs-statistics", ("beliefs", "statistics"), str),
    ("--beliefs-estimation", ("beliefs", "estimation"), str),
    ("--control-share", ("control", "share"), float),
    ("--control-kind", ("control", "kind"), str),
    ("--features", ("features",), _parse_json),
)


def parse_seeds(text: str) -> list[int]:
    """ "1951-1955,1960" → [1951, 1952, 1953, 1954, 1955, 1960]."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds, like 1951-1960 or 1,5,9")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def parse_positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _parse_share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return share


def parse_delay(text: str) -> tuple[str, float]:
    """ "50" and "geometric:50" → ("geometric", 50.0)."""
    law, colon, mean = text.rpartition(":")
    law = law if colon else "geometric"
    try:
        rounds = float(mean)
    except ValueError:
        rounds = -1.0
    if law not in ("geometric", "exponential") or not 0.0 <= rounds <= 1e9:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a mean number of rounds, like 50, geometric:50 or exponential:50"
        )
    return law, rounds


def add_environment_flags(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add the flags that say what to simulate; `rounds` is the default length."""
    parser.add_argument(
        "--environment",
        default="credit-card",
        help="credit-card (default), nelson, three-regimes, a name from data/hostile.json, or a .json file",
    )
    parser.add_argument("--rounds", type=parse_positive, default=rounds, help="T (default %(default)s)")


def add_play_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `replay` and `compare` share."""
    parser.add_argument("--reward-model", choices=("regime", "belief"), help="default: the environment's own")
    parser.add_argument("--jobs", type=int, default=-1, help="processes, -1 for all cores; ignored with --url")
    rewards = parser.add_argument_group("late and lost rewards")
    rewards.add_argument(
        "--reward-delay",
        type=parse_delay,
        metavar="ROUNDS",
        help="mean delay: 50 or geometric:50, exponential:50 (default: the environment's own delays)",
    )
    rewards.add_argument("--reward-loss", type=_parse_share, default=0.0, help="share that never arrives, like 0.1")
    rewards.add_argument("--shuffle-rewards", action="store_true", help="deliver rewards due together in random order")
    service = parser.add_argument_group("playing at a service", "without --url, policies play in this process")
    service.add_argument("--url", help="address of a service, like http://127.0.0.1:8000")
    service.add_argument("--key", help="its API key, if it needs one (default: the variable UNDERCURRENT_KEY)")
    service.add_argument("--batch", choices=("stage",), help="send a whole stage per request instead of one round")
    service.add_argument("--name", metavar="PREFIX", help="prefix of the campaigns' names, which end with the seed")
    service.add_argument("--concurrency", type=parse_positive, metavar="N", help="campaigns at a time (default 1)")


def read_delivery(options: argparse.Namespace) -> "Delivery":
    """Say how rewards arrive."""
    from simulator.delivery import Delivery

    law, mean = options.reward_delay or (None, 0.0)
    return Delivery(law, mean, options.reward_loss, options.shuffle_rewards)


def read_remote(options: argparse.Namespace) -> "Remote | None":
    """The service to play at, or None without --url."""
    from simulator.runs import Remote

    if options.url is None:
        given = [f"--{flag}" for flag in ("key", "batch", "name", "concurrency") if getattr(options, flag) is not None]
        if given:
            raise ValueError(f"{', '.join(given)}: needs --url, the address of a service")
        return None
    key = options.key or os.environ.get("UNDERCURRENT_KEY")
    return Remote(options.url, key, options.batch == "stage", options.name, options.concurrency or 1)


def read_overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The configuration fields that flags set."""
    overrides: dict[str, Any] = {}
    for _, path, _ in FIELDS:
        value = getattr(options, "field." + ".".join(path))
        if value is not None:
            section = overrides.setdefault(path[0], {}) if len(path) > 1 else overrides
            section[path[-1]] = value
    return overrides
