"""Worker processes that go from plan to plan: to start them takes longer than most tests."""

import json
from pathlib import Path

import torch

from fedwsq.core.files import write_atomically
from fedwsq.federation.simulation import serve_plan
from fedwsq.plan import Plan, dump_plan
from fedwsq.transports import Order, Pool, Serve, Setup

CPU = torch.device("cpu")


class SharedPool(Pool):
    """A pool whose workers look into a file before each order, and serve the plan that is there."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.path = folder / "setup.json"
        super().__init__(Setup("shared_pool:serve_file", str(self.path).encode()), workers, CPU)

    def adopt(self, plan: Plan, store: Path) -> None:
        """Serve this plan from the next order on; no order may be under way."""
        settings = {"plan": dump_plan(plan), "device": "cpu", "store": str(store)}
        write_atomically(self.path, json.dumps(settings).encode())


def serve_file(settings: bytes) -> Serve:
    """A worker's end: what `serve_plan` makes of the file, made again when the file has changed."""
    path = Path(settings.decode())
    served = b""
    answer: Serve

    def serve(body: bytes | memoryview, order: Order) -> bytes:
        nonlocal served, answer
        wanted = path.read_bytes()
        if wanted != served:
            answer = serve_plan(wanted)
            served = wanted
        return answer(body, order)

    return serve
