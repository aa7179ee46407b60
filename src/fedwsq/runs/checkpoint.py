"""Checkpoints: one safetensors file, written whole or not at all, with the one before it kept."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from reprlib import repr as brief
from typing import Any

import safetensors
import torch
from torch import Tensor

from fedwsq.core.checked import fits
from fedwsq.core.errors import RunError
from fedwsq.core.files import save_tensors
from fedwsq.core.types import Params, Vectors
from fedwsq.federation.bounds import Trend, Usual
from fedwsq.federation.downlink import PublicModel
from fedwsq.federation.server import Snapshot

FORMAT = 4
LAST, PREVIOUS, NEXT, DAMAGED = (
    f"{name}.safetensors" for name in ("last", "previous", "next", "damaged")
)


def save_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint; the last one becomes the previous one."""
    folder.mkdir(exist_ok=True)
    tensors = _flatten(snapshot)
    plain: dict[str, Any] = {
        "format": FORMAT,
        "run": snapshot.run.hex(),
        "round": snapshot.round,
        "accuracy_ema": snapshot.accuracy_ema,
        "usual": asdict(snapshot.usual),
        "tensors": list(
            tensors
        ),  # safetensors sorts by name; sums over a model's tensors depend on their order
    }
    plain["digest"] = _digest(plain, tensors)
    # Written whole before anything is moved: a full disk leaves both checkpoints as they were.
    save_tensors(folder / NEXT, tensors, {"fedwsq": json.dumps(plain)})
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / PREVIOUS)
    os.replace(folder / NEXT, folder / LAST)


def load_snapshot(folder: Path) -> tuple[Snapshot, str]:
    """The newest whole checkpoint to go on from, and a warning when it is not the last written."""
    found, problems = newest_snapshot(folder)
    if problems and (folder / LAST).exists():
        # Else the next save would put the damaged one in place of this one.
        os.replace(folder / LAST, folder / DAMAGED)
    return found, problems


def newest_snapshot(folder: Path) -> tuple[Snapshot, str]:
    """The same for whoever only looks: nothing in the folder is changed."""
    problems: list[str] = []
    for name in (LAST, PREVIOUS):
        try:
            return read_checkpoint(folder / name), "; ".join(problems)
        except FileNotFoundError:
            problems.append(f"{folder / name} is missing")
        except RunError as error:
            problems.append(str(error))
    raise RunError(
        f"no usable checkpoint: {'; '.join(problems)}; start the run again with another --out"
    )


