import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.codecs import BITS, BitPolicy, Danuq, Fixed, Rates
from fedwsq.codecs.bits import Bandwidth, Budget, Growing, PerClient, PerRound, Request
from fedwsq.codecs.measure import normal_error
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Channel, Key
from fedwsq.plan import dump_plan, make_plan, plan_digest
from fedwsq.runs.run import Run
from harness import tiny

CODEC = Danuq(levels="optimal")
OVERHEAD = 100


def make_request(
    round=1,
    client=0,
    seed=0,
    sizes=None,
    scales=None,
    channel=None,
    offered=None,
    before=0.0,
    codec=CODEC,
    errors=None,
):
    """A request about tensors whose reply is their packed codes and 100 bytes more."""
    sizes = sizes or {"a": 800}

    def tensor_bytes(name, rate):
        return math.ceil(sizes[name] * rate / 8)

    def upload_bytes(granted):
        each = granted if isinstance(granted, dict) else dict.fromkeys(sizes, granted)
        return OVERHEAD + sum(tensor_bytes(name, each[name]) for name in sizes)

    return Request(
        Key(seed, round, client),
        channel,
        sizes,
        {
            name: torch.as_tensor(scale, dtype=torch.float32).reshape(-1)
            for name, scale in (scales or {}).items()
        },
        offered or codec.rates,
        upload_bytes,
        tensor_bytes,
        errors.__getitem__ if errors else lambda rate: normal_error(codec, rate),
        before,
    )


def test_fixed_gives_everyone_the_same():
    assert BITS["fixed"] is Fixed
    requests = [make_request(*key) for key in itertools.product((1, 2), (0, 1))]
    assert {Fixed(bits=4)(request) for request in requests} == {4}
    assert Fixed()(make_request()) == 32


def test_fixed_allocation_is_drawn_once_for_each_client():
    policy = PerClient()
    drawn = [policy(make_request(1, client)) for client in range(40)]
    for client in range(20):
        again = {policy(make_request(round, client)) for round in range(1, 30)}
        assert again == {drawn[client]}
    assert len(set(drawn[:20])) == 3
    assert [policy(make_request(1, client, seed=1)) for client in range(40)] != drawn


def test_dynamic_allocation_is_drawn_anew_and_the_same_in_any_order():
    policy = PerRound()
    keys = list(itertools.product(range(1, 8), range(8)))
    drawn = {key: policy(make_request(*key)) for key in keys}
    assert {key: policy(make_request(*key)) for key in reversed(keys)} == drawn
    for client in range(8):
        assert len({drawn[round, client] for round in range(1, 8)}) > 1
    for round in range(1, 8):
        assert len({drawn[round, client] for client in range(8)}) > 1


@pytest.mark.parametrize("policy", [PerClient(), PerRound()], ids=["FBA", "DBA"])
def test_the_mean_is_seven_thirds_of_a_bit_and_its_bytes(policy):
    """ResNet-18 with 10 classes: 11 157 504 coded, 16 458 values and 19 scales in float32."""
    count = 3000
    rest = 4 * (16_458 + 19)
    bits = [policy(make_request(1, client)) for client in range(count)]
    # Var = (1 + 4 + 16) / 3 - (7 / 3)^2 = 14 / 9; four standard errors.
    tolerance = 4 * math.sqrt(14 / 9 / count)
    assert set(bits) == {1, 2, 4}
    assert math.fsum(bits) / count == pytest.approx(7 / 3, abs=tolerance)
    sizes = [11_157_504 * b / 8 + rest for b in bits]
    assert max(sizes) == 5_644_660
    assert min(sizes) == 1_460_596
    assert math.fsum(sizes) / count == pytest.approx(3_320_180, abs=tolerance * 11_157_504 / 8)


def test_other_choices_are_drawn_evenly():
    drawn = Counter(PerRound((8, 3))(make_request(1, client)) for client in range(2000))
    assert set(drawn) == {3, 8}
    assert drawn[3] == pytest.approx(1000, abs=4 * math.sqrt(2000 / 4))


def test_choices_are_sorted_and_there_once():
    assert PerClient((4, 1, 2.0, 1)).choices == (1, 2, 4)


@pytest.mark.parametrize(
    "policy", [PerClient, PerRound, lambda c: Bandwidth(1, c), lambda c: Budget(1000, c)]
)
@pytest.mark.parametrize("choices", [(), (0, 1), (-1,), (math.nan,), (math.inf,)])
def test_choices_that_are_no_widths_are_refused(policy, choices):
    with pytest.raises(ConfigError, match="must be positive numbers of bits"):
        policy(choices)


