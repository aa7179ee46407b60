import hashlib
import math
from itertools import chain, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.core.errors import ConfigError
from fedwsq.data import PARTITIONS, Split
from fedwsq.data.partition import (
    ATTEMPTS,
    dirichlet,
    dirichlet_label,
    group,
    hold_back,
    hold_out,
    iid,
    race,
    shards,
)

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
    """The first samples of a class go to nobody in particular, and no list is sorted by class."""
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


def test_statistics_by_hand():
    # Client 0: two of class 0, one of 1, one of 3. Client 1: one example. Client 2: none.
    split = Split(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 4, 5, 5]))
    found = split.statistics(torch.tensor([0, 0, 1, 3, 2]), 4)
    assert found.sizes.tolist() == [4, 1, 0]
    assert found.classes.tolist() == [3, 1, 0]
    assert found.largest.tolist() == [0.5, 1.0, 0.0]
    # Entropy 1/2 ln 2 + 2 (1/4 ln 4) = 3/2 ln 2, and e to that is 2^1.5.
    assert found.effective.tolist() == pytest.approx([2**1.5, 1.0, 1.0])
    assert split.owners.tolist() == [0, 0, 0, 0, 1]


def test_repeats_by_hand():
    assert Split(torch.tensor([4, 0, 2]), torch.tensor([0, 2, 3])).repeats == 0
    assert (
        Split(torch.tensor([4, 0, 4, 4, 0]), torch.tensor([0, 2, 5])).repeats == 3
    )  # two more 4, one more 0


def skew(split: Split, labels: torch.Tensor, classes: int) -> list[float]:
    """Means over clients: classes present, share of the largest class, exp of the label entropy."""
    return [float(each.double().mean()) for each in split.statistics(labels, classes)[1:]]


# Examples, classes, and how far one seed deviates from the mean of many (measured: 200, 30 and 20
# seeds).
SETS = {
    "CIFAR-10": (50_000, 10, (0.15, 0.02, 0.12)),
    "CIFAR-100": (50_000, 100, (0.41, 0.0094, 0.40)),
    "Tiny-ImageNet": (100_000, 200, (0.66, 0.0048, 0.63)),
}
PUBLISHED = {  # means of 3 seeds of the published procedure, 100 clients
    ("CIFAR-10", 0.05): (3.2, 0.793, 1.8),
    ("CIFAR-10", 0.1): (4.9, 0.669, 2.5),
    ("CIFAR-10", 0.3): (8.0, 0.471, 4.3),
    ("CIFAR-10", 0.6): (9.4, 0.350, 5.8),
    ("CIFAR-100", 0.05): (21.5, 0.273, 10.0),
    ("CIFAR-100", 0.1): (32.9, 0.196, 16.1),
    ("CIFAR-100", 0.3): (57.9, 0.103, 33.8),
    ("CIFAR-100", 0.6): (73.9, 0.072, 48.7),
    ("Tiny-ImageNet", 0.05): (41.9, 0.179, 18.3),
    ("Tiny-ImageNet", 0.1): (65.7, 0.121, 31.3),
    ("Tiny-ImageNet", 0.3): (116.4, 0.061, 67.7),
    ("Tiny-ImageNet", 0.6): (148.3, 0.040, 97.9),
}


SLOW = {("Tiny-ImageNet", 0.05), ("Tiny-ImageNet", 0.1), ("Tiny-ImageNet", 0.6)}


