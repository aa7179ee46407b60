"""Downloads against a real server on the loopback interface, and archives that mean harm."""

import ast
import gzip
import io
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import tarfile
import threading
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import fedwsq
from fedwsq.core.errors import DataError
from fedwsq.data import DATASETS, download
from fedwsq.data.download import Watcher
from fedwsq.data.fetch import fetch, kept_bytes, work_folder
from fedwsq.data.sources import SOURCES
from fedwsq.data.unpack import unpack
from harness import PATIENCE_SECONDS, wait_until
from publisher import (
    BODY,
    CONTENT,
    TINY,
    publishing,
    raw,
    redirect,
    serve,
    source_of,
    status,
    tar_gz,
)

TAR = "/tiny.tar.gz"


@pytest.fixture
def publisher(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(download, "TRIES", 3)
    monkeypatch.setattr(download, "WAIT_SECONDS", 0)
    with publishing() as running:
        yield running


class Notes(Watcher):
    def __init__(self):
        self.notes = []
        self.sizes = []

    def note(self, text):
        self.notes.append(text)

    def received(self, file, have):
        self.sizes.append(have)


def get(publisher, root, source=TINY, **options):
    address = options.pop("url", publisher.url)
    return fetch(replace(source, url=address), root, **options)


def refused(publisher, root, *parts, source=TINY, **options):
    """The fetch fails with an error that says all of `parts`, and there is no data set."""
    with pytest.raises(DataError) as caught:
        get(publisher, root, source, **options)
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert text.isprintable()
    assert not (root / source.folder).exists()
    return text


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_complete(root):
    """The data set is there, and nothing else."""
    assert contents(root / "tiny-set") == CONTENT
    assert os.listdir(root) == ["tiny-set"]


def test_a_file_arrives_is_unpacked_and_leaves_no_trace(publisher, tmp_path):
    watcher = Notes()
    root = tmp_path / "not yet" / "there"
    assert get(publisher, root, watcher=watcher) is True
    assert_complete(root)
    assert watcher.sizes[-1] == len(BODY)
    assert [request["path"] for request in publisher.requests] == [TAR]
    assert publisher.requests[0]["User-Agent"] == f"fedwsq/{fedwsq.__version__}"
    assert publisher.ranges == [None]


def test_what_is_there_is_left_alone(publisher, tmp_path):
    (tmp_path / "tiny-set").mkdir()
    assert get(publisher, tmp_path) is False
    assert publisher.requests == []
    assert os.listdir(tmp_path) == ["tiny-set"]
    assert os.listdir(tmp_path / "tiny-set") == []


def test_force_replaces_what_is_there_only_by_something_whole(publisher, tmp_path):
    (tmp_path / "tiny-set").mkdir()
    (tmp_path / "tiny-set" / "mine").write_text("old")
    publisher.script = [serve(most=100)] * 3
    with pytest.raises(DataError):
        get(publisher, tmp_path, force=True)
    assert contents(tmp_path / "tiny-set") == {"mine": b"old"}
    assert get(publisher, tmp_path, force=True) is True
    assert_complete(tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_force_replaces_a_link_and_not_what_it_points_to(publisher, tmp_path, there):
    elsewhere = tmp_path / "elsewhere"
    root = tmp_path / "data"
    root.mkdir()
    if there:
        elsewhere.mkdir()
        (elsewhere / "mine").write_text("old")
    (root / "tiny-set").symlink_to(elsewhere)
    assert get(publisher, root, force=True) is True
    assert not (root / "tiny-set").is_symlink()
    assert_complete(root)
    if there:
        assert contents(elsewhere) == {"mine": b"old"}
    assert get(publisher, root, force=True) is True  # no link was left where it unpacks
    assert_complete(root)


# Connections that end early


def test_a_lost_connection_goes_on_where_it_stopped(publisher, tmp_path):
    publisher.script = [serve(most=40_000), serve(most=20_000)]
    watcher = Notes()
    assert get(publisher, tmp_path, watcher=watcher) is True
    assert_complete(tmp_path)
    assert publisher.ranges == [None, "bytes=40000-", "bytes=60000-"]
    assert [request.get("If-Range") for request in publisher.requests] == [None, '"one"', '"one"']
    assert watcher.sizes == sorted(watcher.sizes)
    assert "trying again" in watcher.notes[0]
    assert watcher.notes[1] == "tiny.tar.gz: going on from byte 40,000"


def test_the_next_call_goes_on_where_the_last_gave_up(publisher, tmp_path):
    publisher.script = [serve(most=40_000), status(503), serve(most=1_000)]
    refused(publisher, tmp_path, "closed early", "the same command goes on")
    assert kept_bytes(TINY, tmp_path) == 41_000
    assert (work_folder(TINY, tmp_path) / "tiny.tar.gz").read_bytes() == BODY[:41_000]
    watcher = Notes()
    assert get(publisher, tmp_path, watcher=watcher) is True
    assert watcher.notes[0] == "tiny.tar.gz: going on from byte 41,000"
    assert publisher.ranges[-1] == "bytes=41000-"
    assert_complete(tmp_path)


def test_a_connection_that_is_reset_is_as_good_as_one_that_is_closed(publisher, tmp_path):
    def reset(exchange, publisher):
        serve(most=30_000)(exchange, publisher)
        exchange.wfile.flush()
        # Lingering on, for 0 seconds: closing sends a reset.
        exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        exchange.connection.close()

    publisher.script = [reset]
    assert get(publisher, tmp_path) is True
    assert len(publisher.requests) == 2
    assert_complete(tmp_path)


def test_a_silent_server_is_not_waited_for_forever(publisher, tmp_path, monkeypatch):
    """Once in the middle, once without a single byte; what there is stays."""
    publisher.script = [
        serve(most=25_000, stall=True),
        lambda exchange, publisher: publisher.released.wait(),
    ]
    monkeypatch.setattr(download, "TRIES", 1)
    for seconds in (1.0, 0.1):  # the first has bytes to bring in time
        monkeypatch.setattr(download, "TIMEOUT_SECONDS", seconds)
        refused(publisher, tmp_path, "timed out")
        assert kept_bytes(TINY, tmp_path) == 25_000


def test_a_server_that_is_not_there(tmp_path, publisher):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # nobody else gets this port, and nobody listens
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        refused(publisher, tmp_path, "Connection refused", url=url)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_speaks_something_else(tmp_path, publisher):
    publisher.script = [
        lambda exchange, publisher: exchange.wfile.write(b"\x1b[2J hello\r\n\r\n")
    ] * 3
    refused(publisher, tmp_path, "hello")


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_an_overloaded_server_is_asked_again(publisher, tmp_path, code):
    publisher.script = [status(code)]
    assert get(publisher, tmp_path) is True
    assert len(publisher.requests) == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (404, "HTTP Error 404"),
        (403, "HTTP Error 403"),
        (204, "has not the published"),
        (299, "has not the published"),
    ],
)
def test_a_plain_no_is_taken_for_an_answer(publisher, tmp_path, code, words):
    publisher.script = [status(code)]
    refused(publisher, tmp_path, words)
    assert len(publisher.requests) == 1
    assert list(tmp_path.iterdir()) == []


