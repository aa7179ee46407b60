"""Receipts: runs that are repeated, and receipts that are not theirs."""

import json
import shutil
from pathlib import Path

import pytest

from fedwsq.cli import main
from fedwsq.core.errors import RunError
from fedwsq.runs import Run
from fedwsq.runs.checkpoint import load_snapshot
from fedwsq.runs.receipt import Receipt, read_receipt
from fedwsq.runs.verify import _all_but_files
from harness import rows, tiny


def verify(*words: object) -> int:
    return main(["verify", *map(str, words), "--workers", "1"])


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished.folder, tmp_path / "copy"))


def forged(folder: Path, **changes: object) -> Path:
    """A receipt that says something else, and whose own digest is right."""
    receipt = read_receipt(folder)
    path = folder.parent / "forged.json"
    fields = {**vars(receipt), **changes}
    path.write_text(Receipt(**fields).text())
    return path


def test_a_receipt_holds_the_digests_of_every_round(finished):
    receipt = read_receipt(finished.folder)
    found = rows(finished.folder)
    assert receipt.weights == [row["weights"] for row in found]
    assert receipt.packets == [row["packets"] for row in found]
    assert len(set(receipt.packets)) == len(set(receipt.weights)) == 3
    assert receipt.weights[-1] == finished.summary.weights
    text = (finished.folder / "receipt.json").read_text()
    assert "seconds" not in text
    assert "nonce" not in text


@pytest.mark.parametrize("method", ["fedavg", "feddyn"])
def test_two_equal_runs_have_equal_receipts_however_they_were_made(tmp_path, method):
    plan = tiny(rounds=2, method=method)
    with Run.create(plan, tmp_path / "one", workers=1) as run:
        run.go()

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Run.create(plan, tmp_path / "two", workers=1) as run:
        run.go([stop])
    assert not (tmp_path / "two" / "receipt.json").exists()
    with Run.resume(tmp_path / "two", workers=2) as run:
        run.go()
    one, two = (tmp_path / name / "receipt.json" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_run_is_repeated_from_its_receipt_alone(finished, tmp_path, capsys):
    path = tmp_path / "alone.json"
    shutil.copy(finished.folder / "receipt.json", path)
    assert verify(path) == 0
    out = capsys.readouterr().out
    assert "rounds 1 to 3 give the same packets and weights" in out
    assert finished.summary.weights in out


def test_the_first_rounds_alone(finished, capsys):
    assert verify(finished.folder, "--rounds", 1) == 0
    assert "rounds 1 to 1 give the same" in capsys.readouterr().out
    assert verify(finished.folder, "--rounds", 4) == 2
    assert "--rounds is 4, must be from 1 to the 3 of the receipt" in capsys.readouterr().err
    assert verify(finished.folder, "--rounds", 0) == 2
    assert "--rounds is 0, must be from 1 to the 3 of the" in capsys.readouterr().err


def test_the_round_that_differs_first_is_named(finished, copy, capsys):
    receipt = read_receipt(finished.folder)
    weights = [receipt.weights[0], "f" * 32, "f" * 32]
    assert verify(forged(copy, weights=weights)) == 1
    out = capsys.readouterr().out
    assert f"round 2 differs first: its weights are {receipt.weights[1]}" in out
    assert verify(forged(copy, packets=["0" * 32, *receipt.packets[1:]])) == 1
    assert "round 1 differs first: its packets are" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["test_accuracy", "uplink_bytes"])
def test_what_rows_measured_is_compared_too(copy, capsys, name):
    """A receipt has neither: rows that were improved by hand still have its digests."""
    file = copy / "rounds.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()]
    found[1][name] *= 2
    file.write_text("".join(json.dumps(row) + "\n" for row in found))
    assert verify(copy) == 1
    assert f"round 2 differs first: its {name} is" in capsys.readouterr().out
    assert verify(copy / "receipt.json") == 0


def test_another_plan_gives_other_packets(finished, copy, capsys):
    settings = read_receipt(finished.folder).settings
    assert "lr = 0.1" in settings
    other = settings.replace("lr = 0.1", "lr = 0.11")
    assert verify(forged(copy, settings=other)) == 1
    assert "round 1 differs first" in capsys.readouterr().out


def test_other_data_is_said_before_anything_is_run(copy, capsys):
    files = read_receipt(copy).files
    assert verify(forged(copy, files={**files, "data": "0" * 32})) == 1
    assert "data is not what the receipt is of" in capsys.readouterr().out


def test_another_machine_is_a_warning(copy, capsys):
    environment = read_receipt(copy).environment
    path = forged(copy, environment={**environment, "cpu": "an abacus"})
    assert verify(path, "--rounds", 1) == 0
    assert "cpu was an abacus and is" in capsys.readouterr().out


