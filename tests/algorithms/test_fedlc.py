import pytest
import torch
from rounds import Bias, cnn_delta, float64, toy_round

from fedwsq.algorithms.fedlc import FedLC, calibrated_cross_entropy

LABELS = {"A": [0, 0, 1], "B": [2, 2, 2, 1]}
LOSSES = {
    "code": [0.642748741038374, 0.5750781341824912],
    "paper": [-0.15303452824876188, -0.37008215717420373],
}
GRADIENTS = {
    "code": [
        [-0.05386516667373812, 0.05386516667373824, 0.0],
        [0.0, 0.07296821378259878, -0.07296821378259871],
    ],
    "paper": [[-1 / 3, 1 / 3, 0.0], [0.0, 0.5, -0.5]],
}
LOCALS = {
    "code": [
        [0.2475148362565186, -0.14751483625651868, 0.4],
        [0.2, -0.16509579436771363, 0.46509579436771364],
    ],
    "paper": [[0.5333333333333333, -0.43333333333333335, 0.4], [0.2, -0.6, 0.9]],
}
SERVER = {
    "code": [0.2237574181282593, -0.15630531531211617, 0.43254789718385683],
    "paper": [0.3666666666666667, -0.5166666666666666, 0.65],
}


@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize("client", [0, 1])
def test_loss_and_gradient_by_hand(form, client):
    y = torch.tensor(list(LABELS.values())[client])
    bias = float64([0.2, -0.1, 0.4])
    loss = calibrated_cross_entropy(
        bias.expand(len(y), 3), y, torch.bincount(y, minlength=3), 1.0, form
    )
    loss.backward()
    assert loss.item() == pytest.approx(LOSSES[form][client], abs=1e-8)
    assert bias.grad.tolist() == pytest.approx(GRADIENTS[form][client], abs=1e-8)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_round_by_hand(form):
    clients = [(None, y) for y in LABELS.values()]
    local, _, server = toy_round(FedLC(form=form), Bias, clients, lr=0.5)
    for params, expected in zip(local, LOCALS[form], strict=True):
        assert params["w"].tolist() == pytest.approx(expected, abs=1e-5)
    assert server["w"].tolist() == pytest.approx(SERVER[form], abs=1e-5)
    _, losses, _ = toy_round(FedLC(form=form), Bias, clients, lr=0.5, steps=1)
    assert losses == pytest.approx(LOSSES[form], abs=1e-5)


@pytest.mark.parametrize(("form", "expected"), [("code", 0.0), ("paper", -80001.0)])
def test_no_overflow_and_no_gradient_for_absent_classes(form, expected):
    # counts 16, 16: margins tau / 2 on both sides;
    # -log(e^z0 / (e^z0 + e^z1)) and -log(e^z0 / e^z1) = z1 - z0
    logits = torch.tensor([[4e4, -40001.0, 9e4]], requires_grad=True)
    loss = calibrated_cross_entropy(logits, torch.tensor([0]), torch.tensor([16, 16, 0]), 1.0, form)
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    assert logits.grad.tolist() == ([[0.0, 0.0, 0.0]] if form == "code" else [[-1.0, 1.0, 0.0]])


@pytest.mark.parametrize("form", ["code", "paper"])
def test_a_single_class_has_nothing_to_learn(form):
    logits = torch.randn(3, 4, requires_grad=True)
    loss = calibrated_cross_entropy(
        logits, torch.tensor([2, 2, 2]), torch.tensor([0, 0, 3, 0]), 1.0, form
    )
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.abs().max() == 0
    assert cnn_delta(FedLC(form=form), labels=[4] * 10, weight_decay=0.0).abs().max() == 0
