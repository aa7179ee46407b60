"""What Flower's SecAgg+ sends: its own mod, one client's four messages, as Flower makes bytes of
them. For `secure.py`, which is the script to run.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

# As in a process that Flower started.
TaskIdentity.task_id = 1
TaskIdentity.run_id = 1
TaskIdentity.node_id = 1

# What SecAggPlusWorkflow sends unless it is told otherwise.
RANGES = {
    Key.CLIPPING_RANGE: 8.0,
    Key.TARGET_RANGE: 2**22,
    Key.MOD_RANGE: 2**32,
    Key.MAX_WEIGHT: 1000.0,
}


class Nodes:
    """Clients that all have the same model; the first of them is the one that is measured.

    `circle` is how many each client shares masks with, itself included.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], clients: int, circle: int) -> None:
        self.shapes = shapes
        self.circle = range(1, circle + 1)
        self.setup = {
            Key.SAMPLE_NUMBER: clients,
            Key.SHARE_NUMBER: circle,
            Key.THRESHOLD: 2 * circle // 3 + 1,
            **RANGES,
        }
        self.contexts = {
            node: Context(run_id=0, node_id=node, node_config={}, state=RecordDict(), run_config={})
            for node in self.circle
        }
        self.sent: dict[str, int] = {}  # bytes, by stage
        self.seconds = 0.0  # to mask

    def measure(self) -> None:
        """The four stages; beyond the second only the first node takes part."""
        keys = {node: self._ask(node, Stage.SETUP, self.setup) for node in self.circle}
        public = {
            str(node): [said[Key.PUBLIC_KEY_1], said[Key.PUBLIC_KEY_2]]
            for node, said in keys.items()
        }
        shares = {node: self._ask(node, Stage.SHARE_KEYS, public) for node in self.circle}
        others = [node for node in self.circle if node != 1]
        sealed = []
        for node in others:
            at = shares[node][Key.DESTINATION_LIST].index(1)
            sealed.append(shares[node][Key.CIPHERTEXT_LIST][at])

        began = time.process_time()
        routed = {Key.CIPHERTEXT_LIST: sealed, Key.SOURCE_LIST: others}
        self._ask(1, Stage.COLLECT_MASKED_VECTORS, routed)
        self.seconds = time.process_time() - began
        there = {Key.ACTIVE_NODE_ID_LIST: list(self.circle), Key.DEAD_NODE_ID_LIST: []}
        self._ask(1, Stage.UNMASK, there)

    def _ask(self, node: int, stage: str, said: Mapping[str, Any]) -> Any:
        """What a node answers."""
        config = ConfigRecord({Key.STAGE: stage, **said})
        content = RecordDict({RECORD_KEY_CONFIGS: config})
        order = Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
        reply = secaggplus_mod(order, self.contexts[node], self._train)
        if node == 1:
            objects = get_all_nested_objects(reply).values()
            self.sent[stage] = sum(len(each.deflate()) for each in objects)
        return reply.content.config_records[RECORD_KEY_CONFIGS]

    def _train(self, order: Message, context: Context) -> Message:
        """A model out of nothing: how long a message is does not depend on what was learned."""
        params = ndarrays_to_parameters([np.zeros(shape, np.float32) for shape in self.shapes])
        result = FitRes(Status(Code.OK, ""), params, num_examples=500, metrics={})
        return Message(fitres_to_recorddict(result, False), reply_to=order)
