"""Publishes weights on a Redis server."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from redis import exceptions

from apexrl.errors import FrameError
from apexrl.links.redis.encoding import encode_weights, packing
from apexrl.links.redis.fences import SHOW, outdated
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.pipe import Pipe, command
from apexrl.links.redis.read_turns import BEING_READ, DROP
from apexrl.links.redis.server import TROUBLE, Server, explain
from apexrl.links.redis.weights_head import MOST_BYTES, MOST_HEAD, Head, encoder, raise_refusals, read_head
from apexrl.protocols import Arrays

PART_BYTES: Final = 2**20 - 2**10
"""Of one part, where the server takes that much. A little more than a power of two would take a quarter more memory
there; and while a part comes in, the server holds it in a buffer of its own."""
PATIENCE_SECONDS: Final = 10.0
"""How long publishing waits while two older versions are being read; then readers of the later one must restart."""
ORPHAN_SECONDS: Final = 600
"""Lifetime of parts whose publisher dies before it writes the head."""


class WeightsUploader:
    """Publishes a run's weights. For one thread.

    Args:
        run_id: weights of other runs under these keys are replaced.
        fence: the ``taken`` of the `LearnerLease` that this works for; 0: no fence.
        compression: ``none`` or ``zlib``.
        rounded: whether large matrices travel as bfloat16.
    """

    def __init__(
        self,
        server: Server,
        keys: RunKeys,
        *,
        run_id: str,
        fence: int = 0,
        compression: str = "none",
        rounded: bool = False,
    ) -> None:
        self._server, self._keys, self._run_id, self._fence = server, keys, run_id, fence
        self._packed, self._rounded = packing(compression), rounded
        self._pipe: Pipe | None = None
        self._unshown: list[str] = []  # parts on the server without a head
        self._held_since: float | None = None  # monotonic seconds

    def publish(self, weights: Arrays, version: int) -> bool:
        """Publish ``version``. The previous one stays while it is being read.

        Returns:
            False: two older versions are still being read. Try again soon, with the newest weights.

        Raises:
            LinkError: the server cannot take it now; try again with the newest weights.
            OwnershipError: a newer learner has the run.
            FrameError: an array is not of plain numbers, or the weights have more than 4 GiB.
        """
        return bool(self._guarded(lambda pipe: self._publish(pipe, weights, version)))

    def published(self) -> int:
        """The version that the server has of this run; 0: none, perhaps because it lost it. Also deletes older versions
        that are not being read any more.

        Raises:
            LinkError: the server cannot be reached now.
            OwnershipError: a newer learner has the run.
        """

        def look(pipe: Pipe) -> int:
            head = self._head(pipe)
            self._tidy(pipe, head)
            return head.version if head is not None and head.run_id == self._run_id else 0

        return int(self._guarded(look))

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _publish(self, pipe: Pipe, weights: Arrays, version: int) -> bool:
        keys, old = self._keys, self._head(pipe)
        before = self._tidy(pipe, old, version)
        if before is None:
            return False
        blob = memoryview(encode_weights(self._run_id, version, weights, self._packed, self._rounded))
        if len(blob) > MOST_BYTES:
            raise FrameError(f"weights of {len(blob)} bytes are more than {MOST_BYTES} and do not travel")
        part_bytes = min(PART_BYTES, pipe.facts.most_bulk)
        parts = -(-len(blob) // part_bytes)
        head = Head(self._run_id, version, parts, part_bytes, len(blob), before)
        new = [keys.weights_part(version, part) for part in range(parts)]
        if old is None or old.version != version:
            self._unshown = new
        for part, key in enumerate(new):
            data = blob[part * part_bytes : (part + 1) * part_bytes]
            setting = command("SETEX", key, ORPHAN_SECONDS, more=1)
            pipe.send([b"%b$%d\r\n" % (setting, len(data)), bytes(data), b"\r\n"], 1)
        raise_refusals(pipe)
        arguments = self._fence, encoder.encode(head), keys.doorbell, version
        if not pipe.ask("EVAL", SHOW, 2 + parts, keys.state, keys.weights, *new, *arguments):
            raise outdated(self._server, keys)
        self._unshown = []
        return True

    def _tidy(self, pipe: Pipe, old: Head | None, version: int | None = None) -> list[tuple[int, int]] | None:
        """Delete versions that are not being read. Answers those left besides ``version``; None: too many to
        publish."""
        keys = self._keys
        told = pipe.ask("EVAL", BEING_READ, 2, keys.state, keys.weights_readers, self._fence)
        if told is None:
            raise outdated(self._server, keys)
        read = {int(one) for one in told}
        older = [one for one in old.before if one[0] != old.version] if old is not None else []
        kept = [one for one in older if one[0] in read and one[0] != version]
        now = time.monotonic()
        if len(kept) < 2:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now
        elif version is not None and now - self._held_since > PATIENCE_SECONDS:
            kept = kept[-1:]  # the earliest: it was read for the longest time
        gone = self._unshown + [
            keys.weights_part(one, part)
            for one, parts in older
            if (one, parts) not in kept and one != version
            for part in range(parts)
        ]
        if gone:
            if not pipe.ask("EVAL", DROP, 1 + len(gone), keys.state, *gone, self._fence):
                raise outdated(self._server, keys)
            self._unshown = []
        if len(kept) > 1:
            return None
        return kept if old is None or old.version == version else [(old.version, old.parts), *kept]

    def _head(self, pipe: Pipe) -> Head | None:
        try:
            return read_head(pipe.ask("GETRANGE", self._keys.weights, 0, MOST_HEAD - 1))
        except FrameError:
            return None  # to be replaced

    def _guarded(self, act: Callable[[Pipe], Any]) -> Any:
        try:
            if self._pipe is None:
                self._pipe = Pipe(self._server, self._keys)
            return act(self._pipe)
        except (*TROUBLE, exceptions.ResponseError) as error:
            self._abandon(error)
            raise explain(error, self._server.address) from None

    def _abandon(self, error: Exception) -> None:
        """Close the connection; on a full server, first delete parts without a head."""
        with suppress(*TROUBLE, exceptions.ResponseError):
            if self._unshown and self._pipe is not None and isinstance(error, exceptions.OutOfMemoryError):
                self._pipe.ask("EVAL", DROP, 1 + len(self._unshown), self._keys.state, *self._unshown, self._fence)
                self._unshown = []
        self.close()
