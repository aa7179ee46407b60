"""Checkpoints: whole or refused, never something in between."""

import json
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors
import torch

from fedwsq.core.errors import RunError
from fedwsq.core.files import save_tensors, write_atomically
from fedwsq.core.tree import fingerprint
from fedwsq.federation.bounds import Trend, Usual
from fedwsq.federation.downlink import PublicModel
from fedwsq.federation.server import Snapshot
from fedwsq.runs import Run, checkpoint, load_snapshot, save_snapshot
from harness import rows, timeless


def make_snapshot(number: int = 7) -> Snapshot:
    """Tensors of odd shapes under names that sorting would reorder."""
    rng = torch.Generator().manual_seed(number)
    params = {
        "z.weight": torch.randn(3, 2, 1, generator=rng),
        "a.bias": torch.randn(5, generator=rng),
        "m/slash": torch.tensor(float(number)),
        "empty": torch.zeros(0),
    }
    momentum = {name: -x for name, x in params.items()}
    shared = {"delta": {"z.weight": torch.tensor([0.125]), "a.bias": torch.tensor([float(number)])}}
    return Snapshot(
        bytes(range(16)),
        number,
        {"params": params, "momentum": momentum},
        shared,
        np.array([0, 4, 0, number], np.int32),
        0.1 + number,
        usual=Usual({"delta": Trend((0.1, 0.3), 0.2)}, Trend((7.0,), 7.0)),
    )


def assert_same(a: Snapshot, b: Snapshot) -> None:
    assert (a.run, a.round, a.accuracy_ema) == (b.run, b.round, b.accuracy_ema)
    assert a.usual == b.usual
    assert a.accepted.tolist() == b.accepted.tolist()
    assert a.accepted.dtype == b.accepted.dtype
    for mine, theirs in ((a.server, b.server), (a.shared, b.shared)):
        assert list(mine) == list(theirs)
        for vector in mine:
            assert list(mine[vector]) == list(theirs[vector])  # in the model's order
            for name, x in mine[vector].items():
                torch.testing.assert_close(x, theirs[vector][name], rtol=0, atol=0)


def test_a_snapshot_comes_back_as_it_was_in_the_models_order(tmp_path):
    save_snapshot(tmp_path / "checkpoints", make_snapshot())
    loaded, warning = load_snapshot(tmp_path / "checkpoints")
    assert warning == ""
    assert_same(loaded, make_snapshot())
    assert fingerprint(loaded.server["params"]) == fingerprint(make_snapshot().server["params"])


def test_a_snapshot_without_history_comes_back_too(tmp_path):
    bare = replace(make_snapshot(0), accepted=np.zeros(3, np.int32), accuracy_ema=None, shared={})
    save_snapshot(tmp_path / "checkpoints", bare)
    assert_same(load_snapshot(tmp_path / "checkpoints")[0], bare)


def test_a_chains_public_model_comes_back_with_its_differences(tmp_path):
    params = make_snapshot().server["params"]
    public = PublicModel(
        {"params": params, "control": params}, {12: b"twelve", 9: b"9", 100: b"\0"}
    )
    save_snapshot(tmp_path, replace(make_snapshot(), public=public))
    found = load_snapshot(tmp_path)[0].public
    assert dict(found.differences) == {12: b"twelve", 9: b"9", 100: b"\0"}
    assert list(found.vectors) == ["params", "control"]
    for vector in found.vectors.values():
        assert fingerprint(vector) == fingerprint(params)
        assert list(vector) == list(params)


