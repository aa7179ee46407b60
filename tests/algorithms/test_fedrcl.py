from math import exp, log

import pytest
import torch
from rounds import Linear, float64, toy_round

from fedwsq.algorithms.fedrcl import FedRCL, relaxed_contrastive, spatial_mean

FEATURES = [[1.0, 0.1], [0.9, 0.3], [0.2, 1.0], [0.7, 0.7]]
CLIENTS = [(FEATURES, [0, 0, 1, 1]), (FEATURES, [1, 0, 0, 0])]
LOCALS = [
    [[0.4730616127607936, -0.1457104584741395], [0.1866996365485608, 0.3465042983343614]],
    [[0.5176703640824317, -0.07129974300308844], [0.3113166086382671, 0.2539277834197]],
]
SERVER = [[0.49536598842161267, -0.10850510073861397], [0.24900812259341396, 0.3002160408770307]]


def test_losses_and_gradient_by_hand():
    features = float64(FEATURES)
    contrast, penalty = relaxed_contrastive(features, torch.tensor([0, 0, 1, 1]))
    (contrast + penalty).backward()
    assert contrast.item() == pytest.approx(0.44173447027712065, abs=1e-8)
    assert penalty.item() == pytest.approx(0.2557977223401, abs=1e-8)
    expected = [
        [-0.08881154765453646, 0.8881154765453655],
        [-0.4545381164012458, 1.3636143492037358],
        [-1.9292953307534098, 0.3858590661506814],
        [3.0479129460700727, -3.0479129460700713],
    ]
    assert features.grad.tolist() == [pytest.approx(row, abs=1e-8) for row in expected]


def test_round_by_hand():
    local, _, server = toy_round(FedRCL(), Linear, CLIENTS, lr=0.01)
    for params, expected in zip(local, LOCALS, strict=True):
        assert params["w"].tolist() == [pytest.approx(row, abs=1e-5) for row in expected]
    assert server["w"].tolist() == [pytest.approx(row, abs=1e-5) for row in SERVER]


@pytest.mark.parametrize(("tau", "threshold"), [(0.05, 0.7), (0.2, 0.1)])
def test_is_the_definition_sample_by_sample(tau, threshold):
    n = 12
    torch.manual_seed(0)
    features = (torch.randn(n, 3, dtype=torch.float64) + 1).requires_grad_()
    y = torch.randint(3, (n,))
    s = torch.cosine_similarity(features[:, None], features[None], dim=2)
    contrasts = []
    penalties = []
    for i in range(n):
        siblings = sorted(
            (s[i, j] for j in range(n) if y[j] == y[i] and j != i), key=lambda each: each.item()
        )
        negatives = sorted(
            (s[i, j] for j in range(n) if y[j] != y[i]), key=lambda each: each.item()
        )[-2:]
        gaps = [torch.exp((negative - siblings[0]) / tau) for negative in negatives]
        contrasts.append(torch.log(1 + sum(gaps)))
        least = siblings[0] if siblings[0] >= threshold else -torch.ones_like(siblings[0])
        penalties.append(torch.log(1 + torch.exp((least - 1) / tau)))
    assert (
        0 < sum(penalty.requires_grad for penalty in penalties) < n
    )  # both sides of the threshold
    for part, expected in zip(
        relaxed_contrastive(features, y, tau, threshold), (contrasts, penalties), strict=True
    ):
        assert part.item() == pytest.approx(sum(expected).item() / n, abs=1e-10)
        gradients = (
            torch.autograd.grad(total, features, retain_graph=True)[0]
            for total in (part, sum(expected) / n)
        )
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


def test_ties_between_siblings_take_the_lowest_index():
    # s = 0 for all pairs with sample 0: it chooses 1, and both 1 and 2 choose it;
    # d penalty / ds = sigmoid(-1) / 3
    features = float64([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    relaxed_contrastive(features, torch.tensor([0, 0, 0]), tau=1.0, threshold=-1.0)[1].backward()
    g = 1 / (1 + exp(1)) / 3
    assert features.grad.tolist() == [
        pytest.approx(row) for row in ([0, 3 * g], [2 * g, 0], [g, 0])
    ]


def test_ties_between_negatives_take_the_lowest_indices():
    # 1, 2 and 3 each have the negative 0: 1 / (1 + e) / 4; it has two of them: 1 / (e + 2) / 4
    features = float64([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    relaxed_contrastive(features, torch.tensor([0, 1, 1, 1]), tau=1.0)[0].backward()
    own = 1 / (1 + exp(1)) / 4
    chosen = 1 / (exp(1) + 2) / 4
    assert features.grad[1:, 0].tolist() == pytest.approx([own + chosen, own + chosen, own])


def test_without_another_class_there_is_no_contrast():
    features = torch.randn(4, 3, requires_grad=True)
    contrast, _ = relaxed_contrastive(features, torch.tensor([1, 1, 1, 1]))
    contrast.backward()
    assert contrast.item() == 0
    assert features.grad.abs().max() == 0


def test_below_the_threshold_and_without_siblings_there_is_no_penalty():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], requires_grad=True)
    _, penalty = relaxed_contrastive(features, torch.tensor([0, 0, 1]))
    penalty.backward()
    assert penalty.item() == pytest.approx(log(1 + exp(-40)), abs=1e-16)
    assert features.grad.abs().max() == 0


@pytest.mark.parametrize("y", [[0, 0, 1], [0, 0, 0], [0, 1, 2]])
@pytest.mark.parametrize(
    "features", [[[1.0, 2.0]] * 3, [[0.0, 0.0]] * 3, [[0.0, 0.0], [1e-20, 0.0], [9e4, 1.0]]]
)
def test_identical_and_vanishing_features_stay_finite(features, y):
    features = torch.tensor(features, requires_grad=True)
    contrast, penalty = relaxed_contrastive(features, torch.tensor(y))
    (contrast + penalty).backward()
    assert contrast.isfinite()
    assert penalty.isfinite()
    assert features.grad.abs().max() < 1e3


def test_a_batch_of_one_has_no_pairs():
    features = torch.randn(1, 3, requires_grad=True)
    contrast, penalty = relaxed_contrastive(features, torch.tensor([0]))
    (contrast + penalty).backward()
    assert contrast.item() == 0
    assert penalty.item() < 1e-16
    assert features.grad.abs().max() == 0


def test_computes_in_float32_under_autocast():
    features = torch.randn(20, 8)
    y = torch.arange(20) % 3
    exact = [part.item() for part in relaxed_contrastive(features.double(), y, threshold=-1.0)]
    with torch.autocast("cpu", torch.bfloat16):
        assert [
            part.item() for part in relaxed_contrastive(features, y, threshold=-1.0)
        ] == pytest.approx(exact, 1e-5)


def test_images_are_averaged_over_space():
    assert spatial_mean(torch.arange(8.0).view(1, 2, 2, 2)).tolist() == [[1.5, 5.5]]
    assert spatial_mean(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]
