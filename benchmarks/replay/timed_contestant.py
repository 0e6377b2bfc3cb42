"""A contestant with data at hand: what is timed, and the check that it does what it should."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.replay.contestants import Contestant, Shape
from benchmarks.replay.rows import CYCLE, stamps

INSERT, SAMPLE, UPDATE = "insert", "sample", "update"
LOOP, CYCLE_OF_ALL = "sample + update", "insert + sample + update"


class Player:
    """Plays one contestant in one process."""

    def __init__(self, contestant: Contestant, shape: Shape, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.contestant = contestant
        self._shape = shape
        self.chunks = contestant.chunks(rng)
        self._priorities = [rng.random(shape.chunk, np.float32) for _ in range(CYCLE)]
        self._magnitudes = [rng.random(shape.batch, np.float32) for _ in range(CYCLE)]
        self._keys: Any = None
        self._batch: Any = None
        self._inserts = self._updates = 0

    def fill(self, seconds: float) -> int:
        """Insert 1¼ times the capacity, so that every page was touched, or for ``seconds``; returns the rows held."""
        shape, start, rows = self._shape, time.perf_counter(), 0
        while rows < 5 * shape.capacity // 4 and time.perf_counter() - start < seconds:
            self.insert()
            rows += shape.chunk
        self.settle()
        return min(rows, shape.capacity)

    def settle(self) -> None:
        """Finish work that an operation may have put off; compile what is compiled at first use."""
        self.contestant.ready()
        for _ in range(3):
            self.sample()
        if self.contestant.prioritized:
            self.update()

    def insert(self) -> None:
        turn = self._inserts % CYCLE
        self._inserts += 1
        self.contestant.insert(self.chunks[turn], self._priorities[turn])

    def sample(self) -> None:
        self._keys, self._batch = self.contestant.sample()  # held until the next one is there, as in a training loop

    def update(self) -> None:
        self._updates += 1
        self.contestant.update(self._keys, self._magnitudes[self._updates % CYCLE])

    def loop(self) -> None:
        self.sample()
        self.update()

    def all(self) -> None:
        self.insert()
        self.sample()
        self.update()

    def operations(self) -> dict[str, tuple[Callable[[], None], float]]:
        """Operation -> (call, figures per call)."""
        plain: dict[str, tuple[Callable[[], None], float]] = {
            INSERT: (self.insert, self._shape.chunk),
            SAMPLE: (self.sample, 1),
        }
        if not self.contestant.prioritized:
            return plain
        return plain | {UPDATE: (self.update, 1), LOOP: (self.loop, 1), CYCLE_OF_ALL: (self.all, 1)}

    def rate(self, operation: str, seconds: float) -> float:
        """Transitions inserted, or calls, per second."""
        call, figures = self.operations()[operation]
        self.settle()
        calls, start = 0, time.perf_counter()
        while (now := time.perf_counter()) - start < seconds:
            call()
            calls += 1
        return figures * calls / (now - start)

    def torn(self, batches: int = 8) -> tuple[int, int]:
        """(rows that were never inserted so, rows looked at)."""
        wrong = 0
        for _ in range(batches):
            _, batch = self.contestant.sample()
            wrong += self.contestant.torn(self.contestant.columns(batch))
        return wrong, batches * self._shape.batch


def check(contestant: Contestant, shape: Shape) -> str:
    """What is wrong with the contestant, or an empty string.

    Batches hold what was inserted; a row of overwhelming priority takes nearly every draw, whether the priority came
    with the insert or with an update; and it vanishes once updated to nearly nothing.
    """
    player = Player(contestant, shape)
    chunks, batch_size = player.chunks, shape.batch
    low = np.full(shape.chunk, 1e-3, np.float32)
    for turn in range(2 * CYCLE):
        contestant.insert(chunks[turn % CYCLE], low)
    contestant.ready()
    wrong, rows = player.torn()
    if wrong:
        return f"{wrong} of {rows} rows are not what was inserted"
    seen = np.unique(np.concatenate([stamps(contestant.columns(contestant.sample()[1])) for _ in range(8)]))
    if len(seen) < 32:
        return f"only {len(seen)} different rows were drawn"
    if not contestant.prioritized:
        return ""

    def share(keys: Any) -> tuple[float, int]:
        values, counts = np.unique(np.asarray(keys).reshape(-1), return_counts=True)
        return counts.max() / batch_size, int(values[counts.argmax()])

    one = low.copy()
    one[7] = 1e9
    contestant.insert(chunks[0], one)
    contestant.insert(chunks[1], low)  # where a transition needs its next step, that is here now
    contestant.ready()
    keys, batch = _sampled(contestant, lambda keys: share(keys)[0] > 0.9)
    part, key = share(keys)
    if part < 0.9:
        return f"a row inserted with an overwhelming priority took {part:.0%} of the draws"
    columns = contestant.columns(batch)
    found = stamps(columns)[np.asarray(keys).reshape(-1) == key]
    wanted = _stamps_of(chunks[0])[7]
    if contestant.torn(columns) or (found != wanted).any():
        return "the row with the overwhelming priority is another one"
    contestant.update(keys, np.full(batch_size, 1e-3, np.float32))
    contestant.ready()
    keys, _ = _sampled(contestant, lambda keys: share(keys)[0] < 0.1)
    if share(keys)[0] > 0.1:
        return f"after an update to nearly nothing one row still took {share(keys)[0]:.0%} of the draws"
    magnitudes = np.full(batch_size, 1e-3, np.float32)
    key = int(np.asarray(keys).reshape(-1)[5])
    magnitudes[np.asarray(keys).reshape(-1) == key] = 1e9
    contestant.update(keys, magnitudes)
    contestant.ready()
    keys, _ = _sampled(contestant, lambda keys: share(keys)[0] > 0.9)
    part, most = share(keys)
    return (
        "" if part > 0.9 and most == key else f"a row updated to an overwhelming priority took {part:.0%} of the draws"
    )


def _sampled(contestant: Contestant, enough: Callable[[Any], bool]) -> tuple[Any, Any]:
    """A batch; up to four more while it is not ``enough``: Reverb's dataset hands out what it fetched before."""
    for _ in range(5):
        keys, batch = contestant.sample()
        if enough(keys):
            break
    return keys, batch


def _stamps_of(chunk: Any) -> Any:
    """The stamps of the transitions of one chunk, in order."""
    parts = chunk if isinstance(chunk, list) else [chunk]
    return np.concatenate([np.asarray(part["reward"]).reshape(-1) for part in parts]).astype(np.int64)
