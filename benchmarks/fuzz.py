"""Damaged inputs, counted: what is refused, what is read, what it takes.

    python benchmarks/fuzz.py [--messages 1000000] [--others 100000] [--write FILE.json]

Every kind runs in a process of its own, from the committed corpus and a seed; a third of the
inputs is damaged as it stands, the others where it hurts, with checksums made to fit. A finding is
anything but a refusal in one line; there must be none. The figures of a kind are written when it
is done, and a kind that is in FILE already is not run again.
"""

import json
import subprocess
import sys
from pathlib import Path

from script import parser

FUZZ = Path(__file__).parents[1] / "tests" / "fuzz"
KINDS = sorted(path.name for path in (FUZZ / "corpus").iterdir())


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--messages", type=int, default=1_000_000)
    words.add_argument("--others", type=int, default=100_000)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--write", type=Path)
    args = words.parse_args()

    found = {}
    if args.write and args.write.exists():
        found = json.loads(args.write.read_text())
    for kind in KINDS:
        count = args.messages if kind == "messages" else args.others
        if found.get(kind, {}).get("inputs") == count:
            continue
        command = [sys.executable, str(FUZZ / "fuzz_campaign.py"), kind, str(args.seed)]
        done = subprocess.run([*command, str(count), "0", ""], stdout=subprocess.PIPE, check=True)
        found[kind] = json.loads(done.stdout)
        print(json.dumps(found[kind]), flush=True)
        if args.write:
            args.write.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if any(each["findings"] for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
