"""How far clients' own scales were from the shared one, round by round, and what that cost."""

import statistics

from fedwsq.analysis.subject import Found, Options, Subject
from fedwsq.codecs import Danuq, Fixed
from fedwsq.codecs.levels import levels, normal_error


def analyze(subject: Subject, options: Options) -> Found:
    """Local over shared scale of every coded tensor, from the rows of the run."""
    rounds = {}
    for row in subject.rows:
        ratios = row.scale_ratios
        if not ratios:
            continue
        rounds[str(row.round)] = {
            "median": statistics.median(ratios.values()),
            "ratios": ratios,
            "quantization_error": row.quantization_error,
            "expected_error": expected_error(subject, list(ratios.values())),
        }
    return {"right_scale_error": expected_error(subject, [1.0]), "rounds": rounds}


def expected_error(subject: Subject, ratios: list[float]) -> float | None:
    """The mean error on normal data whose std is so many times the shared scale.

    None where the code is another, or its bits differ from client to client.
    """
    codec = subject.plan.uplink.codec
    bits = subject.plan.uplink.bits
    if not isinstance(codec, Danuq) or not isinstance(bits, Fixed):
        return None
    found = levels(int(bits.bits), codec.levels)
    return statistics.fmean(normal_error(found, ratio) for ratio in ratios)
