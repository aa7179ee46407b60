"""The command line: the options of one verb a file, and in `work` what it does.

Nothing here imports torch before a verb runs: help and a slip of the finger are answered at once.
"""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; errors a user can act on become one line and exit code 2."""
    # Imports inside, too, so that Ctrl-C at any moment ends without a traceback.
    try:
        from fedwsq.cli import parser

        return parser.execute(argv)
    except KeyboardInterrupt:  # outside a run, which handles it
        print("fedwsq: interrupted", file=sys.stderr)
        return 130
