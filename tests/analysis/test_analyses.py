"""Analyses of a real run that kept its rounds, against the run itself and numbers by hand."""

import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedwsq.analysis import ANALYSES, Options, hessian, open_run
from fedwsq.analysis import kept as kept_module
from fedwsq.analysis.drift import against_mean
from fedwsq.analysis.gradients import shares
from fedwsq.analysis.kept import can_train_again, kept_rounds
from fedwsq.analysis.landscape import direction, surface
from fedwsq.analysis.repeat import first_difference, repeat
from fedwsq.analysis.updates import at_equal_bytes, between, describe
from fedwsq.cli import main
from fedwsq.codecs.levels import levels, normal_error
from fedwsq.core.errors import ConfigError, RunError
from fedwsq.models import bake, standardize
from fedwsq.plan import dump_plan, plan_digest
from fedwsq.report.page.findings import read_findings
from fedwsq.runs import Run
from fedwsq.wire import decode
from harness import rows, tiny

QUICK = Options(examples=40, points=3, clients=3)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The tiny run with two of its rounds kept."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    with Run.create(tiny(**{"record.rounds": [1, 3]}), folder, workers=1) as run:
        return folder, run.go()


@pytest.fixture(scope="module")
def subject(recorded):
    return open_run(recorded[0])


@pytest.fixture
def copied(recorded, tmp_path):
    """A copy of the run, to be spoilt."""
    return shutil.copytree(recorded[0], tmp_path / "copy")


def test_keeping_rounds_changes_nothing_else(recorded, finished):
    folder, summary = recorded
    assert summary.weights == finished.summary.weights
    kept = {path.name for path in (folder / "messages").iterdir()}
    assert {name.split("-")[1] for name in kept} == {"1", "3"}
    assert {"round-1-before.safetensors", "round-3-before.safetensors"} <= kept
    assert rows(folder)[0]["config"] == rows(finished.folder)[0]["config"]


def test_rounds_that_cannot_be_are_refused():
    with pytest.raises(
        ConfigError, match=r"record: rounds is .*must be rounds, which count from 1"
    ):
        tiny(**{"record.rounds": [0, 1]})


def test_updates_trained_again_are_those_that_were_coded(subject):
    """Coded once more, what training gives again is the packets of the message, byte for byte."""
    uplink = subject.simulation.charter.uplink
    for kept in kept_rounds(subject, QUICK):
        assert kept.exact
        assert len(kept.deltas) == 3
        messages = subject.folder / "messages"
        broadcast = decode(
            (messages / f"round-{kept.number}-broadcast.fwsq").read_bytes(), uplink.schema
        )
        for client, delta in kept.deltas.items():
            path = messages / f"round-{kept.number}-client-{client}.fwsq"
            reply = decode(path.read_bytes(), uplink.schema)
            sent = uplink.send({"delta": delta}, broadcast.states, reply.key, (4.0,))
            assert sent.packets == reply.packets


def test_a_broadcast_is_read_once_for_all_clients(subject, monkeypatch):
    opened = []
    mapped = kept_module.mapped
    monkeypatch.setattr(
        kept_module, "mapped", lambda path: opened.append(path.name) or mapped(path)
    )
    kept = next(kept_rounds(subject, QUICK))
    assert kept.exact
    assert len(kept.deltas) == 3
    # Once for its states, and once for the model that clients start from.
    assert opened.count(f"round-{kept.number}-broadcast.fwsq") == 2


def test_methods_with_memory_have_updates_as_they_arrived(tmp_path):
    settings = {"algorithm": "feddyn", "aggregation": "uniform", "record.rounds": [1], "rounds": 1}
    with Run.create(tiny(**settings), tmp_path / "run", workers=1) as run:
        run.go()
    (kept,) = kept_rounds(open_run(tmp_path / "run"), QUICK)
    assert not kept.exact
    coded = next(iter(kept.deltas.values()))["stages.0.1.conv.weight"]
    assert len(coded.unique()) <= 16  # four bits


