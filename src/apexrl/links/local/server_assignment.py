"""The assignment of an inference link's groups to servers, also while servers die and restart."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from apexrl.links.local.inference import InferenceLink


class ServerAssignment:
    """The partitions of groups that one server answers.

    Partition p belongs to server p. Partitions of dead servers are divided among the live ones. Each server holds a
    record lock on a byte of its own and on one for each partition that it answers; the kernel releases them when it
    dies. No server waits for a lock. So a partition has one server at a time, even while two servers disagree on who is
    alive: it moves when its holder unlocks it and the other server calls ``update``.

    Args:
        link: with as many partitions as servers.
        index: of this server.
    """

    def __init__(self, link: InferenceLink, index: int) -> None:
        self._segment, self._servers = link.segment, link.servers
        self._index = index
        self.held: frozenset[int] = frozenset()
        """The partitions that this server answers."""
        self._take(self._server_lock(index))

    def update(self) -> bool:
        """Unlock partitions that belong to others; lock those that are free and belong here. True: ``held`` changed."""
        alive = [server for server in range(self._servers) if self._segment.held(self._server_lock(server))]
        if self._index not in alive:  # the server's dead predecessor still held the lock
            self._take(self._server_lock(self._index))
            alive = sorted([*alive, self._index])
        mine = assigned_partitions(alive, self._servers)[self._index]
        for partition in self.held.difference(mine):
            self._segment.unlock(partition)
        held = frozenset(one for one in mine if one in self.held or self._take(one))
        changed, self.held = held != self.held, held
        return changed

    def close(self) -> None:
        """Release everything, so that other servers take over."""
        for partition in self.held:
            self._segment.unlock(partition)
        self.held = frozenset()
        self._segment.unlock(self._server_lock(self._index))

    def _take(self, lock: int) -> bool:
        # In a single process, a role that replaces another already holds its locks.
        return self._segment.try_lock(lock) or self._segment.holds(lock)

    def _server_lock(self, server: int) -> int:
        return self._servers + server


def assigned_partitions(alive: Sequence[int], servers: int) -> dict[int, Collection[int]]:
    """Live server -> its partitions: its own, and a fair share of those of dead servers."""
    partitions = {server: [server] for server in alive}
    for turn, orphan in enumerate(one for one in range(servers) if one not in partitions):
        partitions[alive[turn % len(alive)]].append(orphan)
    return dict(partitions)
