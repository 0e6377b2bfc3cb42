"""Making segments, attaching to those of other processes, and names of processes for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from apexrl import _native
from apexrl.errors import ClosedError, ConfigError

_T = TypeVar("_T")


State = tuple[int, int, bytes, str]
"""(pid, descriptor, uuid, path) of a segment."""


def new_segment(nbytes: int) -> _native.Segment:
    """ConfigError: the memory cannot be had."""
    return _made(_native.Segment, nbytes)


def new_board(nbytes: int) -> _native.Board:
    """ConfigError: the memory cannot be had."""
    return _made(_native.Board.create, nbytes)


def _made(make: Callable[[int], _T], nbytes: int) -> _T:
    try:
        return make(nbytes)
    except RuntimeError as error:
        raise ConfigError(str(error)) from None


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
