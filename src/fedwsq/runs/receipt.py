"""Receipts: what another run must give to be the same one, round by round.

A receipt holds the plan, digests of the data and of every round's accepted replies and weights, and
where it was made. It has no nonces and no timings, so two equal runs have equal receipts.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedwsq.core.checked import checked
from fedwsq.core.errors import RunError
from fedwsq.core.text import read_bytes
from fedwsq.federation.record import RoundRecord
from fedwsq.plan import PLACES, Plan, plan_settings
from fedwsq.plan.read import Settings
from fedwsq.runs.manifest import Manifest

RECEIPT = "receipt.json"
FORMAT = 1
MAX_BYTES = 2**26  # some 800,000 rounds
# What a manifest says of the machine; weights may depend on all of it.
ENVIRONMENT = ("fedwsq", "commit", "python", "torch", "numpy", "cpu", "device")
FILES = ("data", "init", "trace", "frozen")  # digests of what a plan names and does not hold


@dataclass(frozen=True)
class Receipt:
    """What is in `receipt.json`; places are left out, since files may lie elsewhere."""

    format: int
    settings: str  # TOML
    plan: str  # its digest
    files: dict[str, str]
    environment: dict[str, str]
    packets: list[str]  # by round, from the first
    weights: list[str]

    def text(self) -> str:
        """As a file has it, with a digest of its own at the end."""
        return json.dumps({**asdict(self), "digest": self.digest}, indent=1) + "\n"

    @property
    def digest(self) -> str:
        return _digest(json.dumps(asdict(self), sort_keys=True))

    def difference(self, record: RoundRecord) -> str | None:
        """What of a round is not as it was; None if all is."""
        number = record.round - 1
        for name, before in (("packets", self.packets), ("weights", self.weights)):
            found = getattr(record, name)
            if found != before[number]:
                return f"its {name} are {found or 'none'}, the receipt has {before[number]}"
        return None


def make_receipt(plan: Plan, manifest: Manifest, rows: Sequence[RoundRecord]) -> Receipt | None:
    """The receipt of a run; None where rows are lost, or older than receipts."""
    whole = [row.round for row in rows] == list(range(1, len(rows) + 1))
    if not whole or not all(row.weights for row in rows):
        return None
    settings = tomli_w.dumps(_without_places(plan_settings(plan)))
    return Receipt(
        FORMAT,
        settings,
        _digest(settings),
        {name: str(manifest[name]) for name in FILES},
        {name: str(manifest[name]) for name in ENVIRONMENT},
        [row.packets for row in rows],
        [row.weights for row in rows],
    )


def read_receipt(path: Path) -> Receipt:
    """A receipt from its file, or from the directory of its run; what was changed is refused."""
    file = path / RECEIPT if path.is_dir() else path
    try:
        found: Any = json.loads(read_bytes(file, MAX_BYTES))
        receipt = checked(Receipt, found)
    except FileNotFoundError:
        raise RunError(
            f"there is no receipt {file}; a run writes one when it is finished"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file} is not a receipt: {error}") from None
    if receipt.format != FORMAT:
        raise RunError(f"{file} has receipt format {receipt.format}, this build reads {FORMAT}")
    if len(receipt.packets) != len(receipt.weights) or found.get("digest") != receipt.digest:
        raise RunError(f"{file} was changed since it was written: its digest does not match")
    if not receipt.weights:
        raise RunError(f"{file} has no rounds; a receipt is of at least one")
    return receipt


def environment_changes(receipt: Receipt, manifest: Manifest) -> list[str]:
    """What of this machine is not as it was."""
    now = {name: str(manifest[name]) for name in ENVIRONMENT}
    before = receipt.environment
    return [
        f"{name} was {before.get(name)} and is {value}"
        for name, value in now.items()
        if before.get(name) != value
    ]


def _without_places(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    kept: Settings = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            kept[key] = _without_places(value, f"{prefix}{key}.")
        elif prefix + key not in PLACES:
            kept[key] = value
    return kept


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