@pytest.mark.parametrize(
    ("name", "alpha"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case in SLOW else []) for case in PUBLISHED],
)
def test_dirichlet_is_as_skewed_as_the_published_split(name, alpha):
    """Allowed: 3 standard errors of our mean of 3 seeds less theirs of 3, and half a last digit."""
    samples, classes, deviations = SETS[name]
    labels = torch.arange(samples) % classes
    splits = [dirichlet(labels, 100, seed, alpha) for seed in range(3)]
    for split in splits:
        assert split.repeats == 0
        assert (split.sizes == samples // 100).all()
    means = np.mean([skew(split, labels, classes) for split in splits], axis=0)
    digits = (0.05, 0.0005, 0.05)
    for mine, theirs, deviation, digit in zip(
        means, PUBLISHED[name, alpha], deviations, digits, strict=True
    ):
        assert abs(mine - theirs) < 3 * deviation * math.sqrt(1 / 3 + 1 / 3) + digit


def digest(split: Split) -> str:
    return hashlib.sha256(
        split.indices.numpy().tobytes() + split.offsets.numpy().tobytes()
    ).hexdigest()[:16]


@pytest.mark.parametrize(
    ("partition", "samples", "classes", "clients", "expected"),
    [
        (iid, 1_438, 10, 10, "8fd3efe2467a90d0"),
        (dirichlet, 1_438, 10, 10, "c202b9b2bec89b60"),
        (dirichlet, 50_000, 10, 100, "867b43b0b6b15cf5"),
        (dirichlet, 20_000, 100, 500, "6ba83b1894fbc047"),
        (dirichlet, 3_000, 7, 1_500, "a1167d34dba34908"),
    ],
)
def test_splits_that_runs_depend_on_stay_as_they_are(
    partition, samples, classes, clients, expected
):
    assert digest(partition(torch.arange(samples) % classes, clients, 3)) == expected


def test_iid_clients_look_alike():
    classes, largest, effective = skew(iid(CIFAR_LABELS, 100, 0), CIFAR_LABELS, 10)
    assert classes == 10
    assert largest < 0.15  # 50 of 500 a class, deviation 6.7
    assert effective > 9.8


def test_tiny_alpha_gives_out_every_sample_once():
    split = dirichlet(CIFAR_LABELS, 100, 0, alpha=0.01)
    assert len(split.indices.unique()) == 50_000  # the published file has 49 532
    early = split.counts(CIFAR_LABELS, 10)[:30]  # before whole classes run out
    assert (early.max(dim=1).values / 500).mean() > 0.9


def sequential(
    p: tuple[float, ...], left: tuple[int, ...], draws: int
) -> dict[tuple[int, ...], float]:
    """The exact law of the class counts: class c is next with odds p_c times what remains of it."""
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
    p = (0.6, 0.3, 0.1)
    trials = 6000
    law = sequential(p, left, draws)
    rng = np.random.default_rng(0)
    waits = rng.standard_exponential((trials, 3, min(draws, max(left))))
    seen = [
        tuple(race(np.log(p), np.array(left, dtype=float), each, draws).tolist()) for each in waits
    ]
    assert set(seen) <= set(law)
    chi2 = sum((seen.count(key) - trials * q) ** 2 / (trials * q) for key, q in law.items())
    freedom = len(law) - 1
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom)  # mean plus 4 deviations of a chi-square


def test_dirichlet_has_the_law_of_sequential_draws():
    """Two clients of two samples, three classes, by frequency against samples drawn one by one."""
    labels = np.array([0, 0, 1, 1, 2])
    alpha = 0.5
    trials = 4000
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
    splits = (
        dirichlet(tensor, 2, seed, alpha).counts(tensor, 3).tolist() for seed in range(trials)
    )
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
    with pytest.raises(ConfigError, match=f"dirichlet_label alpha is {alpha}.*positive and finite"):
        dirichlet_label(CIFAR_LABELS, 10, 0, alpha)


@pytest.mark.parametrize("partition", [iid, dirichlet, dirichlet_label, shards])
def test_each_client_needs_a_sample(partition):
    with pytest.raises(ConfigError, match="clients is 0"):
        partition(CIFAR_LABELS, 0, 0)
    with pytest.raises(
        ConfigError, match=r"50001 clients cannot share 50000 samples.*at most 50000"
    ):
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


def client_lists(split: Split) -> list[list[int]]:
    return [shard.tolist() for shard in split]


SKEWED = torch.cat([torch.zeros(70), torch.ones(25), torch.full((5,), 2.0)]).long()
WRITERS = torch.arange(100) % 9


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"file", "own"}))
@given(clients=st.integers(1, 9), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=30)
def test_every_split_is_a_pure_function_that_gives_nothing_out_twice(name, clients, seed):
    given_groups = {"groups": WRITERS} if name == "group" else {}
    split, again = (PARTITIONS[name](SKEWED, clients, seed, **given_groups) for _ in range(2))
    assert torch.equal(split.indices, again.indices)
    assert torch.equal(split.offsets, again.offsets)
    assert len(split) == clients
    assert split.sizes.min() >= 1
    assert len(set(split.indices.tolist())) == len(split.indices) == int(split.offsets[-1])
    assert set(split.indices.tolist()) <= set(range(100))


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_label", "shards"])
def test_splits_by_label_see_which_labels_are_equal_and_their_order_only(name):
    strange = torch.tensor([-7.5, 0.25, 9e9])[SKEWED]
    assert torch.equal(
        PARTITIONS[name](SKEWED, 7, 1).indices, PARTITIONS[name](strange, 7, 1).indices
    )
    with pytest.raises(
        ConfigError,
        match=r"shape \(100, 2\).*one class an example; use data.partition=iid or group",
    ):
        PARTITIONS[name](torch.zeros(100, 2), 7, 1)