def test_the_one_before_is_kept_and_no_more(tmp_path):
    for number in (1, 2, 3):
        save_snapshot(tmp_path, make_snapshot(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "last.safetensors",
        "previous.safetensors",
    ]
    (tmp_path / "last.safetensors").unlink()
    loaded, warning = load_snapshot(tmp_path)
    assert_same(loaded, make_snapshot(2))
    assert warning == f"{tmp_path / 'last.safetensors'} is missing"


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_no_flipped_byte_anywhere_in_the_file_goes_unnoticed(tmp_path):
    """Every byte of the header and the tensors, one at a time: the previous checkpoint, or the very
    same contents.
    """
    save_snapshot(tmp_path, make_snapshot(1))
    save_snapshot(tmp_path, make_snapshot(2))
    path = tmp_path / "last.safetensors"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        loaded, warning = load_snapshot(tmp_path)
        assert_same(loaded, make_snapshot(1 if warning else 2))
        assert not warning or str(path) in warning


def test_the_run_id_and_the_round_are_guarded_like_the_tensors(tmp_path):
    """A valid file whose facts were changed by hand is not the checkpoint that was written."""
    save_snapshot(tmp_path, make_snapshot())
    path = tmp_path / "last.safetensors"
    whole = path.read_bytes()
    changed = whole.replace(b'\\"round\\": 7', b'\\"round\\": 6')
    assert changed != whole
    path.write_bytes(changed)
    with pytest.raises(RunError, match="digest"):
        load_snapshot(tmp_path)


def test_facts_that_are_missing_or_of_another_kind_are_damage_not_a_crash(tmp_path):
    path = tmp_path / "last.safetensors"
    for metadata in (
        {},
        {"fedwsq": "[]"},
        {"fedwsq": "{"},
        {"fedwsq": '{"format": 2}'},
        {"fedwsq": "null"},
    ):
        save_tensors(path, {"server/params/a": torch.ones(2)}, metadata)
        with pytest.raises(RunError, match="no usable checkpoint"):
            load_snapshot(tmp_path)


def test_another_format_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 9)
    save_snapshot(tmp_path, make_snapshot())
    monkeypatch.undo()
    with pytest.raises(RunError, match="has format 9, this build reads 4"):
        load_snapshot(tmp_path)


def test_checkpoints_are_plain_safetensors(tmp_path):
    save_snapshot(tmp_path, make_snapshot())
    with safetensors.safe_open(tmp_path / "last.safetensors", "pt") as file:
        assert "server/params/m/slash" in set(file.keys())
        assert json.loads(file.metadata()["fedwsq"])["round"] == 7


# In a run: the last checkpoint is damaged, the run goes on from the one before and ends the same


def flip_in_data(path):
    data = bytearray(path.read_bytes())
    data[-1000] ^= 0x10
    path.write_bytes(bytes(data))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble_header(path):
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])


def replace_with_garbage(path):
    path.write_bytes(b"\xff\x00garbage")


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


DAMAGES = [flip_in_data, truncate, halve, garble_header, replace_with_garbage, empty, remove]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_last_checkpoint_falls_back_and_ends_the_same(finished, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    last = folder / "checkpoints" / "last.safetensors"
    damage(last)
    with Run.resume(folder, workers=1) as run:
        (warning,) = run.warnings
        assert str(last) in warning
        assert "going on from round 2" in warning
        summary = run.go()
    assert summary.weights == finished.summary.weights
    assert [timeless(row) for row in rows(folder)] == [
        timeless(row) for row in rows(finished.folder)
    ]
    assert load_snapshot(folder / "checkpoints")[0].round == 3


@pytest.mark.parametrize("damage", [flip_in_data, remove])
def test_two_damaged_checkpoints_are_an_error_and_nothing_is_deleted(finished, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    for name in ("last.safetensors", "previous.safetensors"):
        damage(folder / "checkpoints" / name)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with (
        pytest.raises(RunError, match=r"last\.safetensors.*previous\.safetensors"),
        Run.resume(folder, workers=1),
    ):
        pass
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_damaged_checkpoint_never_takes_the_place_of_a_good_one(tmp_path):
    save_snapshot(tmp_path, make_snapshot())
    save_snapshot(tmp_path, replace(make_snapshot(), round=8))
    last = tmp_path / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-5])
    assert load_snapshot(tmp_path)[0].round == 7
    (tmp_path / ".next.safetensors.tmp").mkdir()  # nothing can be written there, as on a full disk
    with pytest.raises(OSError, match="directory"):
        save_snapshot(tmp_path, replace(make_snapshot(), round=8))
    assert load_snapshot(tmp_path)[0].round == 7


def test_a_checkpoint_from_before_anything_was_usual_is_read(tmp_path):
    snapshot = make_snapshot()
    save_snapshot(tmp_path, snapshot)
    with safetensors.safe_open(tmp_path / checkpoint.LAST, "pt") as file:
        plain = json.loads(file.metadata()["fedwsq"])
        tensors = {name: file.get_tensor(name) for name in plain["tensors"]}
    del plain["usual"], plain["digest"]
    plain["digest"] = checkpoint._digest(plain, tensors)
    save_tensors(tmp_path / checkpoint.LAST, tensors, {"fedwsq": json.dumps(plain)})
    found, damage = load_snapshot(tmp_path)
    assert not damage
    assert_same(found, replace(snapshot, usual=Usual()))
