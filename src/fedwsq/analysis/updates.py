"""How normal client updates are, layer by layer, and what each codec loses on them."""

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.analysis.kept import KeptRound, kept_rounds
from fedwsq.analysis.subject import Found, Options, Subject
from fedwsq.codecs import CODECS, Codec, Danuq
from fedwsq.codecs.grid import Grid
from fedwsq.codecs.levels import levels

REACH = 5.0  # standard deviations that a histogram covers
BINS = 50
SHARES = [(k + 0.5) / 40 for k in range(40)]  # of a Q-Q plot
RATES = (1, 2, 3, 4)
MOST_ELEMENTS = 2**18  # of a tensor that codecs are tried on
SLACK = 1.01  # as many bytes, for a codec whose scales or padding take a few more
LEAST_ERROR = 1e-30  # 0 has no logarithm


def analyze(subject: Subject, options: Options) -> Found:
    """Of every kept round and coded tensor: kurtosis, histogram, quantiles; what codecs lose."""
    coded = subject.simulation.charter.uplink.coded or frozenset(subject.params)
    rounds = {}
    exact = True
    for kept in kept_rounds(subject, options):
        exact = exact and kept.exact
        layers = {name: describe(of_layer(kept, name)) for name in subject.params if name in coded}
        codecs = codec_errors(kept, list(layers))
        rounds[str(kept.number)] = {
            "clients": list(kept.deltas),
            "kurtosis": float(np.median([layer["kurtosis"] for layer in layers.values()])),
            "layers": layers,
            "codecs": codecs,
            "equal_bytes": at_equal_bytes(codecs),
        }
    return {
        "source": "before they were coded" if exact else "as they arrived",
        "bins": np.linspace(-REACH, REACH, BINS + 1).tolist(),
        "normal_quantiles": [NormalDist().inv_cdf(share) for share in SHARES],
        "rounds": rounds,
    }


def of_layer(kept: KeptRound, name: str) -> list[Tensor]:
    return [delta[name] for delta in kept.deltas.values()]


def describe(layer: Sequence[Tensor]) -> Found:
    """The distribution of a tensor's update over all clients, each standardized by itself."""
    values = np.concatenate([standardized(x) for x in layer])
    counts, _ = np.histogram(values, BINS, (-REACH, REACH))
    return {
        "kurtosis": float(np.mean(values**4)),  # 3 for a normal distribution
        "skewness": float(np.mean(values**3)),
        "share": (counts / len(values)).tolist(),
        "quantiles": np.quantile(values, SHARES).tolist(),
        "std": [float(x.double().std()) for x in layer],
    }


def standardized(x: Tensor) -> NDArray[np.float64]:
    """The elements with mean 0 and mean square 1; zeros stay zeros."""
    values: NDArray[np.float64] = x.detach().flatten().double().numpy()
    values = values - values.mean()
    return values / (np.sqrt(np.mean(values**2)) or 1.0)


def codec_errors(kept: KeptRound, names: Sequence[str]) -> dict[str, Found]:
    """What every codec loses and sends at about 1 to 4 bits, all tensors and clients together.

    Codecs that share a scale have the mean of the clients' own.
    """
    found: dict[str, Found] = {}
    for name, cls in CODECS.items():
        codec = cls()
        rates = [rate for rate in RATES if rate in codec.rates]
        if rates:
            found[name] = {str(rate): _error(codec, rate, kept, names) for rate in rates}
    return found


def _error(codec: Codec, rate: int, kept: KeptRound, names: Sequence[str]) -> Found:
    lost = 0.0
    energy = 0.0
    sent = 0
    count = 0
    places = levels_of(codec, rate)
    scales = []  # in units of each update's std
    for name in names:
        layer = [x.flatten()[:MOST_ELEMENTS].clone() for x in of_layer(kept, name)]
        shared = codec.init(layer[0].numel())
        if shared.numel():
            # Their side values are the local scales, whatever the rate and the seed.
            sides = [codec.encode(x, torch.empty(0), rate, seed=0).side for x in layer]
            shared = torch.tensor(sides).mean(0)
        for seed, x in enumerate(layer):
            packet = codec.encode(x, shared, rate, seed)
            left = codec.decode(packet, shared, seed).sub_(x)
            lost += float(left.double().square().sum())
            energy += float(x.double().square().sum())
            sent += len(packet.code) + 4 * len(packet.side)
            count += x.numel()
            if places:
                used = packet.side if packet.own_scale else shared.tolist()
                scales.append(used[0] / (float(x.double().std()) or 1.0))
    found: Found = {
        "error": lost / energy if energy else 0.0,
        "bits": 8 * sent / count,
        "bytes": sent,
    }
    if places:
        # Where most updates have them: scales differ from tensor to tensor.
        scale = float(np.median(scales))
        found["levels"] = [scale * place for place in places]
    return found


def levels_of(codec: Codec, bits: int) -> tuple[float, ...]:
    """A codec's levels in units of its scale; () if it has none, or has them for rotated values."""
    if isinstance(codec, Danuq):
        return levels(bits, codec.levels)
    if isinstance(codec, Grid):
        return codec.levels(bits)
    return ()


def at_equal_bytes(codecs: Mapping[str, Found]) -> Found:
    """The error of every codec at as many bytes as DANUQ sends, at each of its rates.

    Bytes are those of codes and their scales. A codec that was not measured at just as many has
    the value between its next rates below and above, on a straight line through log(error); one
    that cannot send so few or so many, by more than a hundredth, is left out.
    """
    found: Found = {}
    for rate, base in codecs["danuq"].items():
        errors = {}
        for name, rates in codecs.items():
            error = between(list(rates.values()), base["bits"])
            if error is not None:
                errors[name] = error
        found[rate] = {"bits": base["bits"], "bytes": base["bytes"], "errors": errors}
    return found


def between(measured: Sequence[Found], bits: float) -> float | None:
    """The error at so many bits, from measurements at ascending ones; None out of their range."""
    known = [each["bits"] for each in measured]
    if not known[0] / SLACK <= bits <= known[-1] * SLACK:
        return None
    logarithms = np.log([max(each["error"], LEAST_ERROR) for each in measured])
    return float(np.exp(np.interp(bits, known, logarithms)))