def test_what_a_private_client_sent_cannot_be_had_again(subject, copied):
    private = tiny(**{"aggregation": "uniform", "privacy.clip": 0.5, "privacy.noise": 0.01})
    assert can_train_again(subject)
    simulation = replace(subject.simulation, plan=private)
    assert not can_train_again(replace(subject, simulation=simulation))
    (copied / "config.toml").write_text(dump_plan(private))
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["config"] = plan_digest(private)
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="with privacy, noise and who takes part are new"):
        repeat(copied, 2, lambda row: None)


def test_the_landscapes_centre_is_the_evaluated_loss(subject):
    found = ANALYSES["landscape"](subject, Options(examples=10**6, points=3))
    assert found["centre"] == found["loss"][1][1] == rows(subject.folder)[-1]["test_loss"]
    assert found["examples"] == 359
    assert found["steps"] == [-1.0, 0.0, 1.0]
    assert min(min(line) for line in found["loss"]) > 0


def test_directions_are_as_long_as_the_filters_and_the_same_for_all_models(subject):
    params = subject.params
    found = direction(params, 0, 0)
    for name, p in params.items():
        if p.dim() < 2:
            assert not found[name].any()
            continue
        lengths = found[name].flatten(1).norm(dim=1)
        torch.testing.assert_close(lengths, p.flatten(1).norm(dim=1))
        other = direction({name: 2 * p}, 0, 0)[name]
        torch.testing.assert_close(other, 2 * found[name])
        assert not torch.equal(direction(params, 0, 1)[name], found[name])


def test_any_model_has_a_landscape_and_a_curvature():
    """On |w|^2 a step of `a` lengths adds a^2 |w|^2, in the mean of both ways."""
    params = {"filters": torch.tensor([[3.0, 4.0], [5.0, 12.0]], dtype=torch.float64)}

    def squares(here):
        return float(here["filters"].square().sum())

    found = surface(params, squares, Options(points=5, reach=2.0))
    assert found["steps"] == [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert found["centre"] == found["loss"][2][2] == 194
    # The parts that are odd in the step cancel between opposite points.
    assert found["loss"][4][2] + found["loss"][0][2] == pytest.approx(2 * 194 * (1 + 4))
    model = standardize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), rho=1.0)
    batches = [(torch.randn(6, 1, 4, 4), torch.arange(6) % 2)]
    before = model[0].weight.clone()
    tops = hessian.curvature(model, nn.functional.cross_entropy, batches, Options())
    assert {len(tops[each]["eigenvalues"]) for each in ("raw", "effective", "relative")} == {1}
    assert torch.equal(model[0].weight, before)  # and not the baked one
    assert not torch.equal(bake(model)[0].weight, before)


def test_curvature_of_a_run(subject):
    found = ANALYSES["hessian"](subject, QUICK)
    for coordinates in ("raw", "effective", "relative"):
        top = found[coordinates]
        assert top["converged"]
        assert top["eigenvalues"][0] > 0
        assert top["residuals"][0] < 0.05
    assert (found["examples"], found["of_examples"]) == (40, 1438)


def test_no_more_examples_are_claimed_than_there_are(subject, monkeypatch):
    monkeypatch.setattr(hessian, "curvature", lambda *_: {})
    assert ANALYSES["hessian"](subject, Options(examples=10**6))["examples"] == 1438


def test_a_normal_layer_is_called_normal():
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = describe([x, 5 * x + 1])  # each client by its own mean and std
    assert found["kurtosis"] == pytest.approx(3, abs=0.05)
    assert found["skewness"] == pytest.approx(0, abs=0.05)
    assert sum(found["share"]) == pytest.approx(1, abs=1e-4)
    assert found["quantiles"][30] == pytest.approx(0.7144, abs=0.01)  # of 30.5 / 40
    signs = describe([torch.tensor([1.0, -1.0, 1.0, -1.0])])
    assert signs["kurtosis"] == 1


def test_updates_and_codecs_of_a_run(subject):
    found = ANALYSES["updates"](subject, QUICK)
    assert found["source"] == "before they were coded"
    assert list(found["rounds"]) == ["1", "3"]
    last = found["rounds"]["3"]
    assert set(last["layers"]) == set(subject.simulation.charter.uplink.coded)
    errors = {name: last["codecs"][name]["4"]["error"] for name in ("danuq", "ecq", "uq")}
    assert 0 < errors["danuq"] < 0.1
    assert errors["ecq"] < errors["uq"]
    assert last["codecs"]["sign"]["1"]["bits"] == pytest.approx(1, abs=0.05)
    equal = last["equal_bytes"]["4"]
    assert equal["errors"]["danuq"] == pytest.approx(errors["danuq"])
    coded = sum(subject.params[name].numel() for name in last["layers"])
    assert equal["bits"] == pytest.approx(equal["bytes"] * 8 / (3 * coded))


