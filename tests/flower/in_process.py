"""Flower's apps without its processes: every message is taken apart to bytes and built again."""

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = 1
TaskIdentity.run_id = 1
TaskIdentity.node_id = 1
RAISED = 2  # Flower's code for an exception in a ClientApp


class InProcess(Grid):
    """Nodes of this process, by their number."""

    def __init__(self, apps):
        self.apps = apps
        self.contexts = {}
        for node in apps:
            self.contexts[node] = Context(1, node, {}, RecordDict(), {})
        self.down_bytes = 0
        self.up_bytes = 0
        self.pushed = {}

    def over_the_wire(self, message):
        """A copy of a message, and how many bytes it took."""
        objects = get_all_nested_objects(message)
        contents = {name: each.deflate() for name, each in objects.items()}
        size = sum(map(len, contents.values()))
        arrived = inflate_object_from_contents(message.object_id, contents)
        arrived.metadata.__dict__["_message_id"] = message.object_id
        return arrived, size

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            self.pushed[message.object_id] = message
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        replies = []
        for message_id in list(message_ids):
            order, size = self.over_the_wire(self.pushed.pop(message_id))
            self.down_bytes += size
            node = order.metadata.dst_node_id
            try:
                reply = self.apps[node](order, self.contexts[node])
            except Exception as error:
                reply = Message(Error(RAISED, str(error)), reply_to=order)
            reply, size = self.over_the_wire(reply)
            self.up_bytes += size
            replies.append(reply)
        return replies

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(list(messages)))

    def get_node_ids(self):
        return list(self.apps)

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError
