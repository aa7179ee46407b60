"""Error feedback: what a code lost is part of what its sender codes next."""

import pytest
import torch

from fedwsq.codecs import CODECS, Fixed
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Key
from fedwsq.federation.simulation import simulate
from fedwsq.transports import Serial
from fedwsq.wire import Line, Link, Schema
from harness import tiny

ONE = Schema({"w": (2,)})
SIGN = CODECS["sign"]()


def line(feedback=True, schema=ONE):
    return Line(Link(SIGN, Fixed(1), select="all", error_feedback=feedback), schema)


def send(sender, values, residuals=None, number=1):
    x = torch.tensor(values)
    return sender.send({"delta": {"w": x}}, {}, Key(0, number, 0), (1.0,), residuals)


def arrived(sender, sent, number=1):
    return sender.receive(sent.packets, {}, Key(0, number, 0))["delta"]["w"]


def test_two_rounds_by_hand():
    first = send(line(), [3.0, -1.0])
    assert arrived(line(), first).tolist() == [2.0, -2.0]  # the signs, times the mean magnitude
    assert first.residuals["delta"]["w"].tolist() == [1.0, 1.0]
    second = send(line(), [0.5, -2.0], first.residuals, 2)  # codes [1.5, -1]: mean magnitude 1.25
    assert arrived(line(), second, 2).tolist() == [1.25, -1.25]
    assert second.residuals["delta"]["w"].tolist() == [0.25, 0.25]


def test_nothing_is_lost_for_good():
    generator = torch.Generator().manual_seed(0)
    sender = line(schema=Schema({"w": (50,)}))
    total = torch.zeros(50)
    through = torch.zeros(50)
    residuals = None
    for number in range(1, 60):
        x = torch.randn(50, generator=generator)
        total += x
        sent = send(sender, x.tolist(), residuals, number)
        residuals = sent.residuals
        through += arrived(sender, sent, number)
    torch.testing.assert_close(through + residuals["delta"]["w"], total, rtol=0, atol=1e-4)


def test_without_feedback_nothing_is_kept():
    sent = send(line(feedback=False), [3.0, -1.0])
    assert sent.residuals == {}
    assert arrived(line(), sent).tolist() == [2.0, -2.0]


def test_a_lossless_tensor_has_no_residual():
    schema = Schema({"conv0": (1, 1, 1), "conv1": (2, 1, 1), "bias": (3,)})
    # The published selection: conv1.
    sender = Line(Link(SIGN, Fixed(1), error_feedback=True), schema)
    vectors = {"delta": {name: torch.ones(shape) for name, shape in schema.shapes.items()}}
    sent = sender.send(vectors, {}, Key(0, 1, 0), (1.0,))
    assert list(sent.residuals["delta"]) == ["conv1"]


def distance(feedback, rounds=150):
    """Ten clients descend |w - a_i|^2 / 2 with signs going up; how far the server ends from the
    optimum.
    """
    generator = torch.Generator().manual_seed(1)
    targets = torch.randn(10, 20, generator=generator) * 5
    weights = torch.logspace(-2, 0, 20)
    sender = line(feedback, Schema({"w": (20,)}))
    w = torch.zeros(20)
    memory = [None] * 10
    for number in range(1, rounds + 1):
        mean = torch.zeros(20)
        for client, target in enumerate(targets):
            step = -0.2 * weights * (w - target)
            sent = send(sender, step.tolist(), memory[client], number)
            memory[client] = sent.residuals
            mean += arrived(sender, sent, number) / 10
        w = w + mean
    # Weighted like the loss: coordinates differ in curvature, which is what signs alone get wrong.
    return float((weights * (w - targets.mean(0)).square()).sum())


def test_signs_with_feedback_reach_the_optimum_that_signs_alone_miss():
    assert distance(feedback=True) < 0.2 * distance(feedback=False)


@pytest.mark.parametrize("select", ["published", "all"])
@pytest.mark.parametrize(("codec", "bits"), [("uq", 1), ("uq", 2), ("qsgd", 2), ("nf", 1)])
def test_a_code_that_loses_more_than_it_is_given_is_not_fed_back(codec, bits, select):
    text = rf"{codec} at {bits} bits loses .* times that on normal data"
    with pytest.raises(ConfigError, match=text):
        Link(CODECS[codec](), Fixed(bits), select, error_feedback=True)


def test_feedback_on_a_rest_that_is_empty_keeps_no_memory():
    uplink = {"codec": "float32", "select": "all", "rest": "danuq8", "error_feedback": True}
    everyone = {"data.clients": 2, "clients_per_round": 2}
    simulation = simulate(tiny(rounds=3, uplink=uplink, **everyone))
    server = simulation.server(simulation.serial(torch.device("cpu")))
    assert [server.step().failures for _ in range(2)] == [{}, {}]


def test_a_codec_with_one_rate_needs_tensors_too():
    convolutions_only = Line(Link(SIGN, Fixed(1)), ONE)
    with pytest.raises(ConfigError, match="chooses no tensor of this model"):
        convolutions_only.coded  # noqa: B018  looking is enough


def test_a_client_that_skips_rounds_goes_on_from_its_last_residual(monkeypatch):
    # Two of four clients a round: the residual of round r is what the next order's generation
    # holds.
    uplink = {"codec": "sign", "select": "weights", "error_feedback": True}
    simulation = simulate(
        tiny(rounds=6, uplink=uplink, **{"data.clients": 4, "clients_per_round": 2})
    )
    site = simulation.site(torch.device("cpu"))
    server = simulation.server(Serial(site.answer))
    original = site.store.load
    loaded = []

    def load(client, generation):
        loaded.append((client, generation))
        return original(client, generation)

    monkeypatch.setattr(site.store, "load", load)
    last = {}
    gaps = set()
    for number in range(1, 7):
        loaded.clear()
        before = server.snapshot.accepted
        assert server.step().failures == {}
        for client in (server.snapshot.accepted == number).nonzero()[0].tolist():
            if before[client]:
                assert (client, before[client]) in loaded
                gaps.add(number - before[client])
            last[client] = number
    assert max(gaps) > 1  # somebody did skip

    memory = original(*next(iter(last.items())))
    assert memory.algorithm == memory.model == {}
    assert any(x.any() for params in memory.residuals.values() for x in params.values())
