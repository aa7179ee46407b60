from math import exp

import pytest
import torch
from rounds import Bias, float64, toy_round

from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.algorithms.fedntd import FedNTD, not_true_distillation

CLIENTS = [(None, [0, 0, 1]), (None, [2, 2, 2, 1])]
WORKED = [  # method, losses of the first step, locals, server
    (
        FedNTD(),
        [0.8301575223679191, 0.7076575223679191],
        [
            [0.41179019254600885, -0.04908813696112793, 0.13729794441511922],
            [-0.016250451530241294, -0.10211608001057398, 0.6183665315408153],
        ],
        [0.19776987050788378, -0.07560210848585096, 0.3778322379779673],
    ),
    (
        FedNTD(form="official"),
        [1.1859393176684558, 1.010939317668456],
        [
            [0.4931101622115731, -0.02880548107291442, 0.03569531886134136],
            [-0.1003670800978812, -0.10191346573446206, 0.7022805458323433],
        ],
        [0.19637154105684596, -0.06535947340368824, 0.36898793234684235],
    ),
    (
        FedNTD(form="official", beta=1.0, tau=3.0),
        [1.1859393176684558, 1.010939317668456],
        [
            [0.48228948720004994, -0.0433966830358927, 0.06110719583584287],
            [-0.08180212924525927, -0.11302352022188304, 0.6948256494671423],
        ],
        [0.20024367897739534, -0.07821010162888786, 0.3779664226514926],
    ),
]


@pytest.mark.parametrize(("method", "losses", "locals_", "server"), WORKED)
def test_round_by_hand(method, losses, locals_, server):
    local, _, after = toy_round(method, Bias, CLIENTS, lr=0.5)
    for params, expected in zip(local, locals_, strict=True):
        assert params["w"].tolist() == pytest.approx(expected, abs=1e-5)
    assert after["w"].tolist() == pytest.approx(server, abs=1e-5)
    _, first, _ = toy_round(method, Bias, CLIENTS, lr=0.5, steps=1)
    assert first == pytest.approx(losses, abs=1e-5)


def test_divergence_by_hand():
    # without class 0: p = softmax(-.1, .4), q = softmax(0, -1)
    local = float64([[1.0, 0.0, -1.0]])
    frozen = float64([[0.2, -0.1, 0.4]])
    loss = not_true_distillation(local, frozen, torch.tensor([0]), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.272873700140898, abs=1e-8)
    # of class 1
    p = 1 / (1 + exp(0.5))
    q = 1 / (1 + exp(-1.0))
    assert local.grad.tolist()[0] == pytest.approx([0.0, q - p, p - q], abs=1e-8)
    assert frozen.grad is None


def test_is_the_divergence_by_hand_for_every_true_class():
    local = torch.randn(6, 4).double()
    frozen = torch.randn(6, 4).double()
    y = torch.tensor([0, 1, 2, 3, 3, 1])
    total = 0.0
    for z, g, true in zip(local, frozen, y.tolist(), strict=True):
        kept = [c for c in range(4) if c != true]
        p = (g[kept] / 2).softmax(0)
        q = (z[kept] / 2).softmax(0)
        total += float((p * (p / q).log()).sum())
    assert not_true_distillation(local, frozen, y, 2.0).item() == pytest.approx(
        total / 6, abs=1e-12
    )


def test_first_step_has_no_distillation_gradient():
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    not_true_distillation(logits, logits, torch.tensor([0, 1, 2, 3, 0])).backward()
    assert logits.grad.abs().max() < 1e-15
    (plain, _), _, _ = toy_round(FedAvg(), Bias, CLIENTS, steps=1)
    (ours, _), _, _ = toy_round(FedNTD(), Bias, CLIENTS, steps=1)
    start = Bias().w.detach()
    assert (ours["w"] - start).tolist() == pytest.approx(
        (0.7 * (plain["w"] - start)).tolist(), abs=1e-6
    )


def test_two_classes_leave_nothing_to_distil():
    local = torch.randn(3, 2, requires_grad=True)
    loss = not_true_distillation(local, torch.randn(3, 2), torch.tensor([0, 1, 1]))
    loss.backward()
    assert loss.item() == 0
    assert local.grad.abs().max() == 0


def test_extreme_logits_stay_finite():
    local = torch.tensor([[0.0, 9e4, -9e4], [1.0, 2.0, 3.0]], requires_grad=True)
    loss = not_true_distillation(
        local, torch.tensor([[9e4, -9e4, 9e4], [0.0, 0.0, 0.0]]), torch.tensor([0, 1])
    )
    loss.backward()
    assert loss.isfinite()
    assert local.grad.isfinite().all()


def test_official_form_takes_any_weight():
    assert FedNTD(form="official", beta=1.5).beta == 1.5
