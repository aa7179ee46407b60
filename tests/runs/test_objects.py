"""`fedwsq.run` with objects: by name where a worker can import them, else in this process."""

import copy
import json
import re
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedwsq
import own_models
import user_code
from fedwsq.cli import main
from fedwsq.codecs import CODECS
from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data import Dataset, Examples, Split
from fedwsq.data.digits import digits
from fedwsq.models import cnn
from fedwsq.runs import here
from fedwsq.runs.failures import ClientFailed
from fedwsq.runs.objects import importable
from harness import TINY, rows, tiny

X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)
ARRAYS = (X[:160], Y[:160], X[160:], torch.from_numpy(Y[160:]))
DENSE = {"model_standardize": "none", "uplink_select": "weights", "rounds": 2}
FOUR = {"split": "iid", "clients": 4, "clients_per_round": 2}
HALVES = [np.arange(0, 160, 2), torch.arange(1, 160, 2)]
DOCUMENT = Path(__file__).parents[2] / "docs" / "extending.md"
ALONE = "other processes cannot import these objects: "


class Table(nn.Module):
    """A class that a worker finds by name."""

    def __init__(self, channels, classes, width=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(channels, width), nn.ReLU(), nn.Linear(width, classes)
        )

    def forward(self, x):
        return self.layers(x)


def local_class():
    """The same, as a notebook's class would be: found by nobody else."""
    return type("Local", (Table,), {})


def settings(folder):
    return tomllib.loads((folder / "config.toml").read_text())


# Models.


def test_names_and_objects_give_the_same_weights(tmp_path, finished):
    result = fedwsq.run("quickstart", TINY, model=cnn, data=digits, out=tmp_path / "a", workers=1)
    assert result.weights == finished.summary.weights
    assert settings(result.folder)["model"]["name"] == "cnn"  # an entry of the table
    held = fedwsq.run(
        "quickstart",
        TINY,
        model=lambda classes, channels: cnn(classes, channels),
        data=digits(),
        out=tmp_path / "b",
    )
    assert held.weights == finished.summary.weights


def test_what_can_be_imported_goes_to_workers_by_name(tmp_path, capsys):
    out = tmp_path / "run"
    result = fedwsq.run(
        model=own_models.Tied, data=own_models.sequences, out=out, workers=2, **DENSE, **FOUR
    )
    assert settings(out)["model"]["name"] == "own_models:Tied"
    assert settings(out)["data"]["name"] == "own_models:sequences"
    assert json.loads((out / "manifest.json").read_text())["workers"] == 2
    assert ALONE not in capsys.readouterr().err
    assert [row["failures"] for row in result.rounds] == [{}, {}]
    assert main(["resume", str(out), "rounds=3", "--workers", "1", "--trust"]) == 0


@pytest.mark.parametrize("model", ["class", "lambda", "partial"])
def test_what_cannot_be_imported_trains_here_and_says_so(tmp_path, capsys, model):
    made = {
        "class": local_class(),
        "lambda": lambda channels, classes: Table(channels, classes),
        "partial": partial(Table, width=4),
    }[model]
    out = tmp_path / "run"
    result = fedwsq.run(model=made, data=ARRAYS, out=out, workers=2, **DENSE, **FOUR)
    assert json.loads((out / "manifest.json").read_text())["workers"] == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{out}: rounds 1 to 2"
    assert lines[1].startswith(f"{ALONE}model, data; so all clients train in this one")
    assert [line.partition(":")[0] for line in lines[2:]] == ["round 1/2", "round 2/2"]
    assert len(result.rounds) == 2


def test_a_setting_of_an_own_class(tmp_path):
    out = tmp_path / "run"
    result = fedwsq.run(model=local_class(), model_width=3, data=ARRAYS, out=out, **DENSE, **FOUR)
    assert result.model.layers[0].out_features == 3
    assert settings(out)["model"]["width"] == 3


