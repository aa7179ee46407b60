"""A round in words, for a terminal, a file or a notebook."""

from fedwsq.core.text import printable
from fedwsq.federation.record import RoundRecord


def human_bytes(count: float) -> str:
    """`12.3 MB`, powers of ten."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def times_less(factor: float) -> str:
    """`6.03 times less`; headers and scales can make it more, which is never called less."""
    if factor >= 1:
        return f"{factor:.2f} times less"
    more = 100 * (1 / factor - 1)
    return f"{more:.0f} % more" if more >= 10 else f"{more:.2g} % more"


def short(record: RoundRecord) -> str:
    """`accuracy 0.9123, up 80.1 kB, down 480.2 kB`."""
    text = ""
    if record.accuracy is not None:
        usual = record.test_metric is None and record.validation_metric is None
        text = f"{'accuracy' if usual else 'metric'} {record.accuracy:.4f}, "
    elif record.client_accuracy is not None:  # a server without data of its own
        text = f"clients' accuracy {record.client_accuracy:.4f}, "
    text += f"up {human_bytes(record.uplink_bytes)}, down {human_bytes(record.downlink_bytes)}"
    if record.failed:
        text += f", {record.failed} failed"
    if record.clipped:
        text += f", {record.clipped} clipped"
    return text


def line(record: RoundRecord, rounds: int) -> str:
    """All that a round has to say, failures included."""
    loss = "" if record.train_loss is None else f", train loss {record.train_loss:.4f}"
    if record.quantization_error:
        loss += f", code error {record.quantization_error:.3g}"
    why = reasons(record)
    text = f"round {record.round}/{rounds}: {short(record)}{loss}, {record.seconds:.2f} s"
    return f"{text}; {why}" if why else text


def reasons(record: RoundRecord) -> str:
    """Who failed or was asked again, and why; "" when all went well.

    A reason may come from another machine, so it is not printed as it is.
    """
    alike: dict[str, list[str]] = {}
    for client, why in record.asked_again.items():
        alike.setdefault(f"asked again, {why}", []).append(client)
    for client, why in record.failures.items():
        alike.setdefault(why, []).append(client)
    texts = []
    for why, clients in alike.items():
        who = "client" if len(clients) == 1 else "clients"
        texts.append(f"{who} {', '.join(clients)}: {why}")
    return printable("; ".join(texts))
