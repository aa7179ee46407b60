"""`fedwsq analyze`: why a run came out as it did."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later
from fedwsq.cli.trust import add_trust_option

# Written out, since the table itself comes with torch.
ANALYSES = ("hessian", "landscape", "updates", "drift", "gradients", "scales")
EXAMPLES = """\
WHAT, all by default:
  hessian     the largest eigenvalues of the loss, in three kinds of coordinates
  landscape   the loss along two filter-normalised directions
  updates     how normal client updates are, and what each codec loses on them
  drift       how far clients pull apart
  gradients   the share of the gradient that weight standardization takes out
  scales      local over shared scale, and what it costs
updates and drift need rounds that were kept (fedwsq run record.rounds=[1,10]), or --repeat.
A run directory can name code outside the package, module:name; --trust runs it unasked.
Numbers go to RUN/analysis/WHAT.json, pictures to WHAT.png in --out, runs side by side.
RUN may also be a directory of runs, as a sweep's is. A run directory can name code outside the
package, module:name; --trust runs it unasked.

examples:
  fedwsq analyze runs/quickstart-1
  fedwsq analyze runs/fedavg runs/fedwsq hessian landscape --out comparison
  fedwsq analyze runs/quickstart-1 updates --repeat 10
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "analyze",
        help="curvature, landscape, updates and gradients of runs",
        description="Look into runs: numbers as JSON, and pictures of several runs side by side.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="RUN | WHAT", help="run directories, analyses")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="pictures (default: the first run's analysis)"
    )
    parser.add_argument(
        "--examples", type=int, default=1000, help="that losses are taken over (default: 1000)"
    )
    parser.add_argument(
        "--eigenvalues", type=int, default=1, metavar="N", help="how many (default: 1)"
    )
    parser.add_argument(
        "--points", type=int, default=11, help="of a landscape, each way; odd (default: 11)"
    )
    parser.add_argument(
        "--reach",
        type=float,
        default=1.0,
        help="of a landscape, in lengths of filters (default: 1)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        help="of eigenvalues, relative to them (default: 0.001)",
    )
    parser.add_argument(
        "--clients",
        type=int,
        default=10,
        metavar="N",
        help="whose updates and gradients are looked at, at most (default: 10)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of examples and directions (default: 0)"
    )
    parser.add_argument(
        "--repeat", type=int, metavar="ROUND", help="run again up to a round, and look at that"
    )
    add_trust_option(parser)
    parser.set_defaults(main=later("fedwsq.cli.work.analyze"))
