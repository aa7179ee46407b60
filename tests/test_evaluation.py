import pytest
import torch
from torch import nn

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.evaluation import (
    METRICS,
    Metric,
    Scores,
    Scoring,
    moving_average,
    score,
    total,
    worst_decile,
)


def test_scores_by_hand():
    # Identity logits: class 0 right twice of two, class 1 once of two, class 2 has no examples.
    logits = torch.tensor([[2.0, 0, 0], [2.0, 0, 0], [0, 2.0, 0], [2.0, 0, 0]])
    scores = score(nn.Identity(), logits, torch.tensor([0, 0, 1, 1]), Scoring(3))
    assert scores.correct.tolist() == [2, 1, 0]
    assert scores.count.tolist() == [2, 2, 0]
    assert scores.value == 0.75
    assert scores.per_class == [1.0, 0.5, 0.0]
    # -log softmax: three right with log(1 + 2 e^-2), one wrong with 2 more.
    right = torch.log(1 + 2 * torch.exp(torch.tensor(-2.0)))
    assert scores.loss == pytest.approx(float((4 * right + 2) / 4))


def test_a_metric_is_summed_over_examples_and_nothing_else():
    """A mean of its own would be divided by the batch once more, a table be counted twice."""
    y = torch.tensor([0, 1, 1, 0])
    logits = torch.eye(2)[[0, 1, 0, 0]]  # right, right, wrong, right
    right = lambda outputs, targets: (outputs.argmax(1) == targets).float()
    scored = lambda metric: score(nn.Identity(), logits, y, Scoring(2, metric=Metric("m", metric)))
    assert scored(right).value == scored(lambda *given: right(*given)[:, None]).value == 0.75
    for wrong in (
        lambda *given: right(*given).mean(),
        lambda *given: right(*given).expand(2, 4),
        lambda *given: right(*given).repeat(4, 1),
        lambda *given: right(*given)[:2],
        lambda *given: right(*given).tolist(),
    ):
        with pytest.raises(ConfigError, match=r"metric = m gave .* one value an example"):
            scored(wrong)


def test_pieces_add_up():
    x = torch.randn(17, 4)
    y = torch.randint(0, 4, (17,))
    whole = score(nn.Identity(), x, y, Scoring(4))
    pieces = [slice(start, start + 5) for start in range(0, 17, 5)]
    parts = total(score(nn.Identity(), x[piece], y[piece], Scoring(4)) for piece in pieces)
    assert torch.equal(whole.correct, parts.correct)
    assert whole.value == parts.value
    assert whole.loss == pytest.approx(parts.loss)


def test_a_client_is_scored_on_its_own_mix():
    # 3/4 of class 0 (accuracy 1) and 1/4 of class 1 (accuracy .5): .875; only class 1: .5.
    scores = Scores(8, 6.0, 0.0, torch.tensor([4, 2]), torch.tensor([4, 4]))
    assert scores.per_client(torch.tensor([[3, 1], [0, 8]])).tolist() == [0.875, 0.5]


def test_a_client_without_examples_is_left_out():
    scores = Scores(8, 6.0, 0.0, torch.tensor([4, 2]), torch.tensor([4, 4]))
    assert scores.per_client(torch.tensor([[3, 1], [0, 0], [0, 8]])).tolist() == [0.875, 0.5]
    assert scores.per_client(torch.zeros(3, 2)).tolist() == []


@pytest.mark.parametrize(("clients", "expected"), [(1, 0.0), (10, 0.0), (20, 0.5), (25, 0.5)])
def test_worst_decile(clients, expected):
    assert worst_decile(torch.arange(clients).flip(0).float()) == expected


def test_the_moving_average_is_seeded_with_the_first_value():
    values = []
    ema = None
    for accuracy in (10.0, 20.0, 30.0, 40.0):
        ema = moving_average(ema, accuracy)
        values.append(ema)
    assert values == pytest.approx([10, 11, 12.9, 15.61])


def test_a_squared_error_needs_a_target_for_each_output():
    error = Metric("minus_squared_error", METRICS["minus_squared_error"])
    outputs = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert error(outputs, torch.tensor([[1.0, 4.0], [0.0, 4.0]])).tolist() == [-2.0, -5.0]
    assert error(outputs[:, :1], torch.tensor([3.0, 3.0])).tolist() == [-4.0, 0.0]
    with pytest.raises(
        ConfigError, match=r"minus_squared_error needs .* \[2\] and outputs \[2, 2\]; use"
    ):
        error(outputs, torch.tensor([0, 1]))


def test_no_test_examples_are_one_error():
    with pytest.raises(
        DataError, match=r"no test examples; hold some out with data\.validation=0\.1"
    ):
        total([])
