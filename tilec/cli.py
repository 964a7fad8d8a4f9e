"""The `tilec` command. This file is all that `tilec --version` loads; the commands are in `cli_commands`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tilec import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 ok, 1 the kernel is wrong, 2 usage, 3 a bug in tilec."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"tilec {__version__}")
        return 0
    from tilec.cli_commands import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
