"""Channels in whole rounds: simulated seconds by hand, deadlines kept, measured links replayed, scales calibrated."""

import pytest
import torch

from fedwsq.core.errors import FedwsqError
from fedwsq.federation.server import Federation
from fedwsq.federation.site import Site
from fedwsq.federation.workload import build_workload
from fedwsq.runs.run import Run
from fedwsq.transports.pool import Serial
from fedwsq.wire import decode
from harness import rows, tiny

CPU = torch.device("cpu")
COLUMNS = "client,up_bytes_per_second,down_bytes_per_second,latency_seconds,seconds_per_step\n"


class Kept:
    """A real serial backend that keeps what passes."""

    def __init__(self, site):
        self.inner, self.orders, self.replies = Serial(site), {}, {}

    def dispatch(self, body, orders):
        self.body, self.orders, self.replies = body, {o.key.client: o for o in orders}, {}
        for answer in self.inner.dispatch(body, orders):
            self.replies[answer.key.client] = answer.payload
            yield answer

    def evaluate(self, body, starts):
        return self.inner.evaluate(body, starts)


def federate(**settings):
    workload = build_workload(tiny(**{"data.clients": 4, "clients_per_round": 4, **settings}))
    return Federation(workload, Kept(Site(workload, CPU)))


@pytest.fixture
def trace(tmp_path):
    def write(lines):
        path = tmp_path / "trace.csv"
        path.write_text(COLUMNS + lines)
        return {"channels": {"name": "trace", "path": str(path)}}

    return write


def test_seconds_by_hand(trace):
    # Client 2 is the slowest up, and everyone takes two steps of local work.
    lines = "0,1000,100000,0.5,0.25\n1,1000,100000,0.5,0.25\n2,500,200000,0.5,0.25\n3,1000,100000,0.5,0.25\n"
    server = federate(**trace(lines))
    record = server.step()
    backend = server.backend
    down = 0.5 + (len(backend.body) + len(backend.orders[2].head)) / 200_000
    up = 0.5 + len(backend.replies[2]) / 500
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
        backend = server.backend
        granted = {
            client: decode(o.head, server.schema).rates[0] for client, o in backend.orders.items()
        }
        down = (len(backend.body) + len(backend.orders[0].head)) / 1_000_000
        for client, speed in up.items():
            sizes = {
                rate: server.plan.uplink.reply_bytes(rate, ("delta",), server.schema)
                for rate in (1, 2, 4)
            }
            in_time = [rate for rate, size in sizes.items() if down + size / speed <= deadline]
            assert granted.get(client) == max(in_time, default=None)
        assert record.simulated_seconds <= deadline
        assert record.sat_out == 4 - len(granted) >= 1
        assert record.failed == 0
    assert (granted == {0: 4, 1: 4, 2: 4}) == (
        deadline == 40
    )  # below that some send less, or nothing


@pytest.mark.parametrize(("policy", "same"), [("per_client", True), ("per_round", False)])
def test_mixed_widths_cost_what_they_say(policy, same):
    server = federate(
        **{"uplink.bits": policy, "data.clients": 40, "clients_per_round": 40, "eval_every": 9}
    )
    seen = []
    for _ in range(2):
        record = server.step()
        granted = {
            client: decode(o.head, server.schema).rates[0]
            for client, o in server.backend.orders.items()
        }
        sizes = {
            rate: server.plan.uplink.reply_bytes(rate, ("delta",), server.schema)
            for rate in (1, 2, 4)
        }
        assert record.uplink_bytes == sum(sizes[rate] for rate in granted.values())
        assert record.bits == pytest.approx(sum(granted.values()) / 40)
        assert 1.5 < record.bits < 3.2  # 7/3 on average; the std of a mean of forty is 0.2
        seen.append(granted)
    assert (seen[0] == seen[1]) == same


def test_measured_links_are_recorded_and_replayed_exactly(tmp_path):
    policy = {"name": "bandwidth", "deadline_seconds": 60.0}
    settings = {"uplink.bits": policy, "data.clients": 4, "clients_per_round": 4}
    measured = {"channels": {"name": "measured", "up_bytes_per_second": 200.0}}
    with Run.create(
        tiny(rounds=3, **settings, **measured), tmp_path / "measured", workers=2
    ) as run:
        first = run.go()
    channels = [row["channels"] for row in rows(tmp_path / "measured")]
    assert len(channels[0]) == 4
    assert channels[0] != channels[-1]  # what a pipe carries is not what was guessed
    replay = {"channels": {"name": "trace", "path": str(tmp_path / "measured" / "rounds.jsonl")}}
    with Run.create(tiny(rounds=3, **settings, **replay), tmp_path / "replay", workers=1) as run:
        second = run.go()
    assert second.weights == first.weights
    assert [row["channels"] for row in rows(tmp_path / "replay")] == channels


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


def test_a_client_that_was_slow_once_is_asked_again():
    policy = {"name": "bandwidth", "deadline_seconds": 5.0}
    server = federate(
        **{"uplink.bits": policy, "channels": {"name": "measured", "up_bytes_per_second": 1e6}}
    )
    site = server.backend.inner.site
    server.step()
    site.uploads[0] = 10.0  # ten bytes a second, once
    assert server.step().sat_out == 0
    assert server.step().sat_out == 1
    del site.uploads[0]
    assert server.step().sat_out == 0


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
    packets = [
        decode(payload, server.schema).packets["delta"]
        for payload in server.backend.replies.values()
    ]
    coded = server.plan.uplink.coded(server.schema)
    assert first.scale_ratio is None
    assert first.quantization_error < 0.02  # 4 bits around scales that are right
    for name in coded:
        assert all(each[name].own_scale for each in packets)
        mean = sum(each[name].side[0] for each in packets) / 4
        assert float(server.snapshot.shared["delta"][name]) == pytest.approx(mean, rel=1e-6)
    second = server.step()
    packets = [
        decode(payload, server.schema).packets["delta"]
        for payload in server.backend.replies.values()
    ]
    assert not any(each[name].own_scale for each in packets for name in coded)
    assert set(second.scale_ratios) == coded
    assert all(0.2 < ratio < 5 for ratio in second.scale_ratios.values())


def test_a_band_lets_far_off_tensors_use_their_own_scale():
    server = federate(
        **{"uplink.codec.band": 4.0}
    )  # starts at 1e-3, the first updates have ten times that
    record = server.step()
    packets = [
        decode(payload, server.schema).packets["delta"]
        for payload in server.backend.replies.values()
    ]
    for name in server.plan.uplink.coded(server.schema):
        for each in packets:
            ratio = each[name].side[0] / 1e-3
            assert each[name].own_scale == (not 1 / 4 <= ratio <= 4)
    assert record.quantization_error < 0.05
