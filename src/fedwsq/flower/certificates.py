"""A certificate authority of one's own, a server's certificate, and keys for nodes."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedwsq.core.errors import ConfigError

AUTHORITY = "ca.crt"  # what every node and every user of `flwr` needs
AUTHORITY_KEY = "ca.key"  # what nobody but the one who makes certificates needs
SERVER = "server.pem"
SERVER_KEY = "server.key"
ALWAYS = ("localhost", "127.0.0.1", "::1")
MAX_DAYS = 36_500  # the authority has ten times as many, and a date ends with the year 9999
CLOCK_SKEW = datetime.timedelta(hours=1)


def write_certificates(folder: Path, hosts: Sequence[str], days: int) -> list[Path]:
    """A server's certificate for these hosts, by the authority in `folder`, which is made if new.

    Nodes that trust the authority trust the next certificate, too: it can be made again for other
    hosts, or before it ends.
    """
    if not 1 <= days <= MAX_DAYS:
        raise ConfigError(f"days is {days}, must be from 1 to {MAX_DAYS}, a hundred years")
    names = [_name(host) for host in dict.fromkeys((*hosts, *ALWAYS))]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if not (folder / AUTHORITY_KEY).exists():
        written += _write_authority(folder, days)
    written += _write_server(folder, names, days)
    return written


def write_node_key(path: Path) -> list[Path]:
    """A node's key pair, as `ssh-keygen -t ecdsa -b 384` would write it."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public_path = path.with_name(f"{path.name}.pub")
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public_path.write_bytes(public)
    return [path, public_path]


def _write_authority(folder: Path, days: int) -> list[Path]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = _common_name("fedwsq certificate authority")
    # Ten times as long as a server's: it is what every machine has a copy of.
    builder = _builder(name, name, key.public_key(), 10 * days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    return [
        _write_secret(folder / AUTHORITY_KEY, _private(key)),
        _write_public(folder / AUTHORITY, certificate),
    ]


def _write_server(folder: Path, names: list[x509.GeneralName], days: int) -> list[Path]:
    authority, authority_key = _read_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_common_name("fedwsq server"), authority.subject, key.public_key(), days)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName(names), False),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(authority_key, hashes.SHA256())
    return [
        _write_secret(folder / SERVER_KEY, _private(key)),
        _write_public(folder / SERVER, certificate),
    ]


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        key = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{folder} has no certificate authority that can be read ({error}); "
            "choose another folder"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{folder / AUTHORITY_KEY} is not of ours; choose another folder")
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(public).serial_number(x509.random_serial_number())
    # Clocks of other machines may be slow.
    builder = builder.not_valid_before(now - CLOCK_SKEW)
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    identity = x509.SubjectKeyIdentifier.from_public_key(public)
    return builder.add_extension(identity, critical=False)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _name(host: str) -> x509.GeneralName:
    """A host as a certificate has it: an address, or a name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or ":" in host or "/" in host or not host.isascii() or " " in host:
        raise ConfigError(
            f"host is {host!r}, must be a name or an address, without a port or https://"
        )
    return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_public(path: Path, certificate: x509.Certificate) -> Path:
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return path


def _write_secret(path: Path, data: bytes) -> Path:
    """A file that nobody else can read, not even for a moment."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return path
