"""Worked numbers of the methods that change the gradient or the server's rule, two rounds each."""

import pytest
from toy_problem import Point, play

from fedwsq.algorithms import FedAvg
from fedwsq.algorithms.fedacg import FedACG
from fedwsq.algorithms.fedcm import FedCM
from fedwsq.algorithms.feddyn import FedDyn
from fedwsq.algorithms.fedprox import FedProx
from fedwsq.algorithms.fedsmoo import FedSMOO
from fedwsq.algorithms.scaffold import Scaffold
from fedwsq.algorithms.server_opt import Adam, Momentum, Plain
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Cohort, Update
from fedwsq.training import AdamW, Sgd, Training


def close(expected):
    return pytest.approx(expected, abs=2e-6)


def weights(state, name="params"):
    return state[name]["w"].tolist()


@pytest.mark.parametrize(
    ("mu", "prox", "expected"),
    [
        (0.1, "half", [[0.9055, -1.3385], [0.5453605, -0.8020235]]),
        (0.1, "code", [[0.906, -1.342], [0.547672, -0.807704]]),
        (0.001, "half", [[0.905005, -1.335035], [0.5430731, -0.7964067]]),
        (0.001, "code", [[0.90501, -1.33507], [0.5430962, -0.7964634014]]),
        (0.0, "code", [[0.905, -1.335], [0.54305, -0.79635]]),
    ],
)
def test_fedprox(mu, prox, expected):
    got = [weights(server) for _, _, server in play(FedProx(mu=mu, prox=prox))]
    assert got == [close(w) for w in expected]


def test_fedavgm():
    (_, _, first), (_, _, second) = play(FedAvg(server=Momentum(beta=0.4)))
    assert weights(first, "momentum") == close([-0.095, 0.665])
    assert weights(first) == close([0.905, -1.335])
    assert weights(second, "momentum") == close([-0.39995, 0.80465])
    assert weights(second) == close([0.50505, -0.53035])


def test_fedadam():
    (_, _, first), (_, _, second) = play(FedAvg(server=Adam()))
    assert weights(first, "first") == close([-0.0095, 0.0665])
    assert weights(first, "second") == close([9.124e-05, 0.00442324])
    assert weights(first) == close([0.990996936, -1.990149234])
    assert weights(second) == close([0.979403525, -1.976824395])


def test_a_server_learning_rate_scales_the_step():
    ((_, _, server),) = play(FedAvg(server=Plain(lr=0.5)), ["AB"])
    assert weights(server) == close([1 - 0.0475, -2 + 0.3325])


def test_feddyn():
    (updates, clients, first), (_, _, second) = play(FedDyn(alpha=0.1))
    assert [u.vectors["delta"]["w"].tolist() for u in updates] == [
        close([0.378, 0.756]),
        close([-0.567, 0.567]),
    ]
    assert weights(first, "h") == close([0.004725, -0.033075])
    assert weights(first) == close([0.85825, -1.00775])
    assert weights(clients["A"], "g") == close([-0.0378, -0.0756])
    assert weights(clients["B"], "g") == close([0.0567, -0.0567])
    assert weights(clients["D"], "g") == [0.0, 0.0]
    assert weights(second, "h") == close([0.022017555, -0.05650533])
    assert weights(second) == close([0.29222335, 0.0259099])


@pytest.mark.parametrize(
    ("prox", "expected"),
    [("code", [0.47769397, -0.338647793]), ("half", [0.477668235, -0.338572646])],
)
def test_fedacg(prox, expected):
    algorithm = FedACG(prox=prox)
    (_, _, first), (_, _, second) = play(algorithm)
    assert weights(second) == close(expected)
    if prox == "code":
        assert weights(first, "momentum") == close([-0.09499, 0.66493])
        assert weights(first) == close([0.90501, -1.33507])
        assert weights(algorithm.broadcast(first)) == close([0.8242685, -0.7698795])
        assert weights(second, "momentum") == close([-0.42731603, 0.996422207])


def test_fedsmoo():
    (updates, clients, first), (_, _, second) = play(FedSMOO(lam=0.1, rho=0.1))
    locals_ = [[1 + d[0], -2 + d[1]] for d in (u.vectors["delta"]["w"].tolist() for u in updates)]
    assert locals_ == [close([1.386452337, -1.227095326]), close([0.419635682, -1.419635682])]
    assert weights(clients["A"], "mu") == close([-0.089442717, -0.178885434])
    assert weights(clients["B"], "mu") == close([0.141421353, -0.141421353])
    assert updates[0].vectors["mu"]["w"].tolist() == close([-0.089442717, -0.178885434])
    assert weights(first, "s") == close([0.016018214, -0.098708685])
    assert weights(first) == close([0.854566014, -0.985048257])
    assert weights(second, "s") == close([0.098671962, -0.016242867])
    assert weights(second) == close([0.272812612, 0.071015824])


def test_scaffold():
    (updates, clients, first), (_, _, second) = play(Scaffold())
    assert weights(first) == close([0.905, -1.335])
    assert weights(first, "control") == close([0.2375, -1.6625])
    # A's first control variate is -delta / (K lr) = -[.38, .76] / .2
    assert weights(clients["A"], "control") == close([-1.9, -3.8])
    assert updates[0].vectors["control"]["w"].tolist() == close([-1.9, -3.8])
    assert weights(second) == close([0.768675, -0.751225])
    assert weights(second, "control") == close([0.4595625, -2.2906875])


def test_fedcm():
    (_, _, first), (_, _, second) = play(FedCM(alpha=0.1))
    assert weights(first) == close([0.99005, -1.93035])
    assert weights(first, "direction") == close([0.04975, -0.34825])
    assert weights(second) == close([0.94153778, -1.79971446])
    assert weights(second, "direction") == close([0.2425611, -0.6531777])


@pytest.mark.parametrize("metrics", [{}, {"lr_sum": 0.0}, {"lr_sum": -1.0}])
def test_fedcm_keeps_its_direction_when_the_rates_make_no_sense(metrics):
    algorithm = FedCM()
    ((updates, _, server),) = play(algorithm, ["AB"])
    mean = Update(updates[0].vectors, 1.0, metrics)
    after = algorithm.server_update(server, mean, Cohort(2, 1, 1, 4))
    assert weights(after, "direction") == weights(server, "direction")


@pytest.mark.parametrize("algorithm", [Scaffold(), FedCM()])
@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.9), AdamW()])
def test_methods_that_divide_by_the_rates_refuse_other_optimizers(algorithm, optimizer):
    algorithm.check(Point(), Training())
    with pytest.raises(ConfigError, match="plain SGD"):
        algorithm.check(Point(), Training(optimizer=optimizer))


def test_fedsmoo_refuses_an_optimizer_that_would_rescale_its_decay():
    FedSMOO().check(Point(), Training(optimizer=Sgd(momentum=0.9)))
    with pytest.raises(ConfigError, match=r"training\.optimizer=sgd"):
        FedSMOO().check(Point(), Training(optimizer=AdamW()))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FedProx(mu=-1.0), "mu is -1.0"),
        (lambda: FedProx(prox="paper"), "prox is 'paper'; it can be code, half"),
        (lambda: FedDyn(alpha=0.0), "alpha is 0.0"),
        (lambda: FedACG(lam=1.0), "lam is 1.0"),
        (lambda: FedACG(beta=-1.0), "beta is -1.0"),
        (lambda: FedSMOO(rho=0.0), "rho is 0.0"),
        (lambda: FedSMOO(lam=float("nan")), "lam is nan"),
        (lambda: FedCM(alpha=2.0), "alpha is 2.0"),
        (lambda: Momentum(beta=1.0), "beta is 1.0"),
        (lambda: Adam(tau=0.0), "tau is 0.0"),
        (lambda: Adam(beta1=-0.1), "beta1 is -0.1"),
        (lambda: Plain(lr=0.0), "lr is 0.0"),
        (lambda: Sgd(momentum=1.0), "momentum is 1.0"),
        (lambda: Sgd(nesterov=True), "nesterov"),
        (lambda: AdamW(beta2=1.0), "beta2 is 1.0"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
