"""`fedwsq fetch`: download a data set from its publisher."""

import argparse

from fedwsq.cli.start import later

EXAMPLES = """\
A run never downloads by itself. A download that was stopped goes on when the command is repeated.
The data root is DIR, else the environment variable FEDWSQ_DATA, else ./data: where runs look, too.

examples:
  fedwsq fetch                                      what there is, how large, on which terms
  fedwsq fetch cifar10
  fedwsq fetch cifar10 --root DIR                   then: fedwsq run cifar10-resnet8 data.root=DIR
  fedwsq fetch cifar10 --url https://my.mirror/f/   from a mirror; the published checksum applies
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "fetch",
        help="download a data set from its publisher",
        description=(
            "Download a data set from its publisher, verify it, and unpack it where runs look."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the data set (default: list what can be fetched)"
    )
    parser.add_argument(
        "--root", default="", metavar="DIR", help="the data root (default: $FEDWSQ_DATA, or ./data)"
    )
    parser.add_argument(
        "--url",
        default="",
        metavar="URL",
        help="a mirror: its folder, ending in /, or the file itself",
    )
    parser.add_argument("--force", action="store_true", help="fetch again what is already there")
    parser.set_defaults(main=later("fedwsq.cli.work.fetch"))
