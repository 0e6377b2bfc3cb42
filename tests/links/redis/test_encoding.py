from __future__ import annotations

import random
import resource
import struct
import sys
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl import _native
from apexrl._native import ChunkHeads
from apexrl.errors import ConfigError, FrameError
from apexrl.links.redis import encoding
from apexrl.links.redis.encoding import FrameHead, decode_frame, decode_weights, encode_frame, encode_weights
from apexrl.protocols import ChunkHead

PROTOCOL = encoding.PROTOCOLS.newest
SCHEMA = b"8 bytes."


def frame_head(heads: list[ChunkHead], **other: object) -> FrameHead:
    known = {
        "run_id": "run",
        "schema": SCHEMA,
        "member": "host-1-ab",
        "generation": 3,
        "sequence": 5,
        "item_index": 320,
    }
    packed = msgspec.Raw(msgspec.msgpack.encode(heads))  # also what ChunkHeads would not make
    return FrameHead(**{"counts": {"env_steps": 400}, **known, **other}, heads=packed)  # type: ignore[arg-type]


def whole_frame(head: FrameHead, body: bytes, packed: bool = False) -> bytes:
    return b"".join(encode_frame(head, body, packed))


def chunks(*sizes: int) -> list[ChunkHead]:
    return [ChunkHead(7, 9, 0, 64, 67, 2, 64, size) for size in sizes]


def seal(fixed: tuple[object, ...], head: bytes, body: bytes) -> bytes:
    """A frame with right checksums, whatever else it says."""
    front = struct.pack("<4sBBBxIIII", *fixed, _native.crc32c(body)) + head
    return front + struct.pack("<I", _native.crc32c(front)) + body


@pytest.mark.parametrize("packed", [False, True])
def test_a_frame_comes_back_as_it_was(packed: bool) -> None:
    body = bytes(range(256)) * 20
    data = whole_frame(frame_head(chunks(5000, 120)), body, packed)
    got = decode_frame(data, "run", SCHEMA)
    assert [*got.heads] == chunks(5000, 120)
    assert bytes(got.body) == body
    assert (got.head.member, got.head.generation, got.head.sequence, got.head.item_index) == ("host-1-ab", 3, 5, 320)
    assert got.head.counts == {"env_steps": 400}
    assert (len(data) < len(body)) == packed


def test_a_body_is_not_copied_when_it_is_read_and_not_packed_when_that_makes_it_larger() -> None:
    body = random.Random(1).randbytes(4000)
    data = whole_frame(frame_head(chunks(4000)), body, True)
    assert decode_frame(data, "run", SCHEMA).body.obj is data


def test_the_head_of_a_frame_is_small() -> None:
    assert len(whole_frame(frame_head(chunks(4000)), bytes(4000))) < 4000 + 120


def test_heads_are_packed_as_messagepack_and_come_back() -> None:
    """msgspec is the twin: another version packs and reads them with it."""
    edges = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31 - 1]
    for count in (1, 15, 16, 4096):
        rows = [ChunkHead(n, 2**53 - n, *edges[n % 5 : n % 5 + 5], 2**32 + n) for n in range(count)]
        packed = ChunkHeads(rows).pack()
        assert msgspec.msgpack.decode(packed) == [[*row] for row in rows]
        assert (
            [*(ChunkHeads.unpack(packed) or [])] == [*(ChunkHeads.unpack(msgspec.msgpack.encode(rows)) or [])] == rows
        )
    for least in (2**53 + 1, -1, 1.0, True, None):
        for place in range(8):
            row = [1] * 8
            row[place] = least  # type: ignore[call-overload]
            assert ChunkHeads.unpack(msgspec.msgpack.encode([row])) is None


def test_an_empty_body_travels() -> None:
    assert bytes(decode_frame(whole_frame(frame_head(chunks(0)), b"", True), "run", SCHEMA).body) == b""


