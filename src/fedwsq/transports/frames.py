"""What a pool and its workers say to each other: plain bytes, a tag first."""

import struct

HELD_BROADCASTS = 2  # that a worker keeps: a chained downlink has two a round
KEY = struct.Struct("<QQQ")  # seed, round, client


class Tag:
    """The first byte of a frame."""

    BROADCAST = b"B"  # and its length; the descriptor follows
    ORDER = b"O"  # which broadcast, the key, the head
    SETUP = b"S"  # what to serve from now on: the factory follows in a frame, settings in another
    REPLY = b"R"  # the payload follows in a frame of its own
    FAILURE = b"F"  # the reason follows in a frame, the traceback in another
    DISK = b"D"  # a failure of this machine's disk: the errno follows in a frame
