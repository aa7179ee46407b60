"""Two processes train one network on handwritten digits and send each other 4-bit gradients.

    python examples/ddp.py [BITS] [EPOCHS]

Data-parallel training as torch has it, first plain and then with compressed gradients: the same
start, the same batches. The two processes talk over this machine's loopback; on several machines
start `train` on each of them, as torch's own tutorials do.
"""

import gc
import os
import socket
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import fedwsq

RANKS = 2
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
BATCH = 32  # of each rank


def digits() -> tuple[Tensor, Tensor, Tensor]:
    """1797 images of 8x8 pixels, their labels, and which of them are held out for the test."""
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    return images, torch.from_numpy(bunch.target), torch.arange(len(images)) % 5 == 4


def network() -> nn.Module:
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


def train(rank: int, port: int, bits: float, epochs: int) -> None:
    """One process of the group."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=LOOPBACK)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    compare(rank, bits, epochs)
    # The models hold the group; it has to be gone before the interpreter is.
    gc.collect()
    dist.destroy_process_group()


def compare(rank: int, bits: float, epochs: int) -> None:
    """Train twice; rank 0 prints."""
    plain = DistributedDataParallel(network())
    compressed = DistributedDataParallel(network())
    compression = fedwsq.compress_gradients(compressed, bits=bits)

    for name, model in (("plain", plain), ("compressed", compressed)):
        accuracy = learn(model, rank, epochs)
        if rank == 0:
            print(f"{name}: test accuracy {accuracy:.3f}")
    if rank == 0:
        sent = compression.sent_bytes
        exact = compression.float32_bytes
        print(f"each rank sent {sent} bytes; in float32, {exact}: {exact / sent:.1f} times as many")


def learn(model: DistributedDataParallel, rank: int, epochs: int) -> float:
    """Momentum SGD, every rank on its own half of each batch; the accuracy on the test images."""
    images, labels, held_out = digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    known = torch.nonzero(~held_out).flatten()
    for epoch in range(epochs):
        shuffled = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(epoch))]
        for batch in shuffled[rank::RANKS].split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        right = model.module(images[held_out]).argmax(1) == labels[held_out]
    return float(right.float().mean())


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spawn(train, (port, float(given.get(1, 4)), int(given.get(2, 10))), nprocs=RANKS)
