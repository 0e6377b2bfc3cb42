"""Frame stacking for acting; the replay stacks the frames that it samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import SpecError
from apexrl.spec import Array, Field

WINDOWS_PER_BUFFER = 8  # kept frames are moved once in so many windows


class FrameStack:
    """The last ``stack`` frames of each of B environments, oldest first.

    Frames are written side by side into a buffer of several windows, and the result is a view of it: a push
    copies one frame per environment, and only at the buffer's end are the kept frames moved to its front.
    At an episode's start the first frame fills the whole window, as ``Replay`` pads and as Gymnasium's
    ``FrameStackObservation(padding_type="reset")`` does.

    Args:
        stack: frames seen at once; 1 hands observations through unchanged, without a stack axis.
        num_envs: B.
        fields: observation name -> Field of one frame.
    """

    def __init__(self, stack: int, num_envs: int, fields: Mapping[str, Field]) -> None:
        if stack < 1:
            raise SpecError(f"stack is {stack}: at least 1 frame must be seen")
        self.stack = stack
        self._width = stack * WINDOWS_PER_BUFFER
        self._newest = -1  # column of the newest frame; -1 before the first push
        self._buffers = (
            {name: np.zeros((num_envs, self._width, *field.shape), field.dtype) for name, field in fields.items()}
            if stack > 1
            else {}
        )

    def push(
        self,
        observations: Mapping[str, Array],
        starts: NDArray[np.bool_] | None = None,
        which: NDArray[np.int64] | None = None,
    ) -> dict[str, Array]:
        """Add one frame of R environments and return their windows.

        Args:
            observations: name -> [R, *shape].
            starts: [R], true where this frame begins an episode; None: everywhere (after a reset of all).
            which: [R], numbers of the environments; None: all B, in order. The first push is of all.

        Returns:
            name -> [R, stack, *shape], a view that holds until the next push.
        """
        if self.stack == 1:
            return dict(observations)
        if which is not None:
            return self._push_some(observations, starts, which)
        if self._newest < 0:
            starts = None
        keep = self.stack - 1
        if self._newest < 0 or self._newest + 1 == self._width:
            if self._newest >= 0:
                for buffer in self._buffers.values():
                    buffer[:, :keep] = buffer[:, -keep:]
            self._newest = keep - 1
        self._newest += 1
        window = slice(self._newest - keep, self._newest + 1)
        windows: dict[str, Array] = {}
        rows = slice(None) if starts is None else np.flatnonzero(starts)
        for name, buffer in self._buffers.items():
            frames = observations[name]
            buffer[:, self._newest] = frames
            if starts is None or len(rows):  # type: ignore[arg-type]
                buffer[rows, window] = frames[rows, np.newaxis]
            windows[name] = buffer[:, window]
        return windows

    def _push_some(
        self, observations: Mapping[str, Array], starts: NDArray[np.bool_] | None, which: NDArray[np.int64]
    ) -> dict[str, Array]:
        """Push frames of some environments: their windows shift within the current columns."""
        window = slice(self._newest + 1 - self.stack, self._newest + 1)
        first = np.ones(len(which), np.bool_) if starts is None else starts
        windows: dict[str, Array] = {}
        for name, buffer in self._buffers.items():
            frames = observations[name]
            seen = buffer[which, window]  # a copy, [R, stack, *shape]
            seen[:, :-1] = seen[:, 1:]
            seen[:, -1] = frames
            seen[first] = frames[first, np.newaxis]
            buffer[which, window] = windows[name] = seen
        return windows
