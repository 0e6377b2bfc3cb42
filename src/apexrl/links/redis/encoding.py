"""The byte format of experience frames and weights on a Redis server. Received bytes are not trusted.

    magic 4 | version u8 | kind u8 | packing u8 | 0 | head bytes u32 | body bytes u32 | unpacked body bytes u32
    | crc32c of the body as it is here u32 | head (msgpack) | crc32c of all before u32 | body

Numbers are little-endian. The head is decoded into strict types with bounded lengths; the body is raw (or zlib) and
opaque here. Anything else raises FrameError before memory of a claimed size is allocated.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from apexrl import _native
from apexrl._native import ChunkHeads
from apexrl.errors import ConfigError, FrameError
from apexrl.links.redis.checked_values import MOST_SEQUENCE, PROTOCOLS
from apexrl.links.rounded_weights import lengthened, may_round, shortened
from apexrl.protocols import Arrays
from apexrl.spec import Array

MOST_BODY_BYTES: Final = 64 * 2**20
"""Of a frame of experience, unpacked."""
MOST_HEAD_BYTES: Final = 2**19

_MAGIC: Final = b"apxr"
_EXPERIENCE, _WEIGHTS = 1, 2
_RAW, _ZLIB = 0, 1
_FIXED = struct.Struct("<4sBBBxIIII")
_CRC = struct.Struct("<I")
OVERHEAD_BYTES: Final = _FIXED.size + _CRC.size
"""Bytes of a frame besides its head and body."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(min_length=1, max_length=100)]
Total = Annotated[int, Meta(ge=0, le=2**50)]  # sums of many stay far below 2^63
_DTYPE = r"\A(\|[biu]1|<[iuf][248])\Z"
_HALVES = "bf16"  # upper halves of float32, in the place of a dtype


