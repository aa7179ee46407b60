"""What clients remember between rounds: on disk, by client and by the round it comes from.

A client's memory after round r is its generation r. An order names the generation that the server last accepted from
the client; training starts from that one, so a lost reply or a round that is run again never advances a client twice.
Generations are kept as long as a checkpoint that could still be resumed from may ask for them.
"""

import json
from pathlib import Path

import safetensors

from fedwsq.core.errors import UpdateError
from fedwsq.core.files import save_tensors
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import State


class ClientStore:
    """`folder/<client>/<round>.safetensors`; a client that never took part costs nothing."""

    def __init__(self, folder: Path, checkpoint_every: int = 1) -> None:
        # The last checkpoint is at most `checkpoint_every` rounds old and the one before it twice that.
        self.folder, self.keep_rounds = folder, 2 * checkpoint_every

    def load(self, client: int, generation: int) -> State:
        """A client's memory after the round `generation`."""
        path = self._path(client, generation)
        try:
            with safetensors.safe_open(path, "pt") as file:
                names = json.loads((file.metadata() or {})["tensors"])
                tensors = {
                    f"{vector}/{name}": file.get_tensor(f"{vector}/{name}")
                    for vector, name in names
                }
                if fingerprint(tensors) != file.metadata()["digest"]:
                    raise ValueError("its contents do not match their digest")
                state: State = {}
                for vector, name in names:
                    state.setdefault(vector, {})[name] = tensors[f"{vector}/{name}"]
                return state
        except Exception as error:  # whatever a damaged file makes the reader say
            raise UpdateError(
                f"client {client}'s memory of round {generation} cannot be read: {error}"
            ) from None

    def stage(self, client: int, round_: int, accepted: int, state: State) -> None:
        """Keep the memory after this round beside the one it started from, and drop what nobody can ask for."""
        path = self._path(client, round_)
        path.parent.mkdir(parents=True, exist_ok=True)
        names = [(vector, name) for vector, params in state.items() for name in params]
        tensors = {f"{vector}/{name}": state[vector][name] for vector, name in names}
        save_tensors(path, tensors, {"tensors": json.dumps(names), "digest": fingerprint(tensors)})
        found = sorted(int(each.stem) for each in path.parent.glob("*.safetensors"))
        settled = [g for g in found if g <= accepted and g < round_ - self.keep_rounds]
        abandoned = [g for g in found if accepted < g != round_]
        for generation in settled[:-1] + abandoned:
            self._path(client, generation).unlink(missing_ok=True)

    def _path(self, client: int, generation: int) -> Path:
        return self.folder / str(client) / f"{generation}.safetensors"
