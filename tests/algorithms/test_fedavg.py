import pytest
from toy_problem import play

from fedwsq.algorithms import FedAvg


def test_two_rounds_by_hand():
    first, second = play(FedAvg())
    # A: [1, -2] -> [1.2, -1.6] -> [1.38, -1.24]; B: [1, -2] -> [.7, -1.7] -> [.43, -1.43]
    updates, _, server = first
    assert updates[0].vectors["delta"]["w"].tolist() == pytest.approx([0.38, 0.76], abs=1e-6)
    assert updates[1].vectors["delta"]["w"].tolist() == pytest.approx([-0.57, 0.57], abs=1e-6)
    assert server["params"]["w"].tolist() == pytest.approx([0.905, -1.335], abs=1e-6)
    assert second[2]["params"]["w"].tolist() == pytest.approx([0.54305, -0.79635], abs=1e-6)


def test_the_mean_is_weighted_by_examples():
    # 100 : 300 -> .25 [1.38, -1.24] + .75 [.43, -1.43]
    ((_, _, server),) = play(FedAvg(), ["AB"], [100.0, 300.0])
    assert server["params"]["w"].tolist() == pytest.approx([0.6675, -1.3825], abs=1e-6)


def test_clients_keep_nothing_and_send_one_vector():
    algorithm = FedAvg()
    assert algorithm.sends == ("delta",)
    assert all(client == {} for _, clients, _ in play(algorithm) for client in clients.values())