# Servers that resume badly


def test_a_server_without_ranges_starts_over(publisher, tmp_path):
    publisher.script = [serve(most=40_000), serve(ranges=False)]
    assert get(publisher, tmp_path) is True
    assert publisher.ranges == [None, "bytes=40000-"]
    assert_complete(tmp_path)


def test_a_file_that_changes_between_two_tries_starts_over(publisher, tmp_path):
    publisher.files[TAR] = bytes(len(BODY))
    publisher.script = [serve(most=40_000)] + [status(503)] * 2
    refused(publisher, tmp_path, "503")
    publisher.files[TAR] = BODY
    publisher.etag = '"two"'
    assert get(publisher, tmp_path) is True
    assert publisher.requests[-1]["If-Range"] == '"one"'
    assert_complete(tmp_path)


@pytest.mark.parametrize("etag", ['W/"1"', None])
def test_without_a_strong_etag_the_checksum_alone_decides(publisher, tmp_path, etag):
    publisher.script = [raw(200, BODY[:10], ETag=etag, Content_Length=len(BODY))]
    assert get(publisher, tmp_path) is True
    assert publisher.ranges == [None, "bytes=10-"]
    assert "If-Range" not in publisher.requests[1]
    assert_complete(tmp_path)


def test_a_file_that_changes_unnoticed_is_found_out(publisher, tmp_path):
    publisher.files[TAR] = bytes(len(BODY))
    publisher.etag = None
    publisher.script = [serve(most=40_000)] + [status(503)] * 2
    refused(publisher, tmp_path, "503")
    publisher.files[TAR] = BODY
    refused(publisher, tmp_path, "MD5", "deleted")
    assert get(publisher, tmp_path) is True
    assert_complete(tmp_path)


