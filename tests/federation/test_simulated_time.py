"""Channels in whole rounds: simulated seconds by hand, deadlines kept, scales calibrated."""

import pytest
import torch

from fedwsq.core.errors import FedwsqError
from fedwsq.core.types import Channel, Key
from fedwsq.federation.clock import Times, slowest, times_of
from fedwsq.federation.fold import Assignment, Folded
from fedwsq.federation.owners import Census
from fedwsq.federation.server import Server
from fedwsq.federation.simulation import simulate
from fedwsq.runs import Run
from fedwsq.transports import Order
from fedwsq.wire import Kind, Message, decode
from harness import Kept, rows, tiny

CPU = torch.device("cpu")
COLUMNS = "client,up_bytes_per_second,down_bytes_per_second,latency_seconds,seconds_per_step\n"


def federate(**settings):
    simulation = simulate(tiny(**{"data.clients": 4, "clients_per_round": 4, **settings}))
    return simulation.server(Kept(simulation.serial(CPU)))


def granted_rates(server):
    """What each client of the last round was granted."""
    orders = server.transport.orders[server.snapshot.round].items()
    return {client: decode(o.head, server.charter.schema).rates[0] for client, o in orders}


def reply_sizes(server):
    uplink = server.charter.uplink
    return {rate: uplink.reply_bytes(rate, ("delta",)) for rate in (1, 2, 4)}


def packets_of(server):
    """What the clients of the last round sent."""
    payloads = server.transport.replies[server.snapshot.round].values()
    return [decode(payload, server.charter.schema).packets["delta"] for payload in payloads]


@pytest.fixture
def trace(tmp_path):
    def write(lines):
        path = tmp_path / "trace.csv"
        path.write_text(COLUMNS + lines)
        return {"channels": {"name": "trace", "path": str(path)}}

    return write


def test_seconds_by_hand(trace):
    # Client 2 is the slowest up, and everyone takes two steps of local work.
    others = [f"{client},1000,100000,0.5,0.25\n" for client in (0, 1, 3)]
    server = federate(**trace("".join([*others, "2,500,200000,0.5,0.25\n"])))
    record = server.step()
    passed = server.transport
    down = 0.5 + (len(passed.body) + len(passed.orders[1][2].head)) / 200_000
    up = 0.5 + len(passed.replies[1][2]) / 500
    assert record.download_seconds == pytest.approx(down)
    assert record.compute_seconds == 2 * 0.25
    assert record.upload_seconds == pytest.approx(up)
    assert record.simulated_seconds == pytest.approx(down + 0.5 + up)
    assert record.channels["2"] == [500, 200_000, 0.5, 0.25]


def test_without_channels_there_is_no_simulated_time():
    record = federate().step()
    assert record.simulated_seconds is None
    assert record.channels == {}


@pytest.mark.parametrize("deadline", [10.0, 14.0, 40.0])
def test_a_deadline_is_kept_by_fewer_bits_or_by_sitting_out(deadline, trace):
    # Client 3's channel takes nothing in time.
    lines = "0,100000,1000000,0,0\n1,1700,1000000,0,0\n2,800,1000000,0,0\n3,10,1000000,0,0\n"
    policy = {"name": "bandwidth", "deadline_seconds": deadline}
    server = federate(**trace(lines), **{"uplink.bits": policy})
    up = {0: 100_000, 1: 1700, 2: 800, 3: 10}
    for _ in range(2):
        record = server.step()
        granted = granted_rates(server)
        sizes = reply_sizes(server)
        passed = server.transport
        down = (len(passed.body) + len(passed.orders[record.round][0].head)) / 1_000_000
        for client, speed in up.items():
            in_time = [rate for rate, size in sizes.items() if down + size / speed <= deadline]
            assert granted.get(client) == max(in_time, default=None)
        assert record.simulated_seconds <= deadline
        assert record.sat_out == 4 - len(granted) >= 1
        assert record.failed == 0
    # Below 40 seconds some send less, or nothing.
    assert (granted == {0: 4, 1: 4, 2: 4}) == (deadline == 40)


@pytest.mark.parametrize(("policy", "same"), [("per_client", True), ("per_round", False)])
def test_mixed_widths_cost_what_they_say(policy, same):
    server = federate(
        **{"uplink.bits": policy, "data.clients": 40, "clients_per_round": 40, "eval_every": 9}
    )
    seen = []
    for _ in range(2):
        record = server.step()
        granted = granted_rates(server)
        sizes = reply_sizes(server)
        assert record.uplink_bytes == sum(sizes[rate] for rate in granted.values())
        assert record.bits == pytest.approx(sum(granted.values()) / 40)
        assert 1.5 < record.bits < 3.2  # 7/3 on average; the std of a mean of forty is 0.2
        seen.append(granted)
    assert (seen[0] == seen[1]) == same


def test_a_run_replays_the_channels_of_another(tmp_path):
    """On a slow line with fading, so that clients are granted different bits; what it recorded
    gives them again.
    """
    bits = {"name": "bandwidth", "deadline_seconds": 3.5}
    slow = {"name": "lognormal", "up_bytes_per_second": 5e3, "fading": 0.5}
    first = tiny(rounds=2, **{"uplink.bits": bits, "channels": slow})
    replay = {"name": "trace", "path": str(tmp_path / "a" / "rounds.jsonl")}
    again = tiny(rounds=2, **{"uplink.bits": bits, "channels": replay})
    for plan, name in ((first, "a"), (again, "b")):
        with Run.create(plan, tmp_path / name, workers=1) as run:
            run.go()
    one = rows(tmp_path / "a")
    two = rows(tmp_path / "b")
    same = ("channels", "bits", "uplink_bytes", "sat_out", "simulated_seconds", "test_loss")
    for before, after in zip(one, two, strict=True):
        assert [after[what] for what in same] == [before[what] for what in same]
    assert len({row["bits"] for row in one}) + sum(row["sat_out"] for row in one) > 1


