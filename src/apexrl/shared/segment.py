"""Shared memory of other processes: what an unpickled ``_native.Segment`` calls, and what to call its holders."""

from __future__ import annotations

from apexrl import _native
from apexrl.errors import ClosedError


def attach_segment(state: tuple[int, int, bytes, str]) -> _native.Segment:
    """The segment that ``state`` (pid, descriptor, uuid, path) names; ClosedError when its creator has ended."""
    try:
        return _native.Segment.attach(state)
    except RuntimeError as error:
        raise ClosedError(str(error)) from None


def process_name(pid: int) -> str:
    """What to call the process that ``Segment.holder`` names."""
    return f"process {pid}" if pid > 0 else "a process of another container"
