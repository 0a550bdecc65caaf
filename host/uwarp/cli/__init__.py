"""The ``uwarp`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from uwarp import __version__

from . import bench, demo, synth
from .arguments import Failure, Parser, UsageError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    0 if all went well, 1 if what was asked for failed, 2 for arguments that cannot be, 130 if
    interrupted.
    """
    parser = Parser(
        prog="uwarp", description="Datagram-iWARP: remote DMA over plain UDP, as gateware."
    )
    parser.add_argument("--version", action="version", version=f"uwarp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo.add_parser(commands)
    bench.add_parser(commands)
    synth.add_parser(commands)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    prog = f"uwarp {options.command}"
    try:
        return int(options.run(options))
    except UsageError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except (Failure, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
