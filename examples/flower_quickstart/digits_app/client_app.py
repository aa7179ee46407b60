"""What a client does; with one line of fedwsq."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedwsq
from digits_app.task import Net, load_data
from digits_app.task import test as test_net
from digits_app.task import train as train_net

app = ClientApp(mods=[fedwsq.flower.compress_mod])  # the first of the two lines


@app.train()
def train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition = int(context.node_config["partition-id"])
    batches, _ = load_data(partition, int(context.node_config["num-partitions"]))

    torch.manual_seed(1000 * int(message.content["config"]["server-round"]) + partition)
    epochs = int(context.run_config["local-epochs"])
    loss = train_net(net, batches, epochs, float(context.run_config["learning-rate"]))

    metrics = MetricRecord({"train-loss": loss, "num-examples": len(batches.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition = int(context.node_config["partition-id"])
    _, batches = load_data(partition, int(context.node_config["num-partitions"]))

    loss, accuracy = test_net(net, batches)
    found = {"eval-loss": loss, "eval-accuracy": accuracy, "num-examples": len(batches.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(found)}), reply_to=message)
