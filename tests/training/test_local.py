import math

import pytest
import torch
from torch import nn

from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Key
from fedwsq.training import LocalTask, Shard, Training, learning_rates
from fedwsq.training.local import snapshot

TARGETS = {"A": [3.0, 2.0], "B": [-2.0, 1.0], "C": [0.0, 2.0], "D": [2.0, 2.0]}


class Point(nn.Module):
    """The toy problem: the parameters are the point, the data do not matter."""

    def __init__(self, start=(1.0, -2.0)):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, x):
        return self.w.expand(len(x), -1)


def toy_loss(model, x, y):
    """f(w) = 1/2 |w - a|^2; every example of a client carries its a."""
    return 0.5 * (model.w - x[0]).square().sum()


def toy_task(target, steps=2, **settings):
    plain = {"lr_decay": 1.0, "weight_decay": 0.0, "clip_norm": 0.0, "precision": "float32"}
    training = Training(epochs=steps, batches_per_epoch=1, lr=0.1, **plain | settings)
    shard = Shard(torch.tensor([target]), torch.tensor([0]))
    return LocalTask(Point(), shard, Key(0, 1, 0), training, learning_rates(training, 1, 1000))


def one_step(gradient, **settings):
    """A step from [1, -2] with the given gradient of the loss."""
    task = toy_task([0.0, 0.0], steps=1, **settings)
    loss = lambda model, x, y: model.w @ torch.tensor(gradient)
    return task.train({"w": torch.tensor([1.0, -2.0])}, loss=loss).params["w"].tolist()


def test_the_exact_step():
    # p - lr (g + wd p) = [1 - .1 (3 + .001), -2 - .1 (4 - .002)]
    got = one_step([3.0, 4.0], weight_decay=1e-3, clip_norm=10.0)
    assert got == pytest.approx([0.6999, -2.3998], abs=1e-6)


def test_decay_is_added_after_clipping():
    # |g| = 50, so c = 10 / 50.000001 and c g = [6, 8] less a hair; the decay is not scaled.
    clipped = one_step([30.0, 40.0], weight_decay=1e-3, clip_norm=10.0)
    assert clipped == pytest.approx([0.399900012, -2.799799984], abs=1e-6)
    whole = one_step([30.0, 40.0], weight_decay=1e-3, clip_norm=0.0)
    assert whole == pytest.approx([-2.0001, -5.9998], abs=1e-5)


def test_extra_decay_is_unclipped_too():
    # -lr (c g + (wd + extra) p) with extra = .5: another -.05 p on top of the clipped step.
    task = toy_task([0.0, 0.0], steps=1, weight_decay=1e-3, clip_norm=10.0)
    loss = lambda model, x, y: model.w @ torch.tensor([30.0, 40.0])
    start = {"w": torch.tensor([1.0, -2.0])}
    got = task.train(start, loss=loss, extra_decay=0.5).params["w"].tolist()
    assert got == pytest.approx([0.399900012 - 0.05, -2.799799984 + 0.1], abs=1e-6)


def test_two_steps_on_the_toy_problem():
    # w - .1 (w - a): [1, -2] -> [1.2, -1.6] -> [1.38, -1.24] for a = [3, 2].
    trained = toy_task(TARGETS["A"]).train({"w": torch.tensor([1.0, -2.0])}, loss=toy_loss)
    assert trained.params["w"].tolist() == pytest.approx([1.38, -1.24], abs=1e-6)
    assert trained.steps == 2
    assert trained.lr_sum == pytest.approx(0.2)
    assert trained.loss == pytest.approx((0.5 * 20 + 0.5 * (1.8**2 + 3.6**2)) / 2)


def test_a_direction_may_ask_for_gradients_elsewhere():
    # The gradient at w + [1, 1] is w + [1, 1] - a; the parameters themselves stay where they are.
    seen = []

    def ahead(params, gradient):
        seen.append(params["w"].tolist())
        return gradient({"w": params["w"] + 1})

    start = {"w": torch.tensor([1.0, -2.0])}
    trained = toy_task(TARGETS["A"], steps=1).train(start, loss=toy_loss, direction=ahead)
    assert seen == [[1.0, -2.0]]
    assert trained.params["w"].tolist() == pytest.approx([1 - 0.1 * -1, -2 - 0.1 * -3], abs=1e-6)
    assert trained.loss == pytest.approx(0.5 * (1 + 9))


def test_a_parameter_that_the_loss_does_not_use_stays_with_a_direction_too():
    """Without a gradient there is neither a step nor decay, whichever method asks."""
    task = toy_task(TARGETS["A"], steps=2, weight_decay=0.5)
    task.model.unused = nn.Parameter(torch.ones(2))
    start = {"w": torch.tensor([1.0, -2.0]), "unused": torch.ones(2)}
    same = lambda params, gradient: gradient(params)
    plain = task.train(start, loss=toy_loss).params
    directed = task.train(start, loss=toy_loss, direction=same).params
    assert plain["unused"].tolist() == directed["unused"].tolist() == [1.0, 1.0]
    assert torch.equal(plain["w"], directed["w"])


