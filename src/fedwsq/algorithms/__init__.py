"""Federated algorithms: one published method, one file."""

from fedwsq.algorithms.base import Algorithm
from fedwsq.algorithms.fedavg import FedAvg

ALGORITHMS: dict[str, type[Algorithm]] = {"fedavg": FedAvg}

__all__ = ["ALGORITHMS", "Algorithm", "FedAvg"]
