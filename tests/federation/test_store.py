import pytest
import torch

from fedwsq.core.errors import UpdateError
from fedwsq.federation.store import ClientStore


def memory(value):
    return {
        "g": {"w": torch.tensor([value]), "a/b": torch.tensor([value + 1])},
        "h": {"w": torch.tensor([-value])},
    }


def generations(store, client):
    return sorted(int(path.stem) for path in (store.folder / str(client)).glob("*.safetensors"))


def test_memory_comes_back_as_it_was_in_order(tmp_path):
    store = ClientStore(tmp_path)
    store.stage(7, 3, 0, memory(1.0))
    state = store.load(7, 3)
    assert list(state) == ["g", "h"]
    assert list(state["g"]) == ["w", "a/b"]
    assert state["g"]["a/b"].tolist() == [2.0]


def test_the_generation_it_starts_from_stays_until_no_checkpoint_can_ask_for_it(tmp_path):
    store = ClientStore(tmp_path, checkpoint_every=1)
    accepted = 0
    for number in range(1, 7):  # takes part in every round and is always accepted
        store.stage(0, number, accepted, memory(float(number)))
        accepted = number
    # While round 6 runs, checkpoints of rounds 5 and 4 may be there, and 3 until 5 is written.
    assert generations(store, 0) == [3, 4, 5, 6]


def test_a_long_pause_keeps_the_one_generation_that_counts(tmp_path):
    store = ClientStore(tmp_path, checkpoint_every=1)
    store.stage(0, 1, 0, memory(1.0))
    store.stage(0, 2, 1, memory(2.0))
    store.stage(0, 90, 2, memory(90.0))
    assert generations(store, 0) == [2, 90]


def test_rarer_checkpoints_keep_more(tmp_path):
    store = ClientStore(tmp_path, checkpoint_every=3)
    for number in range(1, 12):
        store.stage(0, number, number - 1, memory(float(number)))
    # In round 11 the oldest checkpoint that could be resumed from is 10 - 2 * 3 = 4.
    assert generations(store, 0) == list(range(4, 12))


def test_what_was_never_accepted_is_dropped(tmp_path):
    store = ClientStore(tmp_path)
    store.stage(0, 3, 0, memory(3.0))
    store.stage(0, 5, 3, memory(5.0))  # the reply got lost
    store.stage(0, 6, 3, memory(6.0))  # starts from 3 again
    assert generations(store, 0) == [3, 6]


def test_memory_that_is_missing_or_damaged_is_an_error_of_that_client(tmp_path):
    store = ClientStore(tmp_path)
    with pytest.raises(UpdateError, match="client 4's memory of round 2 cannot be read"):
        store.load(4, 2)
    store.stage(4, 2, 0, memory(1.0))
    path = tmp_path / "4" / "2.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UpdateError, match="client 4's memory of round 2"):
        store.load(4, 2)


def test_clients_that_never_took_part_cost_nothing(tmp_path):
    store = ClientStore(tmp_path)
    store.stage(99_999, 1, 0, memory(1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["99999"]
