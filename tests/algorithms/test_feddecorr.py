import pytest
import torch
from rounds import Linear, cnn_delta, float64, toy_round

from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.algorithms.feddecorr import FedDecorr, decorrelation

X = [[1.0, 2.0], [2.0, 3.0], [4.0, 3.0]]
CLIENTS = [(X, [0, 1, 1]), ([[0.0, 1.0], [1.0, -1.0], [2.0, 0.0]], [1, 0, 0])]
LOCALS = [
    [[0.2731341742216075, 0.024212646696521303], [-0.07846296150176854, 0.48069769778952753]],
    [[0.5432157732831466, -0.24066910901213265], [0.05699454435220752, 0.35061129186835943]],
]
SERVER = [[0.4081749737523771, -0.10822823115780567], [-0.01073420857478051, 0.41565449482894345]]


def test_loss_and_gradient_by_hand():
    x = float64(X)
    loss = decorrelation(x)
    loss.backward()
    assert loss.item() == pytest.approx(0.7619047357823137, abs=1e-8)
    expected = [
        [-0.3265306029154521, -4.571428277908067e-08],
        [0.48979590110787224, -1.142857080816329],
        [-0.16326529819242022, 1.142857126530612],
    ]
    assert x.grad.tolist() == [pytest.approx(row, abs=1e-8) for row in expected]
    # ((n - 1) r)^2 / n with the correlation r, but for the 1e-8
    assert loss.item() == pytest.approx((2 * 0.7559289460184545) ** 2 / 3, abs=1e-7)


def test_round_by_hand():
    local, _, server = toy_round(FedDecorr(), Linear, CLIENTS)
    for params, expected in zip(local, LOCALS, strict=True):
        assert params["w"].tolist() == [pytest.approx(row, abs=1e-5) for row in expected]
    assert server["w"].tolist() == [pytest.approx(row, abs=1e-5) for row in SERVER]


def test_is_the_mean_squared_correlation():
    x = torch.randn(7, 5, dtype=torch.float64)
    r = torch.corrcoef(x.T)
    off = r[~torch.eye(5, dtype=torch.bool)]
    assert decorrelation(x).item() == pytest.approx(float(36 / 7 * off.square().mean()), rel=1e-6)


@pytest.mark.parametrize("shape", [(1, 5), (4, 1)])
def test_one_example_or_one_feature_is_uncorrelated(shape):
    assert decorrelation(torch.randn(shape)).item() == 0


def test_dead_and_constant_columns_add_nothing():
    # 2 of the 4 * 3 pairs are left, those of X
    x = torch.tensor([[*row, 0.0, 0.3] for row in X], requires_grad=True)
    loss = decorrelation(x)
    loss.backward()
    assert loss.item() == pytest.approx(0.7619047357823137 * 2 / 12, abs=1e-5)
    assert x.grad.isfinite().all()
    assert x.grad[:, 2:].abs().max() < 1e-3


def test_identical_examples_are_uncorrelated():
    x = torch.ones(4, 3, requires_grad=True)
    loss = decorrelation(x)
    loss.backward()
    assert loss.item() == 0
    assert x.grad.abs().max() == 0


def test_computes_in_float32_under_autocast():
    x = torch.randn(50, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert decorrelation(x).item() == pytest.approx(decorrelation(x.double()).item(), rel=1e-5)


def test_batches_of_one_are_fedavg():
    assert torch.equal(cnn_delta(FedDecorr(), batch_size=1), cnn_delta(FedAvg(), batch_size=1))
