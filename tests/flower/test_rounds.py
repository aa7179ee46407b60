"""Both apps over a grid of this process: rounds, who takes part, and what goes wrong on the way."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwsq[flower]'")

import json
import shutil
import time
from threading import Lock

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from in_process import InProcess

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.core.types import Channel
from fedwsq.data.digits import digits
from fedwsq.federation.simulation import simulate
from fedwsq.flower import roster, transport
from fedwsq.flower.client import client_app
from fedwsq.flower.server import main
from fedwsq.flower.speed import Exchange, Speed
from fedwsq.plan import dump_plan
from fedwsq.runs import Run
from harness import rows, timeless, tiny, tiny_words

CPU = torch.device("cpu")
COMMON = {"data.clients": 3, "clients_per_round": 2, "uplink.bits": 1, "seed": 3}
MEMORY = {"algorithm": "scaffold", "uplink.error_feedback": True}
CHAIN = {"downlink": {"codec": "danuq", "bits": 2, "mode": "chain"}}


def config(folder, split="iid", **settings):
    """A run config, with all of a plan's settings as overrides."""
    whole = COMMON | {"data.partition": split} | settings
    words = [f"{key}={json.dumps(value)}" for key, value in whole.items()]
    return {"overrides": " ".join([*map(quoted, words), *tiny_words()]), "out": str(folder)}


def quoted(word):
    return f"'{word}'"


class Nodes(InProcess):
    """Nodes with their configs; `weather` decides what becomes of a reply."""

    def __init__(self, run, nodes, weather=lambda reply: [reply]):
        super().__init__({node: client_app() for node in nodes})
        self.run_config = run
        self.configs = nodes
        self.weather = weather
        self.contexts = {}
        for node, config in nodes.items():
            self.contexts[node] = Context(1, node, config, RecordDict(), run)
        self.done = {}
        self.lock = Lock()  # answers are waited for in threads

    def push_messages(self, messages):
        """Nodes work at once, in the server's own thread: Torch's settings are the process's."""
        numbers = super().push_messages(messages)
        for number in numbers:
            (self.done[number],) = super().pull_messages([number])
        return numbers

    def pull_messages(self, message_ids):
        with self.lock:
            replies = [self.done.pop(each) for each in message_ids if each in self.done]
            return [each for reply in replies for each in self.weather(reply)]


def go(grid):
    main(grid, Context(1, 0, {}, RecordDict(), grid.run_config))


