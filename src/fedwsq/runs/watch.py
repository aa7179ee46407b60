"""A code that eats what it carries says so."""

from fedwsq.codecs.measure import normal_error
from fedwsq.federation.record import RoundRecord
from fedwsq.wire import Link

MUCH_WORSE = 0.25  # of an update's energy, beyond what the code loses of normal data anyway
FAR_OFF = 3.0  # times larger or smaller than the shared scale
HOPELESS = 10.0
NAMED = 3  # tensors, at most


def warn_of_loss(record: RoundRecord, uplink: Link) -> str | None:
    """A warning when a round's code lost far more than it should, with the tensors it lost in.

    Every code loses something, at one bit a third of a normal update: what counts is how far a
    round is beyond that, and beyond twice that. A scale that is ten times off is worth a word
    even where the tensors that travel exactly hold most of the energy.
    """
    error = record.quantization_error
    bits = record.bits
    if error is None or bits is None or bits not in uplink.codec.rates:
        return None
    expected = normal_error(uplink.codec, bits)
    hopeless = any(_is_off(ratio, HOPELESS) for ratio in record.scale_ratios.values())
    limit = 2 * expected if hopeless else max(expected + MUCH_WORSE, 2 * expected)
    if error <= limit:
        return None
    text = (
        f"round {record.round}: the code lost {error:.0%} of the updates' energy, "
        f"where {expected:.0%} is usual at {bits:g} bits"
    )
    apart = {name: ratio for name, ratio in record.scale_ratios.items() if _is_off(ratio, FAR_OFF)}
    if not apart:
        return f"{text}; more bits or another codec lose less"
    worst = sorted(apart, key=lambda name: -max(apart[name], 1 / max(apart[name], 1e-30)))
    named = ", ".join(f"{name} ({apart[name]:.3g} times)" for name in worst[:NAMED])
    more = f" and {len(worst) - NAMED} more" if len(worst) > NAMED else ""
    return (
        f"{text}; updates are far from the shared scale in {named}{more}: "
        "uplink.codec.scale_init=calibrate starts from the first round's, "
        "uplink.codec.band=4 lets such tensors bring their own"
    )


def _is_off(ratio: float, times: float) -> bool:
    return not 1 / times <= ratio <= times
