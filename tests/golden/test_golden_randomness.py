"""What `docs/wire-format.md` says of seeds and generators, in plain integers, against the code."""

import hashlib
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwsq.codecs import Eden, Fixed, Nf, Qsgd, Rotated, Sign, Uq
from fedwsq.codecs.base import name_of
from fedwsq.codecs.levels import levels
from fedwsq.core.types import Key
from fedwsq.federation.downlink import Chain, PublicModel
from fedwsq.wire import Downlink, Kind, Line, Link, Message, Schema, decode
from fedwsq.wire.message import EVERYONE

DOCUMENT = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
KEY = Key(seed=7, round=3, client=12)
SCHEMA = Schema({"conv.weight": (2, 3, 5)})
DELTA = {"delta": {"conv.weight": ((torch.arange(30) * 11 % 30 - 14.5) / 8).view(2, 3, 5)}}
LOW32 = 2**32 - 1


# The description


def derived(*parts):
    text = b""
    for part in parts:
        written = str(part).encode()
        kind = b"s" if isinstance(part, str) else b"i"
        text += kind + str(len(written)).encode() + b":" + written
    digest = hashlib.blake2b(text, digest_size=8, person=b"fedwsq.seed").digest()
    return int.from_bytes(digest, "little") >> 1


def tensor_seed(key, vector="delta", name="conv.weight"):
    return derived(key.seed, "codec", key.round, key.client, vector, name)


def mt19937(seed):
    s = [seed & LOW32]
    for i in range(1, 624):
        s.append((1812433253 * (s[-1] ^ s[-1] >> 30) + i) & LOW32)
    while True:
        for i in range(624):
            y = s[i] & 2**31 | s[(i + 1) % 624] & 2**31 - 1
            s[i] = s[(i + 397) % 624] ^ y >> 1 ^ (0x9908B0DF if y & 1 else 0)
        for y in s:
            y ^= y >> 11
            y ^= y << 7 & 0x9D2C5680
            y ^= y << 15 & 0xEFC60000
            yield y ^ y >> 18


def pcg64(seed):
    def hashing(a, factor):
        def mix(v):
            nonlocal a
            v = v ^ a
            a = a * factor & LOW32
            v = v * a & LOW32
            return v ^ v >> 16

        return mix

    mix = hashing(0x43B0D7E5, 0x931E8875)
    p = [mix(word) for word in (seed & LOW32, seed >> 32, 0, 0)]
    for i, j in itertools.permutations(range(4), 2):
        r = (0xCA01F9DD * p[j] - 0x4973F715 * mix(p[i])) & LOW32
        p[j] = r ^ r >> 16
    mix = hashing(0x8B51F9DD, 0x58F38DED)
    q = [mix(word) for word in p + p]
    m = 0x2360ED051FC65DA44385DF649FCCF645
    whole = 2**128 - 1
    c = 2 * (q[5] << 96 | q[4] << 64 | q[7] << 32 | q[6]) + 1 & whole
    state = (c + (q[1] << 96 | q[0] << 64 | q[3] << 32 | q[2])) * m + c & whole
    while True:
        state = state * m + c & whole
        x = state >> 64 ^ state & 2**64 - 1
        turn = state >> 122
        yield (x >> turn | x << 64 - turn) & 2**64 - 1


def draws(seed, count):
    return [(y & 2**24 - 1) / 2**24 for y in itertools.islice(mt19937(seed), count)]


def signs(seed, count):
    """Those of D and of D'."""
    words = itertools.islice(pcg64(derived(seed, "rotation")), 2 * count // 64)
    found = [-1 if word >> bit & 1 else 1 for word in words for bit in range(64)]
    return np.array(found, np.float32).reshape(2, count)


def hadamard(x):
    apart = 1
    while apart < len(x):
        a, b = x.reshape(-1, 2, apart).transpose(1, 0, 2)
        x = np.stack([a + b, a - b], axis=1).reshape(-1)
        apart *= 2
    return x


def rotated_back(x, seed):
    """One slice."""
    d, d2 = signs(seed, len(x))
    return hadamard(hadamard(x) * d2) * d * np.float32(1 / len(x))


def unpacked(code, bits, count):
    stream = int.from_bytes(code, "little")
    return [stream >> k * bits & 2**bits - 1 for k in range(count)]


# The description against itself, the libraries and the code


def worked(pattern):
    (found,) = re.findall(pattern, DOCUMENT)
    return found


def test_the_worked_numbers_of_the_document():
    seed = tensor_seed(KEY)
    assert seed == int(worked(r"The tensor's seed is (\d+)"))
    text = worked(r"\n    (i1:7s5.*)\n").encode()
    digest = hashlib.blake2b(text, digest_size=8, person=b"fedwsq.seed").digest()
    assert int.from_bytes(digest, "little") >> 1 == seed
    assert draws(seed, 1) == [int(worked(r"starts with u = (\d+) / 2\^24")) / 2**24]
    assert derived(seed, "rotation") == int(worked(r"The rotation's seed is\s(\d+)"))
    first = int(worked(r"first output of its PCG64 is `([0-9a-f]+)`"), 16)
    assert next(pcg64(derived(seed, "rotation"))) == first
    assert first % 2 == 1
    assert derived(seed, "inner") == int(worked(r"seed of an inner codec is (\d+)"))


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**40 + 5, 2**63 - 1])
def test_the_generators_are_those_of_torch_and_numpy(seed):
    assert list(itertools.islice(pcg64(seed), 20)) == np.random.PCG64(seed).random_raw(20).tolist()
    theirs = torch.rand(1500, generator=torch.Generator().manual_seed(seed))
    assert draws(seed, 1500) == theirs.tolist()


