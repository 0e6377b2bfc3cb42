"""Attaching to segments of other processes, and names of processes for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from apexrl import _native
from apexrl.errors import ClosedError

_T = TypeVar("_T")


State = tuple[int, int, bytes, str]
"""(pid, descriptor, uuid, path) of a segment."""


def attach_segment(state: State) -> _native.Segment:
    """ClosedError: the segment's creator has ended."""
    return _attached(_native.Segment.attach, state)


def attach_board(state: State) -> _native.Board:
    """ClosedError: the board's creator has ended."""
    return _attached(_native.Board.attach, state)


def _attached(attach: Callable[[State], _T], state: State) -> _T:
    try:
        return attach(state)
    except RuntimeError as error:
        raise ClosedError(str(error)) from None


def process_name(pid: int) -> str:
    """The process of a ``Segment.holder``, for messages."""
    return f"process {pid}" if pid > 0 else "a process of another container"
