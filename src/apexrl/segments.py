"""Attaching to another process's shared memory: what an unpickled ``_native.Segment`` calls."""

from __future__ import annotations

from apexrl import _native
from apexrl.errors import ClosedError


def attach_segment(state: tuple[int, int, bytes, str]) -> _native.Segment:
    """The segment that ``state`` (pid, descriptor, uuid, path) names; ClosedError when its creator has ended."""
    try:
        return _native.Segment.attach(state)
    except RuntimeError as error:
        raise ClosedError(str(error)) from None
