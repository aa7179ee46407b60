"""Two lines in an app of Flower's shape: what its strategy and its clients see, and the bytes."""

import random

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg
from in_process import InProcess

import fedwsq
from fedwsq.core.errors import ConfigError
from fedwsq.flower.arrays import WISH, sealed

NODES = (11, 12, 13)


def model():
    rng = torch.Generator().manual_seed(0)
    return {
        "conv": torch.randn(16, 8, 3, 3, generator=rng),
        "norm": 1 + 0.1 * torch.rand(32, generator=rng),
        "linear": torch.randn(200, 300, generator=rng),
        "tiny": torch.tensor([[1.5, -2.5]]),
        "count": torch.tensor(7),
    }


def steps(node):
    """What a node adds to each float array, always the same."""
    rng = torch.Generator().manual_seed(node)
    return {name: 0.01 * torch.randn(x.shape, generator=rng) for name, x in model().items()}


def trained(node, tensors):
    found = {}
    for name, x in tensors.items():
        found[name] = x + steps(node)[name] if x.is_floating_point() else x + 1
    return found


def app_of(node, work=trained, mods=(fedwsq.flower.compress_mod,), key="arrays"):
    """A ClientApp of Flower's usual shape."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        tensors = message.content["arrays"].to_torch_state_dict()
        arrays = ArrayRecord(work(node, tensors))
        metrics = MetricRecord({"num-examples": 10, "train_loss": 1.0})
        content = RecordDict({key: arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        names = list(message.content["arrays"])
        assert names == list(model())
        assert WISH not in message.content
        metrics = MetricRecord({"num-examples": 10, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def averaging():
    return FedAvg(fraction_evaluate=0.0)


def played(strategy, rounds=1, apps=None, arrays=None):
    """The grid and the arrays after some rounds."""
    random.seed(0)  # Flower adds replies up in the order in which it drew the nodes
    grid = InProcess(apps or {node: app_of(node) for node in NODES})
    start = ArrayRecord(model()) if arrays is None else arrays
    result = strategy.start(grid, start, num_rounds=rounds)
    return grid, result.arrays


def mean_step(name):
    return sum(steps(node)[name] for node in NODES) / len(NODES)


# What arrives.


def test_without_the_servers_line_the_clients_line_changes_nothing():
    grid, arrays = played(averaging())
    plain, expected = played(averaging(), apps={node: app_of(node, mods=()) for node in NODES})
    assert (grid.up_bytes, grid.down_bytes) == (plain.up_bytes, plain.down_bytes)
    assert arrays == expected


@pytest.mark.parametrize(("bits", "least", "error"), [(4, 7, 0.02), (1, 18, 0.45)])
def test_updates_are_coded_and_the_strategy_sees_whole_models(bits, least, error):
    plain, _ = played(averaging())
    grid, arrays = played(fedwsq.flower.compress(averaging(), codec="danuq", bits=bits))
    assert plain.up_bytes > least * grid.up_bytes
    # The wish goes along: a label of the codec's settings.
    assert plain.down_bytes < grid.down_bytes < plain.down_bytes + 2 * 3 * 1000
    found = arrays.to_torch_state_dict()
    assert list(found) == list(model())
    for name in ("conv", "linear"):
        moved = found[name] - model()[name]
        lost = (moved - mean_step(name)).square().mean() / mean_step(name).square().mean()
        assert lost < error
        assert found[name].dtype == torch.float32


def test_norms_tiny_arrays_and_integers_are_exact():
    _, expected = played(averaging())
    _, found = played(fedwsq.flower.compress(averaging(), bits=1, down_bits=1))
    for name in ("norm", "tiny", "count"):
        assert found[name] == expected[name]


@pytest.mark.parametrize("bits", [None, 4, 1])
def test_a_coded_model_is_not_what_the_server_goes_on_with(bits):
    """Clients that learn nothing leave the server's model as it was, bit for bit."""
    seen = []

    def idle(node, tensors):
        seen.append(tensors["linear"])
        return tensors

    strategy = fedwsq.flower.compress(averaging(), bits=bits, down_bits=1)
    # Two of them: their weights of a half make no rounding error in Flower's mean.
    _, found = played(strategy, 3, {node: app_of(node, idle) for node in NODES[:2]})
    assert {**found, "count": 7} == {**ArrayRecord(model()), "count": 7}
    assert len(seen[0].unique()) == 2


