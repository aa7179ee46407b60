"""`fedwsq verify`: run a receipt again, and compare."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later
from fedwsq.cli.trust import add_trust_option

EXAMPLES = """\
Every finished run has a receipt.json: its plan, digests of the data and of every round's accepted
replies and weights, and where it was made. Verifying runs the plan again and compares round by
round; it stops at the first that differs. Given the directory of a run, it compares accuracies,
losses and bytes of its rows too. Bit for bit only on the same kind of processor, with the same
versions; what has changed is said. A receipt can name code outside the package, module:name;
--trust runs it unasked.

examples:
  fedwsq verify runs/quickstart-1
  fedwsq verify results/receipt.json data.root=DIR
  fedwsq verify results/receipt.json --rounds 3                 the first rounds alone
  fedwsq verify runs/mine --from runs/mine/checkpoints/previous.safetensors
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "verify",
        help="run a receipt again, and compare round by round",
        description="Run a receipt again and compare the packets and weights of every round.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "receipt", type=Path, metavar="RECEIPT", help="a receipt, or the directory of its run"
    )
    parser.add_argument(
        "words",
        nargs="*",
        default=[],  # without one argparse calls these words required, too
        metavar="KEY=VALUE",
        help="data.root=DIR and the like: where files lie",
    )
    parser.add_argument(
        "--from",
        type=Path,
        dest="checkpoint",
        metavar="CHECKPOINT",
        help="go on from this checkpoint of the run (default: from the first round)",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="only until round N (default: all)")
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes (default: as many as cores)"
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="cpu, cuda or cuda:0 (default: a GPU if there is one)",
    )
    add_trust_option(parser)
    parser.set_defaults(main=later("fedwsq.cli.work.verify"))
