"""Channels: drawn, read from a file, or none; and how long a message takes on them."""

import json
import math
import os
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Channel, Key
from fedwsq.plan import make_plan, plan_digest
from fedwsq.wire import channels
from fedwsq.wire.channels import (
    CHANNELS,
    Lognormal,
    NoChannels,
    Trace,
    compute_seconds,
    download_seconds,
    upload_seconds,
)

HEAD = "client,up_bytes_per_second,down_bytes_per_second"


def trace(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Trace(str(path))


def at(found, client, round=1, seed=0):
    return found(Key(seed, round, client))


def test_times_by_hand():
    """2 MB down at 8 MB/s, 50 steps of 20 ms, 1 MB up at 0.5 MB/s; 30 ms of latency each way."""
    channel = Channel(5e5, 8e6, 0.03, 0.02)
    assert download_seconds(channel, 2_000_000) == pytest.approx(0.03 + 0.25)
    assert compute_seconds(channel, 50) == pytest.approx(1.0)
    assert upload_seconds(channel, 1_000_000) == pytest.approx(0.03 + 2.0)
    assert upload_seconds(channel, 0) == download_seconds(channel, 0) == 0.03


def test_without_channels_there_are_none():
    assert CHANNELS["none"] is NoChannels
    assert at(NoChannels(), 3) is None


def test_lognormal_gives_each_client_its_own_and_keeps_it():
    found = Lognormal()
    assert [at(found, c) for c in range(9)] == [at(found, c, round=7) for c in range(9)]
    assert len({at(found, c) for c in range(50)}) == 50
    assert at(found, 3, seed=1) != at(found, 3)


def test_lognormal_has_the_medians_and_the_spread_it_says():
    found = Lognormal(1e6, 4e6, 0.1, 0.02, sigma=0.7)
    count = 2000
    drawn = [at(found, c) for c in range(count)]
    for name, median in zip(Channel._fields, (1e6, 4e6, 0.1, 0.02), strict=True):
        logs = [math.log(getattr(channel, name) / median) for channel in drawn]
        assert statistics.fmean(logs) == pytest.approx(0, abs=4 * 0.7 / math.sqrt(count))
        assert statistics.stdev(logs) == pytest.approx(0.7, abs=4 * 0.7 / math.sqrt(2 * count))
    up, down = ([math.log(getattr(c, name)) for c in drawn] for name in Channel._fields[:2])
    assert abs(statistics.correlation(up, down)) < 4 / math.sqrt(count)


def test_what_is_to_be_measured_begins_with_an_estimate():
    """The same for every client and round, until somebody who can measure says otherwise."""
    plan = make_plan({"channels": {"name": "measured", "up_bytes_per_second": 5e5}})
    expected = Channel(5e5, *Lognormal(sigma=0)(Key(0, 1, 0))[1:])
    assert {plan.channels(Key(s, r, c)) for s in (0, 1) for r in (1, 9) for c in (0, 7)} == {
        expected
    }
    assert plan.channels.digest() == ""
    with pytest.raises(ConfigError, match="measured up_bytes_per_second is 0"):
        make_plan({"channels": {"name": "measured", "up_bytes_per_second": 0.0}})


def test_fading_moves_the_rates_of_a_client_from_round_to_round():
    steady, fading = Lognormal(sigma=0.5), Lognormal(sigma=0.5, fading=0.2)
    count = 1000
    middle, seen = at(steady, 5), [at(fading, 5, round=r) for r in range(1, count + 1)]
    assert {c[2:] for c in seen} == {middle[2:]}  # latency and computing stay
    for name in Channel._fields[:2]:
        logs = [math.log(getattr(c, name) / getattr(middle, name)) for c in seen]
        assert statistics.fmean(logs) == pytest.approx(0, abs=4 * 0.2 / math.sqrt(count))
        assert statistics.stdev(logs) == pytest.approx(0.2, abs=4 * 0.2 / math.sqrt(2 * count))
    assert seen == [at(fading, 5, round=r) for r in range(1, count + 1)]


def test_no_spread_is_the_median_itself():
    assert at(Lognormal(1e6, 2e6, 0.0, 0.0, sigma=0), 8) == Channel(1e6, 2e6, 0.0, 0.0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("up_bytes_per_second", 0.0),
        ("down_bytes_per_second", -1.0),
        ("up_bytes_per_second", math.nan),
        ("down_bytes_per_second", math.inf),
        ("latency_seconds", -0.1),
        ("seconds_per_step", math.inf),
    ],
)
def test_settings_out_of_reason_are_named(setting, value):
    with pytest.raises(ConfigError, match=f"lognormal {setting} is .*must be from"):
        Lognormal(**{setting: value})