def uq_code(x, u):
    f = (x + np.float32(1)) * np.float32(15 / 2)
    return min(max(math.floor(f) + (u < f - math.floor(f)), 0), 15)


def qsgd_code(x, u):
    f = np.abs(x) * np.float32(7)
    return 7 + int(math.copysign(min(math.floor(f) + (u < f - math.floor(f)), 7), x))


def nf_code(x, u):
    q = np.array(Nf().levels(4), np.float32)
    below = max(k for k in range(15) if k == 0 or q[k] < x)
    return below + int(u < (x - q[below]) / (q[below + 1] - q[below]))


CODES = {Uq(): uq_code, Qsgd(): qsgd_code, Nf(rounding="stochastic"): nf_code}


def ratios(packet):
    """The elements over the packet's scale."""
    return DELTA["delta"]["conv.weight"].flatten().numpy() / np.float32(packet.side[0])


def line_of(codec, bits):
    return Line(Link(codec, Fixed(bits), "all"), SCHEMA)


@pytest.mark.parametrize("codec", CODES, ids=name_of)
def test_random_rounding_is_as_described(codec):
    packets = line_of(codec, 4).send(DELTA, {}, KEY, (4.0,)).packets
    packet = packets["delta"]["conv.weight"]
    pairs = zip(ratios(packet), draws(tensor_seed(KEY), 30), strict=True)
    assert unpacked(packet.code, 4, 30) == [CODES[codec](x, u) for x, u in pairs]


def test_a_rotation_is_undone_as_described():
    line = line_of(Eden(), 4)
    packets = line.send(DELTA, {}, KEY, (4.0,)).packets
    packet = packets["delta"]["conv.weight"]
    q = np.array(levels(4, "lloyd-max"), np.float32)
    values = q[unpacked(packet.code, 4, 64)] * np.float32(packet.side[0])
    expected = rotated_back(values, tensor_seed(KEY))[:30]
    received = line.receive(packets, {}, KEY)["delta"]["conv.weight"]
    assert received.flatten().tolist() == expected.tolist()


def test_an_inner_codec_draws_from_a_seed_of_its_own():
    line = line_of(Rotated(Sign(rounding="stochastic")), 1)
    packet = line.send(DELTA, {}, KEY, (1.0,)).packets["delta"]["conv.weight"]
    seed = tensor_seed(KEY)
    d, d2 = signs(seed, 64)
    x = np.zeros(64, np.float32)
    x[:30] = DELTA["delta"]["conv.weight"].flatten()
    x = hadamard(hadamard(x * d) * d2) * np.float32(1 / 64) / np.float32(packet.side[0])
    u = draws(derived(seed, "inner"), 64)
    assert unpacked(packet.code, 1, 64) == [int(u < (x + 1) / 2) for x, u in zip(x, u, strict=True)]


def test_a_chain_s_difference_has_the_seed_of_its_round_and_plain_name():
    chain = Chain(Downlink(Uq(), Fixed(4), "all", mode="chain"), SCHEMA)
    before = PublicModel({"params": {"conv.weight": torch.zeros(2, 3, 5)}}, {})
    key = Key(7, 17, EVERYONE)
    empty = Message(Kind.BROADCAST, key, bytes(16))
    sent = chain.broadcast({"params": DELTA["delta"]}, empty, before)
    packet = decode(sent.body, SCHEMA).packets["17 params"]["conv.weight"]
    u = draws(tensor_seed(Key(7, 17, 18446744073709551615), "params"), 30)
    pairs = zip(ratios(packet), u, strict=True)
    assert unpacked(packet.code, 4, 30) == [uq_code(*pair) for pair in pairs]
