import random

import pytest

from fedwsq.federation.spool import Spool


@pytest.mark.parametrize("limit_bytes", [0, 150, 10**6])
def test_payloads_come_back_whole_in_any_order(tmp_path, limit_bytes):
    spool = Spool(tmp_path, limit_bytes)
    payloads = {client: random.Random(client).randbytes(client * 10) for client in range(20)}
    for client, payload in payloads.items():
        spool.put(client, payload)
    for client in random.Random(0).sample(range(20), 20):
        assert client in spool
        assert spool.pop(client) == payloads[client]
        assert client not in spool
    spool.close()


def test_putting_after_popping_from_disk_overwrites_nothing(tmp_path):
    spool = Spool(tmp_path, 0)
    spool.put(1, b"one")
    spool.put(2, b"two")
    assert spool.pop(1) == b"one"
    spool.put(3, b"three")
    assert (spool.pop(2), spool.pop(3)) == (b"two", b"three")
    spool.close()


def test_memory_that_is_free_again_is_used_again(tmp_path):
    spool = Spool(tmp_path, 10)
    for _ in range(3):
        spool.put(1, bytes(10))
        spool.pop(1)
    assert spool._file is None


def test_nothing_is_left_in_the_folder_even_by_a_process_that_is_killed(tmp_path):
    """The file has no name: it goes with the process, however that ends."""
    spool = Spool(tmp_path, 0)
    spool.put(1, bytes(1000))
    assert list(tmp_path.iterdir()) == []
    assert spool.pop(1) == bytes(1000)
    spool.close()
