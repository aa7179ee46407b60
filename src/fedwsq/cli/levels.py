"""`fedwsq levels`: DANUQ's quantization levels."""

import argparse

from fedwsq.codecs.levels import LEVEL_KINDS, levels, normal_bias, normal_entropy, normal_error


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "levels",
        help="print DANUQ's levels, with their error on the normal distribution",
        description="Print DANUQ's levels for N(0, 1), and their expected squared error, bias and entropy.",
        epilog="examples:\n  fedwsq levels 4\n  fedwsq levels 4 --kind optimal\n  fedwsq levels 2 --kind lloyd-max\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bits", type=int, metavar="BITS", help="1, 2 or 4; 1 to 8 for the kinds that are solved for")
    parser.add_argument("--kind", default="paper", help=f"{', '.join(LEVEL_KINDS)} (default: paper)")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Print them."""
    found = levels(args.bits, args.kind)
    print("\n".join(f"{value: .10f}" for value in found))
    print(f"mse     {normal_error(found):.7g}")
    print(f"bias    {normal_bias(found):.3g}")
    print(f"entropy {normal_entropy(found):.5f} bits")
    return 0
