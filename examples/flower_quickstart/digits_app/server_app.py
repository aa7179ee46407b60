"""What the server does; with one line of fedwsq."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedwsq
from digits_app.task import Net, load_test_data
from digits_app.task import test as test_net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    config = context.run_config
    nodes = int(config["num-nodes"])
    strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)

    # The second of the two lines. In an app of your own it is
    # `strategy = fedwsq.flower.compress(strategy, codec="danuq", bits=4)`; here the run config
    # decides, so that one can compare.
    bits = float(config["bits"]) or None
    down_bits = float(config["down-bits"]) or None
    if bits or down_bits:
        strategy = fedwsq.flower.compress(strategy, "danuq", bits, down_bits)

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """On the server's own examples, after each round."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test_net(net, load_test_data())
    return MetricRecord({"test-loss": loss, "test-accuracy": accuracy})
