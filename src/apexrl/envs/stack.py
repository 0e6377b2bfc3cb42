"""Frame stacking while acting; the replay does the same for what it samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import SpecError
from apexrl.spec import Array, Field

WINDOWS_PER_BUFFER = 8  # the frames that survive are moved once in so many windows


class FrameStack:
    """The last ``stack`` frames of each of B environments, oldest first.

    Frames are written side by side into a buffer of several windows, and the answer is a view of it: pushing
    copies one frame per environment, and only when the buffer ends are the surviving frames moved to its front.
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

    def push(self, observations: Mapping[str, Array], starts: NDArray[np.bool_] | None = None) -> dict[str, Array]:
        """Add one frame per environment and return the windows.

        Args:
            observations: name -> [B, *shape].
            starts: [B], true where this frame begins an episode; None: everywhere (after a reset of all).

        Returns:
            name -> [B, stack, *shape], a view that holds until the next push.
        """
        if self.stack == 1:
            return dict(observations)
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
