"""A code that eats updates says so, and names the tensors."""

from torch import device

from fedwsq.codecs import Danuq, Ecq, Fixed, Float32
from fedwsq.federation.record import RoundRecord
from fedwsq.federation.simulation import simulate
from fedwsq.runs.watch import warn_of_loss
from fedwsq.wire import Link
from harness import tiny

FOUR = Link(Danuq(), Fixed(4))
CPU = device("cpu")


def row(error, bits=4.0, **ratios):
    return RoundRecord(3, quantization_error=error, bits=bits, scale_ratios=ratios)


def test_what_is_usual_is_not_worth_a_word():
    assert warn_of_loss(row(0.0097), FOUR) is None
    assert warn_of_loss(row(0.25, conv=5.0), FOUR) is None
    assert warn_of_loss(row(0.6, bits=1.0), Link(Danuq(), Fixed(1))) is None
    assert warn_of_loss(row(0.95, bits=0.1), Link(Ecq(), Fixed(0.1))) is None
    assert warn_of_loss(row(0.0, bits=32.0), Link(Float32())) is None
    assert warn_of_loss(RoundRecord(1), FOUR) is None


def test_a_loss_names_the_tensors_whose_scale_is_far_off():
    text = warn_of_loss(row(0.92, near=1.4, far=50.0, small=0.001), FOUR)
    assert text.startswith("round 3: the code lost 92% of the updates' energy, where 1% is usual")
    assert "in small (0.001 times), far (50 times): " in text
    assert "near" not in text
    assert "scale_init=calibrate" in text
    many = {f"layer{i}": 10.0 for i in range(5)}
    assert "layer2 (10 times) and 2 more" in warn_of_loss(row(0.9, **many), FOUR)


def test_a_loss_without_a_scale_that_is_off_says_what_else_helps():
    assert warn_of_loss(row(0.9), FOUR).endswith("more bits or another codec lose less")


def test_a_real_round_with_a_scale_that_is_far_off():
    """As published, 1e-3, on updates a hundred times larger: all but nothing arrives."""
    plan = tiny(**{"uplink.codec.scale_init": 1e-6, "uplink.bits": 4})
    simulation = simulate(plan)
    server = simulation.server(simulation.serial(CPU))
    assert "the code lost" in warn_of_loss(server.step(), plan.uplink)


def test_calibration_is_the_default_and_loses_little():
    plan = tiny(**{"uplink.bits": 4})
    assert plan.uplink.codec.scale_init == "calibrate"
    simulation = simulate(plan)
    server = simulation.server(simulation.serial(CPU))
    errors = [server.step().quantization_error for _ in range(3)]
    assert errors[0] < 0.02
    assert max(errors) < 0.1
