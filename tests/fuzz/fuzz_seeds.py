"""The committed corpus, made anew: `python tests/fuzz/fuzz_seeds.py`.

Honest samples of every kind; files whose names begin with `found` are inputs that once were not
refused as they should be, and are not touched.
"""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from fuzz_targets import CORPUS, charters, first, honest_reply, with_agreement
from PIL import Image

import fedwsq
from fedwsq.codecs import CODECS
from fedwsq.federation.record import RoundRecord
from fedwsq.plan import dump_plan, load_plan
from fedwsq.runs import save_snapshot
from fedwsq.runs.receipt import Receipt

Samples = dict[str, bytes]


def messages() -> Samples:
    found = {}
    for name, charter in charters().items():
        codec = name.rstrip(b"\0").decode()
        found[codec] = with_agreement(honest_reply(charter), name)
    return found


def packs() -> Samples:
    torch.manual_seed(0)
    tensors = {
        "weight": torch.randn(4, 3),
        "half": torch.randn(5).half(),
        "steps": torch.tensor(7),
        "mask": torch.tensor([True, False]),
    }
    return {name: fedwsq.pack(tensors, name) for name in CODECS}


def checkpoints() -> Samples:
    with TemporaryDirectory() as name:
        save_snapshot(Path(name), first())
        return {"first": (Path(name) / "last.safetensors").read_bytes()}


def directories() -> Samples:
    row = RoundRecord(
        1,
        test_accuracy=0.5,
        class_accuracy=[0.5, 1.0],
        failures={"3": "no reply"},
        scale_ratios={"w": 1.0},
        channels={"0": [1.0, 2.0, 0.1, 0.0]},
    )
    manifest = {"format": 2, "fedwsq": "0.2.0", "seed": 0, "cores": 2, "config": "ab", "data": ""}
    return {"one": (row.line() + "---\n" + json.dumps(manifest)).encode()}


def splits() -> Samples:
    ours = {"format": "fedwsq-split", "version": 1, "examples": 6, "repeats": False}
    return {
        "ours": json.dumps({**ours, "clients": [[0, 3], [1, 2, 5]]}).encode(),
        "python": b"{0: [1, 5, 7], 1: [2, 4]}",
        "numpy": b"{0: array([1, 5]), '1': {2, 4}}",
        "ordered": b"OrderedDict([(0, [1, 2]), (1, [3])])",
    }


def traces() -> Samples:
    head = "client,round,up_bytes_per_second,down_bytes_per_second,latency_seconds\n"
    row = {"round": 1, "channels": {"0": [1e6, 2e6, 0.05, 0.01], "4": [1e5, 1e5, 0.0, 0.0]}}
    return {
        "csv": (head + "0,1,1e6,2e6,0.05\n1,1,5e5,1e6,0\n0,7,1e4,1e4,1\n").encode(),
        "rows": (json.dumps(row) + "\n" + json.dumps({"round": 2, "channels": {}})).encode(),
    }


def configs() -> Samples:
    coded = {"uplink.codec": "ecq", "uplink.bits": 0.5, "downlink.codec": "danuq"}
    return {
        "quickstart": dump_plan(load_plan("quickstart")).encode(),
        "coded": dump_plan(load_plan("quickstart", coded)).encode(),
        "short": b'method = "fedacg"\nrounds = 3\n[data]\npartition = { name = "iid" }\n',
    }


def grids() -> Samples:
    return {
        "each": b'config = "quickstart"\nsettings = { rounds = 3 }\n[each]\nseed = [0, 1]\n',
        "cases": b'[[cases]]\nlabel = "a"\nmethod = "fedavg"\n[[cases]]\n"uplink.bits" = 1\n',
    }


def receipts() -> Samples:
    settings = dump_plan(load_plan("quickstart", {"rounds": 2}))
    facts = {"data": "00", "init": "", "trace": "", "frozen": ""}
    two = ["00" * 16, "11" * 16]
    made = Receipt(1, settings, "00" * 16, facts, {"torch": "2"}, two, two)
    return {"two": made.text().encode()}


def analyses() -> Samples:
    top = {"eigenvalues": [2.0, 1.0], "residuals": [0.0, 0.0], "converged": True}
    shares = {"weight": [0.1, 0.2], "ones": [0.0, 0.1]}
    errors = {"bits": 4.0, "errors": {"danuq": 0.1, "eden": 0.2}}
    found = {
        "hessian": {"examples": 9, "raw": top, "effective": top, "relative": top},
        "landscape": {
            "examples": 9,
            "data": "test",
            "steps": [-1.0, 1.0],
            "loss": [[1.0, 2.0], [None, 3.0]],
        },
        "updates": {"rounds": {"1": {"kurtosis": 3.0, "equal_bytes": {"4": errors}}}},
        "drift": {"rounds": {"1": {"all": {"cosine": [0.5], "norm": [1.0]}}}},
        "gradients": {"layers": {"conv": shares}},
        "scales": {
            "right_scale_error": 0.1,
            "rounds": {"1": {"median": 1.0, "expected_error": 0.2}},
        },
    }
    return {name: json.dumps(each).encode() for name, each in found.items()}


def archives() -> Samples:
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("top/a", "top/long/" + "x" * 120):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("top/a", b"hello" * 20)
        packed.writestr("top/deep/b", b"")
    return {
        "tar": gzip.compress(tarred.getvalue(), mtime=0),
        "zip": zipped.getvalue(),
        "gz": gzip.compress(b"hello", mtime=0),
    }


def arrays() -> Samples:
    rng = np.random.default_rng(0)
    found = {}
    for name, x in {
        "bytes": rng.integers(0, 9, (6, 1, 2, 2), np.uint8),
        "floats": rng.random((6, 2)),
    }.items():
        out = io.BytesIO()
        np.savez(out, x=x, y=np.arange(6) % 2, group=np.arange(6))
        found[name] = out.getvalue()
    return found


def images() -> Samples:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    found = {}
    for kind in ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm"):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, kind)
        found[kind] = out.getvalue()
    return found


def pickles() -> Samples:
    batch = {b"labels": [3], b"data": np.zeros((1, 3072), np.uint8), b"filenames": [b"a"]}
    return {f"protocol-{n}": pickle.dumps(batch, protocol=n) for n in (2, 4)}


MAKERS = (
    messages,
    packs,
    checkpoints,
    directories,
    splits,
    traces,
    configs,
    grids,
    receipts,
    analyses,
    archives,
    arrays,
    images,
    pickles,
)

if __name__ == "__main__":
    for make in MAKERS:
        kind = CORPUS / make.__name__
        kind.mkdir(parents=True, exist_ok=True)
        for name, data in make().items():
            (kind / name).write_bytes(data)
