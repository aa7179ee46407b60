"""Error feedback: what a code lost is part of what its sender codes next."""

import pytest
import torch

from fedwsq.codecs import CODECS, Fixed
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Key
from fedwsq.federation.server import Federation
from fedwsq.federation.site import RESIDUAL, Site
from fedwsq.federation.workload import build_workload
from fedwsq.transports.pool import Serial
from fedwsq.wire import Link, Schema
from harness import tiny

ONE = Schema({"w": (2,)})
SIGN = CODECS["sign"]()


def link(feedback=True, codec=SIGN):
    return Link(codec, Fixed(1), select="all", error_feedback=feedback)


def send(sender, values, residuals=None, round_=1, schema=ONE):
    x = torch.tensor(values)
    return sender.send({"delta": {"w": x}}, {}, Key(0, round_, 0), (1.0,), schema, residuals)


def arrived(sender, sent, round_=1, schema=ONE):
    return sender.receive(sent.packets, {}, Key(0, round_, 0), schema)["delta"]["w"]


def test_two_rounds_by_hand():
    first = send(link(), [3.0, -1.0])
    assert arrived(link(), first).tolist() == [2.0, -2.0]  # the signs, times the mean magnitude
    assert first.residuals["delta"]["w"].tolist() == [1.0, 1.0]
    second = send(link(), [0.5, -2.0], first.residuals, 2)  # codes [1.5, -1]: mean magnitude 1.25
    assert arrived(link(), second, 2).tolist() == [1.25, -1.25]
    assert second.residuals["delta"]["w"].tolist() == [0.25, 0.25]


def test_nothing_is_lost_for_good():
    generator, sender = torch.Generator().manual_seed(0), link()
    schema, total, through, residuals = Schema({"w": (50,)}), torch.zeros(50), torch.zeros(50), None
    for round_ in range(1, 60):
        x = torch.randn(50, generator=generator)
        total += x
        sent = send(sender, x.tolist(), residuals, round_, schema)
        residuals = sent.residuals
        through += arrived(sender, sent, round_, schema)
    torch.testing.assert_close(through + residuals["delta"]["w"], total, rtol=0, atol=1e-4)


def test_without_feedback_nothing_is_kept():
    sent = send(link(feedback=False), [3.0, -1.0])
    assert sent.residuals == {}
    assert arrived(link(), sent).tolist() == [2.0, -2.0]


def test_a_lossless_tensor_has_no_residual():
    schema = Schema({"conv0": (1, 1, 1), "conv1": (2, 1, 1), "bias": (3,)})
    sender = Link(SIGN, Fixed(1), error_feedback=True)  # the published selection: conv1
    vectors = {"delta": {name: torch.ones(shape) for name, shape in schema.shapes.items()}}
    sent = sender.send(vectors, {}, Key(0, 1, 0), (1.0,), schema)
    assert list(sent.residuals["delta"]) == ["conv1"]


def distance(feedback, rounds=150):
    """Ten clients descend |w - a_i|^2 / 2 with signs going up; how far the server ends from the optimum."""
    generator = torch.Generator().manual_seed(1)
    targets, weights = torch.randn(10, 20, generator=generator) * 5, torch.logspace(-2, 0, 20)
    w, schema, sender = torch.zeros(20), Schema({"w": (20,)}), link(feedback)
    memory = [None] * 10
    for round_ in range(1, rounds + 1):
        mean = torch.zeros(20)
        for client, target in enumerate(targets):
            sent = send(
                sender, (-0.2 * weights * (w - target)).tolist(), memory[client], round_, schema
            )
            memory[client] = sent.residuals
            mean += arrived(sender, sent, round_, schema) / 10
        w = w + mean
    # Weighted like the loss: coordinates differ in curvature, which is what signs alone get wrong.
    return float((weights * (w - targets.mean(0)).square()).sum())


def test_signs_with_feedback_reach_the_optimum_that_signs_alone_miss():
    with_feedback, without = distance(True), distance(False)
    assert with_feedback < 0.2 * without


@pytest.mark.parametrize(("codec", "bits"), [("uq", 1), ("uq", 2), ("qsgd", 2), ("nf", 1)])
def test_a_code_that_loses_more_than_it_is_given_is_not_fed_back(codec, bits):
    with pytest.raises(
        ConfigError, match=rf"{codec} at {bits} bits loses .* times that on normal data"
    ):
        link(codec=CODECS[codec]()) if bits == 1 else Link(
            CODECS[codec](), Fixed(bits), error_feedback=True
        )


def test_feedback_on_a_rest_that_is_empty_keeps_no_memory():
    settings = {
        "uplink": {"codec": "float32", "select": "all", "rest": "danuq8", "error_feedback": True}
    }
    workload = build_workload(
        tiny(rounds=3, **settings, **{"data.clients": 2, "clients_per_round": 2})
    )
    server = Federation(workload, Serial(Site(workload, torch.device("cpu"))))
    assert [server.step().failures for _ in range(2)] == [{}, {}]


def test_a_codec_with_one_rate_needs_tensors_too():
    convolutions_only = Link(SIGN, Fixed(1))
    with pytest.raises(ConfigError, match="chooses no tensor of this model"):
        convolutions_only.coded(ONE)


SETTINGS = {"uplink": {"codec": "sign", "select": "weights", "error_feedback": True}}


def test_a_client_that_skips_rounds_goes_on_from_its_last_residual():
    # Two of four clients a round: the residual of round r is what the next order's generation holds.
    plan = tiny(rounds=6, **SETTINGS, **{"data.clients": 4, "clients_per_round": 2})
    workload = build_workload(plan)
    site = Site(workload, torch.device("cpu"))
    server, last = Federation(workload, Serial(site)), {}
    loaded = []
    original = site.store.load
    site.store.load = lambda client, generation: (
        loaded.append((client, generation)) or original(client, generation)
    )
    gaps = set()
    for number in range(1, 7):
        loaded.clear()
        before = server.snapshot.accepted
        assert server.step().failed == 0
        for client in (server.snapshot.accepted == number).nonzero()[0].tolist():
            if before[client]:
                assert (client, before[client]) in loaded
                gaps.add(number - before[client])
            last[client] = number
    assert max(gaps) > 1  # somebody did skip
    memory = original(*next(iter(last.items())))
    assert all(name.startswith(RESIDUAL) for name in memory)
    assert any(x.any() for params in memory.values() for x in params.values())