@pytest.mark.parametrize("setting", ["sigma", "fading"])
@pytest.mark.parametrize("value", [-0.1, 3.1, math.nan])
def test_a_spread_out_of_reason_is_named(setting, value):
    with pytest.raises(ConfigError, match=f"lognormal {setting} is"):
        Lognormal(**{setting: value})


def test_a_trace_of_clients(tmp_path):
    found = trace(tmp_path, f"{HEAD}\n0,1000,2000\n1,3000,4000.5\n")
    for round in (1, 2, 900):
        assert at(found, 0, round) == Channel(1000, 2000, 0, 0)
        assert at(found, 1, round) == Channel(3000, 4000.5, 0, 0)


def test_clients_beyond_the_file_wrap_around(tmp_path):
    """Clients 2, 5 and 7 are the 0th, 1st and 2nd that the file names, in any order of lines."""
    found = trace(tmp_path, f"{HEAD}\n7,70,1\n2,20,1\n5,50,1\n")
    speeds = [at(found, client).up_bytes_per_second for client in range(9)]
    assert speeds == [20, 50, 20, 20, 50, 50, 20, 70, 70]


def test_a_row_holds_from_its_round_on(tmp_path):
    text = (
        "round,client,seconds_per_step,down_bytes_per_second,up_bytes_per_second,latency_seconds\n"
    )
    found = trace(
        tmp_path, text + "10,0,.3,9,30,.1\n3,0,.1,9,10,.1\n5,1,.5,9,50,.1\n4,0,.2,9,20,.1\n"
    )
    expected = {1: 10, 2: 10, 3: 10, 4: 20, 5: 20, 9: 20, 10: 30, 11: 30, 1000: 30}
    assert {r: at(found, 0, r).up_bytes_per_second for r in expected} == expected
    assert at(found, 0, 4) == Channel(20, 9, 0.1, 0.2)
    assert at(found, 1, 1) == Channel(50, 9, 0.1, 0.5)


