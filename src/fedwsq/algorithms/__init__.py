"""Federated algorithms: one published method, one file."""

from fedwsq.algorithms.base import Algorithm
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.algorithms.server_opt import SERVER_OPTIMIZERS, ServerOptimizer

ALGORITHMS: dict[str, type[Algorithm]] = {"fedavg": FedAvg}

__all__ = ["ALGORITHMS", "SERVER_OPTIMIZERS", "Algorithm", "FedAvg", "ServerOptimizer"]
