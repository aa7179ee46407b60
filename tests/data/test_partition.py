import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.core.errors import ConfigError
from fedwsq.data.partition import Split, dirichlet, hold_out, iid, race

CIFAR_LABELS = torch.arange(50_000) % 10


def as_partition(alpha: float | None):
    """`iid`, or `dirichlet` at this alpha."""
    if alpha is None:
        return iid
    return lambda labels, clients, seed: dirichlet(labels, clients, seed, alpha)


@st.composite
def cases(draw):
    labels = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=1, max_size=60)))
    clients = draw(st.integers(1, len(labels)))
    alpha = draw(st.sampled_from([None, 1e-320, 1e-3, 0.01, 0.3, 1.0, 1e6, 1.7e308]))
    return as_partition(alpha), labels, clients, draw(st.integers(0, 2**40))


@given(cases())
def test_every_client_gets_as_many_and_no_index_comes_twice(case):
    partition, labels, clients, seed = case
    split = partition(labels, clients, seed)
    shards = list(split)
    assert [len(shard) for shard in shards] == [len(labels) // clients] * clients
    indices = torch.cat(shards)
    assert len(indices.unique()) == len(indices)
    assert 0 <= indices.min() <= indices.max() < len(labels)
    again = partition(labels, clients, seed)
    assert torch.equal(again.indices, split.indices)
    assert torch.equal(again.offsets, split.offsets)
    rows = [torch.bincount(labels[shard], minlength=5) for shard in shards]
    assert torch.equal(split.counts(labels, 5), torch.stack(rows))


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_another_seed_gives_another_split(alpha):
    one, other = (as_partition(alpha)(CIFAR_LABELS, 100, seed) for seed in (0, 1))
    assert not torch.equal(one.indices, other.indices)


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_which_samples_of_a_class_and_in_which_order_is_random(alpha):
    """Neither the first samples of a class go to the first clients, nor is a client's list sorted by class."""
    shard = as_partition(alpha)(CIFAR_LABELS, 100, 0)[0]
    # 500 positions uniform in 0..49999: mean 25 000, standard error 14 434 / sqrt(500) = 645.
    assert abs(shard.double().mean() - 25_000) < 4 * 645
    runs = (CIFAR_LABELS[shard].diff() != 0).sum()
    assert runs > 50  # at most 9 if the classes came one after the other


def test_counts_by_hand():
    split = Split(torch.tensor([0, 3, 1, 2]), torch.tensor([0, 2, 2, 4]))
    counts = split.counts(torch.tensor([1, 0, 2, 1]), 3)
    assert counts.tolist() == [[0, 2, 0], [0, 0, 0], [1, 0, 1]]
    assert [shard.tolist() for shard in split] == [[0, 3], [], [1, 2]]
    assert split[0].data_ptr() == split.indices.data_ptr()  # a view
    with pytest.raises(ConfigError, match="0 to 2; 2 classes allow 0 to 1"):
        split.counts(torch.tensor([1, 0, 2, 1]), 2)
    for client in (-1, 3):
        with pytest.raises(IndexError, match=f"client {client}"):
            split[client]


def statistics(counts: torch.Tensor) -> list[float]:
    """Per client, on average: classes present, share of the largest class, exp of the label entropy."""
    shares = counts / counts.sum(dim=1, keepdim=True)
    entropy = -torch.xlogy(shares, shares).sum(dim=1)
    each = ((counts > 0).double().sum(dim=1), shares.max(dim=1).values, entropy.exp())
    return [float(x.mean()) for x in each]


@pytest.mark.parametrize(
    ("alpha", "published"),
    [
        (0.05, (3.2, 0.793, 1.8)),
        (0.1, (4.9, 0.669, 2.5)),
        (0.3, (8.0, 0.471, 4.3)),
        (0.6, (9.4, 0.350, 5.8)),
    ],
)
def test_dirichlet_is_as_skewed_as_the_published_split(alpha, published):
    """CIFAR-10, mean of 3 seeds; one seed deviates by at most .15, .02, .12 (measured over 200).

    Allowed: 3 standard errors of our mean of 8 less theirs of 3, plus half of their last digit.
    """
    seeds = [
        statistics(dirichlet(CIFAR_LABELS, 100, seed, alpha).counts(CIFAR_LABELS, 10).double()) for seed in range(8)
    ]
    for mine, theirs, deviation, digit in zip(
        np.mean(seeds, axis=0), published, (0.15, 0.02, 0.12), (0.05, 0.0005, 0.05), strict=True
    ):
        assert abs(mine - theirs) < 3 * deviation * math.sqrt(1 / 8 + 1 / 3) + digit


def test_iid_clients_look_alike():
    classes, largest, effective = statistics(iid(CIFAR_LABELS, 100, 0).counts(CIFAR_LABELS, 10).double())
    assert classes == 10
    assert largest < 0.15  # 50 of 500 a class, deviation 6.7
    assert effective > 9.8


def test_tiny_alpha_gives_out_every_sample_once():
    split = dirichlet(CIFAR_LABELS, 100, 0, alpha=0.01)
    assert len(split.indices.unique()) == 50_000  # the published file has 49 532
    early = split.counts(CIFAR_LABELS, 10)[:30]  # before whole classes run out
    assert (early.max(dim=1).values / 500).mean() > 0.9


def sequential(p: tuple[float, ...], left: tuple[int, ...], draws: int) -> dict[tuple[int, ...], float]:
    """The exact law of the class counts, draw by draw: class c next with odds p_c times what remains of it."""
    if draws == 0:
        return {(0,) * len(p): 1.0}
    law: dict[tuple[int, ...], float] = {}
    odds = [a * r for a, r in zip(p, left, strict=True)]
    for c, odd in enumerate(odds):
        if odd == 0:
            continue
        rest = tuple(r - (k == c) for k, r in enumerate(left))
        for counts, probability in sequential(p, rest, draws - 1).items():
            key = tuple(n + (k == c) for k, n in enumerate(counts))
            law[key] = law.get(key, 0) + probability * odd / sum(odds)
    return law


@pytest.mark.parametrize(("left", "draws"), [((3, 2, 4), 4), ((1, 5, 0), 3), ((2, 2, 2), 5)])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_race_has_the_law_of_sequential_draws(left, draws):
    p, trials = (0.6, 0.3, 0.1), 6000
    law = sequential(p, left, draws)
    rng = np.random.default_rng(0)
    seen = [tuple(race(np.log(p), np.array(left), draws, rng).tolist()) for _ in range(trials)]
    assert set(seen) <= set(law)
    chi2 = sum((seen.count(key) - trials * q) ** 2 / (trials * q) for key, q in law.items())
    freedom = len(law) - 1
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom)  # mean plus 4 deviations of a chi-square


