"""What a run leaves on disk, and what can be done with it afterwards."""

import contextlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, safe_open

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.data import DATASETS
from fedwsq.evaluation import moving_average
from fedwsq.federation.simulation import simulate
from fedwsq.models import cnn
from fedwsq.plan import dump_plan, load_plan, plan_digest
from fedwsq.runs import Run, load_snapshot, run
from fedwsq.runs.reading import read_run
from fedwsq.wire import decode
from fedwsq.wire.message import ENTRY_BYTES
from harness import rows, timeless, tiny

NAMED_IN_ISSUE_2 = [
    "round",
    "test_accuracy",
    "test_accuracy_ema",
    "test_loss",
    "train_loss",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bytes_float32",
    "sampled",
    "replied",
    "failed",
    "bits",
    "scale_ratio",
    "seconds",
    "train_seconds",
    "codec_seconds",
    "eval_seconds",
]


def accuracy_of(path) -> float:
    """Test accuracy of a saved model in the plain architecture: no standardization, no run."""
    model = cnn()
    data = DATASETS["digits"]()
    model.load_state_dict(load_file(path))
    x, y = data.test.take(torch.arange(len(data.test)))
    with torch.inference_mode():
        return int((model(x).argmax(dim=1) == y).sum()) / len(y)


def assert_same_tensors(a, b):
    """The files themselves may differ: safetensors writes its metadata in any order."""
    mine, theirs = load_file(a), load_file(b)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def copy_of(finished, tmp_path):
    return shutil.copytree(finished.folder, tmp_path / "run")


# What is in it


def test_the_config_reloads_to_the_same_plan(finished):
    plan = tiny()
    assert load_plan(finished.folder / "config.toml") == plan
    assert (finished.folder / "config.toml").read_text() == dump_plan(plan)


def test_auto_precision_is_resolved_once_and_written_down(tmp_path):
    with Run.create(tiny(**{"training.precision": "auto"}), tmp_path / "run", workers=1) as opened:
        pass
    assert load_plan(tmp_path / "run" / "config.toml").training.precision in ("float32", "bfloat16")
    assert opened.plan.training.precision != "auto"


def test_a_run_in_bfloat16_is_not_resumed_where_a_worker_would_be_ended_by_it(
    tmp_path, monkeypatch
):
    bfloat16 = {"training.precision": "bfloat16"}
    with Run.create(tiny(**bfloat16), tmp_path / "run", workers=1):
        pass
    monkeypatch.setattr("fedwsq.training.precision.amx_keeps_its_word", lambda: False)
    with (
        pytest.raises(ConfigError, match="offers AMX"),
        Run.resume(tmp_path / "run", workers=1),
    ):
        pass


def test_the_manifest_says_what_made_the_run(finished):
    manifest = json.loads((finished.folder / "manifest.json").read_text())
    assert manifest["format"] == 2
    assert manifest["torch"] == torch.__version__
    assert manifest["seed"] == 0
    assert manifest["config"] == plan_digest(tiny())
    assert manifest["cpu"]
    assert set(manifest) >= {
        "fedwsq",
        "python",
        "numpy",
        "cores",
        "device",
        "workers",
        "precision",
        "run",
        "started",
    }
    assert len(bytes.fromhex(manifest["run"])) == 16


def test_every_row_has_the_fields_that_were_promised(finished):
    found = rows(finished.folder)
    assert [row["round"] for row in found] == [1, 2, 3]
    for row in found:
        assert set(NAMED_IN_ISSUE_2) <= set(row)
        unknown = {name for name in NAMED_IN_ISSUE_2 if row[name] is None}
        # Before the first round there is no shared scale that local ones could be held against.
        assert unknown == ({"scale_ratio"} if row["round"] == 1 else set())
        assert (row["sampled"], row["replied"], row["failed"], row["failures"]) == (5, 5, 0, {})
        assert row["bits"] == 4
        assert 0 <= row["test_accuracy"] <= 1
        assert row["config"] == plan_digest(tiny())
        assert row["seconds"] >= row["eval_seconds"] > 0
        assert row["train_seconds"] > 0
    averages, seen = [row["test_accuracy_ema"] for row in found], None
    for row, average in zip(found, averages, strict=True):
        seen = moving_average(seen, row["test_accuracy"])
        assert average == seen
    assert averages[0] == found[0]["test_accuracy"]