def test_another_run_and_other_fields_are_refused_with_the_member_named() -> None:
    data = whole_frame(frame_head(chunks(10)), bytes(10))
    with pytest.raises(FrameError, match=r"host-1-ab belongs to another run \('run'\)"):
        decode_frame(data, "other", SCHEMA)
    with pytest.raises(FrameError, match="host-1-ab has other fields"):
        decode_frame(data, "run", b"else")


def test_another_protocol_is_refused_in_words() -> None:
    data = bytearray(whole_frame(frame_head(chunks(10)), bytes(10)))
    data[4] = 9
    with pytest.raises(FrameError, match=r"protocol 9, and this apexrl speaks 2"):
        decode_frame(bytes(data), "run", SCHEMA)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"member": "a b"}, "cannot be read"),
        ({"member": "a\n"}, "cannot be read"),
        ({"member": ""}, "cannot be read"),
        ({"member": "x" * 101}, "cannot be read"),
        ({"generation": -1}, "cannot be read"),
        ({"sequence": 2**40}, "cannot be read"),
        ({"item_index": 2**50 + 1}, "cannot be read"),
        ({"counts": {"env_steps": 2**50 + 1}}, "cannot be read"),
        ({"sequence": 1.5}, "cannot be read"),
        ({"schema": bytes(100)}, "cannot be read"),
    ],
)
def test_impossible_heads_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(FrameError, match=words):
        decode_frame(whole_frame(frame_head(chunks(10), **change), bytes(10)), "run", SCHEMA)


def test_chunks_must_have_the_bytes_that_are_there() -> None:
    with pytest.raises(FrameError, match="10 bytes where its chunks have 11"):
        decode_frame(whole_frame(frame_head(chunks(11)), bytes(10)), "run", SCHEMA)
    with pytest.raises(FrameError, match="cannot be read"):
        decode_frame(whole_frame(frame_head([]), b""), "run", SCHEMA)
    with pytest.raises(FrameError, match="cannot be read"):
        decode_frame(whole_frame(frame_head(chunks(10, -10)), b""), "run", SCHEMA)
    with pytest.raises(FrameError, match="cannot be read"):
        decode_frame(whole_frame(frame_head(chunks(*[0] * 4097)), b""), "run", SCHEMA)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(200 * 2**20), 9)
    for claimed in (1000, 60 * 2**20):
        head = msgspec.msgpack.encode(frame_head(chunks(claimed)))
        data = seal((b"apxr", PROTOCOL, 1, 1, len(head), len(bomb), claimed), head, bomb)
        with pytest.raises(FrameError, match="does not unpack to"):
            decode_frame(data, "run", SCHEMA)
    head = msgspec.msgpack.encode(frame_head(chunks(200 * 2**20)))
    data = seal((b"apxr", PROTOCOL, 1, 1, len(head), len(bomb), 200 * 2**20), head, bomb)
    with pytest.raises(FrameError, match=f"at most {encoding.MOST_BODY_BYTES}"):
        decode_frame(data, "run", SCHEMA)


def test_zlib_must_end_where_the_body_ends() -> None:
    whole = zlib.compress(b"a" * 1000)
    head = msgspec.msgpack.encode(frame_head(chunks(1000)))
    for body in (whole + b"x", whole[:-1], whole[:-4], b"", b"nonsense"):
        with pytest.raises(FrameError, match="does not unpack"):
            decode_frame(seal((b"apxr", PROTOCOL, 1, 1, len(head), len(body), 1000), head, body), "run", SCHEMA)


@pytest.mark.parametrize(
    "tail", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * 5000]
)
def test_heads_that_claim_a_lot_allocate_nothing(tail: bytes) -> None:
    whole = msgspec.msgpack.encode(frame_head(chunks(10)))
    for cut in range(len(whole)):
        head = whole[:cut] + tail
        with pytest.raises(FrameError):
            decode_frame(seal((b"apxr", PROTOCOL, 1, 0, len(head), 10, 10), head, bytes(10)), "run", SCHEMA)