def test_both_directions_and_what_goes_out_to_be_evaluated():
    plain, _ = played(FedAvg())
    grid, _ = played(fedwsq.flower.compress(FedAvg(), bits=1, down_bits=4))
    assert plain.up_bytes > 18 * grid.up_bytes
    assert plain.down_bytes > 7 * grid.down_bytes
    down, _ = played(fedwsq.flower.compress(FedAvg(), bits=None, down_bits=4))
    assert plain.down_bytes > 7 * down.down_bytes
    assert down.up_bytes == pytest.approx(plain.up_bytes, rel=0.05)


def test_types_and_order_stay():
    rng = np.random.default_rng(0)
    given = {
        "z": rng.standard_normal((20, 20)).astype(np.float16),
        "a": rng.standard_normal((20, 20)),
        "flags": np.array([True, False]),
        "bytes": np.arange(200, dtype=np.uint8),
        "none": np.zeros((0, 3), np.float32),
    }
    arrays = ArrayRecord({name: Array(x) for name, x in given.items()})
    got = {}

    def keep(node, tensors):
        got.update(tensors)
        return tensors

    class Last(FedAvg):
        def aggregate_train(self, server_round, replies):
            return next(iter(replies)).content["arrays"], None

    app = app_of(11, keep)
    strategy = Last(fraction_evaluate=0, min_train_nodes=1, min_available_nodes=1)
    _, found = played(fedwsq.flower.compress(strategy, down_bits=4), 1, {11: app}, arrays)
    assert list(got) == list(found) == list(given)
    for name, x in given.items():
        assert found[name].numpy().dtype == x.dtype
        assert np.array_equal(found[name].numpy(), x)
    assert got["a"].dtype == torch.float64


def test_what_a_code_lost_comes_with_the_next_update():
    rounds = 25
    start = {"conv": model()["conv"]}
    expected = start["conv"] + rounds * steps(11)["conv"]

    def off(error_feedback):
        """How far from where exact updates lead."""
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        strategy = fedwsq.flower.compress(strategy, "danuq", 1, None, error_feedback)
        grid, found = played(strategy, rounds, {11: app_of(11)}, ArrayRecord(start))
        state = grid.contexts[11].state
        assert state[WISH + " arrays"]["messages"] == rounds
        assert len(state[WISH + " arrays residuals"]) == int(error_feedback)
        return (found.to_torch_state_dict()["conv"] - expected).norm()

    assert off(error_feedback=True) < off(error_feedback=False) / 4


def test_a_node_that_lost_its_memory_goes_on():
    strategy = fedwsq.flower.compress(averaging(), bits=1)
    grid = InProcess({node: app_of(node) for node in NODES})
    strategy.start(grid, ArrayRecord(model()), num_rounds=2)
    grid.contexts[11].state.clear()
    assert strategy.start(grid, ArrayRecord(model()), num_rounds=2).arrays is not None


# Other shapes of apps.


def test_a_client_may_return_its_arrays_under_another_name():
    plain, _ = played(averaging())
    apps = {node: app_of(node, key="my-model") for node in NODES}
    grid, arrays = played(fedwsq.flower.compress(averaging()), apps=apps)
    assert plain.up_bytes > 7 * grid.up_bytes
    assert list(arrays) == list(model())