@pytest.mark.parametrize(
    "place", [f"bytes 39999-{len(BODY) - 1}/{len(BODY)}", "nonsense", None], ids=str
)
def test_a_wrong_continuation_is_not_appended(publisher, tmp_path, place):
    headers = {"Content_Range": place, "ETag": '"one"'}
    publisher.script = [serve(most=40_000), raw(206, bytes(len(BODY) - 40_000), **headers)]
    assert get(publisher, tmp_path) is True
    assert publisher.ranges == [None, "bytes=40000-", None]
    assert_complete(tmp_path)


def test_a_file_that_became_shorter_starts_over(publisher, tmp_path):
    publisher.script = [serve(most=40_000), raw(416, Content_Range="bytes */30000")]
    assert get(publisher, tmp_path) is True
    assert publisher.ranges == [None, "bytes=40000-", None]
    assert_complete(tmp_path)


@pytest.mark.parametrize("etag", ["", '"on', '"\xff"'])
def test_a_damaged_note_of_the_version_is_no_obstacle(publisher, tmp_path, etag):
    work = work_folder(TINY, tmp_path)
    work.mkdir()
    (work / "tiny.tar.gz").write_bytes(BODY[:5_000])
    (work / "tiny.tar.gz.etag").write_bytes(etag.encode("latin1"))
    assert get(publisher, tmp_path) is True
    assert_complete(tmp_path)


# Wrong bytes and wrong lengths


def test_damage_is_found_before_anything_is_unpacked(publisher, tmp_path):
    publisher.files[TAR] = BODY[:50_000] + bytes([BODY[50_000] ^ 1]) + BODY[50_001:]
    refused(publisher, tmp_path, TINY.files[0].md5, "MD5", "deleted")
    assert list(tmp_path.iterdir()) == []
    publisher.files[TAR] = BODY
    assert get(publisher, tmp_path) is True
    assert publisher.ranges == [None, None]


def test_a_stream_without_end_is_cut_off(publisher, tmp_path):
    sent = 0

    def endless(exchange, publisher):
        nonlocal sent
        exchange.begin(200)
        try:
            while sent < 100_000_000:
                sent += exchange.wfile.write(bytes(65_536))
        except OSError:
            publisher.released.set()

    publisher.script = [endless]
    refused(publisher, tmp_path, "MD5", "deleted")
    assert list(tmp_path.iterdir()) == []
    assert publisher.released.wait(PATIENCE_SECONDS)  # the client has hung up
    assert sent < 50_000_000  # buffers of the loopback included


@pytest.mark.parametrize("off", [-1, 1, 2 * len(BODY)])
def test_another_length_than_the_published_is_refused_unread(publisher, tmp_path, off):
    publisher.script = [serve(lie=off)]
    refused(publisher, tmp_path, f"has not the published {len(BODY):,} bytes")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_length_costs_nothing_of_what_has_arrived(publisher, tmp_path):
    publisher.script = [serve(most=40_000), raw(200, b"", Content_Length=7)]
    refused(publisher, tmp_path, "has not the published")
    assert get(publisher, tmp_path) is True
    assert publisher.ranges[-1] == "bytes=40000-"
    assert_complete(tmp_path)


@pytest.mark.parametrize("length", ["none", "-5", None])
def test_no_usable_length_means_to_the_end(publisher, tmp_path, length):
    publisher.script = [raw(200, BODY[:40_000], ETag='"one"', Content_Length=length)]
    assert get(publisher, tmp_path) is True  # the published size tells that this was not all
    assert publisher.ranges == [None, "bytes=40000-"]
    assert_complete(tmp_path)


# Redirects