def simulated(memory, count=3):
    """As many nodes as clients, each with its share of a simulation."""
    shares = [{"partition-id": number, "num-partitions": count} for number in range(count)]
    return {100 + n: {**share, "memory": str(memory)} for n, share in enumerate(shares)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    with Run.create(
        tiny(**COMMON, **MEMORY, **{"data.partition": "iid"}), folder, workers=1
    ) as run:
        return run.go(), folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    clients = simulate(tiny(**COMMON, **{"data.partition": "iid"})).clients
    x_test, y_test = digits().test.take(torch.arange(40))
    for client in range(3):
        shard = clients.shard(client)
        arrays = {"x_train": shard.x, "y_train": shard.y, "x_test": x_test, "y_test": y_test}
        np.savez(folder / f"{client}.npz", **{name: x.numpy() for name, x in arrays.items()})
    return folder


def own(shards, memory):
    return {
        100 + client: {
            "client": client,
            "data": str(shards / f"{client}.npz"),
            "memory": str(memory),
        }
        for client in range(3)
    }


def weights(folder):
    return json.loads((folder / "summary.json").read_text())["weights"]


def test_rows_and_weights_are_those_of_one_process(alone, tmp_path):
    """With memory of clients on the nodes' disks."""
    summary, folder = alone
    go(Nodes(config(tmp_path / "run", **MEMORY), simulated(tmp_path / "memory")))
    assert weights(tmp_path / "run") == summary.weights
    found = [timeless(row) for row in rows(tmp_path / "run")]
    assert found == [timeless(row) for row in rows(folder)]


def test_one_node_may_hold_several_clients(alone, tmp_path):
    summary, _ = alone
    grid = Nodes(config(tmp_path / "run", **MEMORY), simulated(tmp_path / "memory", 1))
    go(grid)
    assert weights(tmp_path / "run") == summary.weights
    found = rows(tmp_path / "run")
    # The broadcast goes there once, and counts for each of the two clients of a round.
    assert grid.down_bytes < 0.7 * sum(row["downlink_bytes"] for row in found)


def test_a_chained_downlink_with_newcomers(tmp_path):
    plan = tiny(**COMMON, **MEMORY, **CHAIN, **{"data.partition": "iid"})
    with Run.create(plan, tmp_path / "alone", workers=1) as run:
        summary = run.go()
    run = config(tmp_path / "run", **MEMORY)
    run["overrides"] += " downlink.codec=danuq downlink.bits=2 downlink.mode=chain"
    go(Nodes(run, simulated(tmp_path / "memory", 2)))
    assert weights(tmp_path / "run") == summary.weights


def test_data_stays_with_the_nodes(alone, shards, tmp_path):
    """The server has a model, and a test set; the nodes have their files."""
    summary, folder = alone
    run = config(tmp_path / "run", "own", **MEMORY) | {"test-data": "plan"}
    go(Nodes(run, own(shards, tmp_path / "memory")))
    assert weights(tmp_path / "run") == summary.weights
    accuracies = [row["test_accuracy"] for row in rows(folder)]
    assert [row["test_accuracy"] for row in rows(tmp_path / "run")] == accuracies


def test_a_server_without_data_has_its_clients_evaluate(alone, shards, tmp_path, capsys):
    summary, _ = alone
    run = config(tmp_path / "run", "own", **MEMORY)
    with pytest.raises(ConfigError, match="what an example looks like"):
        go(Nodes(run, own(shards, tmp_path / "memory")))
    go(Nodes(run | {"classes": 10, "shape": "1x8x8"}, own(shards, tmp_path / "memory")))
    assert weights(tmp_path / "run") == summary.weights
    assert "round 3/3: clients' accuracy 0." in capsys.readouterr().err
    for row in rows(tmp_path / "run"):
        assert row["test_accuracy"] is None
        assert 0 <= row["client_accuracy"] <= 1
        assert row["evaluation_bytes"] > 0


def test_a_node_that_differs_is_left_out_and_said_to_be(shards, tmp_path, capsys):
    agreed = tmp_path / "agreed.toml"
    agreed.write_text(dump_plan(tiny(**COMMON, **{"training.lr": 0.05, "data.partition": "own"})))
    nodes = own(shards, tmp_path / "memory")
    nodes[101]["plan"] = str(agreed)
    nodes[102]["data"] = str(tmp_path / "nowhere.npz")
    run = config(tmp_path / "run", "own", clients_per_round=1) | {"test-data": "plan"}
    go(Nodes(run, nodes))
    said = capsys.readouterr().out
    refused = "is refused: "
    assert (
        f"101 {refused}MessageError: training.lr is 0.1 at the other end and 0.05 at this one"
        in said
    )
    assert "nowhere.npz is not a file" in said
    assert said.count(refused) == 2  # and not once more in every round
    assert [(row["sampled"], row["replied"]) for row in rows(tmp_path / "run")] == [(1, 1)] * 3


def test_two_that_claim_to_be_one_client(shards, tmp_path):
    """The first keeps it for as long as it is there."""
    nodes = own(shards, tmp_path / "memory")
    nodes[200] = nodes[100]
    asked = []
    run = config(tmp_path / "run", "own", clients_per_round=3) | {"test-data": "plan"}

    def weather(reply):
        asked.append(reply.metadata.src_node_id)
        if len(asked) == 10:  # four hellos, then two rounds of three
            del grid.apps[100]
        return [reply]

    grid = Nodes(run, nodes, weather)
    go(grid)
    assert sorted(asked[4:10]) == sorted([100, 101, 102] * 2)
    assert sorted(asked[10:]) == [101, 102, 200]


def test_nodes_come_and_go_and_rounds_are_drawn_from_those_that_are_there(tmp_path):
    run = config(tmp_path / "run", clients_per_round=3)
    nodes = simulated(tmp_path / "memory")
    replies = []

    def weather(reply):
        replies.append(reply)
        if len(replies) == 6:  # three hellos and a round of three
            grid.apps.pop(102)
        if len(replies) == 8:
            grid.apps[102] = client_app()
        return [reply]

    grid = Nodes(run, nodes, weather)
    go(grid)
    assert [row["sampled"] for row in rows(tmp_path / "run")] == [3, 2, 3]
    assert [row["failures"] for row in rows(tmp_path / "run")] == [{}] * 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda reply: Message(Error(5, "gone for good"), reply_to=reply), "gone for good"),
        (lambda reply: Message(RecordDict(), reply_to=reply), "a message with nothing in it"),
    ],
    ids=["error", "empty"],
)
def test_what_a_node_gets_wrong_is_its_own_failure(change, why, tmp_path):
    """Every reply of node 101 after its hello; an error may pass, and is asked for again."""

    def weather(reply):
        if reply.metadata.src_node_id != 101 or reply.metadata.message_type == "query":
            return [reply]
        wrong = change(reply)
        wrong.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return [wrong]

    run = config(tmp_path / "run", clients_per_round=3, rounds=1)
    run["overrides"] = run["overrides"].replace(" rounds=3", "")
    go(Nodes(run, simulated(tmp_path / "memory"), weather))
    (row,) = rows(tmp_path / "run")
    assert row["replied"] == 2
    assert why in row["failures"]["1"]


