"""Attaching to segments of other processes, and names of processes for messages."""

from __future__ import annotations

from apexrl import _native
from apexrl.errors import ClosedError


def attach_segment(state: tuple[int, int, bytes, str]) -> _native.Segment:
    """The segment of ``state`` (pid, descriptor, uuid, path). ClosedError: its creator has ended."""
    try:
        return _native.Segment.attach(state)
    except RuntimeError as error:
        raise ClosedError(str(error)) from None


def process_name(pid: int) -> str:
    """The process of a ``Segment.holder``, for messages."""
    return f"process {pid}" if pid > 0 else "a process of another container"