def test_windows_line_ends_spaces_blank_lines_and_a_mark_in_front_are_fine(tmp_path):
    found = trace(tmp_path, b"\xef\xbb\xbf" + f"{HEAD}\r\n 0, 1e3 ,2000\r\n\r\n1,5,6\r\n".encode())
    assert at(found, 0) == Channel(1000, 2000, 0, 0)
    assert at(found, 1) == Channel(5, 6, 0, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1 has no column client"),
        (f"{HEAD}\n", "holds no channels"),
        ("client,up_bytes_per_second\n0,1\n", "line 1 has no column down_bytes_per_second"),
        (f"{HEAD},speed\n0,1,1,1\n", "line 1: column 'speed' is unknown"),
        (f"{HEAD},client\n0,1,1,1\n", "line 1: column 'client' is unknown or there twice"),
        (f"{HEAD}\n0,1\n", "line 2 has 2 fields, the header has 3"),
        (f"{HEAD}\n0,1,1,1\n", "line 2 has 4 fields, the header has 3"),
        (f"{HEAD}\n0,1,1\n1,-5,1\n", "line 3: up_bytes_per_second is -5"),
        (f"{HEAD}\n0,0,1\n", "line 2: up_bytes_per_second is 0"),
        (f"{HEAD}\n0,1,nan\n", "line 2: down_bytes_per_second is nan"),
        (f"{HEAD}\n0,inf,1\n", "line 2: up_bytes_per_second is inf"),
        (f"{HEAD}\n0,1e400,1\n", "line 2: up_bytes_per_second is inf"),
        (f"{HEAD}\n0,1e-300,1\n", "line 2: up_bytes_per_second is 1e-300"),
        (f"{HEAD},latency_seconds\n0,1,1,-1\n", "line 2: latency_seconds is -1"),
        (f"{HEAD},seconds_per_step\n0,1,1,1e99\n", "line 2: seconds_per_step is 1e"),
        (f"{HEAD}\n0,fast,1\n", "line 2: up_bytes_per_second is 'fast', must be a number"),
        (f"{HEAD}\n0,,1\n", "line 2: up_bytes_per_second is '', must be a number"),
        (f"{HEAD}\n-1,1,1\n", "line 2: client is '-1', must be a whole number"),
        (f"{HEAD}\n1.5,1,1\n", "line 2: client is '1.5'"),
        (f"{HEAD}\n{'9' * 50},1,1\n", "line 2: client is '999"),
        (f"{HEAD}\n²,1,1\n", "line 2: client is '²'"),
        (f"{HEAD},round\n0,1,1,0\n", "line 2: round is '0', must be a whole number, 1 or more"),
        (f"{HEAD}\n0,1,1\n1,1,1\n0,2,2\n", "lines 2 and 4 are both for client 0 in round 1"),
        (f"{HEAD},round\n0,1,1,3\n0,2,2,3\n", "lines 2 and 3 are both for client 0 in round 3"),
        (f'{HEAD}\n"0,1,1\n', "unexpected end of data"),
        (f"{HEAD}\n{'1' * 200_000},1,1\n", "field larger than field limit"),
        (bytes(range(256)) * 10, "is not text"),
        (b"\x00" * 1000, "line 1 has no column client"),
    ],
    ids=range(28),
)
def test_a_bad_trace_is_one_error_that_says_where(tmp_path, text, why):
    found = trace(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        at(found, 0)
    assert why in str(raised.value)
    assert "trace.csv" in str(raised.value)
    assert "\n" not in str(raised.value)


@given(
    junk=st.binary(max_size=200), header=st.booleans(), name=st.sampled_from(["t.csv", "t.jsonl"])
)
def test_junk_is_a_channel_or_an_error_and_nothing_else(tmp_path_factory, junk, header, name):
    folder = tmp_path_factory.mktemp("junk")
    try:
        found = at(trace(folder, (HEAD.encode() + b"\n" if header else b"") + junk, name), 0)
    except ConfigError:
        return
    assert all(map(math.isfinite, found))


def test_a_trace_that_is_not_there_or_too_long(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="trace needs a path"):
        Trace()
    with pytest.raises(ConfigError, match=r"cannot read trace .*nowhere\.csv: No such file"):
        at(Trace(str(tmp_path / "nowhere.csv")), 0)
    with pytest.raises(ConfigError, match=r"cannot read trace .*: Is a directory"):
        at(Trace(str(tmp_path)), 0)
    long = trace(tmp_path, f"{HEAD}\n0,1,1\n")
    monkeypatch.setattr(channels, "MAX_TRACE_BYTES", 20)
    with pytest.raises(ConfigError, match="has 55 bytes, at most 20 are read"):
        at(long, 0)


def test_a_trace_is_parsed_once_until_it_changes(tmp_path, monkeypatch):
    parsed = []
    csv_rows = channels.csv_rows
    monkeypatch.setattr(channels, "csv_rows", lambda lines: parsed.append(1) or csv_rows(lines))
    found = trace(tmp_path, f"{HEAD}\n0,10,1\n")
    assert [at(found, c).up_bytes_per_second for c in range(5)] == [10] * 5
    assert len(parsed) == 1
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEAD}\n0,20,1\n")
    os.utime(path, ns=(1, 1))
    assert at(found, 0).up_bytes_per_second == 20
    assert len(parsed) == 2


