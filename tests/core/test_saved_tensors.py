"""Saved tensors: the same content is the same file."""

import safetensors
import torch

from fedwsq.core.files import save_tensors


def test_equal_content_is_an_equal_file(tmp_path):
    """The format's own writer puts metadata in an order of chance."""
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2)}
    metadata = {f"key {i}": f"é {i}" for i in range(20)}
    files = set()
    for i in range(8):
        save_tensors(tmp_path / str(i), tensors, metadata)
        files.add((tmp_path / str(i)).read_bytes())
    assert len(files) == 1
    with safetensors.safe_open(tmp_path / "0", "pt") as file:
        assert file.metadata() == metadata
        assert {name: file.get_tensor(name).tolist() for name in file.keys()} == {  # noqa: SIM118
            "a": [[0, 0], [0, 0]],
            "b": [1, 1, 1],
        }