def test_an_instance_starts_from_its_weights_and_stays_as_it_is(tmp_path, capsys):
    model = Table(5, 3)
    before = copy.deepcopy(model.state_dict())
    still = {"training_lr": 1e-30, "training_weight_decay": 0.0, "codec": "float32"}
    result = fedwsq.run(model=model, data=ARRAYS, out=tmp_path / "a", **DENSE, **FOUR, **still)
    for name, x in before.items():
        assert torch.equal(model.state_dict()[name], x)
        assert torch.allclose(result.model.state_dict()[name], x, atol=1e-6)
    assert "the model starts from its own weights" in capsys.readouterr().err

    fresh = fedwsq.run(
        model=model, model_init="", data=ARRAYS, out=tmp_path / "b", **DENSE, **FOUR, **still
    )
    assert not torch.allclose(fresh.model.layers[0].weight, before["layers.0.weight"], atol=1e-2)
    assert not (tmp_path / "b" / "start.safetensors").exists()


def test_an_instance_with_standardized_layers_starts_from_its_weights_too(tmp_path):
    torch.manual_seed(1)
    model = cnn(10, 1)
    still = {"training_lr": 1e-30, "training_weight_decay": 0.0, "codec": "float32"}
    fedwsq.run("quickstart", TINY, model=model, data=digits, out=tmp_path / "a", **still)
    snapshot, _ = fedwsq.runs.load_snapshot(tmp_path / "a" / "checkpoints")
    for name, x in snapshot.server["params"].items():
        assert torch.allclose(x, model.state_dict()[name], atol=1e-6)


def test_an_instance_that_cannot_be_trained_leaves_no_folder(tmp_path):
    for folder in (tmp_path / "new", tmp_path):
        with pytest.raises(ConfigError, match="the model cannot take a batch"):
            fedwsq.run(model=Table(4, 3), data=ARRAYS, out=folder, **DENSE, **FOUR)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_cannot_be_drawn_anew(tmp_path):
    model = nn.Sequential(nn.Linear(5, 3))
    model.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigError, match=r"model_init is '', but layer '' \(Sequential\) has no"):
        fedwsq.run(model=model, model_init="", data=ARRAYS, out=tmp_path / "a", **DENSE, **FOUR)


# Data and splits.


def test_two_arrays_hold_a_fifth_out(tmp_path, capsys):
    fedwsq.run(model=Table, data=(X, Y), out=tmp_path / "run", **DENSE, **FOUR)
    assert "of data=(x, y) a fifth is held out for testing\n" in capsys.readouterr().err


def test_a_split_of_ones_own_counts_the_clients(tmp_path):
    dataset = Dataset(
        Examples([torch.from_numpy(X)], torch.from_numpy(Y)),
        Examples([torch.from_numpy(X)], torch.from_numpy(Y)),
        classes=3,
    )
    out = tmp_path / "run"
    fedwsq.run(model=Table, data=dataset, split=[range(3), [5], [7, 9]], out=out, **DENSE)
    assert settings(out)["data"]["clients"] == settings(out)["clients_per_round"] == 3
    assert rows(out)[0]["failures"] == {}
    split = Split(np.arange(10), np.array([0, 5, 10]))
    fedwsq.run(model=Table, data=dataset, split=split, out=tmp_path / "again", **DENSE)


def test_a_function_may_split(tmp_path):
    fedwsq.run("quickstart", TINY, split=user_code.first_is_empty, out=tmp_path / "run", workers=1)
    assert settings(tmp_path / "run")["data"]["partition"]["name"] == "user_code:first_is_empty"