def test_redirects_are_followed_and_carry_the_range(publisher, tmp_path):
    hops = [
        redirect("/a", 301),
        redirect("b", 302),
        redirect(f"{publisher.url}c#here", 303),
        redirect("/d", 307),
    ]
    publisher.script = [*hops, redirect(TAR, 308), serve(most=100), redirect(TAR)]
    assert get(publisher, tmp_path) is True
    assert [request["path"] for request in publisher.requests] == [
        TAR,
        "/a",
        "/b",
        "/c",
        "/d",
        TAR,
        TAR,
        TAR,
    ]
    assert publisher.ranges[-2:] == ["bytes=100-"] * 2
    assert_complete(tmp_path)


@pytest.mark.parametrize("location", [TAR, ""])
def test_a_redirect_loop_ends(publisher, tmp_path, location):
    publisher.script = [redirect(location)] * 20
    refused(publisher, tmp_path, "HTTP Error 302", "--url")
    assert len(publisher.requests) < 20


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("file:///etc/passwd", "HTTP Error 302"),
        ("data:,x", "HTTP Error 302"),
        ("ftp://127.0.0.1/f", "redirects to 'ftp://127.0.0.1/f'"),
    ],
)
def test_redirects_lead_nowhere_else(publisher, tmp_path, location, words):
    publisher.script = [redirect(location)]
    refused(publisher, tmp_path, words)
    assert len(publisher.requests) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_stands_beside_a_redirect_is_not_read(publisher, tmp_path):
    def endless(exchange, publisher):
        exchange.begin(302, Location=TAR)
        with suppress(OSError):
            while True:
                exchange.wfile.write(bytes(65_536))
        publisher.released.set()

    publisher.script = [endless]
    assert get(publisher, tmp_path) is True
    assert publisher.released.wait(PATIENCE_SECONDS)  # the client has hung up
    assert_complete(tmp_path)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1, signed by itself, with its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    words += " -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    words += f" -keyout {path}.key -out {path}.crt"
    subprocess.run(words.split(), check=True, capture_output=True)
    path.write_text(Path(f"{path}.key").read_text() + Path(f"{path}.crt").read_text())
    return path


def test_https_is_verified_and_never_left(tmp_path, certificate, publisher, monkeypatch):
    with publishing(certificate) as secure:
        assert secure.url.startswith("https://")
        refused(secure, tmp_path, "certificate verify failed")
        assert secure.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        for scheme in ("http", "HTTP"):
            secure.script = [redirect(publisher.url.replace("http", scheme) + "tiny.tar.gz")]
            refused(secure, tmp_path, "redirects to 'http:", "without encryption")
        assert publisher.requests == []
        publisher.script = [redirect(secure.url + "tiny.tar.gz")]
        assert get(publisher, tmp_path) is True
        assert_complete(tmp_path)


# Addresses, several files, several processes, full disks


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a.org/f", "a.org/f", "https:f"])
def test_an_address_is_http_or_https(tmp_path, publisher, url):
    refused(publisher, tmp_path, repr(url), "http:// or https://", url=url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:port/", "http:///a/", "http://a/b c", "http://[::1", f"http://{'a' * 99}/"],
)
def test_an_address_that_makes_no_sense_is_named(tmp_path, publisher, url):
    refused(publisher, tmp_path, url, "--url", url=url)
    assert list(tmp_path.iterdir()) == []


def test_the_address_of_the_file_itself(publisher, tmp_path):
    publisher.files["/other%20name?key=1"] = BODY
    assert get(publisher, tmp_path, url=publisher.url + "other%20name?key=1") is True
    assert_complete(tmp_path)


NAMES = ("one.gz", "two.gz")
PAIR = tuple(gzip.compress(text * 1_000) for text in (b"one", b"two!"))
TWO = source_of(*PAIR, names=NAMES)


def test_several_files_make_one_folder_and_each_goes_on_by_itself(publisher, tmp_path):
    publisher.files = {"/one.gz": PAIR[0], "/two.gz": PAIR[1]}
    publisher.script = [serve(), serve(most=20), status(503), status(503)]
    refused(publisher, tmp_path, "two.gz", source=TWO)
    assert kept_bytes(TWO, tmp_path) == len(PAIR[0]) + 20
    assert get(publisher, tmp_path, TWO) is True
    assert [(each["path"], each.get("Range")) for each in publisher.requests[4:]] == [
        ("/two.gz", "bytes=20-")
    ]
    assert contents(tmp_path / "tiny-set") == {"one": b"one" * 1_000, "two": b"two!" * 1_000}
    assert os.listdir(tmp_path) == ["tiny-set"]


