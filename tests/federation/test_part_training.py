"""A part of a model is trained: the rest never travels, is the same everywhere, and is saved."""

import hashlib
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, safe_open

from fedwsq.algorithms import ALGORITHMS
from fedwsq.core.errors import ConfigError, RunError
from fedwsq.core.tree import fingerprint
from fedwsq.federation.simulation import simulate
from fedwsq.models import frozen
from fedwsq.runs import Run, load_snapshot, run
from fedwsq.wire import Schema
from fedwsq.wire.message import ENTRY_BYTES, reply_overhead
from harness import rows, tiny

CPU = torch.device("cpu")
HEAD = {"model.train": "^head", "uplink.select": "weights"}


def serial(plan, store=None):
    simulation = simulate(plan)
    return simulation.server(simulation.serial(CPU, store))


# What travels


def test_only_the_trained_part_travels_and_is_counted():
    server = serial(tiny(**HEAD, **{"uplink.codec": "float32", "model.standardize": "none"}))
    width = server.charter.model.network.head.in_features
    record = server.step()
    assert server.charter.schema.names == ("head.weight", "head.bias")
    tensors = 2 * ENTRY_BYTES + 4 * 10 * (width + 1)
    expected = 5 * (reply_overhead(("delta",)) + tensors)
    assert record.uplink_bytes == record.uplink_bytes_float32 == expected
    whole = serial(tiny()).step()
    assert record.downlink_bytes < whole.downlink_bytes / 10
    assert list(server.params) == ["head.weight", "head.bias"]


def test_digests_stand_for_frozen_weights_and_are_as_ever_without():
    shapes = {"w": (2, 3), "b": ()}
    text = b'[["w", [2, 3]], ["b", []]]'
    assert Schema(shapes).digest == hashlib.blake2b(text, digest_size=16).digest()
    model = simulate(tiny(**HEAD)).model
    mark = hashlib.blake2b(digest_size=16)
    for name, p in model.network.named_parameters():
        if not name.startswith("head"):
            mark.update(f"{name}{tuple(p.shape)}".encode())
            mark.update(p.detach().contiguous().numpy().tobytes())
    head = model.network.head.named_parameters(prefix="head")
    names = json.dumps([[name, list(p.shape)] for name, p in head])
    expected = hashlib.blake2b(names.encode() + mark.digest(), digest_size=16).digest()
    assert model.schema.digest == expected
    everything = simulate(tiny(**{"model.train": "."})).model.schema
    assert everything == simulate(tiny()).model.schema
    assert everything.frozen == b""


def test_a_site_with_other_frozen_weights_cannot_join():
    ours, theirs = (simulate(tiny(**HEAD, seed=seed, eval_every=2)) for seed in (0, 1))
    assert ours.charter.schema.shapes == theirs.charter.schema.shapes
    server = ours.server(theirs.serial(CPU))
    record = server.step()
    assert record.replied == 0
    for why in record.failures.values():
        assert re.search(
            "foreign schema .* frozen weights count, and must be the same at every site", why
        )
    with pytest.raises(RunError, match="evaluation failed: MessageError: foreign schema"):
        server.step()  # which is also scored there


# What is learned