def test_levels_lie_where_the_codec_has_them(subject):
    """DANUQ's around the shared scale, which is near each std; an absmax code's out to the end."""
    found = ANALYSES["updates"](subject, QUICK)["rounds"]["3"]["codecs"]
    danuq = found["danuq"]["4"]["levels"]
    scale = danuq[-1] / levels(4)[-1]
    assert 0.5 < scale < 2
    assert danuq == pytest.approx([scale * level for level in levels(4)])
    uniform = found["uq"]["2"]["levels"]
    assert uniform == pytest.approx([-uniform[3], -uniform[3] / 3, uniform[3] / 3, uniform[3]])
    assert uniform[3] > 2  # stds that the largest of some hundred elements is away
    assert "levels" not in found["eden"]["4"]


def test_equal_bytes_by_hand():
    measured = [{"bits": 1.0, "error": 1e-1}, {"bits": 2.0, "error": 1e-3}]
    assert between(measured, 1.5) == pytest.approx(1e-2)
    assert between(measured, 0.995) == pytest.approx(1e-1)
    assert between(measured, 2.1) is None
    # The other code sends 1 and 3 bits where this one sends 2: halfway between 0.4 and 0.1.
    danuq = {"1": {"bits": 1.0, "bytes": 10, "error": 0.5}, "2": {**measured[1], "bytes": 20}}
    other = {"1": {"bits": 1.0, "error": 0.4}, "3": {"bits": 3.0, "error": 0.1}}
    found = at_equal_bytes({"danuq": danuq, "other": other})
    assert found["1"]["errors"] == pytest.approx({"danuq": 0.5, "other": 0.4})
    assert found["2"]["errors"] == pytest.approx({"danuq": 1e-3, "other": 0.2})
    assert found["2"]["bytes"] == 20


def test_drift_by_hand():
    # The mean of (4, 0) and (0, 2) is (2, 1).
    found = against_mean([torch.tensor([4.0, 0.0]), torch.tensor([0.0, 2.0])])
    assert found["cosine"] == pytest.approx([2 / math.sqrt(5), 1 / math.sqrt(5)])
    assert found["norm"] == pytest.approx([4 / math.sqrt(5), 2 / math.sqrt(5)])
    nothing = against_mean([torch.zeros(2)])
    assert (nothing["cosine"], nothing["norm"]) == ([0.0], [0.0])


def test_drift_of_a_run(subject):
    found = ANALYSES["drift"](subject, QUICK)["rounds"]["1"]
    assert all(-1 <= cosine <= 1 for cosine in found["all"]["cosine"])
    assert set(found["layers"]) == set(subject.params)


def test_shares_of_a_gradient_by_hand():
    # The weight is (1, -1, 0) / sqrt(2) long, the gradient (3, 1, 2): along the weight
    # (3 - 1)^2 / 2 = 2, along ones 6^2 / 3 = 12, of 14 in all.
    layer = nn.Conv1d(3, 1, 1, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[[5.0], [-5.0], [0.0]]]))
    layer.weight.grad = torch.tensor([[[3.0], [1.0], [2.0]]])
    assert shares(layer) == pytest.approx((2 / 14, 12 / 14, 1))  # a weight at right angles to ones
    layer.weight.grad.zero_()
    assert shares(layer) == (0.0, 0.0, 0.0)


def test_of_a_plain_weight_the_plane_is_not_the_sum():
    # Along (2, 1, 0), 7^2 / 5 = 9.8; along ones 12; along (1, 0, -1), the weight less its mean,
    # (3 - 2)^2 / 2 = 0.5, and so 12.5 of 14 in the plane of both.
    layer = nn.Conv1d(3, 1, 1, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[[2.0], [1.0], [0.0]]]))
    layer.weight.grad = torch.tensor([[[3.0], [1.0], [2.0]]])
    assert shares(layer) == pytest.approx((9.8 / 14, 12 / 14, 12.5 / 14))


