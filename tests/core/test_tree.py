import torch

from fedwsq.core import tree

A = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
B = {"w": torch.tensor([10.0, 20.0]), "b": torch.tensor([30.0])}


def test_arithmetic_by_hand():
    assert tree.add(A, B)["w"].tolist() == [11, 22]
    assert tree.sub(B, A)["b"].tolist() == [27]
    assert tree.scale(2.0, A)["w"].tolist() == [2, 4]
    assert tree.axpy(2.0, A, B)["w"].tolist() == [12, 24]
    assert tree.zeros_like(A)["w"].tolist() == [0, 0]
    assert tree.shapes(A) == {"w": (2,), "b": (1,)}
    assert float(tree.norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})) == 5.0
    assert A["w"].tolist() == [1, 2]  # nothing is changed in place


def test_a_fingerprint_tells_every_bit_apart():
    same = {name: x.clone() for name, x in A.items()}
    assert tree.fingerprint(same) == tree.fingerprint(A)
    nudged = {**same, "b": torch.nextafter(same["b"], torch.tensor(9.0))}
    assert tree.fingerprint(nudged) != tree.fingerprint(A)
    assert tree.fingerprint({"w": A["w"].view(1, 2), "b": A["b"]}) != tree.fingerprint(A)
    channels_last = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert tree.fingerprint({"w": channels_last}) == tree.fingerprint(
        {"w": channels_last.contiguous()}
    )