def test_one_step_by_hand():
    settings = {
        "model.standardize": "none",
        "uplink.codec": "float32",
        "data.clients": 1,
        "clients_per_round": 1,
        "data.partition": "iid",
        "training.epochs": 1,
        "training.batches_per_epoch": 1,
        "training.weight_decay": 0.1,
        "training.clip_norm": 0,
    }
    simulation = simulate(tiny(**HEAD, **settings))
    server = simulation.server(simulation.serial(CPU))
    network = simulation.model.network
    start = {name: p.clone() for name, p in server.params.items()}
    kept = {name: p.clone() for name, p in frozen(network).items()}
    server.step()
    train = simulation.clients.dataset.train
    x, y = train.take(torch.arange(len(train)))
    with torch.no_grad():
        features = network.pooled(x)
        p = (features @ start["head.weight"].T + start["head.bias"]).softmax(1)
        error = (p - torch.eye(10)[y]) / len(y)  # the gradient of cross-entropy to the logits
    for name, gradient in (("head.weight", error.T @ features), ("head.bias", error.sum(0))):
        expected = start[name] - 0.1 * (gradient + 0.1 * start[name])
        torch.testing.assert_close(server.params[name], expected, rtol=1e-4, atol=1e-6)
    # No decay either.
    assert all(torch.equal(p, kept[name]) for name, p in frozen(network).items())
    assert all(p.grad is None and not p.requires_grad for p in frozen(network).values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_a_part(algorithm, tmp_path):
    axes = {
        "algorithm": algorithm,
        "model.standardize": "scaled" if algorithm == "fedwon" else "ws",
    }
    axes |= {"algorithm.exchange": "wsp"} if algorithm == "fedwon" else {}
    axes |= {"model.train": r"^stages\.1|head", "uplink.codec": "float32"}
    server = serial(tiny(**axes), tmp_path)
    network = server.charter.model.network
    kept = fingerprint(frozen(network))
    before = fingerprint(server.params)
    records = [server.step() for _ in range(2)]
    assert [record.failures for record in records] == [{}, {}]
    assert fingerprint(frozen(network)) == kept
    assert fingerprint(server.params) != before
    assert all(name.startswith(("stages.1", "head")) for name in server.params)


PICTURES = {
    "model.name": "resnet8",
    "data.name": "synthetic",
    "data.samples": 200,
    "data.test_samples": 100,
    "data.channels": 3,
    "uplink.select": "all",
    "training.precision": "float32",
}


def test_norms_behind_frozen_layers_learn_from_pictures():
    """Torch itself crashes, and pytest with it, unless the input of the first of them needs a
    gradient.
    """
    part, whole = (simulate(tiny(**PICTURES, **{"model.train": train})) for train in ("norm", ""))
    x = part.clients.shard(0).x.float().contiguous(memory_format=torch.channels_last)
    for simulation in (part, whole):
        simulation.model.network(x).square().sum().backward()
    names = part.charter.schema.names
    learned = [name for name in names if "norm" in name]
    assert len(learned) == len(names) > 10
    for name in learned:
        ours = part.model.network.get_parameter(name).grad
        torch.testing.assert_close(ours, whole.model.network.get_parameter(name).grad)
    assert not any(layer._forward_pre_hooks for layer in whole.model.network.modules())
    server = serial(tiny(**PICTURES, **{"model.train": "norm"}))
    before = fingerprint(server.params)
    assert server.step().failures == {}
    assert fingerprint(server.params) != before


def test_no_gradient_runs_through_frozen_norms():
    network = simulate(tiny(**HEAD)).model.network
    assert not network.pooled(torch.randn(4, 1, 8, 8)).requires_grad


# Runs


@pytest.mark.slow
def test_runs_are_the_same_serial_and_on_a_pool_and_save_the_whole_model(tmp_path):
    plan = tiny(rounds=2, **HEAD)
    one = run(plan, out=tmp_path / "one", workers=1)
    two = run(plan, out=tmp_path / "two", workers=2)
    assert one.weights == two.weights
    saved, again = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    simulation = simulate(plan)
    assert saved.keys() == set(dict(simulation.model.network.named_parameters()))
    assert all(torch.equal(saved[name], again[name]) for name in saved)
    params = load_snapshot(tmp_path / "one" / "checkpoints")[0].server["params"]
    assert torch.equal(saved["head.weight"], params["head.weight"])
    best = load_file(tmp_path / "one" / "best.safetensors")
    assert best.keys() == saved.keys()
    # Scored by hand in the plain architecture: the frozen part is in the file, its standardization
    # folded in.
    plain = simulate(tiny(**{"model.standardize": "none"})).model.network
    plain.load_state_dict(saved)
    test = simulation.clients.dataset.test
    x, y = test.take(torch.arange(len(test)))
    with torch.inference_mode():
        accuracy = float((plain(x).argmax(1) == y).double().mean())
    assert accuracy == pytest.approx(rows(tmp_path / "one")[-1]["test_accuracy"], abs=0.003)


def test_what_the_models_own_code_froze_is_not_sent_either(tmp_path, monkeypatch):
    adapted = {"model.name": "own_models:adapted", "model.standardize": "none"}
    plan = tiny(**adapted, **{"uplink.select": "weights"})
    assert simulate(plan).charter.schema.names == ("3.weight", "3.bias")
    run(plan, out=tmp_path / "run", workers=1)
    monkeypatch.setenv("TEST_FROZEN", "2")
    with (
        pytest.raises(RunError, match="the frozen weights are not those that the run began with"),
        Run.resume(tmp_path / "run", {"rounds": 4}),
    ):
        pass
    monkeypatch.delenv("TEST_FROZEN")
    with Run.resume(tmp_path / "run", {"rounds": 4}, workers=1) as resumed:
        assert resumed.go().rounds == 4


# Starting from a file


def test_a_run_goes_on_from_where_another_ended(tmp_path, finished):
    """From a checkpoint the weights are those to the bit; from model.safetensors the model computes
    the same.
    """
    last = load_snapshot(finished.folder / "checkpoints")[0].server["params"]
    checkpoint = str(finished.folder / "checkpoints" / "last.safetensors")
    raw = simulate(tiny(**{"model.init": checkpoint})).model
    assert fingerprint(raw.initial_params()) == fingerprint(last)
    accuracy = rows(finished.folder)[-1]["test_accuracy"]
    for name in ("checkpoints/last", "model"):
        plan = tiny(rounds=1, **{"model.init": str(finished.folder / f"{name}.safetensors")})
        server = serial(plan)
        assert server.evaluate(server.snapshot).value == pytest.approx(accuracy, abs=0.006)
    with safe_open(finished.folder / "model.safetensors", "pt") as file:
        assert file.metadata()["baked"] == "true"


def test_fine_tuning_keeps_what_was_learned(tmp_path):
    """Weights of a baked file, taken as they are, are so small that the first steps unlearn them:
    76 % become 45 %.
    """
    alone = {
        "data.clients": 1,
        "clients_per_round": 1,
        "data.partition": "iid",
        "training.batches_per_epoch": 20,
    }
    first = tiny(**alone, **{"rounds": 2, "training.epochs": 5})
    learned = run(first, out=tmp_path / "first", workers=1).accuracy
    given = {"model.init": str(tmp_path / "first" / "model.safetensors")}
    tuned = run(tiny(**alone, **given, rounds=1), out=tmp_path / "second", workers=1).accuracy
    assert learned > 0.6
    assert tuned > learned - 0.1


def test_resuming_refuses_another_file(tmp_path, finished):
    path = tmp_path / "start.safetensors"
    shutil.copy(finished.folder / "model.safetensors", path)
    plan = tiny(rounds=2, **HEAD, **{"model.init": str(path)})
    whole = run(plan, out=tmp_path / "whole", workers=1)
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    assert manifest["init"] == hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    run(tiny(rounds=1, **HEAD, **{"model.init": str(path)}), out=tmp_path / "run", workers=1)
    shutil.copy(path, tmp_path / "kept")
    path.write_bytes(b"changed")
    with (
        pytest.raises(
            RunError, match=r"start.safetensors was changed since the run began; put it back"
        ),
        Run.resume(tmp_path / "run", {"rounds": 2}),
    ):
        pass
    shutil.copy(tmp_path / "kept", path)
    with Run.resume(tmp_path / "run", {"rounds": 2}, workers=1) as resumed:
        assert resumed.go().weights == whole.weights


# Settings that cannot be


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.train": "("}, r"train is '\(', which is not a regular expression"),
        ({"model.train": "fc"}, r"model.train = 'fc' finds none .*stem.conv.weight"),
        (
            {"model.init": "nowhere.safetensors"},
            r"model.init = .*nowhere.safetensors: there is no such file",
        ),
        ({"model.name": "own_models:all_frozen", "model.standardize": "none"}, "nothing to train"),
        (
            {"model.name": "own_models:half", "model.standardize": "none"},
            r"float16; .*model.float\(\)",
        ),
        ({"model.train": "^head"}, r'"published" chooses no tensor of this model.*use "weights"'),
    ],
)
def test_settings_that_cannot_be(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(tiny(**settings), out=tmp_path / "run", workers=1)
    assert not (tmp_path / "run").exists()


def test_a_file_gives_all_weights_whatever_the_seed(finished):
    given = {"model.init": str(finished.folder / "checkpoints" / "last.safetensors")}
    a, b = (simulate(tiny(seed=seed, **given)).model.initial_params() for seed in (0, 1))
    assert fingerprint(a) == fingerprint(b)
