"""Making segments, attaching to those of other processes, and names of processes for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from apexrl import _native
from apexrl.errors import ClosedError, ConfigError

_A = TypeVar("_A")
_T = TypeVar("_T")


State = tuple[int, int, bytes, str]
"""(pid, descriptor, uuid, path) of a segment."""


def new_segment(nbytes: int) -> _native.Segment:
    """ConfigError: the memory cannot be had."""
    return _result(_native.Segment, nbytes, ConfigError)


def new_board(nbytes: int) -> _native.Board:
    """ConfigError: the memory cannot be had."""
    return _result(_native.Board.create, nbytes, ConfigError)


def attach_segment(state: State) -> _native.Segment:
    """ClosedError: the segment's creator has ended."""
    return _result(_native.Segment.attach, state, ClosedError)


def attach_board(state: State) -> _native.Board:
    """ClosedError: the board's creator has ended."""
    return _result(_native.Board.attach, state, ClosedError)


def _result(make: Callable[[_A], _T], argument: _A, failure: type[Exception]) -> _T:
    """``make(argument)``; its RuntimeError becomes a ``failure`` with the same words."""
    try:
        return make(argument)
    except RuntimeError as error:
        raise failure(str(error)) from None


def process_name(pid: int) -> str:
    """The process of a ``Segment.holder``, for messages."""
    return f"process {pid}" if pid > 0 else "a process of another container"