def test_the_saved_model_scores_exactly_what_was_recorded(finished):
    found = rows(finished.folder)
    assert accuracy_of(finished.folder / "model.safetensors") == found[-1]["test_accuracy"]
    best = max(found, key=lambda row: (row["test_accuracy"], -row["round"]))
    assert accuracy_of(finished.folder / "best.safetensors") == best["test_accuracy"]
    with safe_open(finished.folder / "best.safetensors", "pt") as file:
        assert file.metadata()["round"] == str(best["round"])


def test_the_best_model_stays_when_later_rounds_are_worse(tmp_path):
    """A learning rate far too high: accuracy goes up and down."""
    plan = tiny(rounds=6, **{"training.lr": 2.0, "training.epochs": 2})
    summary = run(plan, out=tmp_path / "run", workers=1)
    found = rows(tmp_path / "run")
    accuracies = [row["test_accuracy"] for row in found]
    assert max(accuracies) > accuracies[-1], "pick another seed: the last round is the best"
    assert summary.best_accuracy == max(accuracies)
    assert summary.best_round == 1 + accuracies.index(max(accuracies))
    assert summary.accuracy == accuracies[-1]
    assert accuracy_of(tmp_path / "run" / "best.safetensors") == max(accuracies)
    assert accuracy_of(tmp_path / "run" / "model.safetensors") == accuracies[-1]


def test_nothing_temporary_is_left(finished):
    names = {path.name for path in finished.folder.iterdir()}
    models = {"best.safetensors", "model.safetensors"}
    texts = {"config.toml", "manifest.json", "receipt.json", "rounds.jsonl", "summary.json"}
    assert names == models | texts | {"classes.json", ".lock", "checkpoints", "messages"}
    assert json.loads((finished.folder / "classes.json").read_text()) == list("0123456789")
    checkpoints = {path.name for path in (finished.folder / "checkpoints").iterdir()}
    assert checkpoints == {"last.safetensors", "previous.safetensors"}


# Bytes


def test_reported_bytes_are_the_lengths_of_the_messages(finished):
    messages = finished.folder / "messages"
    for row in rows(finished.folder):
        prefix = f"round-{row['round']}"
        replies = [
            p for p in messages.glob(f"{prefix}-client-*.fwsq") if not p.stem.endswith("-order")
        ]
        orders = list(messages.glob(f"{prefix}-client-*-order.fwsq"))
        broadcast = (messages / f"{prefix}-broadcast.fwsq").stat().st_size
        assert len(replies) == len(orders) == row["sampled"] == 5
        assert row["uplink_bytes"] == sum(p.stat().st_size for p in replies)
        assert row["downlink_bytes"] == 5 * broadcast + sum(p.stat().st_size for p in orders)
    summary = finished.summary
    assert summary.uplink_bytes == sum(row["uplink_bytes"] for row in rows(finished.folder))
    assert summary.total_bytes == summary.uplink_bytes + summary.downlink_bytes


def test_factors_against_float32_are_what_a_float32_run_really_sends(finished, tmp_path):
    """The yardstick is not a formula: the same run with the float32 codec sends exactly that many
    bytes.
    """
    plain = run(tiny(**{"uplink.codec": "float32"}), out=tmp_path / "plain", workers=1)
    summary = finished.summary
    assert plain.uplink_factor == plain.downlink_factor == plain.total_factor == 1.0
    coded_rows, plain_rows = rows(finished.folder), rows(tmp_path / "plain")
    for coded, full in zip(coded_rows, plain_rows, strict=True):
        assert coded["uplink_bytes_float32"] == full["uplink_bytes"]
    assert summary.uplink_factor == plain.uplink_bytes / summary.uplink_bytes
    total32 = sum(row["uplink_bytes_float32"] + row["downlink_bytes_float32"] for row in coded_rows)
    assert summary.total_factor == total32 / summary.total_bytes


def test_a_four_bit_reply_costs_half_a_byte_a_coded_weight_and_what_we_say(finished):
    """32->64 and 16->32 convolutions at 4 bits, everything else at 32, and one entry a tensor."""
    found = (finished.folder / "messages").glob("round-1-client-*.fwsq")
    path = next(path for path in found if "order" not in path.name)
    schema = simulate(tiny()).charter.schema
    message = decode(path.read_bytes(), schema)
    (packets,) = message.packets.values()
    coded = [name for name, packet in packets.items() if packet.rate == 4]
    assert coded == [name for name, shape in schema.shapes.items() if len(shape) == 4][1:]
    bytes_of_codes = sum(
        size // 2 + 4 if name in coded else 4 * size for name, size in schema.sizes.items()
    )  # each coded tensor also sends its scale, 4 bytes
    overhead = path.stat().st_size - bytes_of_codes - ENTRY_BYTES * len(schema.sizes)
    assert 0 < overhead < 300  # header, metrics, checksum


