"""The server's end; what it runs is in the run config."""

from fedwsq.flower.server import server_app

app = server_app()
