"""What the sampler of several shards knows of each, and of batches on their way (``replay.sharded.sharded_replay``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from apexrl.replay.sharded.shard import Answer, Drawn, Standing

IDLE_SECONDS = 1.0  # in which a shard takes nothing in while others might have, before they may in its place


class Part(NamedTuple):
    """Rows of a batch that a shard was asked for."""

    shard: int
    rows: int
    chance: float  # of the shard, when it was chosen
    epoch: int  # of what was known of it then
    answer: Answer  # of Drawn


@dataclass(eq=False)
class Plan:
    """A batch on its way."""

    rows: int
    parts: list[Part] = field(default_factory=list)
    got: list[tuple[int, float, Drawn]] = field(default_factory=list)  # shard, its chance, rows

    @property
    def missing(self) -> int:
        """Rows that nobody was asked for."""
        return self.rows - sum(part.rows for part in self.parts) - sum(len(got[2].keys) for got in self.got)


@dataclass
class Known:
    """What is known of one shard.

    Answers come in any order, also those of a life that is over. So whoever asks keeps ``epoch``, which rises with
    every loss and every new life, and what was asked in an earlier one neither loses the shard again nor revives it.
    """

    size: int = 0
    mass: float = 0.0
    inserted: int = 0  # of all of its lives
    life: str = ""
    moment: int = 0
    before: int = 0  # inserted in earlier lives
    limit: int = 0  # that this life may insert
    lost: bool = False
    losses: int = 0
    lost_items: int = 0
    epoch: int = 0
    past: set[str] = field(default_factory=set)  # lives that another one followed
    heard: float = -1e9  # monotonic seconds
    look: tuple[Answer, int] | None = None  # and the epoch of the question, here and below
    looked: float = -1e9
    asked: int = 0  # rows under way
    updates: deque[tuple[Answer, int, int]] = field(default_factory=deque)  # with their number
    took: float = -1e9  # when it was last seen to have taken something in
    raised: float = -1e9  # when it was last granted something
    idle: bool = False  # it takes in nothing of what it was granted, and samples are short
    dry: bool = False  # of a queue: it gave less than it was asked for the last time

    @property
    def granted(self) -> int:
        """Items that it may ever take in; what a lost or idle one did not, others may."""
        return self.inserted if self.lost or self.idle else max(self.before + self.limit, self.inserted)

    def grant(self, share: int, now: float) -> None:
        """Its present life may take in ``share`` items more. It is not idle before it has left that alone, too."""
        self.limit = max(self.limit, self.inserted - self.before) + share
        self.raised, self.idle = now, False

    def judge(self, others: Sequence[Known], asked: float, short: float) -> None:
        """Whether it is idle, by its answer to a question of ``asked``; samples have been short since ``short``."""
        moved = max(self.took, self.raised)
        if self.lost or self.limit <= self.inserted - self.before or asked - max(moved, short) < IDLE_SECONDS:
            return
        self.idle = any(other.took > moved and not other.lost for other in others if other is not self)

    def lose(self, epoch: int, now: float) -> None:
        """A question of ``epoch`` came back unanswered."""
        if epoch != self.epoch:
            return
        if not self.lost:
            self.losses += bool(self.life)  # what was never seen has yet to come
            self.lost_items += self.size
            self.epoch += 1
        self.lost, self.idle, self.size, self.mass, self.heard = True, False, 0, 0.0, now

    def enter(self, standing: Standing, epoch: int, now: float) -> int:
        """How it said to stand. Returns items that it had given before it was known here."""
        earlier = 0
        if standing.life in self.past or (standing.life == self.life and self.lost and epoch != self.epoch):
            return 0
        if standing.life != self.life:
            if self.life:
                self.lose(self.epoch, now)  # if it died and came back between two calls
                self.past.add(self.life)
            else:
                earlier = standing.sampled
            self.life, self.before, self.moment, self.limit = standing.life, self.inserted, 0, 0
            self.epoch += 1
        self.lost, self.heard = False, now
        if standing.moment >= self.moment:  # or newer answers were faster
            inserted = self.before + standing.inserted
            if inserted != self.inserted:
                self.took, self.idle = now, False
            self.moment = standing.moment
            self.size, self.mass, self.inserted = standing.size, standing.mass, inserted
        return earlier
