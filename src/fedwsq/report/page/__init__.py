"""One page of runs: a file that can be sent to anybody, and followed while runs are going."""

from fedwsq.report.page.follow import Followed, Server
from fedwsq.report.page.render import render

__all__ = ["Followed", "Server", "render"]