@pytest.mark.parametrize(
    "policy", [PerClient((1, 5)), PerRound((1, 5)), Bandwidth(1, (1, 5)), Budget(1000, (1, 5))]
)
def test_a_choice_that_the_codec_lacks_is_named(policy):
    with pytest.raises(
        ConfigError, match="choices has 5 bits, which the codec does not; it offers 1, 2, 4"
    ):
        policy(make_request(codec=Danuq()))


def test_intervals_take_any_width_inside():
    assert PerClient((0.7,))(make_request(offered=Rates.between(0.5, 4.0))) == 0.7
    with pytest.raises(ConfigError, match=r"choices has 0.4 bits, .* it offers 0.5 to 4"):
        PerClient((0.4, 1))(make_request(offered=Rates.between(0.5, 4.0)))


def test_a_policy_says_what_it_may_grant():
    assert Fixed(4).grants == (4,)
    assert Bandwidth(1.5, (4, 1)).grants == (1, 4)


def test_a_codec_with_one_rate_leaves_nothing_to_decide():
    assert Fixed(4).at(32) == Fixed(32)
    assert PerRound().at(1) == PerRound((1,))
    assert Budget(1000, (2, 4)).at(1) == Budget(1000, (1,))


def test_a_policy_of_ones_own_need_only_answer():
    class Own(BitPolicy):
        def __call__(self, request):
            return 2

    policy = Own()
    assert policy.grants == ()
    assert policy.at(1) is policy


# 800 values and 100 bytes: replies of 200, 300 and 500 bytes at 1, 2 and 4 bits.
CHANNEL = Channel(100, 1e6, 0.25, 0.01)


@pytest.mark.parametrize(
    ("before", "deadline", "expected"),
    [
        (0.0, 5.25, 4),  # 0.25 + 500 / 100 = 5.25, just in time
        (0.0, 5.24, 2),  # 0.25 + 300 / 100 = 3.25
        (2.0, 5.25, 2),  # 2 + 3.25, just in time
        (2.0, 5.24, 1),  # 2 + 0.25 + 200 / 100 = 4.25
        (3.0, 5.25, 1),
        (3.0, 5.24, None),
        (9.0, 5.25, None),
    ],
)
def test_bandwidth_grants_the_largest_width_in_time(before, deadline, expected):
    assert Bandwidth(deadline)(make_request(channel=CHANNEL, before=before)) == expected


def test_bandwidth_needs_channels_and_a_deadline():
    with pytest.raises(ConfigError, match="set channels to lognormal or trace"):
        Bandwidth(1.0)(make_request())
    for deadline in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="deadline_seconds is"):
            Bandwidth(deadline)


def loss(request, granted):
    """The cost as the policy states it, written out again."""
    return math.fsum(
        size
        * float(request.shared[name].double().square().mean())
        * request.normal_error(granted[name])
        for name, size in request.sizes.items()
    )


def brute_force(request, budget, choices):
    every = (
        dict(zip(request.sizes, rates, strict=True))
        for rates in itertools.product(choices, repeat=len(request.sizes))
    )
    return min(
        (loss(request, granted) for granted in every if request.upload_bytes(granted) <= budget),
        default=None,
    )


def test_budget_by_hand():
    """Errors 0.4, 0.1, 0.01 and 80 values each: 10, 20 and 40 bytes.

    Scales 3, 2, 1, so energies 720, 320, 80. Gains a byte:
    a 720 * 0.3 / 10 = 21.6, then 720 * 0.09 / 20 = 3.24; b 9.6, 1.44; c 2.4, 0.36.
    """
    one = make_request(
        sizes=dict.fromkeys("abc", 80),
        scales={"a": 3.0, "b": 2.0, "c": 1.0},
        errors={1: 0.4, 2: 0.1, 4: 0.01},
    )
    for extra, expected in [
        (0, (1, 1, 1)),
        (9, (1, 1, 1)),
        (10, (2, 1, 1)),
        (20, (2, 2, 1)),
        (39, (2, 2, 2)),  # a's next step takes 20: c's fits
        (40, (4, 2, 1)),
        (50, (4, 2, 2)),
        (70, (4, 4, 2)),
        (90, (4, 4, 4)),
        (10**6, (4, 4, 4)),
    ]:
        assert tuple(Budget(OVERHEAD + 30 + extra)(one).values()) == expected


