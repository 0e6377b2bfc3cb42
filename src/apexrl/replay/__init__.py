"""A prioritized replay in shared memory: NumPy in, NumPy out, for any number of processes.

    from apexrl.replay import Field, Replay

Imports NumPy and nothing of PyTorch, Gymnasium or the rest of apexrl's roles.
"""

from apexrl.replay.batch import Batch, Updated
from apexrl.replay.replay import Replay
from apexrl.replay.writer import PendingItems, Writer
from apexrl.spec import Field

__all__ = ["Batch", "Field", "PendingItems", "Replay", "Updated", "Writer"]