def test_dirichlet_label_gives_out_everything_in_uneven_parts():
    split = dirichlet_label(CIFAR_LABELS, 100, 0, alpha=0.3, min_size=10)
    assert sorted(split.indices.tolist()) == list(range(50_000))
    assert split.sizes.min() >= 10
    assert split.sizes.max() > 2 * split.sizes.min()
    assert not torch.equal(
        split.indices, dirichlet_label(CIFAR_LABELS, 100, 1, alpha=0.3, min_size=10).indices
    )


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_label_cuts_each_class_by_dirichlet_shares(alpha):
    """A share of Dir(a, ..., a) over k has mean 1/k and variance (k - 1) / (k^2 (k a + 1))."""
    clients = 4
    labels = torch.arange(2000) % 2
    counts = torch.stack(
        [dirichlet_label(labels, clients, seed, alpha).counts(labels, 2) for seed in range(500)]
    )
    shares = counts.double() / 1000  # [seeds, clients, classes]
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    # Redraws, which would bias this, need all of a client's shares below .001.
    assert shares.mean(dim=(0, 2)).tolist() == pytest.approx([0.25] * 4, abs=0.045)  # 4 errors
    assert float(shares.var(dim=0).mean()) == pytest.approx(variance, rel=0.1)
    between = torch.corrcoef(torch.stack([shares[:, 0, 0], shares[:, 0, 1]]))[0, 1]
    assert (
        abs(between) < 0.2
    )  # one class says nothing about another: 4 / sqrt(500) = .18, and redraws


def test_dirichlet_label_draws_again_until_everyone_has_enough():
    labels = torch.arange(60) % 3
    plain = [dirichlet_label(labels, 6, seed, alpha=0.5) for seed in range(40)]
    asked = [dirichlet_label(labels, 6, seed, alpha=0.5, min_size=5) for seed in range(40)]
    assert min(int(split.sizes.min()) for split in plain) == 1
    assert all(split.sizes.min() >= 5 for split in asked)
    for one, other in zip(plain, asked, strict=True):
        if one.sizes.min() >= 5:  # a draw that was good enough is not drawn again
            assert torch.equal(one.indices, other.indices)


def test_dirichlet_label_says_when_it_cannot():
    with pytest.raises(
        ConfigError, match=r"min_size is 11, must be 1 to 10: 6 clients share 60 samples"
    ):
        dirichlet_label(torch.arange(60) % 3, 6, 0, min_size=11)
    with pytest.raises(ConfigError, match="min_size is 0"):
        dirichlet_label(torch.arange(60) % 3, 6, 0, min_size=0)
    with pytest.raises(
        ConfigError,
        match=f"in {ATTEMPTS} draws with alpha = 1e-06 .* 6 clients .* 0 examples.*alpha",
    ):
        dirichlet_label(torch.arange(60) % 3, 6, 0, alpha=1e-6)


