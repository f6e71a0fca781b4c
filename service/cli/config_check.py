"""`undercurrent config-check`: check a campaign's configuration."""

import argparse
import sys
from pathlib import Path

from policy import CampaignConfig, PolicyError
from service.cli.flags import Flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a JSON file, or - for standard input")


def run(flags: Flags) -> int:
    """Print the configuration with every default filled in, or everything that is wrong with it."""
    file = flags["file"]
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        config = CampaignConfig.model_validate_json(text)
    except PolicyError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
    except OSError as error:
        print(f"undercurrent: cannot read {file}: {error.strerror}", file=sys.stderr)
    except UnicodeDecodeError:
        print(f"undercurrent: {file} is not UTF-8 text", file=sys.stderr)
    else:
        print(config.model_dump_json(indent=2))
        return 0
    return 1
