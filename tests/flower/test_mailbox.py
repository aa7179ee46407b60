"""Messages out and answers back: what happens when the SuperLink is not there to take them."""

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwsq[flower]'")

from fedwsq.flower.mailbox import Mailbox

# As Flower does: its push waits in the main thread for as long as it takes, and who notices that
# the SuperLink is gone raises a signal in another one.
GONE = """
import signal, threading, time
from fedwsq.flower.mailbox import Mailbox

class Away:
    def push_messages(self, messages):
        threading.Event().wait()

def notice():
    time.sleep(1)
    signal.raise_signal(signal.SIGINT)

threading.Thread(target=notice, daemon=True).start()
try:
    Mailbox(Away()).post(None)
except KeyboardInterrupt:
    print("stopped")
"""


def test_a_signal_is_heard_while_a_message_is_not_taken():
    done = subprocess.run(
        [sys.executable, "-c", GONE], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "stopped\n", done.stderr


def test_who_posts_hears_of_errors_and_of_what_was_not_taken():
    class Grid:
        def push_messages(self, messages):
            if messages == ["bad"]:
                raise ValueError("no such node")
            return ["7", None] if messages == ["two"] else [None]

    mail = Mailbox(Grid())
    assert mail.post("two") == ["7"]
    assert mail.post("one") == []
    with pytest.raises(ValueError, match="no such node"):
        mail.post("bad")