def test_shards_hold_consecutive_labels():
    """12 examples of 3 classes, 3 clients with 2 shards: shards of 2, so each of one class."""
    labels = torch.tensor([2, 0, 1, 1, 0, 2, 0, 1, 2, 0, 1, 2])
    for seed in range(20):
        split = shards(labels, 3, seed)
        assert sorted(split.indices.tolist()) == list(range(12))
        for shard in client_lists(split):
            a, b, c, d = labels[shard].tolist()
            assert (a, c) == (b, d)
    pairs = set()
    for seed in range(20):
        pairs |= {tuple(sorted(labels[shard].tolist())) for shard in shards(labels, 3, seed)}
    assert (0, 0, 1, 1) in pairs
    assert (2, 2, 2, 2) in pairs


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.data())
def test_shards_are_runs_of_the_sorted_labels(labels, data):
    tensor = torch.tensor(labels)
    clients = data.draw(st.integers(1, len(labels)))
    per_client = data.draw(st.integers(1, len(labels) // clients))
    split = shards(tensor, clients, data.draw(st.integers(0, 99)), per_client)
    size = len(labels) // (clients * per_client)
    given = tensor[split.indices]
    pieces = given.view(clients * per_client, size).tolist()
    # Put back in order, the shards are the sorted labels of what was given out.
    assert list(chain.from_iterable(sorted(pieces))) == sorted(given.tolist())
    assert split.sizes.tolist() == [per_client * size] * clients


def test_shards_leave_out_at_random_what_fills_none():
    labels = torch.arange(1003) % 10
    split = shards(labels, 10, 0, per_client=10)
    assert (split.sizes == 100).all()
    unused = {
        tuple(sorted(set(range(1003)) - set(shards(labels, 10, seed, 10).indices.tolist())))
        for seed in range(9)
    }
    assert len(unused) == 9


def test_clients_of_two_shards_have_about_two_classes():
    found = shards(CIFAR_LABELS, 100, 0).statistics(CIFAR_LABELS, 10)
    assert found.classes.max() == 2  # 5000 a class, 250 a shard: none spans two
    assert (
        1.8 < found.classes.double().mean() < 2
    )  # the second shard is of the first's class with odds 19 / 199


def test_shards_that_cannot_be():
    with pytest.raises(ConfigError, match="per_client is 0"):
        shards(CIFAR_LABELS, 10, 0, 0)
    with pytest.raises(
        ConfigError, match=r"4 clients with 3 shards each need 12 samples.*are 10.*at most 2"
    ):
        shards(torch.arange(10), 4, 0, 3)


GROUPS = torch.tensor([30, 10, 20, 10, 30, 30, 40])


def test_groups_are_clients():
    split = group(torch.zeros(7), 4, seed=5, groups=GROUPS)
    assert client_lists(split) == [[1, 3], [2], [0, 4, 5], [6]]


def test_fewer_clients_than_groups_are_sampled_or_merged():
    by_group = [[1, 3], [2], [0, 4, 5], [6]]
    seen = set()
    for seed in range(60):
        sampled = client_lists(group(torch.zeros(7), 2, seed, GROUPS))
        places = [by_group.index(shard) for shard in sampled]
        assert places == sorted(set(places))
        seen.add(tuple(places))
        merged = group(torch.zeros(7), 3, seed, GROUPS, merge=True)
        assert sorted(merged.indices.tolist()) == list(range(7))
        held = [{int(GROUPS[i]) for i in shard} for shard in client_lists(merged)]
        assert sorted(map(len, held)) == [1, 1, 2]
    assert len(seen) == 6  # all pairs of four


def test_groups_that_cannot_be():
    with pytest.raises(ConfigError, match="no groups to split by; use dirichlet"):
        group(torch.zeros(7), 2, 0, None)
    with pytest.raises(ConfigError, match=r"5 clients cannot share 4 groups.*at most 4"):
        group(torch.zeros(7), 5, 0, GROUPS)
    with pytest.raises(ConfigError, match="7 group numbers for 8 examples"):
        group(torch.zeros(8), 2, 0, GROUPS)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=8),
    st.floats(0.001, 0.999),
    st.integers(0, 99),
)
def test_hold_back_parts_every_client(sizes, share, seed):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    split = Split(np.random.default_rng(seed).permutation(100)[: offsets[-1]], offsets)
    train, test = hold_back(split, share, seed)
    assert len(train) == len(test) == len(sizes)
    for size, mine, kept, held in zip(sizes, *map(client_lists, (split, train, test)), strict=True):
        fair = min(max(1, round(size * share)), size - 1)
        assert len(held) == max(0, fair)  # none of a single example
        assert sorted(kept + held) == sorted(mine)
        assert kept == [index for index in mine if index in kept]  # in the order they had
    again = hold_back(split, share, seed)
    assert torch.equal(again[1].indices, test.indices)


def test_hold_back_is_random_and_needs_a_split_without_repeats():
    split = iid(CIFAR_LABELS, 100, 0)
    _, one = hold_back(split, 0.2, 0)
    assert (one.sizes == 100).all()
    assert not torch.equal(one.indices, hold_back(split, 0.2, 1)[1].indices)
    # Positions 0..499 within a client: mean 249.5, standard error of 10 000 of them 1.44, less
    # without replacement.
    place = torch.full((50_000,), -1).index_copy_(0, split.indices, torch.arange(50_000) % 500)
    assert abs(place[one.indices].double().mean() - 249.5) < 4 * 1.44
    with pytest.raises(ConfigError, match=r"gives 2 examples out again.*drop-repeats"):
        hold_back(Split(torch.tensor([1, 2, 1, 2]), torch.tensor([0, 2, 4])), 0.5, 0)