# Refusals


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="already holds a run"):
        run(tiny(), out=folder, workers=1)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "rounds.jsonl",
        "checkpoints",
        "receipt.json",
        "summary.json",
        "best.safetensors",
        "model.safetensors",
    ],
)
def test_whatever_is_left_of_a_run_is_not_overwritten(finished, tmp_path, name):
    folder = tmp_path / "run"
    folder.mkdir()
    there = finished.folder / name
    shutil.copytree(there, folder / name) if there.is_dir() else shutil.copy(there, folder)
    with pytest.raises(RunError, match=r"already holds a run, and its config\.toml is missing"):
        run(tiny(), out=folder, workers=1)
    assert [path.name for path in folder.iterdir()] == [name]


def test_a_run_without_its_config_is_put_in_order_by_putting_it_back(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    config = (folder / "config.toml").rename(tmp_path / "config.toml")
    before = (folder / "rounds.jsonl").read_bytes()
    with (
        pytest.raises(RunError, match=r"cannot go on: its config\.toml is missing; put it back"),
        Run.resume(folder),
    ):
        pass
    with pytest.raises(RunError, match=r"its config\.toml is missing; put it back"):
        run(tiny(), out=folder, workers=1)
    found = read_run(folder)
    assert (found.state, found.problems) == ("damaged", ("config.toml is missing; put it back",))
    assert (folder / "rounds.jsonl").read_bytes() == before
    config.rename(folder / "config.toml")
    with Run.resume(folder, {"rounds": 4}, workers=1) as again:
        assert again.go().rounds == 4


def test_a_run_that_appears_while_ours_is_being_built_is_not_overwritten(
    finished, tmp_path, monkeypatch
):
    """Loading data takes a while; another process may start, and even finish, a run in the same
    folder meanwhile.
    """
    folder = tmp_path / "run"

    def slow_build(plan, *rest):
        shutil.copytree(finished.folder, folder)
        return simulate(plan, *rest)

    monkeypatch.setattr("fedwsq.runs.backend.simulate", slow_build)
    with pytest.raises(RunError, match="already holds a run"):
        run(tiny(seed=5), out=folder, workers=1)
    assert load_plan(folder / "config.toml") == tiny()
    assert len(rows(folder)) == 3


def test_a_folder_in_use_by_another_process_is_refused(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    begun = tmp_path / "begun"
    begun.mkdir()
    code = (
        "import fcntl, sys; files = [open(name, 'a') for name in sys.argv[1:]]; "
        "[fcntl.flock(f, fcntl.LOCK_EX) for f in files]; "
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / ".lock"), str(begun / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(RunError, match="in use by another process"),
            Run.resume(folder, workers=1),
        ):
            pass
        with pytest.raises(RunError, match="in use by another process"):
            run(tiny(), out=begun, workers=1)
    finally:
        holder.communicate("")
    run(tiny(rounds=1), out=begun, workers=1)  # and free again when its holder is gone


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/below"):
        with pytest.raises(RunError, match="cannot create"):
            run(tiny(), out=tmp_path / out, workers=1)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "run" / ".lock").mkdir(parents=True)
    with pytest.raises(RunError, match=r"run.*cannot be written"):
        run(tiny(), out=tmp_path / "run", workers=1)


def test_a_directory_of_another_version_is_refused(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    for found in (1, 3, None, "2"):
        (folder / "manifest.json").write_text(json.dumps({**manifest, "format": found}))
        with (
            pytest.raises(RunError, match=f"has run format {found}, this build .* reads 2"),
            Run.resume(folder),
        ):
            pass


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff"])
def test_a_damaged_manifest_is_an_error(finished, tmp_path, text):
    folder = copy_of(finished, tmp_path)
    (folder / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with (
        pytest.raises(RunError, match=r"manifest\.json cannot be read|has run format None"),
        Run.resume(folder),
    ):
        pass


def test_a_folder_without_a_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(RunError, match="is not a run directory"), Run.resume(folder):
            pass


def test_negative_workers_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="workers is -1"):
        run(tiny(), out=tmp_path / "run", workers=-1)
    assert not (tmp_path / "run").exists()


# Going on


def test_more_rounds_later_equal_one_long_run(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    with Run.resume(folder, {"rounds": 5}, workers=1) as opened:
        assert opened.warnings == []
        summary = opened.go()
    long = run(tiny(rounds=5), out=tmp_path / "long", workers=1)
    assert summary.weights == long.weights
    assert summary.rounds == 5
    assert [timeless(row) for row in rows(folder)] == [
        timeless(row) for row in rows(tmp_path / "long")
    ]
    assert load_plan(folder / "config.toml").rounds == 5
    for name in ("model.safetensors", "best.safetensors"):
        assert_same_tensors(folder / name, tmp_path / "long" / name)


def test_resuming_a_finished_run_changes_nothing(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    with Run.resume(folder, workers=1) as opened:
        assert opened.go() == finished.summary
    for name in ("rounds.jsonl", "config.toml", "manifest.json", "checkpoints/last.safetensors"):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes()
    assert_same_tensors(folder / "model.safetensors", finished.folder / "model.safetensors")


def test_fewer_rounds_than_were_run_are_refused(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    with (
        pytest.raises(ConfigError, match="has run 3 rounds already"),
        Run.resume(folder, {"rounds": 2}),
    ):
        pass
    assert load_plan(folder / "config.toml").rounds == 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": 3}, "seed cannot change on resume, only rounds, patience and where files lie"),
        ({"training.lr": 0.2, "rounds": 9}, r"training\.lr cannot change on resume"),
        ({"data.clients": 9}, r"data\.clients cannot change on resume"),
        ({"rounds": 0}, "rounds is 0, must be a whole number"),
        ({"rounds": True}, "rounds is True"),
        ({"rounds": "many"}, "rounds is 'many'"),
    ],
    ids=str,
)
def test_what_weights_depend_on_cannot_change(finished, tmp_path, changes, why):
    folder = copy_of(finished, tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=why), Run.resume(folder, changes):
        pass
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_published_schedule_does_not_allow_other_rounds(tmp_path):
    run(tiny(**{"training.schedule": "published"}), out=tmp_path / "run", workers=1)
    with (
        pytest.raises(ConfigError, match="depends on rounds"),
        Run.resume(tmp_path / "run", {"rounds": 9}),
    ):
        pass


def test_rows_past_the_checkpoint_and_a_line_cut_short_are_rewound(finished, tmp_path):
    """As a kill leaves it with checkpoint_every = 2: the checkpoint of round 2, the row of round 3,
    half a row.
    """
    folder = copy_of(finished, tmp_path)
    checkpoints = folder / "checkpoints"
    (checkpoints / "previous.safetensors").replace(checkpoints / "last.safetensors")
    with open(folder / "rounds.jsonl", "a") as file:
        file.write('{"round": 4, "test_accu')
    with Run.resume(folder, workers=1) as opened:
        assert [row.round for row in opened.records] == [1, 2]
        assert [row["round"] for row in rows(folder)] == [1, 2]
        assert opened.go().weights == finished.summary.weights
    assert [timeless(row) for row in rows(folder)] == [
        timeless(row) for row in rows(finished.folder)
    ]


@pytest.mark.parametrize("line", ["garbage", "{}", "[1]", '{"round": "x"}', "\x00\x00"])
def test_a_damaged_row_in_the_middle_is_an_error_that_names_it(finished, tmp_path, line):
    folder = copy_of(finished, tmp_path)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    lines[1] = line
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    before = (folder / "rounds.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"rounds\.jsonl.*line 2"), Run.resume(folder, workers=1):
        pass
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_checkpoints_every_few_rounds_and_at_the_end(tmp_path):
    seen = []
    folder = tmp_path / "run"

    def look(record):
        seen.append((record.round, load_snapshot(folder / "checkpoints")[0].round))

    with Run.create(tiny(rounds=5, checkpoint_every=2), folder, workers=1) as opened:
        opened.go([look])
    assert seen == [(1, 0), (2, 2), (3, 2), (4, 4), (5, 4)]
    assert load_snapshot(folder / "checkpoints")[0].round == 5


def test_a_changed_machine_is_pointed_out(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "torch": "1.0"}))
    with Run.resume(folder, workers=1) as opened:
        (warning,) = opened.warnings
    assert f"torch was 1.0 and is {torch.__version__}" in warning


def test_the_target_accuracy_ends_the_run(tmp_path):
    longer = rows_of(tiny(rounds=8, **{"training.epochs": 3}), tmp_path / "all")
    target = max(row["test_accuracy"] for row in longer[:5])
    first = next(row["round"] for row in longer if row["test_accuracy"] >= target)
    assert first < 8
    stopped = rows_of(
        tiny(rounds=8, stop_at_accuracy=target, **{"training.epochs": 3}), tmp_path / "stopped"
    )
    assert [row["round"] for row in stopped] == list(range(1, first + 1))
    with Run.resume(tmp_path / "stopped", workers=1) as opened:
        assert opened.go().rounds == first
    with safe_open(tmp_path / "stopped" / "model.safetensors", "pt") as file:
        assert file.metadata()["round"] == str(first)


def rows_of(plan, folder):
    run(plan, out=folder, workers=1)
    return rows(folder)


# Evaluation


def test_eval_every_skips_rounds_but_not_the_last(tmp_path, finished):
    found = rows_of(tiny(rounds=5, eval_every=2), tmp_path / "run")
    assert [row["round"] for row in found if row["test_accuracy"] is not None] == [2, 4, 5]
    skipped = found[0]
    assert skipped["test_loss"] is skipped["test_accuracy_ema"] is skipped["class_accuracy"] is None
    # Seeded with the first value there is; and evaluating changes nothing.
    assert found[1]["test_accuracy_ema"] == found[1]["test_accuracy"]
    assert found[1]["test_accuracy"] == rows(finished.folder)[1]["test_accuracy"]


def test_client_accuracy_is_the_mix_of_class_accuracies(tmp_path):
    plan = tiny(rounds=2, eval_clients=True, **{"training.epochs": 5, "data.clients": 20})
    clients = simulate(plan).clients
    for row in rows_of(plan, tmp_path / "run"):
        by_class = row["class_accuracy"]
        each = []
        for client in range(20):
            labels = clients.dataset.train.labels[clients.split[client]].tolist()
            each.append(sum(by_class[label] for label in labels) / len(labels))
        worst = sum(sorted(each)[:2]) / 2
        assert row["client_accuracy"] == pytest.approx(sum(each) / 20, abs=1e-6)
        assert row["client_accuracy_worst_decile"] == pytest.approx(worst, abs=1e-6)
        assert row["evaluation_bytes"] == 0  # worked out here: no client was asked
        counts = torch.bincount(clients.dataset.test.labels).tolist()
        overall = sum(a * n for a, n in zip(by_class, counts, strict=True)) / sum(counts)
        assert row["test_accuracy"] == pytest.approx(overall, abs=1e-6)


def test_a_validation_split_is_measured_and_never_trained_on(tmp_path):
    plan = tiny(rounds=2, **{"data.validation": 0.2})
    simulation = simulate(plan)
    clients = simulation.clients
    train = clients.dataset.train
    assert simulation.test.name == "validation"
    held = set(simulation.test.chosen.tolist())
    assert len(held) == round(0.2 * len(train))
    for client in range(len(clients.split)):
        mine = clients.kept[clients.split[client]]
        assert held.isdisjoint(mine.tolist())
        x, y = train.take(mine)
        assert torch.equal(clients.shard(client).x, x)
        assert torch.equal(clients.shard(client).y, y)
    for row in rows_of(plan, tmp_path / "run"):
        assert row["test_accuracy"] is row["test_loss"] is row["test_accuracy_ema"] is None
        assert 0 <= row["validation_accuracy"] <= 1
        assert row["validation_loss"] > 0
        assert row["validation_accuracy_ema"] is not None
    model = cnn()
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    x, y = train.take(simulation.test.chosen)
    with torch.inference_mode():
        right = int((model(x).argmax(dim=1) == y).sum())
    assert right / len(y) == row["validation_accuracy"]


# Divergence


@pytest.mark.parametrize("lr", [1e3, 1e6, 1e12, 1e30])
@pytest.mark.parametrize("codec", ["danuq", "float32"])
def test_a_run_that_diverges_ends_in_rows_or_one_error_never_in_a_crash(tmp_path, lr, codec):
    overrides = {
        "training.lr": lr,
        "uplink.codec": codec,
        "model.standardize": False,
        "training.clip_norm": 0.0,
    }
    with contextlib.suppress(RunError):  # nobody could answer for three rounds in a row
        run(tiny(**overrides), out=tmp_path / "run", workers=1)
    assert len(rows(tmp_path / "run")) == 3
    for row in rows(tmp_path / "run"):
        assert row["replied"] + row["failed"] == row["sampled"]


def test_all_finite_losses_are_json(finished):
    assert "NaN" not in (finished.folder / "rounds.jsonl").read_text()


def test_a_config_that_was_changed_is_not_resumed(finished, tmp_path):
    folder = copy_of(finished, tmp_path)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(RunError, match="was changed since the run began"), Run.resume(folder):
        pass


@pytest.mark.parametrize("change", ["labels", "order", "split", "nothing"])
def test_data_that_was_changed_is_not_resumed(tmp_path, change):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random((60, 1, 8, 8), np.float32), "y": np.arange(60) % 10}
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    clients = [list(range(24)), list(range(24, 48))]
    text = {
        "format": "fedwsq-split",
        "version": 1,
        "examples": None,
        "repeats": False,
        "clients": clients,
    }
    split = tmp_path / "split.json"
    split.write_text(json.dumps(text))
    data = {"name": "npz", "path": str(path), "clients": 2, "client_test": 0.2}
    partition = {"data.partition": {"name": "file", "path": str(split)}}
    folder = tmp_path / "run"
    run(tiny(rounds=1, clients_per_round=2, data=data, **partition), out=folder, workers=1)
    if change == "labels":
        np.savez(path, **{**arrays, "y": (np.arange(60) + 1) % 10})
    elif change == "order":
        np.savez(path, **{name: array[::-1] for name, array in arrays.items()})
    elif change == "split":
        split.write_text(json.dumps(text | {"clients": clients[::-1]}))
    if change == "nothing":
        with Run.resume(folder, workers=1):
            return
    before = (folder / "config.toml").read_text()
    refused = "the data is not what the run began with: its training labels, or who"
    with (
        pytest.raises(RunError, match=refused),
        Run.resume(folder, {"rounds": 7}, workers=1),
    ):
        pass
    assert (folder / "config.toml").read_text() == before


def test_the_digest_of_data_covers_what_clients_keep_back():
    plans = (
        tiny(),
        tiny(**{"data.client_test": 0.2}),
        tiny(**{"data.client_test": 0.3}),
        tiny(seed=1),
    )
    digests = [simulate(plan).clients.digest for plan in plans]
    assert len(set(digests)) == len(digests)
    assert simulate(tiny()).clients.digest == digests[0]


def test_a_file_to_start_from_is_found_from_anywhere(finished, in_empty_folder, monkeypatch):
    (in_empty_folder / "start").mkdir()
    shutil.copy(finished.folder / "model.safetensors", "start/mine.safetensors")
    run(tiny(rounds=1, **{"model.init": "start/mine.safetensors"}), out="run", workers=1)
    path = in_empty_folder / "start" / "mine.safetensors"
    assert load_plan("run/config.toml").model.init == str(path)
    monkeypatch.chdir("start")
    with Run.resume(in_empty_folder / "run", {"rounds": 2}, workers=1) as opened:
        assert opened.go().rounds == 2


def test_float_targets_need_another_criterion(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.ones((20, 3)), y=np.linspace(0, 1, 20))
    settings = {
        "data.name": "npz",
        "data.path": str(tmp_path / "data.npz"),
        "data.partition": "iid",
    }
    with pytest.raises(
        ConfigError,
        match=r"cross_entropy needs integer labels, .*float32; .*criterion=squared_error",
    ):
        simulate(tiny(**settings))
    simulate(tiny(**settings, **{"training.criterion": "squared_error"}))


def failing(outputs, targets):
    if len(targets) > 8:  # a trial has no more
        raise ValueError("no\nmetric")
    return outputs[:, 0]


def test_an_evaluation_that_fails_is_one_line(tmp_path):
    plan = tiny(rounds=1, metric=f"{__name__}:failing")
    place = r"\(test_run_directory\.py:\d+, in failing\)"
    with pytest.raises(RunError, match=rf"^evaluation failed: ValueError: no metric {place}$"):
        run(plan, out=tmp_path / "run", workers=1)


def test_a_validation_share_that_holds_nothing_out_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds none out"):
        run(tiny(**{"data.validation": 0.0001}), out=tmp_path / "run", workers=1)
    assert not (tmp_path / "run").exists()
