"""Prioritized replay in shared memory, for any number of processes of one host.

    from apexrl.replay import Field, Replay

It takes and gives NumPy arrays, and imports neither PyTorch nor Gymnasium.
"""

from apexrl.replay.batch import Batch, Updated
from apexrl.replay.mixed import MixedBatch, MixedReplay
from apexrl.replay.pending import PendingItems
from apexrl.replay.replay import Replay
from apexrl.replay.served.batch_client import ServedBatches
from apexrl.replay.served.batch_server import BatchServer
from apexrl.replay.tables import Tables
from apexrl.replay.tables_writer import TablesWriter
from apexrl.replay.writer import Writer
from apexrl.spec import Field

__all__ = [
    "Batch",
    "BatchServer",
    "Field",
    "MixedBatch",
    "MixedReplay",
    "PendingItems",
    "Replay",
    "ServedBatches",
    "Tables",
    "TablesWriter",
    "Updated",
    "Writer",
]