def refused_or_whole(data: bytes, bodies: set[bytes]) -> bool:
    """Decode as a receiver does; nothing but FrameError may come out. True: it was a frame, then one of ours."""
    try:
        got = decode_frame(data, "run", SCHEMA)
    except FrameError:
        return False
    assert got.heads.nbytes == got.body.nbytes
    assert bytes(got.body) in bodies
    return True


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert not refused_or_whole(data, set())


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(
        st.sampled_from([b"apxr", b"APXR"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 2**32 - 1) | st.integers(0, 300),
        st.integers(0, 2**32 - 1) | st.integers(0, 300),
        st.integers(0, 2**32 - 1) | st.integers(0, 300),
    ),
    st.binary(max_size=200),
    st.binary(max_size=200),
    st.booleans(),
)
def test_right_checksums_around_nonsense_are_refused(
    fixed: tuple[object, ...], head: bytes, body: bytes, true_lengths: bool
) -> None:
    if true_lengths:
        fixed = (*fixed[:4], len(head), len(body), len(body))
    assert not refused_or_whole(seal(fixed, head, body), set())


_numbers = st.integers(-(2**63), 2**64 - 1) | st.integers(0, 100)
_values = st.recursive(
    st.none() | st.booleans() | _numbers | st.floats() | st.binary(max_size=20) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_values, min_size=0, max_size=9), st.integers(0, 8), _values)
def test_any_msgpack_as_a_head_is_refused(values: list[object], place: int, value: object) -> None:
    real = msgspec.msgpack.decode(msgspec.msgpack.encode(frame_head(chunks(10))))
    real = [*real[:place], value, *real[place + 1 :]]
    for words in (values, real):
        head = msgspec.msgpack.encode(words)
        refused_or_whole(seal((b"apxr", PROTOCOL, 1, 0, len(head), 10, 10), head, bytes(10)), {bytes(10)})


def mutant(rng: random.Random, data: bytes) -> bytes:
    """One of the ways in which bytes go wrong, or are made to."""
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(damaged)) if damaged else 0
        match rng.randrange(7):
            case 0:
                damaged = damaged[:at]
            case 1 if damaged:
                damaged[at] ^= 1 << rng.randrange(8)
            case 2:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3 if len(damaged) > 28:  # a length in the fixed part
                struct.pack_into(
                    "<I", damaged, 8 + 4 * rng.randrange(4), rng.choice([0, 1, 2**31, 2**32 - 1, len(data)])
                )
            case 4 if damaged:
                damaged[at] = rng.choice(b"\xdd\xdc\xdf\xde\xdb\xc6\xcf\xd3\x9f\x8f\xc1\xff\x00")
            case 5:
                damaged = damaged[at:] + damaged[:at]
            case _:
                damaged += damaged[: rng.randrange(64)]
    if rng.random() < 0.5 and len(damaged) > 40:  # by somebody who knows how to make checksums
        head_bytes = min(struct.unpack_from("<I", damaged, 8)[0], len(damaged) - 28)
        end = 24 + head_bytes
        struct.pack_into("<I", damaged, 20, _native.crc32c(bytes(damaged[end + 4 :])))
        struct.pack_into("<I", damaged, end, _native.crc32c(bytes(damaged[:end])))
    return bytes(damaged)


def test_a_hundred_thousand_mutants_are_refused_or_decoded_and_memory_stays_flat() -> None:
    rng = random.Random(20)
    bodies = [rng.randbytes(300), bytes(2000), b"abc" * 100]
    whole = [
        whole_frame(frame_head(chunks(len(body) - 100, 100)), body, packed)
        for body in bodies
        for packed in (False, True)
    ]
    unit = 1 if sys.platform == "darwin" else 1024
    decoded = 0
    for index in range(100_000):
        data = mutant(rng, rng.choice(whole))
        try:
            got = decode_frame(data, "run", SCHEMA)
        except FrameError:
            pass
        else:
            decoded += 1
            assert got.heads.nbytes == got.body.nbytes
        if index == 1000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert decoded > 10  # the mutator gets through: heads with other numbers and right checksums
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before < 16 * 2**20


