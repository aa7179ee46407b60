"""Federated algorithms: one published method, one file."""

from fedwsq.algorithms.base import Algorithm
from fedwsq.algorithms.fedacg import FedACG
from fedwsq.algorithms.fedavg import FedAvg
from fedwsq.algorithms.fedcm import FedCM
from fedwsq.algorithms.feddecorr import FedDecorr
from fedwsq.algorithms.feddyn import FedDyn
from fedwsq.algorithms.fedlc import FedLC
from fedwsq.algorithms.fedmlb import FedMLB
from fedwsq.algorithms.fedntd import FedNTD
from fedwsq.algorithms.fedprox import FedProx
from fedwsq.algorithms.fedrcl import FedRCL
from fedwsq.algorithms.fedsmoo import FedSMOO
from fedwsq.algorithms.fedwon import FedWon
from fedwsq.algorithms.scaffold import Scaffold
from fedwsq.algorithms.server_opt import SERVER_OPTIMIZERS, ServerOptimizer

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "feddyn": FedDyn,
    "fedacg": FedACG,
    "fedsmoo": FedSMOO,
    "fedlc": FedLC,
    "fedntd": FedNTD,
    "fedmlb": FedMLB,
    "feddecorr": FedDecorr,
    "fedrcl": FedRCL,
    "scaffold": Scaffold,
    "fedcm": FedCM,
    "fedwon": FedWon,
}

__all__ = ["ALGORITHMS", "SERVER_OPTIMIZERS", "Algorithm", "FedAvg", "ServerOptimizer"]