def test_several_records_each_have_their_own():
    app = ClientApp(mods=[fedwsq.flower.compress_mod])

    @app.train()
    def train(message, context):
        content = RecordDict()
        for name, record in message.content.array_records.items():
            content[name] = ArrayRecord(trained(11, record.to_torch_state_dict()))
        content["extra"] = ArrayRecord({"mine": torch.ones(40, 40)})
        return Message(content, reply_to=message)

    first = {"linear": torch.zeros(200, 300)}
    second = {"conv": torch.ones(16, 8, 3, 3)}
    replies = []

    class Two(FedAvg):
        def start(self, grid, arrays):
            content = RecordDict({"one": arrays, "two": ArrayRecord(second)})
            message = Message(content, 11, "train")
            (sent,) = grid.push_messages([message])
            replies.extend(grid.pull_messages([sent]))
            return strategies.Result()

    grid = InProcess({11: app})
    fedwsq.flower.compress(Two(), down_bits=4).start(grid, ArrayRecord(first))
    (reply,) = replies
    for key, name, start in (("one", "linear", first), ("two", "conv", second)):
        found = reply.content[key].to_torch_state_dict()[name] - start[name]
        torch.testing.assert_close(found, steps(11)[name], rtol=0, atol=0.03)
    # What came from nowhere travels as it is.
    assert torch.equal(reply.content["extra"].to_torch_state_dict()["mine"], torch.ones(40, 40))
    assert f"{WISH} one residuals" in grid.contexts[11].state
    assert f"{WISH} two residuals" in grid.contexts[11].state


def test_arrays_of_another_make_travel_as_they_are(caplog):
    blob = Array(dtype="sparse", shape=(3,), stype="mine", data=b"abc")
    app = ClientApp(mods=[fedwsq.flower.compress_mod])

    @app.train()
    def train(message, context):
        assert message.content["arrays"]["w"] == blob
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    class Last(FedAvg):
        def aggregate_train(self, server_round, replies):
            return next(iter(replies)).content["arrays"], None

    strategy = Last(fraction_evaluate=0, min_train_nodes=1, min_available_nodes=1)
    strategy = fedwsq.flower.compress(strategy, down_bits=4)
    _, found = played(strategy, 1, {11: app}, ArrayRecord({"w": blob}))
    assert found["w"] == blob
    assert "'arrays' travels as it is: it has arrays that cannot be coded" in caplog.text


def test_the_strategys_own_start_and_attributes_stay():
    class Mine(FedAvg):
        def __init__(self):
            super().__init__()
            self.log = []

        def start(self, *args, note, **kwargs):
            self.log.append(note)
            return super().start(*args, **kwargs)

    strategy = fedwsq.flower.compress(Mine())
    grid = InProcess({node: app_of(node) for node in NODES})
    strategy.start(grid, ArrayRecord(model()), note="hello", num_rounds=1)
    assert strategy.log == ["hello"]


WRAPPERS = {
    "fixed, server": lambda inner: strategies.DifferentialPrivacyServerSideFixedClipping(
        inner, 0.0, 1e6, 3
    ),
    "adaptive, server": lambda inner: strategies.DifferentialPrivacyServerSideAdaptiveClipping(
        inner, 0.0, 3, initial_clipping_norm=1e6
    ),
}
STRATEGIES = {
    "Bulyan": {},
    "FedAdagrad": {},
    "FedAdam": {},
    "FedAvg": {},
    "FedAvgM": {},
    "FedMedian": {},
    "FedProx": {"proximal_mu": 0.1},
    "FedTrimmedAvg": {},
    "FedYogi": {},
    "Krum": {},
    "MultiKrum": {},
    "QFedAvg": {"client_learning_rate": 0.1},
}


def made(name):
    if name in WRAPPERS:
        return WRAPPERS[name](averaging())
    return getattr(strategies, name)(fraction_evaluate=0.0, **STRATEGIES[name])


@pytest.mark.parametrize("name", [*STRATEGIES, *WRAPPERS])
def test_every_strategy_sees_what_it_would_have_seen(name):
    """In float32, where nothing is lost: two rounds end where they do without."""
    arrays = ArrayRecord({name: model()[name] for name in ("conv", "norm", "tiny")})

    def run(strategy):
        return played(strategy, 2, arrays=arrays)[1]

    expected = run(made(name))
    found = run(fedwsq.flower.compress(made(name), "float32", 32, down_bits=32))
    assert list(found) == list(expected)
    for key in expected:
        np.testing.assert_allclose(found[key].numpy(), expected[key].numpy(), rtol=1e-4, atol=1e-4)


# What goes wrong.


