"""Published methods by name: each is a composition along the four axes, never a copy.

`fedwsq run method=fedwsq` expands to what is written here; the resolved `config.toml` spells it
out. Everything can still be overridden:
`method=fedacg uplink.codec=danuq uplink.bits=1 model.standardize=true`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

# Every method starts from here, on all four axes, so that nothing of another one is left over.
PLAIN: dict[str, Any] = {
    "algorithm": "fedavg",
    "model.standardize": "none",
    "uplink": {"codec": "float32"},
    "aggregation": "examples",
    "training.decay_on": "clients",
}


class Method(NamedTuple):
    """One row of `docs/methods.md`, and the settings that make it so."""

    idea: str
    settings: Mapping[str, Any]  # by dotted key, over PLAIN
    client: str = "cross-entropy"  # what local training minimizes
    server: str = "w + mean delta"  # the new weights
    state: str = "none"  # what is remembered from round to round, and by whom
    extra_bytes: str = "none"  # over FedAvg in float32
    departs: str = ""  # from the paper it cites, and why
    cites: str = ""


METHODS: dict[str, Method] = {
    "fedavg": Method("train locally, average", {"algorithm": "fedavg"}, cites="arXiv:1602.05629"),
    "fedprox": Method(
        "a pull towards the received model",
        {"algorithm": "fedprox"},
        client="cross-entropy + mu |w - sent|^2",
        departs='no 1/2 in the term, as in the published code; `prox = "half"` is the paper',
        cites="arXiv:1812.06127",
    ),
    "fedavgm": Method(
        "momentum on the server",
        {"algorithm": {"name": "fedavg", "server": {"name": "momentum", "beta": 0.4}}},
        server="m <- beta m + mean delta; w + m",
        state="server: m",
        cites="arXiv:1909.06335",
    ),
    "fedadam": Method(
        "Adam on the server",
        {"algorithm": {"name": "fedavg", "server": {"name": "adam"}}},
        server="w + lr m / (sqrt(v) + tau)",
        state="server: m, v",
        departs="v starts at tau^2, no bias correction, as in the paper",
        cites="arXiv:2003.00295",
    ),
    "feddyn": Method(
        "a linear term that makes local optima agree",
        {"algorithm": "feddyn", "aggregation": "uniform"},
        client="cross-entropy - <g, w> + (alpha/2) |w - sent|^2",
        server="h <- h - alpha (replied / population) mean delta; w + mean delta - h / alpha",
        state="server: h; client: g",
        departs=(
            "alpha is the same for all clients and everything is in the (clipped) loss; for the "
            "plain mean"
        ),
        cites="arXiv:2111.04263",
    ),
    "fedacg": Method(
        "clients start from a look-ahead point",
        {"algorithm": "fedacg"},
        client="cross-entropy + beta |w - sent|^2",
        server="m <- lam m + mean delta; w + m; sends w + lam m",
        state="server: m",
        departs='no 1/2 in the term, as in the published code; `prox = "half"` is the paper',
        cites="arXiv:2201.03172",
    ),
    "fedsmoo": Method(
        "consensus and flat minima together",
        {"algorithm": "fedsmoo", "aggregation": "uniform"},
        client="cross-entropy at w + e, dynamic regularization of w and e; two passes a step",
        server="s <- rho mean mu / |mean mu|; w + mean delta + mean h",
        state="server: s, h; client: h, mu",
        extra_bytes="s down and mu up: twice both ways",
        departs="as in FL-Simulator, which drops a small term of the s update; for the plain mean",
        cites="arXiv:2305.11584",
    ),
    "fedlc": Method(
        "calibrate logits by class counts",
        {"algorithm": "fedlc"},
        client="cross-entropy of z - tau n_c^(-1/4)",
        departs=(
            'softmax over present classes, as in the published code; `form = "paper"` leaves out '
            "the true class"
        ),
        cites="arXiv:2209.00189",
    ),
    "fedntd": Method(
        "keep what the received model says of wrong classes",
        {"algorithm": "fedntd"},
        client="(1 - beta) cross-entropy + beta KL over the not-true classes",
        departs=(
            'weights 0.7 and 0.3 without tau^2, as in the FedACG code; `form = "official"` is the'
            " authors'"
        ),
        cites="arXiv:2106.03097",
    ),
    "fedmlb": Method(
        "local features through the received model's later blocks",
        {"algorithm": "fedmlb"},
        client="cross-entropy + lambda1 branch cross-entropy + lambda2 branch KL",
        departs="none known; needs a model with stages",
        cites="arXiv:2207.06936",
    ),
    "feddecorr": Method(
        "decorrelate the penultimate feature",
        {"algorithm": "feddecorr"},
        client="cross-entropy + beta mean squared off-diagonal of Z'Z / n",
        departs="the published code's scale, which grows with the batch; needs a model with stages",
        cites="arXiv:2210.00226",
    ),
    "fedrcl": Method(
        "relaxed contrastive learning over all stages",
        {"algorithm": "fedrcl"},
        client="cross-entropy + contrastive term + beta penalty on too similar pairs",
        departs=(
            "hardest positive, two negatives, one pair, as in the published code; needs a model "
            "with stages"
        ),
        cites="arXiv:2401.04928",
    ),
    "scaffold": Method(
        "control variates against client drift",
        {"algorithm": "scaffold", "aggregation": "uniform"},
        client="gradient + c - c_i",
        server="w + mean delta; c + (replied / population) mean change of c_i",
        state="server: c; client: c_i",
        extra_bytes="c down and its change up: twice both ways",
        departs="option II; for the plain mean and plain SGD",
        cites="arXiv:1910.06378",
    ),
    "fedcm": Method(
        "client steps along the last round's mean direction",
        {"algorithm": "fedcm"},
        client="alpha gradient + (1 - alpha) D",
        server="w + mean delta; D <- -mean delta / sum of learning rates",
        state="server: D",
        extra_bytes="D down: twice the downlink",
        departs="D is measured with the rates of its own round; for plain SGD",
        cites="arXiv:2106.10874",
    ),
    "fedwon": Method(
        "no normalization, scaled weight standardization",
        {"algorithm": "fedwon", "model.standardize": "scaled"},
        extra_bytes="a gain and a bias for each output channel, no norm parameters",
        departs=(
            'raw weights are exchanged; `exchange = "wsp"` is what the FedWSQ paper says FedWon '
            "does; LayerNorms stay; gamma assumes a ReLU after each convolution: the other "
            "resnets and VGG-like networks start well, resnet34 with logits of some 100, "
            "shufflenet with thousands"
        ),
        cites="arXiv:2306.05879",
    ),
    "fedpaq": Method(
        "uniform stochastic quantization of updates",
        {"uplink": {"codec": "uq", "bits": 4}},
        extra_bytes="B bits a coded weight instead of 32",
        departs=(
            "absmax scale for each tensor instead of the L2 norm, on the tensors that FedWSQ codes"
        ),
        cites="arXiv:1909.13014",
    ),
    "fedhq+": Method(
        "weigh clients by the error of their code",
        {"uplink": {"codec": "uq", "bits": 4}, "aggregation": "error"},
        server="w + sum p_i delta_i, p_i proportional to 1 / (1 + error_i)",
        extra_bytes="as fedpaq; the error travels in the message's header",
        departs="the weights are derived from the idea, the paper's formula was not available",
        cites="Chen et al., 2021 (FedHQ)",
    ),
    "fedws": Method(
        "weight standardization",
        {"model.standardize": "ws"},
        departs=(
            "unbiased std and eps outside the root, as in the published code; rho also multiplies"
            " a convolution's bias, which neither paper nor code does (vgg9, squeezenet and "
            "shufflenet have biases, and learned nothing without)"
        ),
        cites="FedWSQ",
    ),
    "fedwsq": Method(
        "weight standardization and DANUQ",
        {"model.standardize": "ws", "uplink": {"codec": "danuq", "bits": 4}},
        state="server: one scale a coded tensor",
        extra_bytes="B bits a coded weight instead of 32, one scale a coded tensor both ways",
        departs=(
            "as fedws, biases included; dequantizes with the shared scale, as in the published "
            "code; weighted by examples as in Eq. 1"
        ),
        cites="FedWSQ",
    ),
    "fedwsq-secure": Method(
        "FedWSQ at one bit, summed under masks",
        {
            "model.standardize": "ws",
            "uplink": {"codec": "danuq", "bits": 1, "secure": True},
            "aggregation": "uniform",
        },
        state="server: one scale a coded tensor; client: its secrets of the round",
        extra_bytes="3 bits a coded weight up for 5 clients a round; keys and shares",
        departs=(
            "not of the paper: scales are agreed before anything is coded, and the server learns "
            "the sum of the updates alone (docs/secure.md)"
        ),
        cites="FedWSQ",
    ),
    "fedwsq-lean": Method(
        "fewest bytes to an accuracy: acceleration, and what was learned entropy-coded both ways",
        {
            "algorithm": "fedacg",
            "model.standardize": "ws",
            "training.decay_on": "server",
            "uplink": {
                "codec": "ecq",
                "bits": {"name": "growing", "every": 36, "choices": [0.25, 0.5]},
                "spread": "tensors",
                "rest": "danuq4",
            },
            "downlink": {
                "mode": "start",
                "codec": "ecq",
                "bits": {"name": "growing", "every": 12, "choices": [0.25, 0.5, 1, 1.5, 2]},
                "spread": "tensors",
                "rest": "danuq4",
            },
        },
        client="cross-entropy + beta |w - sent|^2, no weight decay",
        server="m <- lam m + mean delta, decayed; w + m; sends w + lam m",
        state="server: m",
        extra_bytes=(
            "a quarter of a bit a coded weight up, half a bit from round 37 on; down a quarter of "
            "a bit, 2 bits from round 49 on; 4 bits for the rest"
        ),
        departs=(
            "not of the paper: FedACG with its weight standardization, and another code in both "
            "directions (benchmarks/RESULTS.md)"
        ),
        cites="FedWSQ; arXiv:2201.03172",
    ),
}
