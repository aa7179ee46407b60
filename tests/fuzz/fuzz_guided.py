"""Guided by coverage: `python tests/fuzz/fuzz_guided.py KIND SECONDS [FOLDER]`, with atheris.

Inputs that reach new code are kept in FOLDER and built upon, there and the next time; one that
ends in anything but a refusal ends it all, and is written beside them as `crash-...`.
"""

import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["fedwsq"]):
    from fuzz_damage import damaged
    from fuzz_targets import CORPUS, TARGETS, corpus, outcome


def main(kind: str, seconds: str, folder: str = "") -> None:
    target = TARGETS[kind]
    samples = [target.opened(data) for data in corpus(kind)]

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        """Half of the time ours, which knows words and numbers, and always sealed again."""
        rng = random.Random(seed)
        inner = target.opened(data)
        if rng.random() < 0.5:
            changed = damaged(rng, inner, samples, target.tokens)
        else:
            changed = atheris.Mutate(inner, most)
        return target.sealed(changed)[:most]

    kept = Path(folder or f".fuzz/{kind}")
    kept.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={round(float(seconds))}", "-max_len=65536", "-rss_limit_mb=4096"]
    options += [f"-artifact_prefix={kept}/", "-print_final_stats=1", "-timeout=300"]
    words = [sys.argv[0], *options, str(kept), str(CORPUS / kind)]
    atheris.Setup(words, lambda data: outcome(kind, data), custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
