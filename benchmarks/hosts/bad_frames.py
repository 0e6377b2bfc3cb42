"""Frames gone wrong: damaged on their way, or made by somebody who knows the format and means harm."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from apexrl import _native
from apexrl.links.redis.encoding import FrameHead, encode_frame
from benchmarks.hosts.chunks_to_send import Chunk

_FIXED = struct.Struct("<4sBBBxIIII")  # as in links/redis/encoding.py
_HOSTILE = (-1, 0, 1, 2, 63, 65, 255, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**47, 2**53, 2**62, 2**63)
_NO_HEADS = (b"\xc1", b"\x9f" * 5000, b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"")


class Mutants:
    """Makes them, from ``chunks`` of a run. Repeatable by ``seed``."""

    def __init__(self, chunks: list[Chunk], run_id: str, schema: bytes, seed: int) -> None:
        self._chunks, self._run_id, self._schema = chunks, run_id, schema
        self._random = random.Random(seed)
        self._sound = [self._frame(*self._pick()) for _ in range(200)]

    def damaged(self) -> bytes:
        """Bits flipped, bytes lost, moved, or of another frame: nobody has made the checksums good again."""
        dice, frame = self._random, bytearray(self._random.choice(self._sound))
        for _ in range(dice.choice((1, 1, 1, 2, 8))):
            at = dice.randrange(len(frame) or 1)
            match dice.randrange(7):
                case 0:
                    frame[at : at + 1] = bytes([dice.randrange(256)])
                case 1:
                    if frame:
                        frame[at % len(frame)] ^= 1 << dice.randrange(8)
                case 2:
                    del frame[at:]
                case 3:
                    del frame[at : at + dice.randrange(1, 64)]
                case 4:
                    frame[at:at] = dice.randbytes(dice.randrange(1, 64))
                case 5:
                    other = dice.choice(self._sound)
                    frame[at:] = other[dice.randrange(len(other)) :]
                case _:
                    field = 8 + 4 * dice.randrange(4)
                    frame[field : field + 4] = struct.pack("<I", dice.choice(_HOSTILE) % 2**32)
        return bytes(frame)

    def hostile(self) -> bytes:
        """Sound checksums over lies: sizes, counts, names, numbers, types, compression."""
        dice = self._random
        head, body = self._pick()
        value: Any = list(msgspec.msgpack.decode(msgspec.msgpack.encode(head)))
        for _ in range(dice.choice((1, 1, 2, 4))):
            lie = self._lie()
            place = dice.randrange(len(value))
            if place == 6 and dice.random() < 0.8 and isinstance(value[6], list) and value[6]:
                some = value[6][dice.randrange(len(value[6]))]
                one = list(some) if isinstance(some, list) and some else [lie]
                one[dice.randrange(len(one))] = lie
                value[6] = [*value[6][1:], one]
            else:
                value[place] = lie
        packed = msgspec.msgpack.encode(value)
        if dice.random() < 0.1:
            packed = dice.choice((*_NO_HEADS, packed[:-1]))
        if dice.random() < 0.05:
            return self._seal(packed, bytes(dice.choice((1 << 20, 1 << 24))), bomb=True)
        return self._seal(packed, body)

    def poisoned(self) -> bytes:
        """Sound heads and checksums; what the body holds is changed: flags, ages, rewards, priorities."""
        dice = self._random
        head, body = self._pick()
        spoilt = bytearray(body)
        for _ in range(dice.choice((1, 1, 2, 8, 64))):
            first = dice.random() < 0.7  # step heads and priorities stand at the front of a chunk
            at = dice.randrange(min(len(spoilt), 1200) if first else len(spoilt))
            match dice.randrange(3):
                case 0:
                    spoilt[at] = dice.randrange(256)
                case 1:
                    spoilt[at : at + 4] = struct.pack("<f", dice.choice((float("nan"), float("inf"), -1.0, 1e38)))
                case _:
                    spoilt[at : at + 8] = struct.pack("<d", dice.choice((float("nan"), float("inf"), -1.0, 1e308)))
        return self._frame(head, bytes(spoilt[: len(body)]))

    def kinds(self) -> dict[str, Callable[[], bytes]]:
        return {"damaged": self.damaged, "hostile": self.hostile, "poisoned": self.poisoned}

    def _pick(self) -> tuple[FrameHead, bytes]:
        """A sound frame of a member that nobody knows."""
        dice = self._random
        some = dice.sample(self._chunks, dice.randrange(1, 4))
        member, sequence = f"mallory-{dice.randrange(300)}", dice.randrange(10_000)
        heads = msgspec.Raw(_native.ChunkHeads([one.head for one in some]).pack())
        counts = {"env_steps": dice.randrange(10)}
        head = FrameHead(self._run_id, self._schema, member, 1, sequence, 64 * sequence, heads, counts)
        return head, b"".join(one.body for one in some)

    @staticmethod
    def _frame(head: FrameHead, body: bytes) -> bytes:
        return b"".join(encode_frame(head, body))

    def _lie(self) -> Any:
        dice = self._random
        number = dice.choice(_HOSTILE)
        return dice.choice((
            number, number, number, 2**64 - 1, -(2**63), 1.5, None, True, "", "x" * 200, "\x00\x1b[2J", b"",
            b"\xff" * 100, [], [[]], {}, {"a": number}, [number] * 5000, [[0] * 8] * 5000,
        ))  # fmt: skip

    def _seal(self, head: bytes, body: bytes, bomb: bool = False) -> bytes:
        dice = self._random
        packed = bomb or dice.random() < 0.3
        raw = len(body)
        wire = zlib.compress(body, 1) if packed else body
        if packed and dice.random() < 0.5:
            raw = max(0, min(2**32 - 1, raw + dice.choice((-1, 1, 1000, 2**30))))
        fixed = _FIXED.pack(b"apxr", 1, 1, int(packed), len(head), len(wire), raw, _native.crc32c(wire))
        front = fixed + head
        return front + struct.pack("<I", _native.crc32c(front)) + wire