def test_the_records_of_a_run_replay_it_exactly(tmp_path):
    drawn = Lognormal(fading=0.3)
    sampled = {1: (0, 4), 2: (4, 9), 3: (), 4: (0, 9)}
    records = [
        {
            "round": r,
            "test_accuracy": None,
            "channels": {str(c): list(at(drawn, c, r)) for c in clients},
        }
        for r, clients in sampled.items()
    ]
    found = trace(
        tmp_path, "".join(json.dumps(record) + "\n" for record in records), "rounds.jsonl"
    )
    for round, clients in sampled.items():
        for client in clients:
            assert at(found, client, round) == at(drawn, client, round)
    assert at(found, 4, 3) == at(drawn, 4, 2)  # not asked in round 3: what was last known


def test_records_without_channels_are_left_out(tmp_path):
    lines = [
        '{"round": 1}',
        '{"round": 2, "channels": {}}',
        '{"round": 3, "channels": {"0": [5, 6, 0, 0.5]}}',
    ]
    found = trace(
        tmp_path, "\n".join([*lines, '{"round": 4, "channels": null}', ""]), "rounds.jsonl"
    )
    assert at(found, 0, 9) == Channel(5, 6, 0, 0.5)
    with pytest.raises(ConfigError, match="holds no channels"):
        at(trace(tmp_path, lines[0] + "\n", "plain.jsonl"), 0)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 is not a round's record"),
        ("[" * 100_000, "line 2 is not a round's record"),
        ("[1]", "line 2 is not a round's record"),
        ('{"round": 2, "channels": [1]}', "line 2 is not a round's record"),
        ('{"channels": {"0": [1, 1, 0, 0]}}', "line 2: round is 'None'"),
        ('{"round": 2.5}', "line 2: round is '2.5'"),
        ('{"round": 2, "channels": {"0": [1, 1, 0]}}', "line 2: channel of client 0 must be"),
        ('{"round": 2, "channels": {"0": 7}}', "line 2: channel of client 0 must be"),
        (
            '{"round": 2, "channels": {"x": [1, 1, 0, 0]}}',
            "line 2: channel of client x is 'x', must be a whole",
        ),
        ('{"round": 2, "channels": {"0": [1, NaN, 0, 0]}}', "line 2: down_bytes_per_second is nan"),
        ('{"round": 2, "channels": {"0": [1, true, 0, 0]}}', "must be a number"),
        ('{"round": 2, "channels": {"0": [1, "1", 0, -1]}}', "line 2: seconds_per_step is -1"),
        (
            '{"round": 1, "channels": {"0": [1, 1, 0, 0]}}',
            "lines 1 and 2 are both for client 0 in round 1",
        ),
    ],
    ids=range(13),
)
def test_bad_records_are_one_error_that_says_where(tmp_path, line, why):
    first = '{"round": 1, "channels": {"0": [1, 1, 0, 0]}}\n'
    with pytest.raises(ConfigError) as raised:
        at(trace(tmp_path, first + line + "\n", "rounds.jsonl"), 0)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


@given(
    rates=st.tuples(st.floats(1.0, 1e15), st.floats(1.0, 1e15)),
    times=st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1e6)),
    sigma=st.floats(0.0, 3.0),
    fading=st.floats(0.0, 3.0),
    client=st.integers(0, 10**6),
)
def test_times_stay_finite_whatever_is_drawn(rates, times, sigma, fading, client):
    channel = at(Lognormal(*rates, *times, sigma, fading), client)
    for seconds in (
        upload_seconds(channel, 1e12),
        download_seconds(channel, 1e12),
        compute_seconds(channel, 1e6),
    ):
        assert 0 <= seconds < math.inf


@pytest.mark.parametrize(
    "settings",
    [
        "none",
        "lognormal",
        {"name": "lognormal", "sigma": 1},
        "measured",
        {"name": "trace", "path": "x.csv"},
    ],
    ids=str,
)
def test_a_config_gives_the_channels_back(settings):
    plan = make_plan({"channels": settings})
    assert (
        type(plan.channels) is CHANNELS[settings if isinstance(settings, str) else settings["name"]]
    )
    assert plan_digest(make_plan({"channels": settings})) == plan_digest(plan)
    assert hash(plan.channels) is not None