def test_a_direction_is_clipped():
    far = lambda params, gradient: {"w": torch.tensor([30.0, 40.0])} if gradient(params) else {}
    task = toy_task(TARGETS["A"], steps=1, clip_norm=10.0)
    start = {"w": torch.tensor([1.0, -2.0])}
    got = task.train(start, loss=toy_loss, direction=far).params["w"].tolist()
    assert got == pytest.approx([1 - 0.6, -2 - 0.8], abs=1e-6)


def test_adaptive_clipping_comes_before_the_norm():
    # |w| = sqrt(5), so a unit's gradient is cut to .1 sqrt(5): [3, 4] / 5 * .2236; a step is .1
    # times that.
    got = one_step([3.0, 4.0], agc=0.1, clip_norm=10.0)
    cut = 0.1 * 5**0.5
    assert got == pytest.approx([1 - 0.1 * 0.6 * cut, -2 - 0.1 * 0.8 * cut], abs=1e-6)


def test_training_does_not_change_its_start():
    start = {"w": torch.tensor([1.0, -2.0])}
    toy_task(TARGETS["A"]).train(start, loss=toy_loss)
    assert start["w"].tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    ("schedule", "rounds", "t", "epoch", "expected"),
    [
        ("plain", 1000, 0, 0, 0.1),
        ("plain", 1000, 0, 4, 0.0980149500625),
        ("plain", 1000, 100, 0, 0.06057704364907279),
        ("plain", 1000, 999, 0, 0.0006687405606866296),
        ("plain", 20, 100, 0, 0.06057704364907279),  # never depends on the number of rounds
        ("published", 1000, 100, 0, 0.06057704364907279),
        ("published", 500, 100, 0, 0.0366957821726167),
        ("published", 500, 499, 0, 0.0006721010660167133),
        ("published", 600, 599, 0, 0.004966213277390812),
        ("published", 2000, 1999, 0, 0.0006687405606866296),
        ("published", 1500, 1499, 0, 5.4550412355823794e-05),
    ],
)
def test_the_schedule(schedule, rounds, t, epoch, expected):
    training = Training(schedule=schedule)
    assert learning_rates(training, t + 1, rounds)[epoch] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("examples", "settings", "size", "count"),
    [
        (500, {}, 50, 10),
        (503, {}, 51, 10),
        (7, {}, 1, 7),
        (1, {}, 1, 1),
        (500, {"batch_size": 64}, 64, 8),
    ],
)
def test_batch_size_comes_from_the_shard(examples, settings, size, count):
    training = Training(**settings)
    assert training.batch_size_for(examples) == size
    assert math.ceil(examples / size) == count


FIRST = Key(0, 1, 0)


def digits_task(key=FIRST, augment=False, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3))
    training = Training(**{"epochs": 2, "batches_per_epoch": 3, "precision": "float32", **settings})
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(30) % 3
    x = torch.rand(30, 1, 8, 8, generator=rng) + y.view(-1, 1, 1, 1)
    shard = Shard(x, y, augment=augment)
    task = LocalTask(model, shard, key, training, learning_rates(training, key.round, 10))
    return task, snapshot(dict(model.named_parameters()))


def test_training_is_a_function_of_its_key():
    def weights(key, **settings):
        task, start = digits_task(key, **settings)
        return torch.cat([p.flatten() for p in task.train(start).params.values()])

    once = weights(Key(0, 1, 0))
    assert torch.equal(once, weights(Key(0, 1, 0)))
    for other in (Key(1, 1, 0), Key(0, 2, 0), Key(0, 1, 1)):
        assert not torch.equal(once, weights(other))
    assert not torch.equal(weights(Key(0, 1, 0), augment=True), once)
    assert torch.equal(weights(Key(0, 1, 0), augment=True), weights(Key(0, 1, 0), augment=True))


def test_an_epoch_sees_every_example_once_and_epochs_differ():
    task, _ = digits_task()
    orders = [torch.cat([y for _, y in task._epoch(epoch)]) for epoch in (0, 1)]
    assert [sorted(order.tolist()) for order in orders] == [sorted([0, 1, 2] * 10)] * 2
    assert not torch.equal(*orders)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_lowers_the_loss(precision):
    task, start = digits_task(epochs=20, lr=0.01, precision=precision)
    first = digits_task(epochs=1, lr=0.01, precision=precision)[0].train(start).loss
    trained = task.train(start)
    assert trained.loss < first
    assert all(p.dtype == torch.float32 for p in trained.params.values())


def test_images_arrive_channels_last():
    task, _ = digits_task()
    x, _ = next(iter(task._epoch(0)))
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_the_update_is_weighted_by_examples():
    task, start = digits_task()
    trained = task.train(start)
    update = task.update(trained, delta=trained.params)
    assert update.weight == 30
    assert update.metrics == {"loss": trained.loss, "steps": 6.0, "lr_sum": trained.lr_sum}


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"batches_per_epoch": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"lr_decay": 0.0},
        {"lr_decay": 1.1},
        {"batch_size": -1},
        {"weight_decay": -1.0},
        {"clip_norm": -1.0},
        {"agc": -1.0},
        {"weight_decay": float("nan")},
        {"clip_norm": float("nan")},
        {"clip_norm": float("inf")},
        {"agc": float("nan")},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        Training(**settings)
