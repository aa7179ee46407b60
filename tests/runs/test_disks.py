"""Disks that really fill up, become read-only or go away under a run; then it goes on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedwsq.core.errors import StoreError, disk_trouble
from fedwsq.federation.memory import ClientMemory, ClientStore, MemoryLost
from fedwsq.runs import Run, run
from harness import rows, tiny

# Clients remember something, so every worker writes; a checkpoint is not due before the end.
FEEDBACK = {"rounds": 3, "uplink.error_feedback": True, "checkpoint_every": 9}

# In a mount namespace of its own: what is mounted here is nobody else's, and goes with it.
MOUNT = """
set -e
mount -t tmpfs -o size=64m tmpfs "$1"
cd "$1"
exec "$2" "$3" "$1" "$4" "$5"
"""


def can_mount() -> bool:
    return (
        Path("/usr/bin/unshare").exists()
        and not subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True
        ).returncode
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tiny(**FEEDBACK), out=tmp_path_factory.mktemp("runs") / "calm", workers=1)


@pytest.mark.parametrize(
    ("trouble", "workers"),
    [
        ("full", "1"),
        pytest.param("full", "2", marks=pytest.mark.slow),
        pytest.param("read-only", "1", marks=pytest.mark.slow),
        pytest.param("read-only", "2", marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_takes_no_more_ends_the_run_and_no_round_is_spoilt(
    tmp_path, undisturbed, trouble, workers
):
    """`disk_trouble.py` does it, on a disk of its own; it ends with the weights after resuming."""
    if not can_mount():
        pytest.skip("mounting a small disk needs unshare and the right to use it")
    script = Path(__file__).with_name("disk_trouble.py")
    words = [str(tmp_path), sys.executable, str(script), trouble, workers]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", MOUNT, "sh", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    error, weights = done.stdout.splitlines()[-2:]
    what = {
        "full": f"no space left for {tmp_path}/run: what it has saved is whole; make room",
        "read-only": f"{tmp_path}/run has become read-only: what it has saved is whole; "
        "make it writable",
    }
    assert error == f"fedwsq: {what[trouble]}, then go on with: fedwsq resume {tmp_path}/run"
    assert weights == undisturbed.weights


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lost", ["run", "run/clients"])
def test_a_directory_that_goes_away_ends_the_run(tmp_path, undisturbed, capsys, lost, workers):
    """Moved away, so that it can be put back: nothing of a later round is in it."""
    kept = tmp_path / "kept"

    def lose(record):
        if record.round == 1:
            (tmp_path / lost).rename(kept)

    with Run.create(tiny(**FEEDBACK), tmp_path / "run", workers=workers) as opened:
        with pytest.raises(OSError, match="No such file or directory") as error:
            opened.go([lose])
        what, _ = disk_trouble(error.value, tmp_path / lost)
        assert what == f"{tmp_path / lost} is gone"
    shutil.rmtree(tmp_path / lost, ignore_errors=True)
    kept.rename(tmp_path / lost)
    assert [(row["round"], row["failed"]) for row in rows(tmp_path / "run")] == [(1, 0)]
    with Run.resume(tmp_path / "run", workers=workers) as opened:
        assert opened.go().weights == undisturbed.weights


def test_a_store_tells_what_is_lost_from_what_cannot_be_reached(tmp_path):
    memory = ClientMemory(algorithm={"control": {"w": torch.ones(2)}})
    store = ClientStore(tmp_path / "clients")
    with pytest.raises(MemoryLost):
        store.load(3, 1)  # nobody has been here yet
    store.stage(3, 1, 0, memory)
    with pytest.raises(MemoryLost):
        store.load(3, 2)
    # In place of its folder there is a file: reading is an error of the system, not a gap.
    shutil.rmtree(tmp_path / "clients" / "3")
    (tmp_path / "clients" / "3").touch()
    for act in (lambda: store.load(3, 1), lambda: store.stage(3, 2, 1, memory)):
        with pytest.raises(StoreError):
            act()
    shutil.rmtree(tmp_path / "clients")
    for act in (lambda: store.load(3, 1), lambda: store.stage(3, 2, 1, memory)):
        with pytest.raises(StoreError, match="No such file or directory"):
            act()
    assert not (tmp_path / "clients").exists()


def test_files_over_the_limit_of_a_process_leave_nothing_behind(tmp_path):
    """RLIMIT_FSIZE: a write that fails half-way, for real."""
    write = (
        "import resource, sys, pathlib\n"
        "from fedwsq.core.files import write_atomically\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "write_atomically(path, b'old')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_atomically(path, bytes(5000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", write, str(tmp_path / "file")], capture_output=True, text=True
    )
    assert "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
