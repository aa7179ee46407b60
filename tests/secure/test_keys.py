"""Identities and rosters on disk."""

import pytest

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedwsq[secure]'")

from fedwsq.core.errors import ConfigError
from fedwsq.secure.keys import FileKeys, key_name, read_roster, write_keys, write_roster


def test_each_client_has_its_own_key_and_everybodys_public_half(tmp_path):
    folders = write_keys(tmp_path, 3)
    rings = [FileKeys(folder) for folder in folders]
    assert len({ring.public[1] for ring in rings}) == 1
    assert rings[1].identity(1).public == rings[0].public[1]
    with pytest.raises(ConfigError, match="not an identity"):
        rings[1].identity(0)  # somebody else's


def test_a_key_is_for_its_owner_alone(tmp_path):
    for client, folder in enumerate(write_keys(tmp_path, 3)):
        assert folder.stat().st_mode & 0o077 == 0
        assert (folder / key_name(client)).stat().st_mode & 0o077 == 0


def test_keys_are_made_for_all_or_for_none(tmp_path):
    first, *others = write_keys(tmp_path, 3)
    roster = read_roster(others[0] / "roster.json")
    (first / key_name(0)).unlink()
    with pytest.raises(ConfigError, match="has a key already"):
        write_keys(tmp_path, 3)
    assert not (first / key_name(0)).exists()
    assert read_roster(first / "roster.json") == roster


def test_a_roster_with_another_key_for_this_client_is_refused(tmp_path):
    folder = write_keys(tmp_path, 3)[0]
    roster = read_roster(folder / "roster.json")
    write_roster(folder / "roster.json", {**roster, 0: bytes(32)})
    with pytest.raises(ConfigError, match="another key for client 0"):
        FileKeys(folder).identity(0)


def test_a_roster_in_which_two_have_one_key_is_refused(tmp_path):
    folder = write_keys(tmp_path, 3)[0]
    roster = read_roster(folder / "roster.json")
    write_roster(folder / "roster.json", {**roster, 2: roster[1]})
    with pytest.raises(ConfigError, match="two clients have the same key"):
        read_roster(folder / "roster.json")
