"""A committed EDEN packet of three slices: any machine makes its bytes and reads the same bits."""

import hashlib
import json
from pathlib import Path

import torch

from fedwsq.codecs import Eden, Packet

GOLDEN = json.loads((Path(__file__).parent / "eden_stream.json").read_text())
NONE = torch.empty(0)
NUMEL = GOLDEN["numel"]
RATE = GOLDEN["rate"]
SEED = GOLDEN["seed"]
PACKET = Packet(
    bytes.fromhex("".join(GOLDEN["code"])), tuple(GOLDEN["side"]), RATE, NUMEL, own_scale=True
)


def test_the_packet_is_the_committed_one():
    # No rounding anywhere: the same input everywhere.
    x = (torch.arange(NUMEL) * 7919 % 2003 - 1001) / 1024
    assert Eden().encode(x, NONE, RATE, SEED) == PACKET


def test_it_decodes_to_the_committed_values_bit_for_bit():
    Eden().check(PACKET)
    decoded = Eden().decode(PACKET, NONE, SEED)
    assert decoded[:4].tolist() == GOLDEN["first_decoded"]
    assert decoded[-4:].tolist() == GOLDEN["last_decoded"]
    digest = hashlib.blake2b(decoded.numpy().astype("<f4").tobytes(), digest_size=16)
    assert digest.hexdigest() == GOLDEN["decoded_blake2b"]