def test_several_files_need_the_address_of_a_folder(publisher, tmp_path):
    publisher.files = {"/one.gz": PAIR[0]}
    refused(publisher, tmp_path, "one.gz has", source=TWO, url=publisher.url + "one.gz")


def test_a_complete_part_needs_no_network(publisher, tmp_path):
    """The first attempt fails at unpacking, which a larger bound allows."""
    refused(
        publisher, tmp_path, "more than 1,000 bytes", source=replace(TINY, unpacked_bytes=1_000)
    )
    assert len(publisher.requests) == 1
    assert get(publisher, tmp_path) is True
    assert len(publisher.requests) == 1
    assert_complete(tmp_path)


def test_a_part_of_the_right_length_and_wrong_bytes_starts_over(publisher, tmp_path):
    work = work_folder(TINY, tmp_path)
    work.mkdir()
    (work / "tiny.tar.gz").write_bytes(bytes(len(BODY)))
    refused(publisher, tmp_path, "MD5", "deleted")
    assert get(publisher, tmp_path) is True
    assert publisher.ranges == [None]
    assert_complete(tmp_path)


def test_leftovers_of_a_killed_unpacking_are_not_mixed_in(publisher, tmp_path):
    left = work_folder(TINY, tmp_path) / "unpacked" / "tiny-set"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    assert get(publisher, tmp_path) is True
    assert_complete(tmp_path)


def test_two_at_once_do_not_meet(publisher, tmp_path):
    publisher.script = [serve(most=40_000, stall=True)]
    first = threading.Thread(target=get, args=(publisher, tmp_path))
    first.start()
    wait_until(lambda: kept_bytes(TINY, tmp_path))
    refused(publisher, tmp_path, "in use", "wait for it")
    publisher.released.set()  # the first loses its connection, and goes on
    first.join()
    assert_complete(tmp_path)
    assert len(publisher.requests) == 2


def test_many_at_once_make_one_download(publisher, tmp_path):
    """Each tries until it has an answer, so that some begin just when another ends."""
    results = []

    def one():
        for number in range(10):
            answer = None
            while answer is None:
                with suppress(DataError):  # in use
                    answer = get(publisher, tmp_path / str(number))
            results.append(answer)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 50 + [True] * 10
    assert len(publisher.requests) == 10
    assert_complete(tmp_path / "0")


def test_something_in_the_way_is_named(publisher, tmp_path):
    work_folder(TINY, tmp_path).write_text("mine")
    with pytest.raises(FileExistsError, match=re.escape(str(work_folder(TINY, tmp_path)))):
        get(publisher, tmp_path)
    assert work_folder(TINY, tmp_path).read_text() == "mine"


def test_a_full_disk_is_noticed_before_the_download(publisher, tmp_path):
    source = replace(TINY, unpacked_bytes=10**18)
    need = f"needs {10**18 + len(BODY):,} bytes"
    refused(publisher, tmp_path, need, "are free", "--root", source=source)
    assert publisher.requests == []
    assert list(tmp_path.iterdir()) == []


# Archives that mean harm


def tar_with(*members, content=b"x"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            if member.isreg():
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def sparse_tar():
    """A file of one byte at most that unpacks to as many zeros as it likes."""
    info = tarfile.TarInfo("tiny-set/a")
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.name": "tiny-set/a",
        "GNU.sparse.size": str(10**12),
        "GNU.sparse.map": "0,1",
    }
    return tar_with(info)


def member(name, kind=tarfile.REGTYPE, **attributes):
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