def test_answers_that_come_twice_or_that_nobody_asked_for(alone, tmp_path):
    summary, _ = alone
    earlier = []

    def weather(reply):
        earlier.append(reply)
        return [reply, reply, earlier[0]]

    go(Nodes(config(tmp_path / "run", **MEMORY), simulated(tmp_path / "memory"), weather))
    assert weights(tmp_path / "run") == summary.weights
    # Two clients a round answer twice. What comes after a round has ended belongs to the next, and
    # after the last to none.
    found = rows(tmp_path / "run")
    twice = sum(sum((row["duplicates"] | row["foreign"]).values()) for row in found)
    assert 4 <= twice <= 6


def test_a_run_goes_on_where_it_was_stopped(alone, tmp_path):
    """The same run config again, in the same folder; another plan is refused there."""
    summary, _ = alone
    run = config(tmp_path / "run", **MEMORY)
    nodes = simulated(tmp_path / "memory")
    trained = []

    def weather(reply):
        trained.extend([reply] if reply.metadata.message_type == "train" else [])
        if len(trained) == 4:
            raise KeyboardInterrupt  # as a signal does, in the second round
        return [reply]

    with pytest.raises(RunError, match=r"stopped; run it again with out='.*' to go on"):
        go(Nodes(run, nodes, weather))
    assert len(rows(tmp_path / "run")) == 1
    with pytest.raises(ConfigError, match=r"plan\.seed is 3 at the other end and 4 at this one"):
        go(Nodes(config(tmp_path / "run", **MEMORY | {"seed": 4}), nodes))
    go(Nodes(run, nodes))
    assert weights(tmp_path / "run") == summary.weights
    # And once more, with nothing left to do.
    go(Nodes(run, nodes))
    assert len(rows(tmp_path / "run")) == 3


def test_a_node_that_lost_its_disk_takes_part_again(tmp_path):
    run = config(tmp_path / "run", clients_per_round=3, **MEMORY)
    replies = []

    def weather(reply):
        replies.append(reply)
        if len(replies) == 6:
            shutil.rmtree(tmp_path / "memory")
        return [reply]

    go(Nodes(run, simulated(tmp_path / "memory"), weather))
    first, second, third = rows(tmp_path / "run")
    assert (first["replied"], second["replied"], third["replied"]) == (3, 0, 3)
    assert all("lost its memory" in why for why in second["failures"].values())


def test_nobody_there_is_waited_for_and_not_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(RunError, match="no client was there"):
        go(Nodes(config(tmp_path / "run"), {}))


