"""How far clients pull apart: their updates against the mean of all, by layer and round."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedwsq.analysis.kept import kept_rounds
from fedwsq.analysis.subject import Found, Options, Subject


def analyze(subject: Subject, options: Options) -> Found:
    """Cosine to the mean update, and norm over the mean's norm, of every client."""
    rounds: Found = {}
    for kept in kept_rounds(subject, options):
        deltas = list(kept.deltas.values())
        layers = {}
        for name in subject.params:
            layers[name] = against_mean([delta[name].flatten() for delta in deltas])
        whole = [torch.cat([x.flatten() for x in delta.values()]) for delta in deltas]
        rounds[str(kept.number)] = {
            "clients": list(kept.deltas),
            "exact": kept.exact,
            "all": against_mean(whole),
            "layers": layers,
        }
    return {"rounds": rounds}


def against_mean(vectors: Sequence[Tensor]) -> Found:
    """Each vector against the plain mean of all; 0 where either is zero."""
    mean = torch.stack([x.double() for x in vectors]).mean(0)
    length = float(mean.norm())
    cosines = []
    norms = []
    for x in vectors:
        norm = float(x.double().norm())
        together = norm * length
        cosines.append(float(x.double() @ mean) / together if together else 0.0)
        norms.append(norm / length if length else 0.0)
    return {"cosine": cosines, "norm": norms}
