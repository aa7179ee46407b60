"""Certificates that real TLS takes, for the hosts they are for and from the authority they say."""

import socket
import ssl
import stat
import subprocess
from threading import Thread

import pytest

pytest.importorskip("cryptography")

from fedwsq.core.errors import ConfigError
from fedwsq.flower.certificates import write_certificates, write_node_key


def handshake(folder, trusted, host):
    """The error of a client that trusts `trusted` and wants `host`; None if all is well."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve():
            line, _ = door.accept()
            try:
                with server.wrap_socket(line, server_side=True) as safe:
                    safe.recv(1)
            except OSError:
                line.close()

        thread = Thread(target=serve)
        thread.start()
        try:
            client = ssl.create_default_context(cafile=str(trusted / "ca.crt"))
            with (
                socket.create_connection(door.getsockname()) as line,
                client.wrap_socket(line, server_hostname=host),
            ):
                return None
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        finally:
            thread.join()


def test_clients_who_trust_the_authority_trust_its_server(tmp_path):
    written = write_certificates(tmp_path / "mine", ["fl.example.org", "203.0.113.7"], 30)
    assert [path.name for path in written] == ["ca.key", "ca.crt", "server.key", "server.pem"]
    for host in ("fl.example.org", "203.0.113.7", "127.0.0.1", "localhost"):
        assert handshake(tmp_path / "mine", tmp_path / "mine", host) is None
    assert "mismatch" in handshake(tmp_path / "mine", tmp_path / "mine", "other.example.org")

    write_certificates(tmp_path / "theirs", [], 30)
    assert handshake(tmp_path / "theirs", tmp_path / "mine", "127.0.0.1") is not None


def test_secrets_are_for_their_owner_alone(tmp_path):
    write_certificates(tmp_path, [], 30)
    write_node_key(tmp_path / "key")
    for name in ("ca.key", "server.key", "key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_new_certificate_is_by_the_same_authority(tmp_path):
    write_certificates(tmp_path, [], 30)
    authority = (tmp_path / "ca.crt").read_bytes()
    server = (tmp_path / "server.pem").read_bytes()
    written = write_certificates(tmp_path, ["next.example.org"], 30)
    assert [path.name for path in written] == ["server.key", "server.pem"]
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != server
    assert handshake(tmp_path, tmp_path, "next.example.org") is None


def test_ssh_reads_a_nodes_key(tmp_path):
    path, public = write_node_key(tmp_path / "keys" / "node")
    command = ["ssh-keygen", "-y", "-f", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no ssh-keygen here")
    assert done.stdout.split()[:2] == public.read_text().split()[:2]


@pytest.mark.parametrize("host", ["https://a.org", "a.org:8000", "", "two words", "\u00fc.org"])
def test_what_is_no_host_is_refused_before_anything_is_written(host, tmp_path):
    with pytest.raises(ConfigError, match="must be a name or an address"):
        write_certificates(tmp_path / "new", [host], 30)
    assert not (tmp_path / "new").exists()


def test_a_folder_without_its_authority_is_refused(tmp_path):
    write_certificates(tmp_path, [], 30)
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(ConfigError, match="choose another folder"):
        write_certificates(tmp_path, [], 30)
    with pytest.raises(ConfigError, match="days is 0, must be from 1 to 36500"):
        write_certificates(tmp_path, [], 0)
