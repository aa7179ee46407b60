"""Every backbone with FedWSQ at 4 bits: the training loss of three rounds, and seconds a round.

    python benchmarks/backbones.py DATA_ROOT [OUT] [--write benchmarks/results/backbones.md]

CIFAR-100 over 100 clients, 2 a round, i.i.d. so that losses of different clients compare, reduced
local work: three epochs in batches of 20 at a rate of 0.05, ten batches an epoch where only 20,000
images are there; all weights coded. Tiny-ImageNet with ResNet-18: 30 clients, 2 a round, one epoch
in batches of 20. Two workers; a round's seconds are without evaluation, which only the last round
has. Runs that are in OUT are not run again.

It shows what a round costs and that every backbone runs, not that every one learns: three rounds of
this little work are too few for that. In the committed results the losses of the MobileViTs do not
fall, and that of shufflenet starts above ln(100), the loss of a guess, and falls by less than 1 %.
"""

import statistics
from pathlib import Path
from typing import Any

import fedwsq
from script import parser, rows

BACKBONES = (
    "vgg9",
    "squeezenet",
    "shufflenet",
    "mobilevit_xxs",
    "resnet18",
    "mobilevit_xs",
    "mobilevit_s",
    "resnet34",
)
COMMON = {
    "method": "fedwsq",
    # Three rounds are too few for the published start to find the scale.
    "uplink.codec.scale_init": "calibrate",
    "uplink.select": "weights",
    "rounds": 3,
    "eval_every": 3,
    "training.epochs": 3,
    "training.lr": 0.05,
}
CIFAR100 = {
    "data.name": "cifar100",
    "data.clients": 100,
    "clients_per_round": 2,
    "training.batch_size": 20,
    "data.partition": "iid",
}
TINY = {
    "data.name": "tinyimagenet",
    "training.epochs": 1,
    "data.clients": 30,
    "clients_per_round": 2,
    "training.batch_size": 20,
    "data.partition": "iid",
}

NOTE = "A guess has a loss of ln(100) = 4.605 on CIFAR-100 and ln(200) = 5.298 on Tiny-ImageNet."


def run(model: str, settings: dict[str, Any], data: Path, out: Path) -> str:
    if not (out / "rounds.jsonl").exists():
        plan = {**COMMON, **settings, "data.root": str(data), "model.name": model}
        fedwsq.run("cifar10", plan, out=out)
    found = rows(out)
    last = found[-1]
    losses = ", ".join(f"{row['train_loss']:.3f}" for row in found)
    seconds = statistics.median(row["seconds"] - row["eval_seconds"] for row in found)
    bits = 32 * last["uplink_bytes"] / last["uplink_bytes_float32"]
    scores = f"{losses} | {last['test_loss']:.3f} | {seconds:.1f} | {bits:.2f}"
    line = f"| {settings['data.name']} | {model} | {scores} |"
    print(line, flush=True)
    return line


if __name__ == "__main__":
    words = parser(__doc__)
    words.add_argument("data", type=Path)
    words.add_argument("out", type=Path, nargs="?", default=Path("runs/backbones"))
    words.add_argument("--write", type=Path)
    args = words.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [
        "| data | backbone | training loss, rounds 1, 2, 3 | test loss "
        "| seconds a round | uplink bits a parameter |",
        "|---|---|---|---|---|---|",
    ]
    for name in BACKBONES:
        lines.append(run(name, CIFAR100, args.data, args.out / name))
    lines.append(run("resnet18", TINY, args.data, args.out / "tiny-resnet18"))
    if args.write:
        args.write.write_text("\n".join([*lines, "", NOTE]) + "\n")
