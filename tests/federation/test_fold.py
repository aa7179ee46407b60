"""Worked numbers of the quantized methods (FedWSQ's golden round, FedHQ+): packets to weights."""

import pytest
import torch

from fedwsq.codecs import Danuq, Fixed
from fedwsq.core.types import Key
from fedwsq.federation.fold import Folded
from fedwsq.plan import WEIGH
from fedwsq.wire import Kind, Line, Link, Message, Schema

SCHEMA = Schema({"w": (4,)})
START = [0.5, -0.3, 0.2, 0.0]
UPDATES = {"a": [0.0012, -0.0021, 0.0002, 0.0030], "b": [-0.0008, 0.0004, -0.0015, 0.0006]}

# server weights after the round: the published code, Algorithm 1's own scales
GOLDEN = {
    1: ([0.5, -0.3, 0.2, 0.0007979],
        [0.5004502958782607, -0.3004502958782607, 0.20045029587826074, 0.0012465318514234094]),
    2: ([0.4997703, -0.3002297, 0.199388, 0.0012444],
        [0.5002022820221615, -0.30091998691318034, 0.19938927633089917, 0.0022148592534161978]),
    4: ([0.5002072, -0.30075435, 0.19936115, 0.00167845],
        [0.5009111347027153, -0.3018665240282025, 0.19949245242424923, 0.003169803222824805]),
}  # fmt: skip


def server(dequantize, aggregation, bits):
    """One FedWSQ round of two clients, as the server folds it; `bits` for each client."""
    folded = Folded({"delta": {"w": torch.zeros(4)}})
    line = Line(Link(Danuq(dequantize=dequantize, scale_init=1e-3), Fixed(4), select="all"), SCHEMA)
    shared = line.init(("delta",))
    for client, (name, rate) in enumerate(zip(UPDATES, bits, strict=True)):
        key = Key(0, 1, client)
        vectors = {"delta": {"w": torch.tensor(UPDATES[name])}}
        sent = line.send(vectors, shared, key, (rate,))
        weight = WEIGH[aggregation](1.0, sent.error)
        line.accumulate(sent.packets, shared, key, folded.vectors, weight)
        folded.weight += weight
        folded.replies.append(Message(Kind.REPLY, key, bytes(16)))
    mean = folded.mean()
    return (torch.tensor(START) + mean.vectors["delta"]["w"]).tolist()


@pytest.mark.parametrize("bits", GOLDEN)
def test_the_golden_round_in_its_two_readings(bits):
    code, own = GOLDEN[bits]
    assert server("shared", "uniform", (bits, bits)) == pytest.approx(code, abs=1e-7)
    assert server("own", "uniform", (bits, bits)) == pytest.approx(own, abs=1e-7)


def test_mixed_bits_share_one_scale():
    expected = [0.5002251, -0.3005878, 0.1997162, 0.00172335]
    assert server("shared", "examples", (4, 1)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("errors", "shares"),
    [
        ([1.3404255319148937, 1.0], [0.4607843137254901, 0.5392156862745099]),  # one bit
        (
            [0.01503546099290779, 0.005714285714285708],
            [0.4976936344310297, 0.5023063655689703],
        ),  # four bits
    ],
)
def test_fedhq_weighs_by_error(errors, shares):
    weights = [WEIGH["error"](500.0, error) for error in errors]
    assert [weight / sum(weights) for weight in weights] == pytest.approx(shares, rel=1e-9)


def test_the_other_weights():
    assert (WEIGH["examples"](300.0, 9.0), WEIGH["uniform"](300.0, 9.0)) == (300.0, 1.0)


def test_a_mean_carries_the_clients_mean_metrics():
    folded = Folded({"delta": {"w": torch.tensor([4.0])}}, weight=2.0)
    for lr_sum in (1.0, 3.0):
        metrics = {"lr_sum": lr_sum}
        folded.replies.append(Message(Kind.REPLY, Key(0, 1, 0), bytes(16), metrics=metrics))
    mean = folded.mean()
    assert mean.vectors["delta"]["w"].tolist() == [2.0]
    assert mean.metrics == {"lr_sum": 2.0}


def test_one_client_can_neither_add_a_metric_nor_take_one_away():
    folded = Folded({"delta": {"w": torch.tensor([4.0])}}, weight=2.0)
    for metrics in ({"lr_sum": 1.0}, {"lr_sum": 3.0}, {"mine": 7.0}):
        folded.replies.append(Message(Kind.REPLY, Key(0, 1, 0), bytes(16), metrics=metrics))
    assert folded.mean().metrics == {"lr_sum": 2.0}
