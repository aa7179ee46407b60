"""Who holds which examples. No example is given out twice, whatever the split."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import numpy_rng
from fedwsq.data.split import Ints, Split, offsets

Floats = npt.NDArray[np.float64]

ATTEMPTS = 200  # draws of `dirichlet_label` before it gives up on `min_size`
BLOCK_DRAWS = 1 << 18  # random numbers that `dirichlet` draws ahead: 2 MB


def own(labels: Tensor, clients: int) -> Split:
    """Every client brings its own data: nothing to split, and nothing that one machine can run."""
    raise ConfigError(
        "data.partition = own: clients bring their own data, so there is nothing to split here; "
        "run it with clients that do, or choose a split such as dirichlet"
    )


def iid(labels: Tensor, clients: int, seed: int) -> Split:
    """Examples dealt at random."""
    each = _share(len(labels), clients)
    order = numpy_rng(seed, "partition").permutation(len(labels))
    return Split(order[: clients * each], np.arange(clients + 1) * each)


def dirichlet(labels: Tensor, clients: int, seed: int, alpha: float = 0.3) -> Split:
    """The balanced Dirichlet split of FedACG, FedRCL and FedWSQ, without its repeated indices.

    Clients come in order. Each draws p ~ Dir(alpha) over the classes, then its examples one by one
    without replacement, every example still free with odds p of its class. So late clients get what
    is left, but nobody gets it twice.
    """
    _check_alpha("dirichlet", alpha)
    each = _share(len(labels), clients)
    kinds = _kinds(labels)
    rng = numpy_rng(seed, "partition")
    order = rng.permutation(len(kinds))
    taken = _quotas(np.bincount(kinds), clients, each, alpha, rng)
    return _deal(kinds, order, taken, rng)


def dirichlet_label(
    labels: Tensor, clients: int, seed: int, alpha: float = 0.3, min_size: int = 1
) -> Split:
    """Each class cut up by shares p ~ Dir(alpha) over the clients, every example given out.

    Sizes differ. Drawn anew until every client has `min_size` examples.
    """
    _check_alpha("dirichlet_label", alpha)
    most = _share(len(labels), clients)
    if not 1 <= min_size <= most:
        raise ConfigError(
            f"min_size is {min_size}, must be 1 to {most}: "
            f"{clients} clients share {len(labels)} samples"
        )
    kinds = _kinds(labels)
    taken = _cuts(np.bincount(kinds), clients, alpha, min_size, seed)
    rng = numpy_rng(seed, "partition")
    order = rng.permutation(len(kinds))
    return _deal(kinds, order, taken, rng)


def shards(labels: Tensor, clients: int, seed: int, per_client: int = 2) -> Split:
    """Examples sorted by label, cut into equal shards, `per_client` of them to each at random.

    McMahan et al. (2017), whose clients hold two shards and so mostly two classes. Examples too few
    to make every shard larger by one are left out, at random.
    """
    if per_client < 1:
        raise ConfigError(
            f"per_client is {per_client}, but each client needs at least 1 shard; 2 is usual"
        )
    samples = len(labels)
    most = _share(samples, clients)
    if per_client > most:
        raise ConfigError(
            f"{clients} clients with {per_client} shards each need {clients * per_client} samples "
            f"and there are {samples}; use a per_client of at most {most}"
        )
    kinds = _kinds(labels)
    rng = numpy_rng(seed, "partition")
    count = clients * per_client
    size = samples // count
    order = _sort(rng.permutation(samples)[: count * size], kinds)
    mixed = order.reshape(count, size)[rng.permutation(count)]
    return Split(mixed.ravel(), np.arange(clients + 1) * per_client * size)


def group(
    labels: Tensor, clients: int, seed: int, groups: Tensor | None, merge: bool = False
) -> Split:
    """The data's own groups, such as writers: one client a group, in the order of their numbers.

    With fewer clients than groups, that many groups are sampled and the rest goes unused; `merge`
    deals all of them out whole instead, as evenly in number as can be.
    """
    if groups is None:
        raise ConfigError("this data set has no groups to split by; use dirichlet, shards or iid")
    if len(groups) != len(labels):
        raise ConfigError(
            f"{len(groups)} group numbers for {len(labels)} examples; each example needs one"
        )
    _share(len(labels), clients)
    names, number = np.unique(groups.numpy(), return_inverse=True)
    if clients > len(names):
        raise ConfigError(
            f"{clients} clients cannot share {len(names)} groups: each needs one; "
            f"use at most {len(names)} clients"
        )

    mixed = numpy_rng(seed, "partition").permutation(len(names))
    client = np.full(len(names), clients)  # of each group: nobody yet
    if merge:
        client[mixed] = np.arange(len(names)) % clients
    else:
        chosen = np.sort(mixed[:clients])
        client[chosen] = np.arange(clients)
    owner = client[number]
    sizes = np.bincount(owner, minlength=clients)[:clients]
    by_owner = _sort(np.arange(len(owner)), owner)  # nobody's come last
    return Split(by_owner[: sizes.sum()], offsets(sizes))


def hold_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """The indices kept and the `share` of them held out for validation, both sorted."""
    if not 0 <= share < 1:
        raise ConfigError(
            f"the validation share is {share}, but must be in [0, 1); 0 holds nothing out"
        )
    order = torch.from_numpy(numpy_rng(seed, "hold_out").permutation(count))
    held = round(count * share)
    return order[held:].sort().values, order[:held].sort().values


def hold_back(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """What clients train on, and the `share` of each one's examples kept back for its own test.

    Of two examples or more, at least one is kept back and one left.
    """
    if split.repeats:
        raise ConfigError(
            f"the split gives {split.repeats} examples out again, so that clients would train on "
            "each other's test examples; import it with --drop-repeats, or set client_test = 0"
        )
    sizes = split.sizes.numpy()
    owners = split.owners.numpy()
    held = np.rint(sizes * share).astype(np.int64)
    held = held.clip(1, np.maximum(sizes - 1, 1))
    held[sizes < 2] = 0

    # Shuffled within a client, the first of its examples are those kept back.
    mix = _sort(numpy_rng(seed, "client_test").permutation(len(owners)), owners)
    first = _ranks(sizes) < np.repeat(held, sizes)
    back = np.zeros(len(owners), dtype=bool)
    back[mix[first]] = True
    indices = split.indices.numpy()
    kept = Split(indices[~back], offsets(sizes - held))
    return kept, Split(indices[back], offsets(held))


def _share(samples: int, clients: int) -> int:
    """How many examples each client gets."""
    if clients < 1:
        raise ConfigError(f"clients is {clients}, but a run needs at least 1")
    if clients > samples:
        raise ConfigError(
            f"{clients} clients cannot share {samples} samples: each needs one; "
            f"use at most {samples} clients"
        )
    return samples // clients


def _check_alpha(name: str, alpha: float) -> None:
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(
            f"{name} alpha is {alpha}, but must be positive and finite; "
            "0.3 is usual, iid has no skew"
        )


def _kinds(labels: Tensor) -> Ints:
    """The labels, renumbered 0, 1, ... in their order."""
    if labels.dim() != 1:
        raise ConfigError(
            f"labels have shape {tuple(labels.shape)}, but this split needs one class an example; "
            "use data.partition=iid or group"
        )
    values = labels.numpy()
    are_small = values.dtype.kind == "i" and len(values) and values.min() >= 0
    if not are_small or values.max() >= 2**20:
        numbers: Ints = np.unique(values, return_inverse=True)[1]
        return numbers
    present = np.bincount(values) > 0  # without sorting
    counted: Ints = np.cumsum(present)[values] - 1
    return counted


def _ranks(sizes: Ints) -> Ints:
    """Places within runs of these sizes: 0, 1, 0, 1, 2 for runs of two and three."""
    starts = np.cumsum(sizes) - sizes
    ranks: Ints = np.arange(sizes.sum()) - np.repeat(starts, sizes)
    return ranks


def _sort(order: Ints, keys: Ints) -> Ints:
    """`order` by the keys, which are not negative, of what it names; as it was among equals."""
    bits = int(keys.max(initial=0)).bit_length()
    for shift in range(0, max(1, bits), 16):  # numpy sorts 16 bits by radix
        digits = (keys[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


def _deal(kinds: Ints, order: Ints, taken: Ints, rng: np.random.Generator) -> Split:
    """Hand out examples, those of a class in the given order: `taken` of each to each client."""
    sizes = np.bincount(kinds)
    order = _sort(order, kinds)
    # Each class is served from its front: its first taken[0] examples go to client 0, and so on.
    served = _ranks(sizes) < np.repeat(taken.sum(axis=0), sizes)
    order = order[served]
    clients = np.tile(np.arange(len(taken)), len(sizes))
    owner = np.repeat(clients, taken.T.ravel())
    mix = _sort(rng.permutation(len(order)), owner)  # client by client, shuffled within a client
    return Split(order[mix], offsets(taken.sum(axis=1)))


def _quotas(sizes: Ints, clients: int, each: int, alpha: float, rng: np.random.Generator) -> Ints:
    """How many examples of each class each client draws: [clients, classes]."""
    left = sizes.astype(np.float64)
    classes = len(sizes)
    taken = np.zeros((clients, classes), dtype=np.int64)
    done = 0
    with np.errstate(divide="ignore", over="ignore"):
        while done < clients:
            # A race looks `each` examples deep into a class, less only when no class has so many
            # left. That cannot be while more than classes * (each - 1) are left in all, and so
            # long random numbers can be drawn ahead.
            ahead = (int(left.sum()) - classes * (each - 1) - 1) // each + 1
            block = max(1, min(ahead, clients - done, BLOCK_DRAWS // (classes * each)))
            width = min(each, int(left.max()))
            log_p, waits = _draws(block, classes, width, alpha, rng)
            for number in range(block):
                row = race(log_p[number], left, waits[number], each)
                taken[done + number] = row
                left -= row
            done += block
    return taken


def _draws(
    block: int, classes: int, width: int, alpha: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """All that is random about the next clients.

    That is log p, [block, classes], and waits, [block, classes, width]. log p is up to a constant,
    p ~ Dir(alpha), by Gamma(a) = Gamma(a + 1) U^(1/a): no p underflows at small alpha.
    """
    gammas = np.empty((block, classes))
    powers = np.empty((block, classes))
    waits = np.empty((block, classes, width))
    for gamma, power, wait in zip(gammas, powers, waits, strict=True):
        rng.standard_gamma(alpha + 1, out=gamma)
        rng.standard_exponential(out=power)
        rng.standard_exponential(out=wait)
    log_p = np.log(gammas) - powers / alpha
    return np.clip(log_p, -1e300, 1e300), waits


def race(log_p: Floats, left: Floats, waits: Floats, draws: int) -> Ints:
    """Class counts of draws in sequence without replacement, an example having odds p of its class.

    Examples with odds p arriving at rate p are drawn in their order of arrival. Of class c with r
    examples left, the times between arrivals are Exp(1) / (p r), Exp(1) / (p (r - 1)), ...; the
    draws are the earliest arrivals of all. `waits` are those Exp(1), [classes, at most draws].
    """
    width = waits.shape[1]
    rates = left[:, None] - np.arange(width, dtype=np.float64)
    np.maximum(rates, 0, out=rates)  # none left: the next arrival is at infinity
    times = waits / rates
    np.add.accumulate(times, axis=1, out=times)
    np.log(times, out=times)
    times -= log_p[:, None]
    first: Ints = times.ravel().argpartition(draws - 1)[:draws]
    return np.bincount(first // width, minlength=len(left))


def _cuts(sizes: Ints, clients: int, alpha: float, min_size: int, seed: int) -> Ints:
    """How many examples of each class each client gets: [clients, classes].

    Classes are cut where Dirichlet shares end, rounded to whole examples.
    """
    smallest = 0
    for attempt in range(ATTEMPTS):
        rng = numpy_rng(seed, "partition", attempt)
        with np.errstate(over="ignore"):
            log_p, _ = _draws(len(sizes), clients, 0, alpha, rng)
        shares = np.exp(log_p - log_p.max(axis=1, keepdims=True))
        sums = np.cumsum(shares, axis=1)
        ends = np.rint(sums / sums[:, -1:] * sizes[:, None])
        taken: Ints = np.diff(ends.astype(np.int64), axis=1, prepend=0).T
        smallest = max(smallest, int(taken.sum(axis=1).min()))
        if smallest >= min_size:
            return taken
    raise ConfigError(
        f"in {ATTEMPTS} draws with alpha = {alpha:g} the smallest of {clients} clients never had "
        f"more than {smallest} examples, and min_size is {min_size}; raise alpha, or use fewer "
        "clients, or the balanced dirichlet"
    )