def test_what_is_removed_is_what_the_raw_gradient_lacks():
    """Against autograd through the formula: |g| at the raw weight, freed of rho / std."""
    torch.manual_seed(0)
    raw = torch.randn(4, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    rows = raw.flatten(1)
    std = rows.std(1, keepdim=True)
    weight = ((rows - rows.mean(1, keepdim=True)) / std).view(raw.shape)
    (nn.functional.conv2d(x, weight) ** 3).sum().backward()
    left = (raw.grad.flatten(1) * std).detach().square().sum()

    layer = nn.Conv2d(2, 4, 3, bias=False).double()
    layer.weight = nn.Parameter(weight.detach().clone())
    (layer(x) ** 3).sum().backward()
    found = shares(layer)
    assert found.removed == pytest.approx(float(1 - left / layer.weight.grad.square().sum()))
    assert found.weight + found.ones == pytest.approx(found.removed)  # at right angles
    assert found.weight > 0.01
    assert found.ones > 0.01


def test_gradients_of_a_run(subject):
    found = ANALYSES["gradients"](subject, QUICK)
    assert found["clients"] == [0, 1, 2]
    for layer in found["layers"].values():
        assert all(0 <= share <= 1 for share in layer["weight"] + layer["ones"])
        # A standardized model: the two directions are at right angles.
        assert layer["removed"] == pytest.approx(np.add(layer["weight"], layer["ones"]), abs=1e-4)


def test_scales_are_those_of_the_rows(subject):
    found = ANALYSES["scales"](subject, QUICK)
    assert list(found["rounds"]) == ["2", "3"]  # the first calibrates
    row = rows(subject.folder)[2]
    assert found["rounds"]["3"]["ratios"] == row["scale_ratios"]
    assert found["right_scale_error"] == pytest.approx(normal_error(levels(4)))
    expected = np.mean([normal_error(levels(4), ratio) for ratio in row["scale_ratios"].values()])
    assert found["rounds"]["3"]["expected_error"] == pytest.approx(expected)


def test_a_run_that_kept_nothing_says_how_to_repeat_it(finished):
    with pytest.raises(RunError, match=r"kept no round .* record.rounds=.* --repeat"):
        list(kept_rounds(open_run(finished.folder), QUICK))


def test_a_damaged_checkpoint_is_said_and_left_where_it_is(copied, capsys):
    checkpoints = copied / "checkpoints"
    last = checkpoints / "last.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    before = sorted(path.name for path in checkpoints.iterdir())
    assert main(["analyze", str(copied), "scales"]) == 0
    err = capsys.readouterr().err
    assert re.search(r"last.safetensors is damaged .* model after round 2", err), err
    assert sorted(path.name for path in checkpoints.iterdir()) == before


def test_rows_that_cannot_be_read_are_left_out(copied, capsys):
    path = copied / "rounds.jsonl"
    path.write_text(path.read_text() + '{"round": 4, "test_l')  # of a run that goes on
    assert main(["analyze", str(copied), "scales"]) == 0
    path.unlink()
    assert main(["analyze", str(copied), "scales"]) == 2
    assert "rounds.jsonl has no rounds to look at" in capsys.readouterr().err


def test_messages_that_cannot_be_read_are_named(copied):
    messages = copied / "messages"
    replies = sorted(messages.glob("round-1-client-*.fwsq"))
    whole = {path: path.read_bytes() for path in replies if "order" not in path.name}
    first = next(iter(whole))
    first.write_bytes(whole[first][:100])
    with pytest.raises(RunError, match=rf"{first.name} cannot be read: truncated: 100 bytes"):
        list(kept_rounds(open_run(copied), QUICK))
    for path in whole:
        path.unlink()
    with pytest.raises(RunError, match=r"has no client's update of round 1: .* missing"):
        list(kept_rounds(open_run(copied), QUICK))
    (messages / "round-1-broadcast.fwsq").unlink()
    with pytest.raises(RunError, match=r"round-1-broadcast.fwsq cannot be read: .*No such file"):
        list(kept_rounds(open_run(copied), QUICK))


def test_rounds_that_were_counted_have_no_updates_to_look_at(tmp_path, capsys):
    settings = {"uplink.counts": True, "uplink.bits": 1, "record.rounds": [1], "rounds": 1}
    settings |= {"aggregation": "uniform"}
    with Run.create(tiny(**settings), tmp_path / "run", workers=1) as run:
        run.go()
    assert main(["analyze", str(tmp_path / "run"), "drift"]) == 2
    assert "no message has what one client learned; look at a run" in capsys.readouterr().err


def test_a_checkpoint_of_another_model_is_refused(copied):
    config = copied / "config.toml"
    config.write_text(config.read_text().replace('name = "cnn"', 'name = "resnet8"'))
    with pytest.raises(RunError, match="does not fit this run: its tensors are not those"):
        open_run(copied)


def test_the_command_writes_numbers_and_pictures(recorded, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    quick = ["--examples", "40", "--points", "3", "--out", str(tmp_path)]
    assert main(["analyze", str(recorded[0]), *quick]) == 0
    out, err = capsys.readouterr()
    for what in ANALYSES:
        json.loads((recorded[0] / "analysis" / f"{what}.json").read_text())
        assert (tmp_path / f"{what}.png").read_bytes().startswith(b"\x89PNG")
        assert what in out
    assert "landscape of 3 x 3 points, about" in err
    assert "relative coordinates, 20 products or more of about" in err
    # And the page can read what was written.
    found = read_findings(recorded[0])
    assert found.problems == ()
    assert None not in vars(found).values()


def test_runs_stand_side_by_side(recorded, finished, capsys, tmp_path):
    """One that kept rounds and one that did not, under names that tell them apart."""
    folders = [str(recorded[0]), str(finished.folder)]
    assert main(["analyze", *folders, "scales", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "median" in line] == ["scales", "scales"]
    assert lines[0].split()[1] == "run"
    assert lines[1].split()[1] != "run"


def test_runs_of_a_directory_and_each_once(copied, capsys, tmp_path):
    """A sweep's directory stands for its runs; what is named twice is looked at once."""
    words = [str(tmp_path), str(copied), "scales", "scales", "--out", str(tmp_path / "out")]
    assert main(["analyze", *words]) == 0
    assert capsys.readouterr().out.count("median ratio") == 1


def test_a_round_is_repeated_when_asked(finished, tmp_path, capsys):
    copy = tmp_path / "run"

    shutil.copytree(finished.folder, copy)
    assert main(["analyze", str(copy), "drift", "--repeat", "2"]) == 0
    again = copy / "analysis" / "repeat-2"
    assert [row["train_loss"] for row in rows(again)] == [
        row["train_loss"] for row in rows(finished.folder)[:2]
    ]
    found = json.loads((copy / "analysis" / "drift.json").read_text())
    assert list(found["rounds"]) == ["2"]
    assert first_difference(copy, again) is None
    assert "other weights" not in capsys.readouterr().err
    assert main(["analyze", str(copy), "drift", "--repeat", "9"]) == 2
    assert "must be a round of the run, 1 to 3" in capsys.readouterr().err

    # As another version or another processor might have left it.
    lines = (copy / "rounds.jsonl").read_text().splitlines()
    second = json.loads(lines[1]) | {"weights": "0" * 32}
    (copy / "rounds.jsonl").write_text("\n".join([lines[0], json.dumps(second), lines[2], ""]))
    assert main(["analyze", str(copy), "drift", "--repeat", "2"]) == 0
    assert "round 2 came to other weights than then" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hessian"], "no run to analyse"),
        (
            ["hesian", "."],
            "hesian is neither a run directory, .* nor one of hessian, .* did you mean",
        ),
        ([".", "--points", "4"], "points is 4, must be odd"),
        ([".", "--points", "1"], "points is 1, must be odd, .* at least 3"),
        ([".", "--clients", "0"], "clients is 0, must be at least 1"),
        ([".", "--tolerance", "nan"], "tolerance is nan, must be above 0 and below 1"),
        ([".", "--reach", "inf"], "reach is inf, must be above 0 and finite"),
    ],
)
def test_what_cannot_be_analysed(words, says, capsys, in_empty_folder):
    assert main(["analyze", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""

    assert re.search(says, err), err
