"""Which of several servers answers which groups of an inference link, also when some of them die."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from apexrl.links.local.inference import InferenceLink


class Seats:
    """The seats of one server. Seat s is of server s; those of servers that do not live are dealt to the others.

    Who lives is the kernel's word: every server holds a record lock on a byte of its own, and on one for each seat that
    it has, and all of them go with it at its death. Nobody waits for one. So a seat is of one server at a time, also
    while two of them do not yet agree on who is alive: it goes over when the one has let go and the other looks again.

    Args:
        link: with as many seats as servers.
        index: of this server.
    """

    def __init__(self, link: InferenceLink, index: int) -> None:
        self._segment, self._servers = link.segment, link.servers
        self._index = index
        self.held: frozenset[int] = frozenset()
        """The seats that it has."""
        self._take(self._life(index))

    def look(self) -> bool:
        """Let go of what is another's, take what is free and its own. True: something changed."""
        alive = [server for server in range(self._servers) if self._segment.held(self._life(server))]
        if self._index not in alive:  # its predecessor in this place had not quite gone
            self._take(self._life(self._index))
            alive = sorted([*alive, self._index])
        mine = dealt(alive, self._servers)[self._index]
        for seat in self.held.difference(mine):
            self._segment.unlock(seat)
        held = frozenset(seat for seat in mine if seat in self.held or self._take(seat))
        changed, self.held = held != self.held, held
        return changed

    def close(self) -> None:
        """Leave: the others take over."""
        for seat in self.held:
            self._segment.unlock(seat)
        self.held = frozenset()
        self._segment.unlock(self._life(self._index))

    def _take(self, lock: int) -> bool:
        # In one process a role that takes another's place holds what that one held.
        return self._segment.try_lock(lock) or self._segment.holds(lock)

    def _life(self, server: int) -> int:
        return self._servers + server


def dealt(alive: Sequence[int], servers: int) -> dict[int, Collection[int]]:
    """Server -> its seats, for those ``alive`` of 0 … ``servers`` − 1: the own, and a fair share of the others'."""
    seats = {server: [server] for server in alive}
    for turn, orphan in enumerate(seat for seat in range(servers) if seat not in seats):
        seats[alive[turn % len(alive)]].append(orphan)
    return dict(seats)