def test_a_difference_on_another_machine_need_not_be_a_fault(copy, capsys):
    receipt = read_receipt(copy)
    environment = {**receipt.environment, "cpu": "an abacus"}
    weights = ["f" * 32, *receipt.weights[1:]]
    assert verify(forged(copy, environment=environment, weights=weights)) == 1
    out = capsys.readouterr().out
    assert "round 1 differs first" in out
    assert "This need not be a fault" in out


@pytest.mark.parametrize("method", ["fedavg", "feddyn"])
def test_from_a_checkpoint_only_the_rounds_after_it_are_repeated(tmp_path, capsys, method):
    folder = tmp_path / "run"
    with Run.create(tiny(method=method), folder, workers=1) as run:
        run.go()
    checkpoint = folder / "checkpoints" / "previous.safetensors"
    assert verify(folder, "--from", checkpoint) == 0
    assert "rounds 3 to 3 give the same" in capsys.readouterr().out
    assert load_snapshot(folder / "checkpoints")[0].round == 3  # left as it was
    assert verify(folder, "--from", folder / "checkpoints" / "last.safetensors") == 2
    assert "one has to be left to repeat" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(finished, tmp_path, capsys):
    with Run.create(tiny(seed=1), tmp_path / "other", workers=1) as run:
        run.go()
    checkpoint = tmp_path / "other" / "checkpoints" / "previous.safetensors"
    assert verify(finished.folder, "--from", checkpoint) == 1
    assert "of round 2, has weights" in capsys.readouterr().out


def test_a_receipt_that_was_changed_is_refused(copy, capsys):
    path = copy / "receipt.json"
    found = json.loads(path.read_text())
    found["weights"][0] = "0" * 32
    path.write_text(json.dumps(found))
    assert verify(copy) == 2
    assert "its digest does not match" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"weights": 3}', "[" * 10**5])
def test_what_is_no_receipt_is_refused(tmp_path, text):
    path = tmp_path / "receipt.json"
    path.write_text(text)
    with pytest.raises(RunError, match="is not a receipt"):
        read_receipt(path)


def test_a_receipt_without_its_keys_names_them(tmp_path, capsys):
    path = tmp_path / "receipt.json"
    path.write_text('{"format": 1, "plan": "p"}')
    assert verify(path) == 2
    missing = "settings, files, environment, packets, weights"
    assert capsys.readouterr().err == f"fedwsq: {path} is not a receipt: it lacks {missing}\n"


def test_a_run_that_is_not_finished_has_none(tmp_path, capsys):
    assert verify(tmp_path) == 2
    assert "a run writes one when it is finished" in capsys.readouterr().err
    assert verify(tmp_path / "nowhere.json", "seed=3") == 2


def test_only_places_can_be_given(finished, capsys):
    assert verify(finished.folder, "seed=3") == 2
    assert "seed cannot change, only where files lie" in capsys.readouterr().err


FORGED_SETTINGS = {
    "[[[": "Invalid initial character",
    "a = " + "[" * 5_000: "nested too deep",
    "a = " + "[" * 40 + "]" * 40: "nested more than",
    ".".join(['"#"'] * 60_000) + " = 1": "a key of more than 40 parts",
    "rounds = " + "9" * 5_000: "4300 digits",
    "x" * 300_000: "more than 262,144 bytes",
}


@pytest.mark.parametrize("settings", FORGED_SETTINGS, ids=range(len(FORGED_SETTINGS)))
def test_settings_that_no_run_wrote_are_refused_in_one_line(finished, copy, capsys, settings):
    assert verify(forged(copy, settings=settings)) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedwsq: the settings of the receipt cannot be read: ")
    assert FORGED_SETTINGS[settings] in err
    assert err.count("\n") == 1


def test_a_receipt_of_no_rounds_or_more_than_its_plan_has_is_refused(copy, capsys):
    assert verify(forged(copy, packets=[], weights=[])) == 2
    assert "has no rounds" in capsys.readouterr().err
    receipt = read_receipt(copy)
    more = {"packets": receipt.packets * 2, "weights": receipt.weights * 2}
    assert verify(forged(copy, **more)) == 2
    assert "the receipt has 6 rounds, and its plan 3" in capsys.readouterr().err


def test_links_among_what_clients_remember_are_not_followed(tmp_path):
    memory = tmp_path / "run" / "clients" / "0"
    memory.mkdir(parents=True)
    (memory / "1.safetensors").write_bytes(b"kept")
    (memory / "2.safetensors").symlink_to("/dev/zero")
    names = ["1.safetensors", "2.safetensors"]
    assert _all_but_files(str(memory), names) == ["2.safetensors"]