def test_budget_is_the_best_when_all_steps_cost_the_same():
    one = make_request(
        sizes=dict.fromkeys("abcd", 64), scales={"a": 1e-3, "b": 4e-3, "c": 2.5e-3, "d": 1.1e-3}
    )
    choices = (1, 2, 3, 4)
    for budget in range(OVERHEAD + 32, OVERHEAD + 140, 3):
        granted = Budget(budget, choices)(one)
        assert loss(one, granted) == pytest.approx(brute_force(one, budget, choices), rel=1e-12)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 500), min_size=1, max_size=5),
    scales=st.lists(st.floats(1e-6, 10), min_size=5, max_size=5),
    share=st.floats(0, 1.1),
    choices=st.sampled_from([(1, 2, 4), (1, 4), (2, 3, 4), (1,)]),
)
def test_budget_is_never_exceeded_and_one_step_from_the_best(sizes, scales, share, choices):
    tensors = {f"t{i}": size for i, size in enumerate(sizes)}
    one = make_request(sizes=tensors, scales=dict(zip(tensors, scales, strict=False)))
    low, high = (
        one.upload_bytes(dict.fromkeys(tensors, width)) for width in (min(choices), max(choices))
    )
    budget = int(low + share * (high - low))
    granted = Budget(budget, choices)(one)
    assert granted.keys() == tensors.keys()
    assert one.upload_bytes(granted) <= budget
    # Nothing that is left over would pay for more of any tensor that gains from it.
    for name, rate in itertools.product(tensors, choices):
        if rate > granted[name] and tensors[name]:
            assert one.upload_bytes({**granted, name: rate}) > budget
    widest = normal_error(CODEC, choices[0]) - normal_error(CODEC, choices[-1])
    largest_step = (
        max(tensors[name] * float(one.shared[name].square()) for name in tensors) * widest
    )
    assert loss(one, granted) <= brute_force(one, budget, choices) + largest_step * (1 + 1e-6)


def by_whole_replies(request, budget, choices):
    """The same policy with nothing kept: every step is priced and tried as a whole reply."""
    squares = {name: float(x.double().square().mean()) for name, x in request.shared.items()}
    if not any(squares.values()):
        squares = dict.fromkeys(squares, 1.0)
    smallest = dict.fromkeys(request.sizes, choices[0])
    granted = dict(smallest)
    refused = set()
    while True:
        steps = []
        for name, to in itertools.product(request.sizes, choices):
            at = granted[name]
            saved = request.normal_error(at) - request.normal_error(to)
            gain = request.sizes[name] * squares[name] * saved
            if to <= at or gain <= 0 or (name, at, to) in refused:
                continue
            wide = request.upload_bytes({**smallest, name: to})
            cost = wide - request.upload_bytes({**smallest, name: at})
            steps.append((-gain / cost if cost > 0 else -math.inf, name, at, to))
        if not steps:
            return granted
        _, name, at, to = min(steps)
        wider = {**granted, name: to}
        if request.upload_bytes(wider) <= budget:
            granted = wider
        else:
            refused.add((name, at, to))


@settings(max_examples=100)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=9),
    scales=st.lists(st.floats(0, 10), min_size=9, max_size=9),
    alike=st.booleans(),
    share=st.floats(0, 1.1),
    choices=st.sampled_from([(1, 2, 4), (1, 4), (2, 3, 4), (1, 2, 3, 4), (2,)]),
)
def test_budget_grants_what_trying_whole_replies_grants(sizes, scales, alike, share, choices):
    tensors = {f"t{i}": size for i, size in enumerate(sizes)}
    if alike:  # ties, which names settle
        scales = [scales[0]] * len(scales)
    one = make_request(sizes=tensors, scales=dict(zip(tensors, scales, strict=False)))
    low = one.upload_bytes(choices[0])
    high = one.upload_bytes(choices[-1])
    budget = int(low + share * (high - low))
    granted = Budget(budget, choices)(one)
    assert granted == by_whole_replies(one, budget, choices)
    assert list(granted) == list(tensors)


def test_budget_asks_for_few_whole_replies():
    """One, however many tensors there are: a reply is as long as a model to add up."""
    sizes = {f"t{i}": 80 + i for i in range(300)}
    one = make_request(sizes=sizes, scales=dict.fromkeys(sizes, 1.0))
    asked = []

    def counted(granted):
        asked.append(granted)
        return one.upload_bytes(granted)

    granted = Budget(OVERHEAD + 20_000)(one._replace(upload_bytes=counted))
    assert len(set(granted.values())) > 1
    assert len(asked) == 1