def test_dirichlet_has_the_law_of_sequential_draws():
    """Two clients of two samples, three classes, by frequency against samples drawn one by one."""
    labels, alpha, trials = np.array([0, 0, 1, 1, 2]), 0.5, 4000
    rng = np.random.default_rng(0)

    def brute_force() -> tuple[tuple[int, ...], ...]:
        free = np.ones(5, dtype=bool)
        clients = []
        for _ in range(2):
            p = rng.dirichlet([alpha] * 3)
            counts = [0, 0, 0]
            for _ in range(2):
                odds = p[labels] * free
                index = rng.choice(5, p=odds / odds.sum())
                free[index] = False
                counts[labels[index]] += 1
            clients.append(tuple(counts))
        return tuple(clients)

    expected = [brute_force() for _ in range(trials)]
    tensor = torch.from_numpy(labels)
    splits = (dirichlet(tensor, 2, seed, alpha).counts(tensor, 3).tolist() for seed in range(trials))
    seen = [tuple(map(tuple, counts)) for counts in splits]
    outcomes = list(product([(2, 0, 0), (0, 2, 0), (1, 1, 0), (1, 0, 1), (0, 1, 1)], repeat=2))
    pairs = [(seen.count(key), expected.count(key)) for key in outcomes]
    assert sum(a for a, _ in pairs) == trials
    chi2 = sum((a - b) ** 2 / (a + b) for a, b in pairs if a + b)
    freedom = sum(a + b > 0 for a, b in pairs) - 1
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("alpha", [0, -1.0, math.inf, math.nan])
def test_alpha_must_be_positive_and_finite(alpha):
    with pytest.raises(ConfigError, match=f"alpha is {alpha}.*positive and finite"):
        dirichlet(CIFAR_LABELS, 10, 0, alpha)


@pytest.mark.parametrize("partition", [iid, dirichlet])
def test_each_client_needs_a_sample(partition):
    with pytest.raises(ConfigError, match="clients is 0"):
        partition(CIFAR_LABELS, 0, 0)
    with pytest.raises(ConfigError, match=r"50001 clients cannot share 50000 samples.*at most 50000"):
        partition(CIFAR_LABELS, 50_001, 0)


@settings(max_examples=50)
@given(st.integers(0, 200), st.floats(0, 1, exclude_max=True), st.integers(0, 9))
def test_hold_out_parts_the_indices(count, share, seed):
    kept, held = hold_out(count, share, seed)
    assert len(held) == round(count * share)
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(count))
    assert kept.tolist() == sorted(kept.tolist())
    assert held.tolist() == sorted(held.tolist())


def test_hold_out_depends_on_the_seed_and_refuses_the_whole():
    assert torch.equal(hold_out(100, 0.1, 0)[1], hold_out(100, 0.1, 0)[1])
    assert not torch.equal(hold_out(100, 0.1, 0)[1], hold_out(100, 0.1, 1)[1])
    for share in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigError, match=f"share is {share}"):
            hold_out(100, share, 0)
