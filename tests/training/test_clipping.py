import pytest
import torch

from fedwsq.training.clipping import adaptive_clip

W = torch.tensor([0.3, -0.1, 0.5, 0.1], dtype=torch.float64)
G = torch.tensor([1.0, 0.0, -1.0, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1, 1, 2, 2)])
def test_the_worked_example(shape):
    # |w| = .6, |g| = sqrt(6), so g * .16 * .6 / sqrt(6)
    clipped = adaptive_clip(G.view(shape), W.view(shape), 0.16)
    assert clipped.shape == shape
    expected = [0.03919183588453085, 0.0, -0.03919183588453085, 0.0783836717690617]
    assert clipped.flatten().tolist() == pytest.approx(expected, abs=1e-15)


def test_each_output_unit_has_its_own_bound():
    gradient = torch.tensor([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0], [3.0, 4.0]])
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    before = gradient.clone(), weight.clone()
    clipped = adaptive_clip(gradient, weight, 0.1)
    # Norm 5 to .1; norm .05 is within .1; nothing stays nothing; a zero weight counts as 1e-3.
    torch.testing.assert_close(clipped[0], torch.tensor([0.06, 0.08]))
    assert torch.equal(clipped[1:3], gradient[1:3])
    torch.testing.assert_close(clipped[3], torch.tensor([6e-5, 8e-5]))
    assert torch.equal(gradient, before[0])
    assert torch.equal(weight, before[1])


def test_a_vector_is_one_unit_and_so_is_a_scalar():
    clipped = adaptive_clip(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), 0.5)
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8]))
    assert adaptive_clip(torch.tensor(-8.0), torch.tensor(2.0), 0.5).item() == -1.0


def test_eps_is_the_least_norm_that_counts():
    clipped = adaptive_clip(torch.tensor([5.0]), torch.tensor([0.0]), 0.1, eps=2.0)
    assert clipped.item() == pytest.approx(0.2)