class FrameHead(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The sender and chunks of a frame."""

    run_id: Text
    schema: Annotated[bytes, Meta(max_length=64)]
    member: Text
    generation: Count
    sequence: Annotated[int, Meta(ge=0, lt=MOST_SEQUENCE)]  # of the first chunk; the others follow
    item_index: Total  # items in all chunks before the first
    heads: msgspec.Raw  # `ChunkHeads` packed
    counts: Annotated[dict[Text, Total], Meta(max_length=16)]  # the member's own, cumulative


class Frame(NamedTuple):
    """A frame of experience, decoded."""

    head: FrameHead
    heads: ChunkHeads
    body: memoryview  # of all chunks, concatenated


class _ArrayHead(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    name: Annotated[str, Meta(max_length=1000)]
    dtype: Annotated[str, Meta(pattern=rf"{_DTYPE}|\A{_HALVES}\Z")]
    shape: Annotated[list[Count], Meta(max_length=16)]


class _WeightsHead(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    run_id: Text
    version: Count
    arrays: Annotated[list[_ArrayHead], Meta(max_length=10_000)]


_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(FrameHead)
_weights_decoder = msgspec.msgpack.Decoder(_WeightsHead)


def packing(compression: str) -> bool:
    """Whether bodies are packed; ``none`` or ``zlib``, else ConfigError."""
    if compression not in ("none", "zlib"):
        raise ConfigError(f"--compression must be none or zlib, not {compression!r}")
    return compression == "zlib"


def encode_frame(
    head: FrameHead, body: bytes, packed: bool = False, protocol: int = PROTOCOLS.least
) -> tuple[bytes, bytes]:
    """A frame of experience, in two parts. The second is the body itself, or packed by zlib where that is smaller."""
    return _wrap(_EXPERIENCE, _encoder.encode(head), body, packed, protocol)


def decode_frame(data: bytes, run_id: str, schema: bytes, most_bytes: int = MOST_BODY_BYTES) -> Frame:
    """Decode a frame of `encode_frame` for this run. The body is a view of ``data`` unless it was packed.

    Args:
        most_bytes: of the body, unpacked.

    Raises:
        FrameError: ``data`` is anything else. The message names the member if it can be read.
    """
    text, rest = _open(data, _EXPERIENCE, most_bytes)
    head: FrameHead = _decode(_frame_decoder, text)
    member = head.member
    if not (member.isascii() and member.isprintable()) or " " in member:
        raise FrameError("the head of a frame cannot be read: its member has an invalid name")
    if head.run_id != run_id:
        raise FrameError(f"a frame of member {member} belongs to another run ({head.run_id!r})")
    if head.schema != schema:
        here = f"(schema {head.schema.hex()}, here {schema.hex()})"
        raise FrameError(f"a frame of member {member} has other fields {here}")
    heads = ChunkHeads.unpack(memoryview(head.heads))
    if heads is None:
        raise FrameError(f"the heads of the chunks in a frame of member {member} cannot be read")
    if heads.nbytes != rest.nbytes:
        raise FrameError(f"a frame of member {member} has {rest.nbytes} bytes where its chunks have {heads.nbytes}")
    return Frame(head, heads, rest.body(f"of member {member}") if rest.packed else rest.wire)


def encode_weights(run_id: str, version: int, weights: Arrays, packed: bool = False, rounded: bool = False) -> bytes:
    """Encode all arrays of one version.

    Args:
        rounded: large matrices travel as bfloat16, and arrive as float32.

    Raises:
        FrameError: an array is not of plain numbers (bool, int, uint, float).
    """
    heads, parts = [], []
    for name, array in weights.items():
        array = np.asarray(array)
        shape = list(array.shape)  # `ascontiguousarray` would make a scalar a vector
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if not re.fullmatch(_DTYPE, array.dtype.str):
            raise FrameError(f"weights {name!r} are {array.dtype}, which does not travel")
        halves = rounded and may_round(name, array)
        heads.append(_ArrayHead(name, _HALVES if halves else array.dtype.str, shape))
        array = shortened(array) if halves else array
        parts.append(array.reshape(-1).view(np.uint8).data if array.size else b"")
        parts.append(bytes(-array.nbytes % _ALIGNED))
    return b"".join(
        _wrap(_WEIGHTS, _encoder.encode(_WeightsHead(run_id, version, heads)), b"".join(parts), packed, PROTOCOLS.least)
    )


def decode_weights(data: bytes | bytearray, run_id: str, most_bytes: int) -> tuple[int, dict[str, Array]]:
    """(version, arrays) of `encode_weights`. The arrays are views of ``data``, or copies if it is read-only or packed,
    or they were rounded.

    Raises:
        FrameError: ``data`` is anything else.
    """
    text, rest = _open(data, _WEIGHTS, most_bytes)
    head: _WeightsHead = _decode(_weights_decoder, text)
    if head.run_id != run_id:
        raise FrameError(f"the weights belong to another run ({head.run_id!r})")
    sizes = []
    for one in head.arrays:
        nbytes = np.dtype(_stored(one.dtype)).itemsize
        for length in one.shape:  # Python's integers: no product is too large
            nbytes *= length
        sizes.append(nbytes)
    if sum(nbytes + -nbytes % _ALIGNED for nbytes in sizes) != rest.nbytes:
        raise FrameError(f"the weights have {rest.nbytes} bytes, which is not what their arrays have")
    body = rest.body("of weights")
    if body.readonly:
        body = memoryview(bytearray(body))  # readers may bind the arrays to parameters
    arrays: dict[str, Array] = {}
    begin = 0
    for one, nbytes in zip(head.arrays, sizes, strict=True):
        dtype = _stored(one.dtype)
        array = np.frombuffer(body[begin : begin + nbytes], dtype) if nbytes else np.empty(0, dtype)
        array = lengthened(array) if one.dtype == _HALVES else array
        try:
            arrays[one.name] = array.reshape(one.shape)
        except (ValueError, OverflowError) as error:  # more dimensions, or an empty array larger, than NumPy has
            raise FrameError(f"weights {one.name!r} have an impossible shape: {error}") from None
        begin += nbytes + -nbytes % _ALIGNED
    if len(arrays) != len(head.arrays):
        raise FrameError("two arrays of the weights have the same name")
    return head.version, arrays


def _stored(dtype: str) -> str:
    return "<u2" if dtype == _HALVES else dtype


_ALIGNED: Final = 64
"""Bytes that each array of weights is padded to."""


class _Body(NamedTuple):
    nbytes: int  # unpacked
    wire: memoryview
    packed: bool

    def body(self, origin: str) -> memoryview:
        """Unpacked; never allocates more than ``nbytes`` + 1."""
        if not self.packed:
            return self.wire
        unpacker = zlib.decompressobj()
        try:
            raw = unpacker.decompress(self.wire, self.nbytes + 1)
        except zlib.error as error:
            raise FrameError(f"the body of a frame {origin} does not unpack: {error}") from None
        if len(raw) != self.nbytes or not unpacker.eof or unpacker.unused_data:
            raise FrameError(f"the body of a frame {origin} does not unpack to the {self.nbytes} bytes that it claims")
        return memoryview(raw)


def _wrap(kind: int, head: bytes, body: bytes, packed: bool, protocol: int) -> tuple[bytes, bytes]:
    wire = zlib.compress(body, 1) if packed else body
    packed = packed and len(wire) < len(body)
    wire = wire if packed else body
    how = _ZLIB if packed else _RAW
    fixed = _FIXED.pack(_MAGIC, protocol, kind, how, len(head), len(wire), len(body), _native.crc32c(wire))
    front = fixed + head
    return front + _CRC.pack(_native.crc32c(front)), wire


def _open(data: bytes | bytearray, kind: int, most_bytes: int) -> tuple[memoryview, _Body]:
    """(head, body still packed), after all checks that do not depend on the kind."""
    view = memoryview(data)
    if view.nbytes < OVERHEAD_BYTES:
        raise FrameError(f"{view.nbytes} bytes are no frame")
    magic, version, its_kind, how, head_bytes, wire_bytes, raw_bytes, crc = _FIXED.unpack_from(view)
    if magic != _MAGIC:
        raise FrameError(f"a frame begins with {magic!r}, not {_MAGIC!r}")
    if not PROTOCOLS.least <= version <= PROTOCOLS.newest:
        raise FrameError(f"a frame is of protocol {version}, and this apexrl speaks {PROTOCOLS}")
    if its_kind != kind or how not in (_RAW, _ZLIB):
        raise FrameError(f"a frame is of kind {its_kind} and packing {how}, which is not known here")
    if head_bytes > MOST_HEAD_BYTES or raw_bytes > most_bytes:
        raise FrameError(f"a frame claims {head_bytes} + {raw_bytes} bytes; at most {most_bytes} are taken")
    if view.nbytes != OVERHEAD_BYTES + head_bytes + wire_bytes or (how == _RAW and raw_bytes != wire_bytes):
        raise FrameError(f"a frame of {view.nbytes} bytes claims {OVERHEAD_BYTES + head_bytes + wire_bytes}")
    end = _FIXED.size + head_bytes
    front, body = view[:end], view[end + _CRC.size :]
    if _CRC.unpack_from(view, end)[0] != _native.crc32c(front) or crc != _native.crc32c(body):
        raise FrameError("a frame's checksum is wrong: it was damaged on its way")
    return front[_FIXED.size :], _Body(raw_bytes, body, how == _ZLIB)


def _decode(decoder: msgspec.msgpack.Decoder[Any], text: memoryview) -> Any:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"the head of a frame cannot be read: {error}") from None
