"""What of a vector goes to which member of a sum, in which form, and what is made of what comes in."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

from apexrl.errors import LinkError

CHUNK_FLOATS: Final = 1 << 18
"""A vector is sent in pieces of so many values, the last ones first, as a backward pass makes them."""

_SLICED_FLOATS = 1 << 16  # from here on three members and more send each the slice that it sums, and back the sums

Kind = Literal["none", "bf16", "top-k"]


class Form(NamedTuple):
    """In which form vectors travel. Nothing is lost by it: the values must be such as the form holds."""

    kind: Kind = "none"
    """``bf16``: the values are those of bfloat16, though the vector is float32; ``top-k``: most of them are zeros."""
    exact: int = 0
    """The first so many values are any."""
    most: int = 0
    """Of a ``top-k``: how many of the others are not zero at most."""


WHOLE: Final = Form()


class Peer:
    """The connection to one other member; what is to go out and come in, in order."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        connection.setblocking(False)
        self.socket, self.rank = connection, rank
        self.out: deque[memoryview] = deque()
        self.into: deque[memoryview] = deque()

    def move(self) -> None:
        """Send and receive what is possible without waiting.

        Raises:
            LinkError: the connection is broken.
        """
        try:
            self._move(self.out, self.socket.send)
            self._move(self.into, self.socket.recv_into)
        except OSError as error:
            raise LinkError(f"a learner is lost: {error}") from error

    @staticmethod
    def _move(views: deque[memoryview], call: Callable[[memoryview], int]) -> None:
        with suppress(BlockingIOError):
            while views:
                moved = call(views[0])
                if not moved:
                    raise ConnectionError("it has closed its connection")
                views[0] = views[0][moved:]
                if not views[0]:
                    views.popleft()


class DensePlan:
    """Every value travels. The same in every sum of ``vector``, float32 on the CPU."""

    def __init__(self, vector: Tensor, rank: int, peers: list[Peer], form: Form) -> None:
        floats, size = vector.numel(), len(peers) + 1
        sliced = size > 2 and floats >= _SLICED_FLOATS
        ends = [floats * i // size for i in range(size + 1)]
        slices = [slice(ends[i], ends[i + 1]) if sliced else slice(0, floats) for i in range(size)]
        own = slices[rank]
        exact = form.exact if form.kind == "bf16" else floats
        self.vector, self._rank, self._sliced = vector, rank, sliced
        self._own = vector[own]
        self._parts = [torch.empty_like(self._own) for _ in peers]
        self.total = torch.empty_like(vector) if sliced else self._parts[0]
        self._short = torch.empty(floats - exact, dtype=torch.bfloat16)
        self._sends: list[tuple[int, Peer, memoryview, tuple[Tensor, Tensor] | None]] = []
        self._receives: list[tuple[Peer, memoryview]] = []
        self._widened: list[tuple[Tensor, Tensor]] = []
        """(values, where they are to be float32) of what comes in."""
        for peer, part in zip(peers, self._parts, strict=True):
            for start, end in _chunks(slices[peer.rank], exact):
                if start < exact:
                    self._sends.append((start, peer, as_bytes(vector[start:end]), None))
                else:
                    short = self._short[start - exact : end - exact]
                    self._sends.append((start, peer, as_bytes(short), (short, vector[start:end])))
            for start, end in _chunks(own, exact):
                into = part[start - own.start : end - own.start]
                if start >= exact:
                    self._widened.append((torch.empty_like(into, dtype=torch.bfloat16), into))
                    into = self._widened[-1][0]
                self._receives.append((peer, as_bytes(into)))
        self._sends.sort(key=lambda one: -one[0])
        self._sums = [(peer, as_bytes(self.total[own]), as_bytes(self.total[slices[peer.rank]])) for peer in peers]
        self._slice = self.total[own]
        self._sent = -1  # values of ``_sends``; -1: the sum has not begun

    def begin(self, start: int) -> None:
        """Let out what begins at ``start`` or behind it."""
        if self._sent < 0:
            self._sent = 0
            for peer, view in self._receives:
                peer.into.append(view)
        while self._sent < len(self._sends) and self._sends[self._sent][0] >= start:
            _, peer, view, narrowed = self._sends[self._sent]
            if narrowed is not None:
                narrowed[0].copy_(narrowed[1])
            peer.out.append(view)
            self._sent += 1

    def add(self) -> bool:
        """Add what has come in. True: the others' slices of the sum are yet to come."""
        self._sent = -1
        for short, wide in self._widened:
            wide.copy_(short)
        sums = _in_order(self._own, self._parts, self._rank)
        if self._sliced:
            self._slice.copy_(sums)
            for peer, mine, theirs in self._sums:
                peer.out.append(mine)
                peer.into.append(theirs)
        return self._sliced


class SparsePlan:
    """Places and values of what is not zero travel, from everybody to everybody."""

    def __init__(self, vector: Tensor, rank: int, peers: list[Peer], form: Form) -> None:
        self.vector, self.total = vector, torch.empty_like(vector)
        self._exact, self._peers, self._begun = form.exact, peers, False
        self._rows = [torch.zeros(form.exact + 2 * form.most) for _ in range(len(peers) + 1)]  # by rank
        self._own = self._rows[rank]

    def begin(self, start: int) -> None:
        """Let everything out once ``start`` is 0."""
        if start or self._begun:
            return
        self._begun = True
        found = self.vector[self._exact :].nonzero()[:, 0]
        places, values = self._split(self._own)
        assert len(found) <= len(places), f"{len(found)} values are not zero, and at most {len(places)} are to be sent"
        self._own[: self._exact] = self.vector[: self._exact]
        places.zero_()
        values.zero_()
        places[: len(found)] = found.to(torch.int32)
        values[: len(found)] = self.vector[self._exact :][found]
        for peer in self._peers:
            peer.out.append(as_bytes(self._own))
            peer.into.append(as_bytes(self._rows[peer.rank]))

    def add(self) -> bool:
        """Add what has come in: False, nothing is yet to come."""
        self._begun = False
        self.total.zero_()
        for row in self._rows:
            places, values = self._split(row)
            self.total[: self._exact] += row[: self._exact]
            self.total[self._exact :].index_add_(0, places, values)
        return False

    def _split(self, row: Tensor) -> tuple[Tensor, Tensor]:
        places, values = row[self._exact :].view(2, -1)
        return places.view(torch.int32), values


def _chunks(whole: slice, exact: int) -> list[tuple[int, int]]:
    """Where they begin and end; the last values first, and ``exact`` in none but at an end."""
    cut = min(max(exact, whole.start), whole.stop)
    ranges = ((cut, whole.stop), (whole.start, cut))
    return [(max(end - CHUNK_FLOATS, low), end) for low, high in ranges for end in range(high, low, -CHUNK_FLOATS)]


def _in_order(own: Tensor, parts: list[Tensor], rank: int) -> Tensor:
    """The sum in the order of ranks, in the place of the first of the others' parts."""
    first, *rest = parts
    if rank == 0:
        first.add_(own)  # of two, either order gives the same
    for other, part in enumerate(rest, 1):
        if other == rank:
            first.add_(own)
        first.add_(part)
    if rank == len(parts):
        first.add_(own)
    return first


def as_bytes(vector: Tensor) -> memoryview:
    """The memory of a contiguous vector on the CPU."""
    array: Any = (vector.view(torch.int16) if vector.dtype is torch.bfloat16 else vector).numpy()
    return memoryview(array).cast("B")
