"""The state that a sharded replay keeps of each shard, and of requested batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from apexrl.replay.sharded.shard import Answer, DrawResult, ShardStatus

IDLE_SECONDS = 1.0  # a shard that inserts nothing for so long while others do is idle


class DrawRequest(NamedTuple):
    """Rows of a batch that were requested from one shard."""

    shard: int
    rows: int
    probability: float  # of the shard, when it was chosen
    epoch: int  # the shard's, then
    answer: Answer  # of DrawResult


@dataclass(eq=False)
class BatchPlan:
    """A batch whose rows are being requested."""

    rows: int
    requests: list[DrawRequest] = field(default_factory=list)
    got: list[tuple[int, float, DrawResult]] = field(default_factory=list)  # shard, its probability, its rows

    @property
    def missing(self) -> int:
        """Rows that are not requested from any shard."""
        return self.rows - sum(request.rows for request in self.requests) - sum(len(got[2].keys) for got in self.got)


@dataclass
class ShardState:
    """What the sampler knows of one shard.

    Answers arrive in any order, also those of an earlier generation. So a request keeps the ``epoch`` at which it was
    made, which rises with every loss and every new generation. The answer to a request of an earlier epoch neither
    marks the shard as lost again nor as alive.
    """

    size: int = 0
    mass: float = 0.0
    inserted: int = 0  # in all of its generations
    generation: str = ""
    moment: int = 0
    before: int = 0  # inserted in earlier generations
    limit: int = 0  # that this generation may insert
    lost: bool = False
    losses: int = 0
    lost_items: int = 0
    epoch: int = 0
    past: set[str] = field(default_factory=set)  # generations that have ended
    answered_at: float = -1e9  # monotonic seconds, as all times here
    poll: tuple[Answer, int] | None = None  # status request under way, and its epoch
    polled_at: float = -1e9
    requested: int = 0  # rows
    updates: deque[tuple[Answer, int, int]] = field(default_factory=deque)  # answer, epoch, number of keys
    inserted_at: float = -1e9  # when the last insert was noticed
    granted_at: float = -1e9
    idle: bool = False  # it does not insert what it was granted, while too few items are there to sample
    dry: bool = False  # fifo: its last answer had fewer items than were requested

    @property
    def granted(self) -> int:
        """Items that it may ever insert. What a lost or idle shard left is granted to others."""
        return self.inserted if self.lost or self.idle else max(self.before + self.limit, self.inserted)

    def grant(self, share: int, now: float) -> None:
        """Let its present generation insert ``share`` more items."""
        self.limit = max(self.limit, self.inserted - self.before) + share
        self.granted_at, self.idle = now, False

    def update_idle(self, others: Sequence[ShardState], polled_at: float, short_since: float) -> None:
        """Decide whether it is idle, by a status requested at ``polled_at``; items are short since ``short_since``."""
        moved = max(self.inserted_at, self.granted_at)
        if self.lost or self.limit <= self.inserted - self.before or polled_at - max(moved, short_since) < IDLE_SECONDS:
            return
        self.idle = any(other.inserted_at > moved and not other.lost for other in others if other is not self)

    def lose(self, epoch: int, now: float) -> None:
        """A request of ``epoch`` failed."""
        if epoch != self.epoch:
            return
        if not self.lost:
            self.losses += bool(self.generation)  # one that was never seen has not started yet
            self.lost_items += self.size
            self.epoch += 1
        self.lost, self.idle, self.size, self.mass, self.answered_at = True, False, 0, 0.0, now

    def enter(self, status: ShardStatus, epoch: int, now: float) -> int:
        """Record its status. Returns the items that it had given to earlier samplers."""
        earlier = 0
        if status.generation in self.past or (
            status.generation == self.generation and self.lost and epoch != self.epoch
        ):
            return 0
        if status.generation != self.generation:
            if self.generation:
                self.lose(self.epoch, now)  # it died and restarted between two calls
                self.past.add(self.generation)
            else:
                earlier = status.sampled
            self.generation, self.before, self.moment, self.limit = status.generation, self.inserted, 0, 0
            self.epoch += 1
        self.lost, self.answered_at = False, now
        if status.moment >= self.moment:  # otherwise a newer answer arrived before this one
            inserted = self.before + status.inserted
            if inserted != self.inserted:
                self.inserted_at, self.idle = now, False
            self.moment = status.moment
            self.size, self.mass, self.inserted = status.size, status.mass, inserted
        return earlier
