"""Curvature against what can be worked out: a quadratic, and a dense Hessian of a small model."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedwsq.analysis import hessian
from fedwsq.analysis.hessian import Curvature, scaled, top_eigenvalues
from fedwsq.analysis.subject import Options
from fedwsq.core.threads import one_thread
from fedwsq.federation.owners import Batch
from fedwsq.models import bake, standardize
from fedwsq.training.losses import CRITERIA, CROSS_ENTROPY, Criterion

OPTIONS = Options(tolerance=1e-8)
SQUARED = Criterion("squared_error", CRITERIA["squared_error"])


def small():
    """A convolution, a norm and a classifier with 95 parameters, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    return model.double()


def batches():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 1, 6, 6, generator=generator, dtype=torch.float64)
    y = torch.arange(12) % 3
    return [Batch(x[:5], y[:5]), Batch(x[5:], y[5:])]  # unequal parts count by their examples


def dense(model):
    """The whole Hessian of the mean loss, by torch, of all parameters in a row."""
    params = dict(model.named_parameters())
    shapes = {name: p.shape for name, p in params.items()}
    flat = torch.cat([p.detach().flatten() for p in params.values()])
    x = torch.cat([batch.x for batch in batches()])
    y = torch.cat([batch.y for batch in batches()])

    def loss(vector):
        parts = torch.split_with_sizes(vector, [shape.numel() for shape in shapes.values()])
        named = {n: p.view(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, named, (x,)), y)

    with one_thread():
        return torch.autograd.functional.hessian(loss, flat).numpy()


def test_a_quadratic_has_its_own_eigenvalues():
    """|x w - 0|^2 / n over the rows of x has the Hessian 2 x'x / n."""
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))
    rows = np.diag(np.sqrt([9.0, 4.0, 1.0, 0.25, 0.0])) @ rotation.T
    model = nn.Linear(5, 1, bias=False).double()
    x = torch.from_numpy(rows)
    curvature = Curvature(model, SQUARED, [Batch(x, torch.zeros(5, dtype=torch.float64))])
    unit = float(curvature.product(rotation[:, 0]) @ rotation[:, 0]) / 9
    top = top_eigenvalues(curvature.product, 5, Options(eigenvalues=3, tolerance=1e-8))
    assert unit == pytest.approx(2 / 5)  # a mean over five examples
    assert top.eigenvalues == pytest.approx([9 * unit, 4 * unit, 1 * unit], rel=1e-10)
    assert top.converged
    assert max(top.residuals) < 1e-8


@pytest.mark.parametrize("change", [lambda x: x, standardize, lambda x: bake(standardize(x))])
def test_a_small_model_has_the_eigenvalues_of_its_dense_hessian(change):
    model = change(small())
    expected = np.linalg.eigvalsh(dense(model))[-1:]
    curvature = Curvature(model, CROSS_ENTROPY, batches())
    assert curvature.size == 95
    found = top_eigenvalues(curvature.product, curvature.size, OPTIONS)
    assert found.eigenvalues == pytest.approx(expected, rel=1e-6)


def test_a_standardized_model_against_the_formula_in_plain_operations():
    """The Hessian of the raw weights, by autograd through mean and std and no code of ours."""
    model = standardize(small(), rho=0.5, eps=1e-5)
    weight, rest = model[0].weight, model[1:]
    x = torch.cat([batch.x for batch in batches()])
    y = torch.cat([batch.y for batch in batches()])

    def loss(flat):
        rows = flat.view(4, 9)
        std = rows.std(1, keepdim=True)
        filters = 0.5 * (rows - rows.mean(1, keepdim=True)) / (std + 1e-5)
        outputs = nn.functional.conv2d(x, filters.view(weight.shape))
        return nn.functional.cross_entropy(rest(outputs), y)

    for p in rest.parameters():
        p.requires_grad_(False)
    with one_thread():
        whole = torch.autograd.functional.hessian(loss, weight.detach().flatten()).numpy()
    expected = np.linalg.eigvalsh(whole)[::-1][:3]
    curvature = Curvature(model, CROSS_ENTROPY, batches())
    found = top_eigenvalues(
        curvature.product, curvature.size, Options(eigenvalues=3, tolerance=1e-8)
    )
    assert found.eigenvalues == pytest.approx(expected, rel=1e-6)


def test_in_float32_it_is_well_within_a_percent():
    exact = np.linalg.eigvalsh(dense(small()))[-1]
    inputs = [Batch(batch.x.float(), batch.y) for batch in batches()]
    curvature = Curvature(small().float(), CROSS_ENTROPY, inputs)
    found = top_eigenvalues(curvature.product, curvature.size, Options())
    assert found.eigenvalues[0] == pytest.approx(exact, rel=0.01)


def test_raw_weights_of_a_standardized_layer_are_differentiated_twice():
    """Longer raw weights compute the same, and the loss looks flatter by the square."""
    tops = []
    for factor in (1.0, 10.0):
        model = standardize(small(), rho=1.0, eps=1e-12)
        with torch.no_grad():
            model[0].weight *= factor
        for p in model[1:].parameters():
            p.requires_grad_(False)
        curvature = Curvature(model, CROSS_ENTROPY, batches())
        tops.append(top_eigenvalues(curvature.product, curvature.size, OPTIONS).eigenvalues[0])
    assert tops[0] == pytest.approx(100 * tops[1], rel=1e-6)


def test_relative_coordinates_do_not_depend_on_the_length_of_a_filter():
    tops = []
    for factor in (1.0, 50.0):
        model = small()
        model[1].eps = 0.0  # so that the norm undoes the factor wholly
        with torch.no_grad():
            model[0].weight *= factor
        curvature = Curvature(model, CROSS_ENTROPY, batches())
        relative = scaled(curvature.product, curvature.lengths())
        tops.append(top_eigenvalues(relative, curvature.size, OPTIONS).eigenvalues[0])
    assert tops[0] == pytest.approx(tops[1], rel=1e-6)


def test_what_did_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(hessian, "MOST_STEPS", 1)
    matrix = np.diag(1 + 1e-6 * np.arange(400))
    top = top_eigenvalues(lambda v: matrix @ v, 400, Options(tolerance=1e-14))
    assert not top.converged
