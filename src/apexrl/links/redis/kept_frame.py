"""A frame of the experience stream that its sender keeps until it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apexrl._native import MOST_CHUNKS, ChunkHeads

JOINED_BYTES: Final = 512 * 2**10
"""Of bodies in one frame: a frame costs the server and both ends more than a small body does."""


class KeptFrame:
    """A frame until it is committed. Waiting bodies join it until it is encoded."""

    __slots__ = (
        "bodies", "body", "counts", "end", "entry", "front", "heads", "item_index", "items", "nbytes", "sequence",
        "tried",
    )  # fmt: skip

    def __init__(self, sequence: int, item_index: int) -> None:
        self.sequence = self.end = sequence  # of its first chunk; after its last one
        self.item_index = item_index
        self.items = self.nbytes = 0
        self.heads: list[ChunkHeads] = []
        self.bodies: list[bytes] = []
        self.counts: dict[str, int] = {}
        self.front = self.body = b""  # empty: not encoded
        self.entry = b""  # its id on the server, once known
        self.tried = False  # to send it

    def takes(self, chunks: int, nbytes: int, most_bytes: int) -> bool:
        """Whether so many more may travel with it, ``most_bytes`` of bodies together."""
        within = self.nbytes + nbytes <= most_bytes and self.end - self.sequence + chunks <= MOST_CHUNKS
        return within and not self.front

    def add(self, heads: ChunkHeads, items: int, body: bytes, counts: Mapping[str, int]) -> None:
        self.heads.append(heads)
        self.bodies.append(body)
        self.counts = dict(counts)
        self.end += len(heads)
        self.items += items
        self.nbytes += len(body)