def test_a_function_may_split_into_lists(tmp_path):
    """To the same weights as the lists themselves."""

    def by_turns(labels, clients, seed):
        return [range(client, len(labels), clients) for client in range(clients)]

    def too_few(labels, clients):
        return [[0, 1]]

    def beyond(labels, clients):
        return [[10**6 + client] for client in range(clients)]

    few = {"model": Table, "data": ARRAYS, "clients_per_round": 2, **DENSE}
    lists = [list(range(client, 160, 4)) for client in range(4)]
    given = fedwsq.run(split=lists, out=tmp_path / "a", **few)
    made = fedwsq.run(split=by_turns, clients=4, out=tmp_path / "b", **few)
    assert made.weights == given.weights
    for split, why in (
        (too_few, "gave 1 lists of indices, and data.clients is 4; it takes one for each client"),
        (beyond, "has index 1000003, and there are 160 examples"),
        (lambda labels: 7, "gave int, not a fedwsq Split or a list with the indices of each"),
        (lambda labels: [], "gave list, not a fedwsq Split or a list with the indices of each"),
    ):
        with pytest.raises(ConfigError, match=why):
            fedwsq.run(split=split, clients=4, out=tmp_path / "c", **few)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"data": X}, "data is of type ndarray; it can be a fedwsq Dataset"),
        ({"data": (X, Y, X)}, r"data is a tuple of 3; it can be"),
        ({"data": ("x", "y")}, "data holds of type str; it takes numpy arrays and tensors"),
        ({"data": TensorDataset(torch.ones(3, 2))}, r"a torch TensorDataset.* then data=\(x, y\)"),
        ({"data": (X, Y[:7])}, "data: x has 200 rows but y 7"),
        ({"split": [[0, 1], [1, 2]]}, "split gives 1 examples out twice"),
        ({"split": [[0, 160]]}, "split has index 160, and there are 160 examples"),
        ({"split": [[0, -1]]}, "split: client 0 has index -1, must be 0 or more"),
        ({"split": [[0.5]]}, r"split: client 0 has float64 \[1\], must be a list of whole numbers"),
        ({"split": [[0, 1], [], [2]]}, "split leaves client 1 without examples; every client"),
        ({"split": Split(np.arange(9), np.array([0, 9, 9]))}, "leaves client 1 without examples"),
        ({"split": []}, "split is a list of 0; it can be a list with an array of indices"),
        ({"split": HALVES, "clients": 3}, "clients is 3, but split has 2 lists"),
        ({"split": HALVES, "data": (X, Y)}, r"of data=\(x, y\) a part is held out"),
        ({"split": HALVES, "data_validation": 0.1}, "data.validation holds some of them out"),
        ({"split": {0: [1, 2], 1: [3]}}, r"split is a dictionary with .* list\(split.values\(\)\)"),
        ({"workers": -1}, "workers is -1, must be a whole number, at least 1"),
        ({"workers": "a"}, "workers is 'a', must be a whole number"),
        ({"workers": 1.5}, "workers is 1.5, must be a whole number"),
        ({"workers": True}, "workers is True, must be a whole number"),
        ({"device": 1.5}, "device is 1.5, must be a name"),
        ({"out": 5}, "out is 5, must be a path"),
        ({"config": 5}, "config is 5, must be a path"),
        ({"resume": 5}, "resume is 5, must be a path"),
        ({"overrides": [1]}, "an override is 1, must be a string such as 'rounds=20'"),
        ({"overrides": 5}, r"overrides are 5, must be a dictionary .* \['rounds=20'\]"),
        ({"overrides": "rounds=1"}, r"must be a list of such words: \['rounds=1'\]"),
        ({"overrides": {1: 2}}, "the key of an override is 1, must be a string"),
        ({"overrides": {"uplink": {1: 2}}}, "uplink has the key 1, must be the name of a setting"),
        ({"model": 7}, "model.name is 7, must be a string|model is 7"),
        ({"metric": object()}, "metric is of type object, must be a function"),
        ({"algorithm": Table}, "algorithm is of type Table, which is not a dataclass"),
        ({"trainig_lr": 1}, "unknown keyword trainig_lr; settings are model, data, split"),
        ({"rouns": 1}, "did you mean rounds"),
        ({"bits": 1, "uplink_bits": 4}, "uplink.bits is given twice, as bits and as uplink_bits"),
        ({"overrides": ["seed=1", "seed=2"]}, "seed is given twice, seed=1 and seed=2"),
        ({"on_round": 3}, "on_round is 3; it takes a function of a round's record"),
        ({"training_lrr": 1}, "unknown key training.lrr"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(in_empty_folder, given, why):
    with pytest.raises((ConfigError, DataError), match=why):
        fedwsq.run(**{"model": Table, "data": ARRAYS, **DENSE, **given})
    assert list(in_empty_folder.iterdir()) == []


# Algorithms and codecs.


@dataclass(frozen=True)
class Keeping(fedwsq.FedAvg):
    keep: float = 0.5


def test_an_importable_algorithm_is_written_with_its_fields(tmp_path):
    out = tmp_path / "run"
    fedwsq.run("quickstart", TINY, algorithm=Keeping(keep=0.25), out=out, workers=1)
    assert settings(out)["algorithm"]["name"] == f"{__name__}:Keeping"
    assert settings(out)["algorithm"]["keep"] == 0.25


def test_an_algorithm_and_a_codec_of_a_notebook(tmp_path, finished):
    @dataclass(frozen=True)
    class Mine(fedwsq.FedAvg):
        keep: float = 0.5

    @dataclass(frozen=True)
    class MyDanuq(fedwsq.Danuq):
        pass

    out = tmp_path / "run"
    # The quick start's own codec, under another name.
    result = fedwsq.run(
        "quickstart", TINY, algorithm=Mine, codec=MyDanuq(momentum=0.1), bits=4, out=out
    )
    assert result.weights == finished.summary.weights
    assert settings(out)["algorithm"] == {
        "name": "fedwsq.runs.here:Mine",
        "keep": 0.5,
        "server": {"name": "plain", "lr": 1.0},
    }
    assert settings(out)["uplink"]["codec"]["name"] == "fedwsq.runs.here:MyDanuq"


def test_a_field_that_no_config_can_say(tmp_path):
    @dataclass(frozen=True)
    class Odd(fedwsq.FedAvg):
        how: object = None

    with pytest.raises(ConfigError, match="a config cannot say one of its fields"):
        fedwsq.run("quickstart", TINY, algorithm=Odd(how=object()), out=tmp_path / "run")


def test_classes_of_the_tables_keep_their_names(tmp_path):
    out = tmp_path / "run"
    fedwsq.run("quickstart", TINY, codec=CODECS["uq"], bits=2, out=out, workers=1)
    assert settings(out)["uplink"]["codec"]["name"] == "uq"
    assert settings(out)["uplink"]["bits"]["bits"] == 2


def test_a_method_by_name_with_an_own_model(tmp_path):
    out = tmp_path / "run"
    fedwsq.run("quickstart", TINY, method="fedwsq", bits=1, model=lambda: cnn(10, 1), out=out)
    assert settings(out)["model"]["standardize"]["name"] == "ws"
    assert settings(out)["uplink"]["bits"]["bits"] == 1


# Going on.


def test_a_run_of_objects_goes_on_with_the_same_objects_only(tmp_path, capsys):
    given = {"model": local_class(), "data": ARRAYS, "split": HALVES}
    whole = fedwsq.run(out=tmp_path / "whole", **given, **{**DENSE, "rounds": 4})
    folder = tmp_path / "half"
    fedwsq.run(out=folder, **given, **DENSE)
    assert main(["resume", str(folder), "rounds=4"]) == 2
    err = capsys.readouterr().err
    assert "fedwsq.runs.here:own_data', which cannot be imported: it is an object of the" in err
    assert "with fedwsq.run(resume=FOLDER) and the same objects" in err
    with pytest.raises(ConfigError, match="cannot be imported"):
        fedwsq.run(resume=folder, rounds=4, model=given["model"])

    other = (ARRAYS[0], 2 - ARRAYS[1], *ARRAYS[2:])
    with pytest.raises(fedwsq.FedwsqError, match="the data is not what the run began with"):
        fedwsq.run(resume=folder, rounds=4, **{**given, "data": other})
    with pytest.raises(ConfigError, match=r"training\.lr cannot change on resume"):
        fedwsq.run(resume=folder, training_lr=1.0, **given)
    with pytest.raises(ConfigError, match="goes on with its own config"):
        fedwsq.run(resume=folder, out=tmp_path / "other", **given)

    result = fedwsq.run(resume=folder, rounds=4, **given)
    assert result.weights == whole.weights
    assert [row["round"] for row in result.rounds] == [1, 2, 3, 4]


def test_objects_are_let_go_of(tmp_path):
    fedwsq.run(model=Table, data=ARRAYS, out=tmp_path / "run", **DENSE, **FOUR)
    assert here._held == {}


# What comes of it.


def test_the_result_has_rows_a_model_a_folder_and_the_summary(in_empty_folder, finished):
    result = fedwsq.run("quickstart", TINY, workers=1, progress=False)
    assert str(result.folder) == "runs/quickstart-1"
    assert [row["round"] for row in result.rounds] == [1, 2, 3]
    assert result.rounds == rows(result.folder)
    assert (result.summary.rounds, result.weights) == (3, finished.summary.weights)
    assert result.accuracy == result.rounds[-1]["test_accuracy"]
    assert copy.deepcopy(result).total_bytes == result.total_bytes
    assert "rounds=3" in repr(result)
    with pytest.raises(AttributeError):
        result.nonsense  # noqa: B018

    # Plain layers, and as good as the run says.
    kinds = [type(layer) for layer in cnn(10, 1).modules()]
    assert [type(layer) for layer in result.model.modules()] == kinds
    test = digits().test
    x, y = test.take(torch.arange(len(test)))
    normal = fedwsq.data.batches.normalize(x, digits().mean, digits().std)
    with torch.no_grad():
        right = (result.model(normal).argmax(1) == y).float().mean()
    assert float(right) == pytest.approx(result.accuracy, abs=1e-6)


def test_callbacks_are_told_of_every_round_and_may_end_the_run(tmp_path):
    seen = []
    also = []
    fedwsq.run(tiny(), out=tmp_path / "a", workers=1, on_round=[seen.append, also.append])
    assert [record.round for record in seen] == [1, 2, 3]
    assert also == seen

    def enough(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedwsq.run(tiny(), out=tmp_path / "b", workers=1, on_round=enough)
    result = fedwsq.run(resume=tmp_path / "b", workers=1)
    assert result.accuracy == seen[-1].accuracy


def test_debug_raises_at_the_first_failure(tmp_path):
    with pytest.raises(ClientFailed, match="round 1, client") as caught:
        fedwsq.run(
            "quickstart", TINY, model=user_code.failing_cnn, debug=True, out=tmp_path / "run"
        )
    assert "in _fail" in str(caught.value)


def test_silence(tmp_path, capsys):
    fedwsq.run(tiny(rounds=1), out=tmp_path / "run", workers=1, progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_plan_is_not_to_be_overridden(tmp_path):
    with pytest.raises(ConfigError, match=r"dataclasses\.replace"):
        fedwsq.run(tiny(), model=Table, out=tmp_path / "run")


def test_the_documented_example(in_empty_folder, capsys):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "fedwsq.run(" in block]
    exec(example, {"__name__": "__main__"})
    out, err = capsys.readouterr()
    assert re.fullmatch(r"10 [01]\.\d+", out.splitlines()[9])
    assert "\nruns/quickstart-1 " in out
    assert f"{ALONE}model, data, split; " in err


def test_what_a_fresh_process_can_import():
    assert importable(Table)
    assert importable(nn.Linear)
    assert not importable(local_class())
    assert not importable(lambda: None)
    assert not importable(partial(Table))
    assert not importable(Table(1, 2))