def tampering(change):
    """A mod outside ours: what it does to the bytes, the server must stand."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        for name, record in list(reply.content.array_records.items()):
            ((base, blob),) = record.items()
            reply.content[name] = change(base, blob.data)
        return reply

    return mod


def flipped(base, data):
    return sealed(base, data[:100] + bytes([data[100] ^ 255]) + data[101:])


DAMAGE = {
    "cut": (lambda base, data: sealed(base, data[:-7]), "bad update"),
    "flipped": (flipped, "bad update"),
    "empty": (lambda base, data: sealed(base, b""), "bad update"),
    "elsewhere": (lambda base, data: sealed("config", data), "relative to 'config'"),
    "another model": (
        lambda base, data: sealed(base, fedwsq.pack({"w": torch.zeros(64, 64)})),
        "tensor 'conv' is not there",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_update_is_an_error_of_its_node_and_the_others_count(damage, caplog):
    change, reason = DAMAGE[damage]
    apps = {node: app_of(node) for node in NODES}
    apps[12] = app_of(12, mods=(tampering(change), fedwsq.flower.compress_mod))
    strategy = fedwsq.flower.compress(averaging())
    with caplog.at_level("INFO", logger="flwr"):
        _, arrays = played(strategy, 1, apps)
    assert "Received 2 results and 1 failures" in caplog.text
    assert "error in reply from node 12: a bad update:" in caplog.text
    assert reason in caplog.text
    moved = arrays.to_torch_state_dict()["linear"] - model()["linear"]
    expected = (steps(11)["linear"] + steps(13)["linear"]) / 2
    torch.testing.assert_close(moved, expected, rtol=0, atol=0.03)


def test_an_update_that_is_not_finite_stays_out_of_the_model(caplog):
    def diverged(node, tensors):
        return {name: x / 0 if name == "linear" else x for name, x in tensors.items()}

    apps = {node: app_of(node) for node in NODES}
    apps[12] = app_of(12, diverged)
    with caplog.at_level("INFO", logger="flwr"):
        _, arrays = played(fedwsq.flower.compress(averaging()), 1, apps)
    assert "error in reply from node 12: tensor linear: " in caplog.text
    assert np.isfinite(arrays["linear"].numpy()).all()


def test_a_model_that_is_not_finite_travels_as_it_would_have(caplog):
    broken = model()
    broken["linear"][0, 0] = torch.nan
    seen = []

    def work(node, tensors):
        seen.append(tensors["linear"].isnan().sum().item())
        return model()

    apps = {node: app_of(node, work) for node in NODES}
    strategy = fedwsq.flower.compress(averaging(), bits=None, down_bits=4)
    played(strategy, 1, apps, ArrayRecord(broken))
    assert seen == [1, 1, 1]
    assert "'arrays' travels as it is: tensor linear: " in caplog.text


def test_a_client_without_its_line_takes_part_and_is_named_once(caplog):
    apps = {node: app_of(node, mods=()) for node in NODES}
    _, found = played(fedwsq.flower.compress(averaging()), 2, apps)
    _, expected = played(averaging(), 2)
    assert found == expected
    assert caplog.text.count("its ClientApp lacks compress_mod") == 1


def test_a_wish_that_reaches_for_other_code_is_refused():
    app = app_of(11)
    label = '{"codec": {"name": "os:system"}, "bits": 4, "tensors": []}'
    content = RecordDict(
        {
            "arrays": ArrayRecord(model()),
            WISH: ConfigRecord({"label": label, "error-feedback": True}),
        }
    )
    (reply,) = InProcess({11: app}).send_and_receive([Message(content, 11, "train")])
    assert "outside the package" in reply.error.reason


def test_it_goes_around_all_other_strategies():
    inner = fedwsq.flower.compress(averaging())
    with pytest.raises(ConfigError, match="put compress around that one"):
        played(WRAPPERS["fixed, server"](inner))
    with pytest.raises(ConfigError, match="compressed already"):
        fedwsq.flower.compress(inner)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"codec": "danuk"}, "did you mean danuq"),
        ({"bits": 3}, "danuq has no 3-bit rate"),
        ({"down_bits": 32}, "danuq has no 32-bit rate"),
        ({"codec": "qsgd", "bits": 2}, "error_feedback needs a code that loses less"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(options, reason):
    with pytest.raises(ConfigError, match=reason):
        fedwsq.flower.compress(averaging(), **options)
