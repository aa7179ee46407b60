"""How sharp the loss is around a model: the largest eigenvalues of its Hessian.

By Lanczos' method (ARPACK, through SciPy) over Hessian-vector products, which cost about as much as
two gradients each; the Hessian itself is never there. In three coordinates, since eigenvalues
depend on them:

- raw: the parameters as they are trained and exchanged. A standardized layer computes the same with
  raw weights of any length, and the longer they are, the flatter the loss looks.
- effective: the weights that layers compute with. Here too a norm that follows makes length a
  matter of taste.
- relative: the effective weights, each filter in units of its own length. Does not depend on any
  such factor, so it is the one to compare standardized and plain models by, and what a
  filter-normalised landscape (Li et al., 2018) shows.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwsq.analysis.subject import Found, Options, Subject
from fedwsq.core.seeds import numpy_rng
from fedwsq.core.threads import one_thread
from fedwsq.models import bake
from fedwsq.models.part import trainable
from fedwsq.models.standardize import WSLayer

Vector: TypeAlias = NDArray[np.float64]
Product: TypeAlias = Callable[[Vector], Vector]
OutputLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets, a mean
FEWEST_PRODUCTS = 20  # as many vectors as Lanczos' method keeps, unless many values are wanted
MOST_STEPS = 60  # of Lanczos' method, each of as many products as it keeps vectors


def analyze(subject: Subject, options: Options) -> Found:
    """The largest eigenvalues in each of the three coordinates, of the run's own loss."""
    batches = list(subject.training_batches(options))
    found: Found = {
        "examples": sum(len(batch.y) for batch in batches),
        "of_examples": subject.training_examples,
        "tolerance": options.tolerance,
        "seed": options.seed,
    }
    criterion = subject.plan.training.criterion
    return found | curvature(subject.network(), criterion, batches, options, subject.name)


def curvature(
    network: nn.Module,
    criterion: OutputLoss,
    batches: Sequence[tuple[Tensor, Tensor]],
    options: Options,
    name: str = "model",
) -> Found:
    """The same of any model, at its weights and in its mode; the model stays as it is."""
    found: Found = {}
    plain = bake(copy.deepcopy(network))
    networks = {"raw": network, "effective": plain, "relative": plain}
    for coordinates, shaped in networks.items():
        if coordinates == "effective" and not is_standardized(network):
            found["effective"] = found["raw"]  # a plain model computes with what it trains
            continue
        loss = Curvature(shaped, criterion, batches)
        began = time.perf_counter()
        loss.product(np.zeros(loss.size))
        seconds = time.perf_counter() - began
        options.note(
            f"{name}: hessian, {coordinates} coordinates, "
            f"{FEWEST_PRODUCTS} products or more of about {seconds:.1f} s"
        )
        product: Product = loss.product
        if coordinates == "relative":
            product = scaled(product, loss.lengths())
        top = top_eigenvalues(product, loss.size, options)
        found[coordinates] = top.as_json()
    return found


def is_standardized(network: nn.Module) -> bool:
    return any(isinstance(layer, WSLayer) for layer in network.modules())


@dataclass(frozen=True)
class Curvature:
    """The mean loss over some examples, as a function of a network's parameters."""

    network: nn.Module
    criterion: OutputLoss
    batches: Sequence[tuple[Tensor, Tensor]]

    @property
    def parameters(self) -> list[Tensor]:
        return list(trainable(self.network).values())

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self.parameters)

    def product(self, vector: Vector) -> Vector:
        """The Hessian times a vector."""
        parameters = self.parameters
        along = unflatten(torch.from_numpy(vector), parameters)
        count = sum(len(y) for _, y in self.batches)
        total = torch.zeros(self.size, dtype=torch.float64)
        with one_thread():
            for x, y in self.batches:
                loss = self.criterion(self.network(x), y) * (len(y) / count)
                slopes = torch.autograd.grad(loss, parameters, create_graph=True)
                # The slope of the slope along the vector.
                parts = torch.autograd.grad(slopes, parameters, along)
                total += torch.cat([part.flatten() for part in parts])
        return total.numpy()

    def lengths(self) -> Vector:
        """Of each parameter the length of the filter it belongs to; a vector is one filter."""
        found = []
        for p in self.parameters:
            rows = p.detach().flatten(1) if p.dim() > 1 else p.detach()[None]
            found.append(rows.norm(dim=1, keepdim=True).expand_as(rows).flatten())
        return torch.cat(found).double().numpy()


def scaled(product: Product, lengths: Vector) -> Product:
    """The product in coordinates that are measured in these lengths."""
    return lambda vector: lengths * product(lengths * vector)


@dataclass(frozen=True)
class Top:
    """The largest eigenvalues, largest first, and how sure they are."""

    eigenvalues: list[float]
    residuals: list[float]  # |H v - lambda v| / |lambda| of each
    products: int  # with the Hessian, as many as it took
    converged: bool

    def as_json(self) -> Found:
        return dict(vars(self))


def top_eigenvalues(product: Product, size: int, options: Options) -> Top:
    """The largest eigenvalues of a symmetric matrix that is known by its products."""
    # It takes a moment to import, and nothing else needs it.
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    products = 0

    def counted(vector: Vector) -> Vector:
        nonlocal products
        products += 1
        return product(vector.reshape(-1))

    operator = LinearOperator((size, size), matvec=counted, dtype=np.float64)
    start = numpy_rng(options.seed, "lanczos").standard_normal(size)
    wanted = min(options.eigenvalues, size - 1)
    converged = True
    try:
        values, vectors = eigsh(
            operator, wanted, which="LA", v0=start, tol=options.tolerance, maxiter=MOST_STEPS
        )
    except ArpackNoConvergence as error:
        converged = False
        values = error.eigenvalues
        vectors = error.eigenvectors
    order = np.argsort(values)[::-1]
    residuals = []
    for index in order:
        left = product(vectors[:, index]) - values[index] * vectors[:, index]
        residuals.append(float(np.linalg.norm(left) / max(abs(values[index]), 1e-30)))
    return Top([float(values[index]) for index in order], residuals, products, converged)


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a vector in the shapes of these tensors."""
    parts = torch.split_with_sizes(flat, [x.numel() for x in like])
    return [part.view(x.shape).to(x.dtype) for part, x in zip(parts, like, strict=True)]
