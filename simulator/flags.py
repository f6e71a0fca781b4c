"""The flags that several commands share, and what they mean."""

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.delivery import Delivery
    from simulator.runs import Remote

__all__ = ["FIELDS", "add_environment", "add_playing", "delivery", "overrides", "positive", "remote", "seeds"]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON, like 37 or " + '{"factor": 1.02}') from None


# Flags that set a configuration's field: flag, where it goes, how it is read. Names follow the fields.
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
    ("--beliefs-every", ("beliefs", "every"), _json),
    ("--beliefs-statistics", ("beliefs", "statistics"), str),
    ("--beliefs-estimation", ("beliefs", "estimation"), str),
    ("--control-share", ("control", "share"), float),
    ("--control-kind", ("control", "kind"), str),
    ("--features", ("features",), _json),
)


def seeds(text: str) -> list[int]:
    """ "1951-1955,1960" → [1951, 1952, 1953, 1954, 1955, 1960]."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r}: seeds are like 1951-1960 or 1,5,9")
        found += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(found))


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 on")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}: a share from 0 to 1")
    return share


def _delay(text: str) -> tuple[str, float]:
    from simulator.delivery import Delivery

    try:
        return Delivery.parsed_delay(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_environment(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument(
        "--environment",
        default="credit-card",
        help="credit-card (default), nelson, three-regimes, one of data/hostile.json, or a .json file",
    )
    parser.add_argument("--rounds", type=positive, default=rounds, help="T (default %(default)s)")


def add_playing(parser: argparse.ArgumentParser) -> None:
    """What `replay` and `compare` have in common."""
    parser.add_argument("--reward-model", choices=("regime", "belief"), help="the environment's own if not given")
    parser.add_argument("--jobs", type=int, default=-1, help="processes, -1 for all cores; without --url")
    reality = parser.add_argument_group("rewards as they come in reality")
    reality.add_argument(
        "--reward-delay",
        type=_delay,
        metavar="ROUNDS",
        help="mean delay: 50 or geometric:50, exponential:50; the environment's own if not given",
    )
    reality.add_argument("--reward-loss", type=_share, default=0.0, help="share that never comes, like 0.1")
    reality.add_argument("--shuffle-rewards", action="store_true", help="hand over in random order what is due at once")
    service = parser.add_argument_group("at a service", "without --url, policies play in this process")
    service.add_argument("--url", help="address of a service, like http://127.0.0.1:8000")
    service.add_argument("--key", help="its key, if it asks for one (default: the variable UNDERCURRENT_KEY)")
    service.add_argument("--batch", choices=("stage",), help="send a stage in a request, not a round")
    service.add_argument("--name", metavar="PREFIX", help="begins the campaigns' names, which end with the seed")
    service.add_argument("--concurrency", type=positive, metavar="N", help="campaigns at once (default 1)")


def delivery(options: argparse.Namespace) -> "Delivery":
    """How rewards come."""
    from simulator.delivery import Delivery

    law, mean = options.reward_delay or (None, 0.0)
    return Delivery(law, mean, options.reward_loss, options.shuffle_rewards)


def remote(options: argparse.Namespace) -> "Remote | None":
    """The service to play at, if one is named."""
    from simulator.runs import Remote

    if options.url is None:
        given = [f"--{flag}" for flag in ("key", "batch", "name", "concurrency") if getattr(options, flag) is not None]
        if given:
            raise ValueError(f"{', '.join(given)}: needs --url, the address of a service")
        return None
    key = options.key or os.environ.get("UNDERCURRENT_KEY")
    return Remote(options.url, key, options.batch == "stage", options.name, options.concurrency or 1)


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The fields that flags set."""
    found: dict[str, Any] = {}
    for _, path, _ in FIELDS:
        value = getattr(options, "field." + ".".join(path))
        if value is not None:
            section = found.setdefault(path[0], {}) if len(path) > 1 else found
            section[path[-1]] = value
    return found