def test_budget_skips_a_width_that_is_worse_than_one_below():
    """Two bits lose more than one here: the step goes from 1 to 4 at once, or not at all."""
    one = make_request(sizes={"a": 80}, scales={"a": 1.0}, errors={1: 0.4, 2: 0.5, 4: 0.01})
    assert Budget(OVERHEAD + 20)(one) == {"a": 1}
    assert Budget(OVERHEAD + 40)(one) == {"a": 4}


def test_budget_takes_the_mean_square_of_many_scales():
    """Channel scales 0 and 2: mean square 2, above 1.2^2 = 1.44, though their mean is below 1.2."""
    sizes = {"a": 80, "b": 80}
    for scales, wider in [({"a": [0.0, 2.0], "b": 1.2}, "a"), ({"a": [0.0, 1.0], "b": 1.2}, "b")]:
        granted = Budget(OVERHEAD + 30)(make_request(sizes=sizes, scales=scales))
        assert granted == {**dict.fromkeys(sizes, 1), wider: 2}


def test_before_calibration_all_tensors_count_the_same():
    sizes = {"a": 40, "b": 80, "c": 80}
    unknown = make_request(sizes=sizes, scales=dict.fromkeys(sizes, 0.0))
    equal = make_request(sizes=sizes, scales=dict.fromkeys(sizes, 1.0))
    for budget in range(OVERHEAD + 25, OVERHEAD + 105, 5):
        assert Budget(budget)(unknown) == Budget(budget)(equal)
    assert Budget(OVERHEAD + 100)(unknown) == dict.fromkeys(sizes, 4)


def test_budget_needs_shared_scales():
    with pytest.raises(
        ConfigError, match="b has none; use a codec that shares them, such as danuq"
    ):
        Budget(1000)(make_request(sizes={"a": 8, "b": 8}, scales={"a": 1.0}))


def test_a_budget_below_the_smallest_width_names_both_numbers():
    with pytest.raises(
        ConfigError, match="a budget of 199 bytes is too small: a reply takes 200 at 1 bits"
    ):
        Budget(199)(make_request(scales={"a": 1.0}))
    with pytest.raises(ConfigError, match="budget bytes is 0"):
        Budget(0)


def test_growing_widths_by_hand():
    grow = Growing(every=3, choices=(4, 1, 2))
    by_round = [grow(make_request(round=number, client=number % 2)) for number in range(1, 12)]
    assert by_round == [1, 1, 1, 2, 2, 2, 4, 4, 4, 4, 4]
    assert [grow.of_round(number) for number in range(1, 12)] == by_round
    assert grow.of_round(0) == 1  # which only a message from elsewhere says
    with pytest.raises(ConfigError, match="growing every is 0, must be at least 1"):
        Growing()


@pytest.mark.parametrize(
    "bits",
    [
        {"name": "per_client"},
        {"name": "per_round", "choices": [4, 2]},
        {"name": "growing", "every": 3},
        {"name": "bandwidth", "deadline_seconds": 2},
        {"name": "budget", "bytes": 5000},
    ],
    ids=lambda bits: bits["name"],
)
def test_a_config_gives_the_policy_and_its_digest_back(bits):
    plan = make_plan({"uplink": {"codec": "danuq", "bits": bits}})
    again = make_plan(
        {
            "uplink": {
                "codec": "danuq",
                "bits": {**bits, "choices": bits.get("choices", [1.0, 2, 4])},
            }
        }
    )
    assert type(plan.uplink.bits) is BITS[bits["name"]]
    assert again == plan
    assert plan_digest(again) == plan_digest(plan)
    assert "choices" in dump_plan(plan)
    assert hash(plan.uplink.bits) == hash(replace(plan.uplink.bits))


def test_real_replies_stay_within_the_budget(tmp_path):
    """From 7 398 bytes at one bit to 16 038 at four; 12 000 lie between."""
    with Run.create(
        tiny(rounds=2, **{"uplink.bits": {"name": "budget", "bytes": 12_000}}), tmp_path / "run", 1
    ) as run:
        run.go(keep_messages=True)
    sizes = [
        path.stat().st_size
        for path in (tmp_path / "run" / "messages").glob("round-*-client-*[0-9].fwsq")
    ]
    assert len(sizes) == 10
    assert 9_000 < max(sizes) <= 12_000