def test_a_replay_knows_who_sat_out(tmp_path):
    drawn = {"channels": {"name": "lognormal", "fading": 2.0, "up_bytes_per_second": 20_000.0}}
    policy = {"uplink.bits": {"name": "bandwidth", "deadline_seconds": 1.5}, "rounds": 5}
    with Run.create(tiny(**drawn, **policy), tmp_path / "drawn", workers=1) as run:
        first = run.go()
    sat_out = [row["sat_out"] for row in rows(tmp_path / "drawn")]
    assert sum(sat_out) > 0
    replay = {"channels": {"name": "trace", "path": str(tmp_path / "drawn" / "rounds.jsonl")}}
    with Run.create(tiny(**replay, **policy), tmp_path / "replay", workers=1) as run:
        assert run.go().weights == first.weights
    assert [row["sat_out"] for row in rows(tmp_path / "replay")] == sat_out


def test_one_rate_obeys_a_deadline_too():
    channels = {"name": "lognormal", "up_bytes_per_second": 100.0}
    policy = {"name": "bandwidth", "deadline_seconds": 1.0}
    server = federate(uplink={"codec": "sign", "bits": policy}, channels=channels)
    assert server.step().sat_out == 4


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"uplink.bits": {"name": "bandwidth", "deadline_seconds": 1.0}}, "this plan has none"),
        ({"uplink.bits": {"name": "budget", "bytes": 100}}, "a budget of 100 bytes is too small"),
        ({"channels": {"name": "trace", "path": "absent.csv"}}, "absent.csv"),
    ],
)
def test_what_cannot_work_is_said_before_a_folder_is_made(settings, says, tmp_path):
    with (
        pytest.raises(FedwsqError, match=says),
        Run.create(tiny(**settings), tmp_path / "run", workers=1),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_calibration_takes_one_round():
    server = federate(**{"uplink.codec.scale_init": "calibrate"})
    first = server.step()
    packets = packets_of(server)
    coded = server.charter.uplink.coded
    assert first.scale_ratio is None
    assert first.quantization_error < 0.02  # 4 bits around scales that are right
    for name in coded:
        assert all(each[name].own_scale for each in packets)
        mean = sum(each[name].side[0] for each in packets) / 4
        assert float(server.snapshot.shared["delta"][name]) == pytest.approx(mean, rel=1e-6)
    second = server.step()
    for each in packets_of(server):
        assert not any(each[name].own_scale for name in coded)
    assert set(second.scale_ratios) == coded
    assert all(0.2 < ratio < 5 for ratio in second.scale_ratios.values())


def test_a_band_lets_far_off_tensors_use_their_own_scale():
    # The scale starts at 1e-3, the first updates have ten times that.
    server = federate(**{"uplink.codec.band": 4.0, "uplink.codec.scale_init": 1e-3})
    record = server.step()
    for name in server.charter.uplink.coded:
        for each in packets_of(server):
            ratio = each[name].side[0] / 1e-3
            assert each[name].own_scale == (not 1 / 4 <= ratio <= 4)
    assert record.quantization_error < 0.05


# Clients whose size the server does not know


def assigned(client, channel, steps, down_bytes=1000):
    key = Key(0, 1, client)
    order = Message(Kind.ORDER, key, bytes(16))
    return Assignment(order, Order(key, b""), down_bytes, down_bytes, channel, steps)


def test_a_clients_seconds_by_hand():
    """1000 bytes down at 500 a second, 4 steps of 0.25 s, 600 bytes up at 100; 0.5 s each way."""
    times = times_of(assigned(3, Channel(100, 500, 0.5, 0.25), steps=4), reply_bytes=600)
    assert times == Times(0.5 + 2, 1.0, 0.5 + 6)
    assert times.total == 10.0


def test_the_slowest_of_all_counts_as_far_as_work_is_known():
    quick = Channel(100, 1000, 0, 1)
    slow = Channel(50, 1000, 0, 1)
    replies = [Message(Kind.REPLY, Key(0, 1, client), bytes(16)) for client in (0, 1)]
    folded = Folded({}, replies=replies, lengths={0: 100, 1: 100})
    known = {0: assigned(0, quick, steps=9), 1: assigned(1, slow, steps=1)}
    assert slowest(known, folded) == Times(1.0, 9.0, 1.0)
    # Of one client nobody knows how long it worked: the round's time is unknown, its ways are not.
    unknown = {0: assigned(0, quick, steps=None), 1: assigned(1, slow, steps=1)}
    assert slowest(unknown, folded) == Times(1.0, None, 2.0)
    assert slowest(unknown, folded).total is None
    nowhere = {0: assigned(0, None, steps=9), 1: assigned(1, None, steps=1)}
    assert slowest(nowhere, folded) is None
    assert slowest(known, Folded({})) is None


def test_a_server_that_knows_no_sizes_does_not_make_up_times():
    simulation = simulate(tiny(**{"channels": "lognormal", "data.clients": 4}, clients_per_round=4))
    start = simulation.server(simulation.serial(CPU)).snapshot
    transport = Kept(simulation.serial(CPU))
    server = Server(simulation.charter, transport, None, Census(), start)
    record = server.step()
    assert record.replied == 4
    assert record.simulated_seconds is None
    assert record.compute_seconds is None
    assert record.upload_seconds > 0
    assert record.download_seconds > 0
    assert {order.cost for order in transport.orders[1].values()} == {0}
    assert record.test_accuracy is None  # it has no test data either