def read_checkpoint(path: Path) -> Snapshot:
    """The snapshot in one file; `RunError` if it is damaged."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            plain = json.loads((file.metadata() or {})["fedwsq"])
            if plain.get("format") != FORMAT:
                raise RunError(
                    f"{path} has format {brief(plain.get('format'))}, this build reads {FORMAT}"
                )
            tensors = {name: file.get_tensor(name) for name in plain.get("tensors", ())}
        if plain.pop("digest", None) != _digest(plain, tensors):
            raise ValueError("its contents do not match their digest")
        return _snapshot(plain, tensors)
    except (FileNotFoundError, RunError):
        raise
    except Exception as error:  # whatever a damaged file makes the reader say
        raise RunError(f"{path} is damaged ({error})") from None


def _snapshot(plain: dict[str, Any], tensors: Params) -> Snapshot:
    """What a checkpoint says; a digest vouches for no more than that nothing was lost."""
    number = plain["round"]
    ema = plain["accuracy_ema"]
    if not fits(int, number) or not 0 <= number < 2**31 or not fits(float | None, ema):
        raise ValueError(f"its round is {brief(number)}, its mean accuracy {brief(ema)}")
    for name, x in tensors.items():
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise ValueError(f"{name} is not finite")
    return Snapshot(
        bytes.fromhex(plain["run"]),
        number,
        _nest("server", tensors),
        _nest("shared", tensors),
        tensors["clients//accepted"].numpy(),
        ema,
        _public(tensors),
        _usual(plain.get("usual")),
    )


def require_fit(found: Snapshot, first: Snapshot) -> None:
    """Refuse a checkpoint of another plan or model than the one whose `first` snapshot this is."""
    problem = _misfit(found, first)
    if problem:
        raise RunError(f"the checkpoint does not fit this run: {problem}; put the run's own back")


def _misfit(found: Snapshot, first: Snapshot) -> str:
    """What is wrong with it; values are looked at once shapes and types are known to be right."""
    if len(found.run) != len(first.run):
        return "its run has no name"
    if _layout(found.server) != _layout(first.server):
        return "its tensors are not those of the model and the algorithm"
    if _layout(found.shared) != _layout(first.shared):
        return "its codec state is not that of the codec"
    # A codec that calibrates itself starts from 0; all others never reach it.
    least = _least(found.shared)
    if least < 0 or least == 0 < _least(first.shared):
        return "its codec state has a scale that is not above 0"
    accepted = found.accepted
    if accepted.shape != first.accepted.shape or accepted.dtype != first.accepted.dtype:
        return "its clients are not those of the plan"
    if (accepted < 0).any() or (accepted > found.round).any():
        return "clients took part in rounds that it does not have"
    if not _are_models(found.public, first):
        return "its public model is not that of the plan"
    return ""


def _layout(vectors: Vectors) -> dict[str, dict[str, tuple[Any, ...]]]:
    return {
        vector: {name: (x.shape, x.dtype) for name, x in tensors.items()}
        for vector, tensors in vectors.items()
    }


def _least(shared: Vectors) -> float:
    """The smallest value of any codec state; 1 where there is none."""
    values = [float(x.min()) for each in shared.values() for x in each.values() if x.numel()]
    return min(values, default=1.0)


def _are_models(public: PublicModel | None, first: Snapshot) -> bool:
    if public is None:
        return True
    model = _layout(first.server)["params"]
    return all(each == model for each in _layout(public.vectors).values())


def _usual(plain: dict[str, Any] | None) -> Usual:
    if plain is None:  # an older checkpoint
        return Usual()
    norms = {vector: _trend(found) for vector, found in plain["norms"].items()}
    return Usual(norms, _trend(plain["examples"]))


def _trend(plain: dict[str, Any]) -> Trend:
    if not fits(list[float], plain["latest"]) or not fits(float, plain["level"]):
        raise ValueError(f"what is usual is {brief(plain)}")
    if min([plain["level"], *plain["latest"]]) < 0:
        raise ValueError(f"what is usual is below 0: {brief(plain)}")
    return Trend(tuple(plain["latest"]), plain["level"])


def _flatten(snapshot: Snapshot) -> Params:
    """`server/params/<tensor>` and so on; vector names have no slash, tensor names may."""
    accepted = torch.from_numpy(snapshot.accepted)
    parts: dict[str, dict[str, Params]] = {
        "server": snapshot.server,
        "shared": snapshot.shared,
        "clients": {"": {"accepted": accepted}},
    }
    if snapshot.public is not None:
        differences = snapshot.public.differences.items()
        parts["public"] = snapshot.public.vectors
        parts["differences"] = {"": {str(number): _as_tensor(x) for number, x in differences}}
    tensors: Params = {}
    for part, vectors in parts.items():
        for vector, named in vectors.items():
            tensors |= {f"{part}/{vector}/{name}": x for name, x in named.items()}
    return tensors


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _public(tensors: Params) -> PublicModel | None:
    vectors = _nest("public", tensors)
    if not vectors:
        return None
    differences = _nest("differences", tensors).get("", {})
    return PublicModel(
        vectors, {int(number): x.numpy().tobytes() for number, x in differences.items()}
    )


def _nest(part: str, tensors: Params) -> dict[str, Params]:
    found: dict[str, Params] = {}
    for key, x in tensors.items():
        head, vector, name = key.split("/", 2)
        if head == part:
            found.setdefault(vector, {})[name] = x
    return found


def _digest(plain: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A hash of all that a checkpoint says: the round and the run count as much as the weights."""
    digest = hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