def test_the_first_round_waits_for_a_node_that_is_long_about_its_hello(tmp_path, monkeypatch):
    """Greeted, it is there, and will say so when it has imported torch."""
    monkeypatch.setattr(roster, "HELLO_SECONDS", 0.2)
    began = time.monotonic()

    def weather(reply):
        if reply.metadata.src_node_id == 102 and time.monotonic() < began + 2:
            grid.done[reply.metadata.reply_to_message_id] = reply  # not yet
            return []
        return [reply]

    grid = Nodes(config(tmp_path / "run", clients_per_round=3), simulated(tmp_path / "m"), weather)
    go(grid)
    assert [row["sampled"] for row in rows(tmp_path / "run")] == [3, 3, 3]


def test_nodes_that_never_come_are_not_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(roster, "HELLO_SECONDS", 0.2)
    nodes = simulated(tmp_path / "memory")
    del nodes[101]
    go(Nodes(config(tmp_path / "run", clients_per_round=3), nodes))
    assert [row["sampled"] for row in rows(tmp_path / "run")] == [2, 2, 2]
    assert capsys.readouterr().out.count("2 clients are there, 3 were hoped for") == 1


# How fast nodes are.


def exchange(down, up, down_bytes, up_bytes, skew=0.0, work=2.0, steps=0):
    """An exchange whose message takes `down` seconds there and its answer `up` seconds back."""
    began = 1000.0 + down
    ended = began + work
    times = (1000.0, began + skew, ended + skew, ended + up)
    return Exchange(*times, down_bytes, up_bytes, steps)


@pytest.mark.parametrize("skew", [0.0, 3600.0, -3600.0])
def test_speeds_are_told_from_waiting_and_clocks_may_differ(skew):
    """10 MB in 5 s down, 1 MB in 4 s up, on top of 2 s and 0.5 s that even short messages take."""
    first = Channel(7.0, 8.0, 9.0, 10.0)
    speed = Speed()
    assert speed.channel(first, 1100.0) == first
    speed.add(exchange(2.0, 0.5, 3000, 400, skew))
    assert speed.channel(first, 1100.0) == Channel(7.0, 8.0, 1.25, 10.0)
    speed.add(exchange(7.0, 4.5, 10**7, 10**6, skew, work=3.0, steps=6))
    found = speed.channel(first, 1100.0)
    assert found == pytest.approx(Channel(250_000.0, 2_000_000.0, 1.25, 0.5))
    # A SuperNode that slept longer before it looked is not slower.
    speed.add(exchange(9.5, 4.9, 10**7, 10**6, skew, work=3.0, steps=6))
    assert speed.channel(first, 1100.0) == pytest.approx(found)
    # For long enough, it is.
    for _ in range(5):
        speed.add(exchange(12.0, 8.5, 10**7, 10**6, skew, work=3.0, steps=6))
    assert speed.channel(first, 1100.0)[:2] == pytest.approx((125_000.0, 1_000_000.0))


def test_what_cannot_be_told_from_waiting_is_the_least_that_a_link_is():
    """Bytes that seem to take no time may take what waiting varies by: 3 s there, 1.5 s back."""
    first = Channel(7.0, 8.0, 9.0, 10.0)
    speed = Speed()
    speed.add(exchange(2.0, 0.5, 3000, 400))
    speed.add(exchange(2.0, 0.5, 300_000, 150_000))
    assert speed.channel(first, 1100.0)[:3] == pytest.approx((100_000.0, 100_000.0, 1.25))
    speed.add(exchange(1.0, 0.3, 300_000, 150_000))
    assert speed.channel(first, 1100.0)[:3] == pytest.approx((100_000.0, 100_000.0, 0.65))


def test_who_was_too_slow_is_tried_again():
    """The quickest of the last exchanges counts; ten minutes later, none of them does."""
    first = Channel(7.0, 8.0, 9.0, 10.0)
    speed = Speed()
    speed.add(exchange(2.0, 0.5, 3000, 400))
    speed.add(exchange(7.0, 4.5, 10**7, 10**6, work=3.0, steps=6))
    speed.add(exchange(7.0, 4.5, 10**7, 10**6, work=60.0, steps=6))
    assert speed.channel(first, 1100.0).seconds_per_step == 0.5
    assert speed.channel(first, 1600.0 + 100.0) == first


