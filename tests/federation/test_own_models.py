"""Any model, any data: integers, volumes, single numbers; tied weights, dropout, no stages."""

import pytest
import torch
from safetensors.torch import load_file

from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import fingerprint
from fedwsq.federation.simulation import simulate
from fedwsq.plan import dump_plan, make_plan
from fedwsq.runs import run
from shared_pool import SharedPool

CPU = torch.device("cpu")
PLAIN = {
    "rounds": 2,
    "data.clients": 3,
    "clients_per_round": 2,
    "data.partition": "iid",
    "training.epochs": 2,
    "training.batches_per_epoch": 2,
    "training.precision": "float32",
    "uplink": {"codec": "danuq", "bits": 4, "select": "weights"},
}


def own(data, model, **more):
    names = {"data.name": f"own_models:{data}", "model.name": f"own_models:{model}"}
    return make_plan({}, {**PLAIN, **names, **more})


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    shared = SharedPool(tmp_path_factory.mktemp("pool"), workers=2)
    yield shared
    shared.close()


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ("sequences", "Tied"),
        ("sequences", "dropping"),
        ("volumes", "volumetric"),
        ("scalars", "line"),
    ],
)
def test_rounds_are_the_same_serial_and_on_a_pool(data, model, pool, tmp_path):
    plan = own(data, model)
    simulation = simulate(plan)
    pool.adopt(plan, tmp_path)
    weights = []
    for transport in (simulation.serial(CPU), pool):
        server = simulation.server(transport)
        assert [server.step().failures for _ in range(2)] == [{}, {}]
        weights.append(fingerprint(server.params))
    assert weights[0] == weights[1]


def test_a_tied_tensor_travels_once_and_is_saved_under_both_names(tmp_path):
    plan = own("sequences", "Tied", **{"model.width": 4})
    names = simulate(plan).charter.schema.names
    assert [name for name in names if "memory" not in name] == ["words.weight"]
    run(plan, out=tmp_path / "run", workers=1)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(saved["words.weight"], saved["output.weight"])
    start = str(tmp_path / "run" / "model.safetensors")
    again = simulate(own("sequences", "Tied", **{"model.width": 4, "model.init": start})).model
    assert again.network.output.weight is again.network.words.weight
    assert torch.equal(again.initial_params()["words.weight"], saved["words.weight"])


def test_dropout_is_a_clients_own_and_leaves_the_callers_generator_alone(tmp_path):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = run(own("sequences", "dropping"), out=tmp_path / "one", workers=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert run(own("sequences", "dropping"), out=tmp_path / "two", workers=1).weights == one.weights
    without = own("sequences", "dropping", **{"model.share": 0.0})
    assert run(without, out=tmp_path / "less", workers=1).weights != one.weights


@pytest.mark.parametrize("algorithm", ["fedmlb", "fedrcl", "feddecorr"])
def test_a_method_that_looks_inside_says_that_it_cannot(algorithm):
    model = simulate(own("sequences", "Tied", algorithm=algorithm)).model
    refused = rf"{algorithm} needs a model with stages .*; Tied is not"
    with pytest.raises(ConfigError, match=refused):
        _ = model.network


def test_settings_of_a_class_and_of_unannotated_arguments():
    plan = own("sequences", "Tied", **{"model.width": 4})
    assert "width = 4" in dump_plan(plan)
    with pytest.raises(ConfigError, match=r"model.width is 'wide', must be a whole number"):
        own("sequences", "Tied", **{"model.width": "wide"})
    with pytest.raises(ConfigError, match=r"model.share is 'all', must be a number"):
        own("sequences", "dropping", **{"model.share": "all"})
    # A class: only ever its own default.
    assert "LayerNorm" not in dump_plan(own("sequences", "dropping"))
