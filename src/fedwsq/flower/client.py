"""The ClientApp: hands what the server asks to whoever lives on this node.

    app = client_app()

Nothing here imports torch: Flower starts a process for each message, and this one only passes it
on.
"""

import os
import sys
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedwsq.flower.envelope import read_request, write_response
from fedwsq.flower.plain import Config, Request, Response
from fedwsq.flower.warm import ask


def client_app() -> ClientApp:
    """An app for Flower's nodes; whatever the kind of message, its content says what is to do."""
    app = ClientApp()
    for register in (app.train(), app.evaluate(), app.query()):
        register(answer)
    return app


def answer(message: Message, context: Context) -> Message:
    request = read_request(message.content)
    response = answer_request(context.run_config, context.node_config, request)
    return Message(write_response(response), reply_to=message)


def answer_request(run: Config, node: Config, request: Request) -> Response:
    # A simulation's processes stay up by themselves.
    deployed = Path(sys.argv[0]).name == "flwr-clientapp"
    if deployed and hasattr(os, "pidfd_open"):
        return ask(run, node, request)
    from fedwsq.flower.node import serve

    return serve(run, node, request)
