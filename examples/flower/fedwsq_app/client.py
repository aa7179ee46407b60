"""A node's end; who lives there is in the node config."""

from fedwsq.flower.client import client_app

app = client_app()
