"""`fedwsq sweep`: every combination of some settings, each in a run directory of its own."""

import argparse

from fedwsq.cli.start import later
from fedwsq.cli.trust import add_trust_option

EXAMPLES = """\
KEY=VALUE,VALUE varies a field; a KEY with one value holds for all cells. CONFIG is as for `fedwsq
run`. GRID is a TOML file, or the name of a shipped one (fedwsq ls grids), for more than that:

  config = "cifar10-resnet8"
  settings = { rounds = 100 }
  [each]
  seed = [0, 1, 2]
  "data.partition.alpha" = [0.1, 0.6]
  [[cases]]
  method = "fedavg"
  [[cases]]
  method = "fedwsq"
  "uplink.bits" = 1

Every cell is a run directory in DIR. The same command again goes on: finished cells are skipped,
those that were stopped (Ctrl-C, kill, a crash) go on, --retry tries failed ones again. A cell has
the weights of the same run alone. Bits are left out for codecs that have no choice of them.
Several processes may work on one DIR: with --workers 1 each, that is several cells at a time.

examples:
  fedwsq sweep method=fedavg,fedws,fedwsq seed=0,1,2
  fedwsq sweep cifar10-resnet8 method=fedavg,fedwsq uplink.bits=1,4 data.root=DIR --out runs/mine
  fedwsq sweep paper-table-1-small rounds=20 --list
  fedwsq sweep my-grid.toml --out runs/grid --retry
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "sweep",
        help="run every combination of some settings",
        description="Run every combination of some settings, each in a run directory of its own.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[CONFIG|GRID] KEY=VALUE,...",
        help="where every cell starts from, then what varies",
    )
    parser.add_argument("--out", metavar="DIR", help="where the runs go (default: runs/NAME-sweep)")
    parser.add_argument(
        "--list", action="store_true", help="say how every cell stands, and run nothing"
    )
    parser.add_argument("--retry", action="store_true", help="try cells again that have failed")
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
    parser.set_defaults(main=later("fedwsq.cli.work.sweep"))
