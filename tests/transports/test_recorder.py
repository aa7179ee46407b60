"""What passes through a recorder is on disk, and passes unchanged."""

from fedwsq.core.types import Key
from fedwsq.transports import Failure, Order, Recorder, Reply, Serial, attempt
from fedwsq.wire import Kind, Message, Schema, encode

SCHEMA = Schema({"w": (2,)})


def order(client, kind=Kind.ORDER, body=b"", text=""):
    key = Key(0, 7, client)
    message = Message(kind, key, bytes(16), rates=(1.0,), text=text)
    return Order(key, encode(message, SCHEMA), body)


def serve(body, order):
    if order.key.client == 2:
        raise ValueError("two\nlines")
    return bytes(body) + order.body + b" answered"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_message_of_a_round_is_a_file(tmp_path):
    recorder = Recorder(Serial(serve), tmp_path / "messages")
    orders = [order(1), order(2), order(3, body=b"its own")]
    answers = list(recorder.dispatch(b"body", orders))
    assert answers == list(Serial(serve).dispatch(b"body", orders))
    assert files(tmp_path / "messages") == {
        "round-7-broadcast.fwsq": b"body",
        "round-7-whole.fwsq": b"its own",
        "round-7-client-1-order.fwsq": orders[0].head,
        "round-7-client-2-order.fwsq": orders[1].head,
        "round-7-client-3-order.fwsq": orders[2].head,
        "round-7-client-1.fwsq": b"body answered",
        "round-7-client-3.fwsq": answers[2].payload,
    }


def test_evaluation_does_not_take_the_place_of_training(tmp_path):
    recorder = Recorder(Serial(serve), tmp_path)
    list(recorder.dispatch(b"body", [order(1)]))
    list(recorder.dispatch(b"model", [order(1, Kind.EVALUATE)]))
    names = set(files(tmp_path))
    assert files(tmp_path)["round-7-broadcast.fwsq"] == b"body"
    assert files(tmp_path)["round-7-evaluate-broadcast.fwsq"] == b"model"
    assert {"round-7-client-1.fwsq", "round-7-evaluate-client-1.fwsq"} <= names


def test_no_phase_of_a_round_takes_the_place_of_another_and_what_is_empty_is_no_file(tmp_path):
    recorder = Recorder(Serial(serve), tmp_path)
    spreads = order(1, Kind.PHASE, text='{"phase": "spreads"}')
    first = order(1, Kind.PHASE, text='{"phase": "consent", "ballot": 0}')
    second = order(1, Kind.PHASE, text='{"phase": "consent", "ballot": 1}')
    list(recorder.dispatch(b"body", [spreads]))
    list(recorder.dispatch(b"", [first]))
    list(recorder.dispatch(b"", [second]))
    assert files(tmp_path) == {
        "round-7-spreads-broadcast.fwsq": b"body",
        "round-7-spreads-client-1-order.fwsq": spreads.head,
        "round-7-spreads-client-1.fwsq": b"body answered",
        "round-7-consent-0-client-1-order.fwsq": first.head,
        "round-7-consent-0-client-1.fwsq": b" answered",
        "round-7-consent-1-client-1-order.fwsq": second.head,
        "round-7-consent-1-client-1.fwsq": b" answered",
    }


def test_a_round_in_which_all_sit_out_leaves_no_file(tmp_path):
    assert list(Recorder(Serial(serve), tmp_path).dispatch(b"body", [])) == []
    assert files(tmp_path) == {}


def test_closing_reaches_what_is_inside(tmp_path):
    closed = []

    class Inner(Serial):
        def close(self):
            closed.append(True)

    Recorder(Inner(serve), tmp_path).close()
    assert closed == [True]


def test_a_clients_fault_is_a_failure_in_one_line():
    found = attempt(serve, b"body", order(2))
    line = serve.__code__.co_firstlineno + 2
    reason = f"ValueError: two lines (test_recorder.py:{line}, in serve)"
    assert found == Failure(Key(0, 7, 2), reason, traceback=found.traceback)
    assert found.traceback.startswith("Traceback (most recent call last):\n")
    assert found.traceback.endswith("ValueError: two\nlines\n")
    assert attempt(serve, b"", order(1)) == Reply(Key(0, 7, 1), b" answered")