def test_a_start_that_took_long_does_not_make_a_node_sit_out(tmp_path):
    """First answers take 3 s, when a whole round may take 1 s."""
    run = config(tmp_path / "run", clients_per_round=3)
    for before, after in (
        ("'uplink.bits=1'", "uplink.bits=bandwidth uplink.bits.deadline_seconds=1"),
        (" rounds=3", " rounds=1 channels=measured channels.seconds_per_step=0.001"),
    ):
        run["overrides"] = run["overrides"].replace(before, after)
    greeted = []

    def weather(reply):
        node = reply.metadata.src_node_id
        if reply.metadata.message_type == "query":
            greeted.append(node)
            if len(greeted) == 1:  # and all others have been greeted by then
                time.sleep(3)
        return [reply]

    go(Nodes(run, simulated(tmp_path / "memory"), weather))
    assert sorted(greeted) == [100, 100, 101, 101, 102, 102]
    (row,) = rows(tmp_path / "run")
    assert row["sat_out"] == 0
    assert all(channel[2] < 1 for channel in row["channels"].values())


def test_bits_go_by_what_was_measured(tmp_path):
    """A node whose answers take 25 s gets fewer bits, from the second round on."""
    run = config(tmp_path / "run", clients_per_round=3, **{"model.name": "resnet8"})
    for before, after in (
        ("'uplink.bits=1'", "uplink.bits=bandwidth uplink.bits.deadline_seconds=20"),
        (" rounds=3", " rounds=2 channels=measured"),
    ):
        run["overrides"] = run["overrides"].replace(before, after)

    def weather(reply):
        slow = reply.metadata.src_node_id == 100 and reply.metadata.message_type == "train"
        if slow:  # as if it had been done 25 s earlier, and the rest had been the way back
            work = reply.content["fedwsq.work"]
            work["times"] = [each - 25 for each in work["times"]]
        return [reply]

    go(Nodes(run, simulated(tmp_path / "memory"), weather))
    first, second = rows(tmp_path / "run")
    assert first["bits"] == 4
    assert second["bits"] == pytest.approx((2 + 4 + 4) / 3)
    guess = tiny(channels="measured").channels.up_bytes_per_second
    assert {channel[0] for channel in first["channels"].values()} == {guess}
    reply = first["uplink_bytes"] / 3
    assert second["channels"]["0"][0] == pytest.approx(reply / 25, rel=0.1)
    assert second["channels"]["1"][0] > 4 * second["channels"]["0"][0]


def test_an_answer_that_is_late_is_timed_and_its_node_left_alone_until_then(tmp_path, monkeypatch):
    """Node 100 is late in the first round, at its work in the second and back in the third."""
    large = {"model.name": "resnet8", "uplink.bits": 4}  # enough to be timed
    run = config(tmp_path / "run", clients_per_round=3, **large)
    run["overrides"] += " channels=measured"
    trained = []
    orders = {}
    add = Speed.add

    def note(speed, exchange):
        add(speed, exchange)
        trained.extend([exchange] if exchange.steps else [])

    def weather(reply):
        node = reply.metadata.src_node_id
        number = reply.metadata.reply_to_message_id
        if reply.metadata.message_type == "train":
            orders.setdefault(node, {})[number] = None
            others_are_on = max(len(orders.get(node, ())) for node in (101, 102)) > 1
            slow = node == 100 and not others_are_on
            waits_for_it = node != 100 and len(orders[node]) == 2 and len(trained) == 2
            if slow or waits_for_it:
                grid.done[number] = reply  # not yet
                return []
        return [reply]

    monkeypatch.setattr(Speed, "add", note)
    # The first round's deadline comes when both others have answered.
    monkeypatch.setattr(
        transport, "is_over", lambda end: len(trained) == 2 and not rows(tmp_path / "run")
    )
    grid = Nodes(run, simulated(tmp_path / "memory"), weather)
    go(grid)
    found = rows(tmp_path / "run")
    assert [row["late"] for row in found] == [1, 0, 0]
    assert [row["sampled"] for row in found] == [3, 2, 3]
    assert "did not answer in time" in found[0]["failures"]["0"]
    assert [row["foreign"] for row in found] == [{}, {"round 1, client 0": 1}, {}]
    guess = tiny(channels="measured").channels.up_bytes_per_second
    assert found[0]["channels"]["0"][0] == guess
    assert found[2]["channels"]["0"][0] != guess
