"""Whether a SuperLink is there and is the one meant: Flower says only that it cannot connect."""

import socket
import ssl
from pathlib import Path

from fedwsq.core.errors import ConfigError

SECONDS = 20.0  # a busy machine shakes hands slowly


def what_is_wrong(superlink: str, authority: Path | None) -> str:
    """Why a node could not speak with a SuperLink now, but might later; "" if it can.

    What waiting does not mend is a ConfigError. `authority` is whose certificate it must have,
    None: it must do without.
    """
    host, port = host_and_port(superlink)
    context = _context(authority)
    try:
        with (
            socket.create_connection((host, port), timeout=SECONDS) as line,
            context.wrap_socket(line, server_hostname=host),
        ):
            pass  # hands were shaken
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{superlink} is not to be trusted: its certificate fails against {authority} "
            f"({error.verify_message}); get ca.crt from whoever runs the SuperLink, and reach it "
            "by a name that its certificate has"
        ) from None
    except (ssl.SSLError, ConnectionResetError, EOFError):
        if authority is None:
            return ""
        raise ConfigError(
            f"{superlink} does not speak TLS; start the SuperLink with its certificate, or the "
            "node with --insecure in place of --ca"
        ) from None
    except OSError as error:
        return f"{superlink} cannot be reached yet ({error}); the node goes on trying"
    if authority is None:
        raise ConfigError(f"{superlink} speaks TLS; give --ca FILE in place of --insecure")
    return ""


def host_and_port(superlink: str) -> tuple[str, int]:
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"--superlink is {superlink}, must be HOST:PORT, such as fl.example.org:8000"
        )
    return host.strip("[]"), int(port)


def _context(authority: Path | None) -> ssl.SSLContext:
    if authority is None:
        # Only to see whether the other end speaks TLS; nothing is sent.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:  # of which ssl.SSLError is one
        raise ConfigError(
            f"--ca is {authority}, which holds no certificate that can be read ({error}); "
            "it must be the ca.crt of whoever runs the SuperLink"
        ) from None
