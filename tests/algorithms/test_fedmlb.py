import pytest
import torch
import torch.nn.functional as F
from rounds import cnn_delta, toy_round
from torch import nn

from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.algorithms.fedmlb import FedMLB, branch_losses

CLIENTS = [([1.0, 2.0], [0, 0]), ([1.0, 3.0], [1, 0])]
LOCALS = [[0.6876593535606661, 0.8612730052400804], [0.37963700907393394, 0.7658031247049152]]
SERVER = [0.5336481813173, 0.8135380649724978]
PARTS = [  # after training: cross-entropy, that of the branch, divergence of the branch
    [0.1781665707319352, 0.1961520608178251, 0.0009373830643344405],
    [0.5933069768157866, 0.5960674189839755, 0.00022372181229764025],
]


class Cut(nn.Module):
    """The worked example's model: f = w1 x, logits +-w2 relu(f), one level."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, 0.8]))

    def features(self, x):
        return [self.w[0] * x]

    def resume(self, level, feature):
        return self.w[1] * torch.stack([F.relu(feature), -F.relu(feature)], dim=1)


def test_round_by_hand():
    local, _, server = toy_round(FedMLB(), Cut, CLIENTS)
    for params, expected in zip(local, LOCALS, strict=True):
        assert params["w"].tolist() == pytest.approx(expected, abs=1e-5)
    assert server["w"].tolist() == pytest.approx(SERVER, abs=1e-5)


@pytest.mark.parametrize("client", [0, 1])
def test_losses_by_hand_after_training(client):
    x, y = (torch.tensor(values) for values in CLIENTS[client])
    local = Cut().double()
    frozen = Cut().double()
    local.w.data = torch.tensor(LOCALS[client], dtype=torch.float64)
    frozen.w.data = torch.tensor([0.5, 0.8], dtype=torch.float64)
    (feature,) = local.features(x.double())
    logits = local.resume(0, feature)
    entropy, divergence = branch_losses(logits, [frozen.resume(0, feature)], y)
    parts = [F.cross_entropy(logits, y).item(), entropy.item(), divergence.item()]
    assert parts == pytest.approx(PARTS[client], abs=1e-8)


def test_branches_by_hand():
    logits = torch.randn(4, 3).double()
    branches = torch.randn(2, 4, 3).double()
    y = torch.tensor([0, 1, 2, 2])
    entropy, divergence = branch_losses(logits, list(branches), y, tau=2.0)
    q = (logits / 2).softmax(1)
    p = (branches / 2).softmax(2)
    assert divergence.item() == pytest.approx(float((p * (p / q).log()).sum() / 8), abs=1e-12)
    chosen = branches.softmax(2)[:, range(4), y]
    assert entropy.item() == pytest.approx(float(-chosen.log().mean()), abs=1e-12)


def test_gradients_reach_both_sides_of_the_divergence():
    logits, branch = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    branch_losses(logits, [branch], torch.tensor([0, 1, 2, 2]))[1].backward()
    assert logits.grad.abs().max() > 0
    assert branch.grad.abs().max() > 0


def test_at_the_start_every_branch_is_the_model():
    # so that the first loss is CE + CE + 0 whatever the number of levels,
    # and lambda1 = lambda2 = 0 is FedAvg
    alone = FedMLB(lambda1=0.0, lambda2=0.0)
    _, twice, _ = toy_round(FedMLB(), Cut, CLIENTS, steps=1)
    _, once, _ = toy_round(alone, Cut, CLIENTS, steps=1)
    assert twice == pytest.approx([2 * loss for loss in once], abs=1e-6)
    assert torch.allclose(cnn_delta(alone), cnn_delta(FedAvg()), atol=1e-6)


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[0.0, 9e4, -9e4]], requires_grad=True)
    branch = torch.tensor([[9e4, -9e4, 0.0]], requires_grad=True)
    sum(branch_losses(logits, [branch], torch.tensor([2]))).backward()
    assert logits.grad.isfinite().all()
    assert branch.grad.isfinite().all()