@pytest.mark.parametrize("packed", [False, True])
def test_weights_come_back_as_they_were_and_can_be_written(packed: bool) -> None:
    weights = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "scalar": np.asarray(np.float64(2.5)),
        "none": np.zeros((0, 3), np.int16),
        "flag": np.array([True, False]),
        "big": np.arange(3, dtype=">i4"),
        "half": np.ones(5, np.float16),
    }
    data = encode_weights("run", 42, weights, packed)
    for source in (data, bytearray(data)):
        version, got = decode_weights(source, "run", 2**20)
        assert version == 42
        assert list(got) == list(weights)
        for name, array in weights.items():
            np.testing.assert_array_equal(got[name], array)
            assert got[name].shape == array.shape
            assert got[name].flags.writeable


@pytest.mark.parametrize("packed", [False, True])
def test_rounded_weights_are_half_as_large_and_arrive_as_float32(packed: bool) -> None:
    weights = {
        "w": np.random.default_rng(1).standard_normal((200, 100)).astype(np.float32),
        "b": np.full(300, 1.001, np.float32),
        "normalizer/mean": np.full((30, 20), 1.001, np.float32),
    }
    data = encode_weights("run", 42, weights, packed, rounded=True)
    assert len(data) < 0.6 * len(encode_weights("run", 42, weights, packed))
    _, got = decode_weights(data, "run", 2**20)
    assert list(got) == list(weights)
    assert all(array.dtype == np.float32 and array.flags.writeable for array in got.values())
    np.testing.assert_allclose(got["w"], weights["w"], rtol=2**-8)
    assert np.any(got["w"] != weights["w"])
    for name in ("b", "normalizer/mean"):
        np.testing.assert_array_equal(got[name], weights[name])


def test_weights_of_another_run_too_large_or_not_of_numbers_are_refused() -> None:
    data = encode_weights("run", 1, {"a": np.zeros(1000)})
    with pytest.raises(FrameError, match="another run"):
        decode_weights(data, "other", 2**20)
    with pytest.raises(FrameError, match="at most 4096 are taken"):
        decode_weights(data, "run", 4096)
    with pytest.raises(FrameError, match="'a' are object"):
        encode_weights("run", 1, {"a": np.array([None])})
    with pytest.raises(FrameError, match="kind 2"):
        decode_frame(data, "run", SCHEMA)


@pytest.mark.parametrize(
    "arrays",
    [
        [["a", "<f4", [2**53, 2**53, 2**53]]],
        [["a", "<f4", [2**50, 0, 2**50]]],
        [["a", "<f4", [1] * 16], ["a", "<f4", [16]]],
        [["a", "|O8", [1]]],
        [["a", "<f1", [64]]],
        [["a", "<f4", [-16]]],
        [["a", "<f4", [1] * 17]],
        [["a", "<f4", [33]]],
        [["a", "bf16", [65]]],
        [["a", "bf16 ", [16]]],
        [],
    ],
)
def test_impossible_arrays_are_refused(arrays: list[object]) -> None:
    for size in (0, 64, 128):
        head = msgspec.msgpack.encode(["run", 1, arrays])
        data = seal((b"apxr", PROTOCOL, 2, 0, len(head), size, size), head, bytes(size))
        if arrays or size:
            with pytest.raises(FrameError):
                decode_weights(data, "run", 2**20)
        else:
            assert decode_weights(data, "run", 2**20) == (1, {})


def test_mutants_of_weights_are_refused_or_decoded() -> None:
    rng = random.Random(21)
    weights = {"a": np.zeros((4, 8), np.float32), "b": np.ones(3, np.int64)}
    whole = [encode_weights("run", 7, weights, packed) for packed in (False, True)]
    decoded = 0
    for _ in range(20_000):
        try:
            version, got = decode_weights(mutant(rng, rng.choice(whole)), "run", 2**16)
        except FrameError:
            continue
        decoded += 1
        assert version >= 0
        assert sum(array.nbytes for array in got.values()) <= 2**16
    assert decoded > 10


def test_an_unknown_compression_is_refused() -> None:
    assert [encoding.packing("none"), encoding.packing("zlib")] == [False, True]
    with pytest.raises(ConfigError, match="--compression must be none or zlib"):
        encoding.packing("lz4")
