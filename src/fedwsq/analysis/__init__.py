"""Why it works: curvature, landscape, and the distributions behind the code, from run directories.

Each analysis is a function of a `Subject` and `Options` that returns plain data for JSON.
"""

from fedwsq.analysis import drift, gradients, hessian, landscape, scales, updates
from fedwsq.analysis.subject import Analysis, Found, Options, Subject, open_run

ANALYSES: dict[str, Analysis] = {
    "hessian": hessian.analyze,
    "landscape": landscape.analyze,
    "updates": updates.analyze,
    "drift": drift.analyze,
    "gradients": gradients.analyze,
    "scales": scales.analyze,
}

__all__ = ["ANALYSES", "Analysis", "Found", "Options", "Subject", "open_run"]
