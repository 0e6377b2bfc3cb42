"""A replay in shared memory: NumPy in, NumPy out, for any number of processes.

    from apexrl.replay import Field, Replay

Imports NumPy and nothing of PyTorch, Gymnasium or the rest of apexrl's roles.
"""

from apexrl.replay.batch import Batch, Updated
from apexrl.replay.replay import Replay
from apexrl.replay.served.batch_client import ServedBatches
from apexrl.replay.served.batch_server import BatchServer
from apexrl.replay.writer import PendingItems, Writer
from apexrl.spec import Field

__all__ = ["Batch", "BatchServer", "Field", "PendingItems", "Replay", "ServedBatches", "Updated", "Writer"]