def zip_with(*members, content=b"x", kind=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for each in members:
            archive.writestr(each, content)
    return out.getvalue()


def zip_link():
    info = zipfile.ZipInfo("tiny-set/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zip_with(info, content=b"/etc/passwd")


def zip_twice():
    with pytest.warns(UserWarning, match="Duplicate"):
        return zip_with("tiny-set/a", "tiny-set/a")


def zip_that_understates():
    """Both headers say 1 byte, the data are 500,000."""
    data = zip_with("tiny-set/a", content=bytes(500_000))
    assert data.count((500_000).to_bytes(4, "little")) == 2
    return data.replace((500_000).to_bytes(4, "little"), (1).to_bytes(4, "little"))


def zip_encrypted():
    data = bytearray(zip_with("tiny-set/a"))
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(signature) + flags] |= 1
    return bytes(data)


LINK = member("tiny-set/link", tarfile.SYMTYPE, linkname="..")
HOSTILE = {
    "tar: out and up": (".tar.gz", tar_with(member("tiny-set/../../evil")), "outside"),
    "tar: up first": (".tar.gz", tar_with(member("../evil")), "outside"),
    "tar: absolute": (".tar.gz", tar_with(member("/tiny-set/evil")), "leads outside"),
    "tar: another folder": (".tar.gz", tar_with(member("evil")), "not one folder tiny-set"),
    "tar: backslash": (
        ".tar.gz",
        tar_with(member("tiny-set\\..\\evil")),
        "not one folder tiny-set",
    ),
    "tar: the folder as a file": (
        ".tar.gz",
        tar_with(member("tiny-set"), member("tiny-set/a")),
        "cannot be unpacked",
    ),
    "tar: only a file": (".tar.gz", tar_with(member("tiny-set")), "not one folder tiny-set"),
    "tar: empty": (".tar.gz", tar_with(), "not one folder tiny-set"),
    "tar: symbolic link": (
        ".tar.gz",
        tar_with(LINK, member("tiny-set/link/evil")),
        "neither a file nor a folder",
    ),
    "tar: hard link": (
        ".tar.gz",
        tar_with(member("tiny-set/a", tarfile.LNKTYPE, linkname="/etc/passwd")),
        "neither",
    ),
    "tar: device": (".tar.gz", tar_with(member("tiny-set/a", tarfile.CHRTYPE)), "neither"),
    "tar: pipe": (".tar.gz", tar_with(member("tiny-set/a", tarfile.FIFOTYPE)), "neither"),
    "tar: sparse": (".tar.gz", sparse_tar(), "more than 1,000,000 bytes"),
    "tar: bomb": (
        ".tar.gz",
        tar_with(member("tiny-set/a"), content=bytes(3_000_000)),
        "more than 1,000,000 bytes",
    ),
    "tar: many": (
        ".tar.gz",
        tar_gz({f"tiny-set/{n}": b"" for n in range(2_000)}),
        "more than 1,000,000 bytes",
    ),
    "tar: huge header": (
        ".tar.gz",
        tar_with(member("tiny-set/a", pax_headers={"c": "x" * 1_500_000})),
        "a header of more than 1,048,576 bytes",
    ),
    "tar: headers without end": (
        ".tar.gz",
        tar_with(*(member(f"tiny-set/{n}", pax_headers={"c": "x" * 900_000}) for n in range(5))),
        "more than 3,048,576 bytes",
    ),
    "tar: twice": (".tar.gz", tar_with(member("tiny-set/a"), member("tiny-set/a")), "comes twice"),
    "tar: cut": (".tar.gz", BODY[:50_000], "cannot be unpacked"),
    "tar: none": (".tar.gz", b"hello", "cannot be unpacked"),
    "tar: terminal codes": (".tar.gz", tar_with(member("\x1b[2J")), "not one folder tiny-set"),
    "zip: out and up": (".zip", zip_with("tiny-set/../../evil"), "leads outside"),
    "zip: absolute": (".zip", zip_with("/tiny-set/evil"), "leads outside"),
    "zip: twice": (".zip", zip_twice(), "comes twice"),
    "zip: another folder": (".zip", zip_with("evil/a"), "not one folder tiny-set"),
    "zip: backslash": (".zip", zip_with("tiny-set\\..\\..\\evil"), "not one folder tiny-set"),
    "zip: symbolic link": (".zip", zip_link(), "is a link"),
    "zip: bomb": (
        ".zip",
        zip_with("tiny-set/a", content=bytes(3_000_000)),
        "more than 1,000,000 bytes",
    ),
    "zip: bomb in pieces": (
        ".zip",
        zip_with("tiny-set/a", "tiny-set/b", content=bytes(600_000)),
        "more than",
    ),
    "zip: understated": (".zip", zip_that_understates(), "cannot be unpacked"),
    "zip: encrypted": (".zip", zip_encrypted(), "cannot be unpacked"),
    "zip: cut": (".zip", zip_with("tiny-set/a", content=BODY)[:50_000], "cannot be unpacked"),
    "gz: bomb": (".gz", gzip.compress(bytes(3_000_000)), "more than 1,000,000 bytes"),
    "gz: cut": (".gz", gzip.compress(BODY)[:50_000], "cannot be unpacked"),
    "gz: none": (".gz", b"hello", "cannot be unpacked"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_gets_nowhere(publisher, tmp_path, case):
    suffix, body, reason = HOSTILE[case]
    source = source_of(body, names=("evil" + suffix,))
    publisher.files["/evil" + suffix] = body
    root = tmp_path / "a" / "b"
    refused(publisher, root, reason, source=source)
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(tmp_path / "a") == ["b"]
    assert os.listdir(root) == [work_folder(source, root).name]
    kept = {f"evil{suffix}", f"evil{suffix}.etag"}
    assert set(os.listdir(work_folder(source, root))) == kept


def test_no_dangerous_permissions_come_out_of_an_archive(tmp_path):
    archive = tmp_path / "t.tar.gz"
    archive.write_bytes(
        tar_with(member("tiny-set/a", mode=0o6777, uid=0), member("tiny-set/d", tarfile.DIRTYPE))
    )
    unpack(archive, tmp_path, "tiny-set", 100_000)
    mode = (tmp_path / "tiny-set" / "a").stat().st_mode
    assert not mode & (stat.S_ISUID | stat.S_ISGID | 0o022)


def test_a_zip_with_folders_is_unpacked(publisher, tmp_path):
    folder = zipfile.ZipInfo("tiny-set/deep/")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(folder, b"")
        for name, content in CONTENT.items():
            archive.writestr(f"tiny-set/{name}", content)
    body = out.getvalue()
    publisher.files["/tiny.zip"] = body
    assert get(publisher, tmp_path, source_of(body, names=("tiny.zip",))) is True
    assert_complete(tmp_path)


# The table


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_complete(name):
    source = SOURCES[name]
    assert re.fullmatch(r"https?://[a-z0-9.-]+/.*", source.url)
    assert source.url.endswith("/")
    assert re.fullmatch(r"[a-z0-9-]+", source.folder)
    assert source.terms
    assert re.search(r"20\d\d", source.cite)
    for file in source.files:
        assert file.name.endswith((".tar.gz", ".zip", ".gz"))
        assert re.fullmatch(r"[0-9a-f]{32}", file.md5)
        assert 5_000 < file.bytes < source.unpacked_bytes < 1_000_000_000


def test_fashion_mnist_fits_its_bound():
    """Two idx3 files (16 bytes, then 28 x 28 a picture) and two idx1 files (8, then 1 a label)."""
    exact = sum(16 + n * 28 * 28 + 8 + n for n in (60_000, 10_000))
    assert exact == 54_950_048
    assert exact < SOURCES["fashionmnist"].unpacked_bytes < 1.1 * exact


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_a_loader_that_looks_into_its_folder(tmp_path, name):
    with pytest.raises(DataError, match=rf"{tmp_path}.*\b{SOURCES[name].folder}\b"):
        DATASETS[name](root=str(tmp_path))


@pytest.mark.filterwarnings("ignore:CIFAR-10.*published:UserWarning")
def test_a_fetched_cifar10_is_where_its_loader_looks(publisher, tmp_path):
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    body = tar_gz({f"cifar-10-batches-bin/{name}": bytes(1 + 3 * 32 * 32) for name in names})
    publisher.files["/cifar-10-binary.tar.gz"] = body
    small = source_of(body, names=("cifar-10-binary.tar.gz",))
    assert get(publisher, tmp_path, replace(SOURCES["cifar10"], files=small.files)) is True
    data = DATASETS["cifar10"](str(tmp_path))
    assert (len(data.train), len(data.test)) == (5, 1)


HTTP = ("urllib.request", "urllib3", "http.client", "ftplib", "requests", "httpx")


def test_no_other_module_speaks_http():
    package = Path(fedwsq.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            if any(name.startswith(HTTP) for name in names):
                found.add(str(path.relative_to(package)))
    assert found == {os.path.join("data", "download.py")}
