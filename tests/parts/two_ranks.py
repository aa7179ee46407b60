"""One of two processes that train together on loopback:  two_ranks.py RANK PORT FILE

Writes what this rank found as JSON. Started by `test_gradients.py`.
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fedwsq
from fedwsq.core.tree import fingerprint

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import ddp

EPOCHS = 6
CODECS = {"danuq 4": ("danuq", 4), "danuq 1": ("danuq", 1), "ecq 0.5": ("ecq", 0.5)}


def train(rank: int, codec: tuple[str, float] | None) -> dict[str, Any]:
    # Small buckets, so that there are several, and torch builds them anew after the first step.
    model = DistributedDataParallel(ddp.network(), bucket_cap_mb=0.03)
    found: dict[str, Any] = {}
    compression = None
    lengths: list[int] = []
    if codec is not None:
        compression = fedwsq.compress_gradients(model, *codec)
        count_lengths(compression.compressor, lengths)
    found["accuracy"] = ddp.learn(model, rank, EPOCHS)
    found["weights"] = fingerprint(model.module.state_dict())
    if compression is not None:
        found["lengths"] = lengths
        found["sent"] = compression.sent_bytes
        found["float32"] = compression.float32_bytes
        found["remembered"] = sorted(compression.compressor.state_dict()["residuals"])
    return found


def count_lengths(compressor: Any, lengths: list[int]) -> None:
    """Note how long each message is."""
    compress = compressor.compress

    def noted(tensors: Any) -> bytes:
        data: bytes = compress(tensors)
        lengths.append(len(data))
        return data

    compressor.compress = noted


def gradient(rank: int, codec: str | None, scale: float = 1.0) -> torch.Tensor:
    """The gradient of one step after it was exchanged; rank 1 may go astray."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(32, 8).to(torch.bfloat16))
    if codec:
        fedwsq.compress_gradients(model, codec, bits=None)
    x = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(1))[rank]
    (model(x.to(torch.bfloat16)).float().square().sum() * (scale if rank else 1)).backward()
    found = model.module.weight.grad
    assert found is not None
    assert found.dtype is torch.bfloat16
    return found.float()


def main(rank: int, port: str, file: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME=ddp.LOOPBACK)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found: dict[str, Any] = {"plain": train(rank, None)}
    for name, codec in CODECS.items():
        found[name] = train(rank, codec)
    found["exact"] = torch.equal(gradient(rank, None), gradient(rank, "float32"))
    found["close"] = float((gradient(rank, "eden") - gradient(rank, None)).norm())
    found["size"] = float(gradient(rank, None).norm())
    found["astray"] = bool(gradient(rank, "danuq", scale=float("inf")).isnan().all())
    found["after"] = bool(gradient(rank, "danuq").isfinite().all())
    Path(file).write_text(json.dumps(found))
    leave()


def leave() -> None:
    """End without the interpreter's last steps: gloo's threads, which may hold a tensor still,
    cannot let go of it then, and the process aborts (pytorch/pytorch#190489).
    """
    gc.collect()  # models are in cycles, and have the group
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
