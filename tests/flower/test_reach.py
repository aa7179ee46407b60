"""A node looks at its SuperLink before it becomes Flower's, over real sockets."""

import socket
import ssl
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

pytest.importorskip("cryptography")

from fedwsq.core.errors import ConfigError
from fedwsq.flower.certificates import write_certificates
from fedwsq.flower.reach import what_is_wrong


@contextmanager
def listening(context=None):
    """A server that shakes hands, with TLS or without, and says nothing more: its address."""

    def serve():
        with suppress(OSError):  # the socket is closed: it is over
            while True:
                line, _ = server.accept()
                with line, suppress(OSError):
                    if context is None:
                        line.recv(100)
                        line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    else:
                        context.wrap_socket(line, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Ours, and somebody else's."""
    ours, other = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("other")
    for folder in (ours, other):
        write_certificates(folder, [], 1)
    return ours, other


def with_tls(folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return context


def test_whoever_it_is_is_named(folders, tmp_path):
    ours, other = folders
    with listening(with_tls(ours)) as address:
        assert what_is_wrong(address, ours / "ca.crt") == ""
        with pytest.raises(ConfigError, match=r"is not to be trusted: .*/other.*/ca\.crt \("):
            what_is_wrong(address, other / "ca.crt")
        with pytest.raises(ConfigError, match="speaks TLS; give --ca FILE"):
            what_is_wrong(address, None)
        with pytest.raises(ConfigError, match="which holds no certificate that can be read"):
            what_is_wrong(address, tmp_path / "nowhere.crt")
    with listening() as address:
        assert what_is_wrong(address, None) == ""
        with pytest.raises(ConfigError, match="does not speak TLS"):
            what_is_wrong(address, ours / "ca.crt")


def test_a_superlink_may_come_later(folders):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert "cannot be reached yet" in what_is_wrong(address, folders[0] / "ca.crt")
    for wrong in ("fl.example.org", ":1", "a:b", "a:65536"):
        with pytest.raises(ConfigError, match="must be HOST:PORT"):
            what_is_wrong(wrong, None)
