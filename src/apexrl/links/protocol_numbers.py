"""Which protocols two sides have in common. docs/how-to/rolling-upgrade.md says when there is a new one."""

from __future__ import annotations

from typing import NamedTuple

from apexrl.errors import LinkError


class Protocols(NamedTuple):
    """All from ``least`` to ``newest``."""

    least: int
    newest: int

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.newest else f"{self.least} to {self.newest}"

    def newest_common(self, theirs: Protocols, whose: str) -> int:
        """The protocol that both sides speak.

        Args:
            whose: the other side, for the message.

        Raises:
            LinkError: there is none.
        """
        found = min(self.newest, theirs.newest)
        if found < max(self.least, theirs.least):
            older = "this one" if self.newest < theirs.least else "the other"
            raise LinkError(
                f"{whose} speaks protocol {theirs}, and apexrl here {self}: {older} is more than one release behind; "
                "install the same release on both hosts"
            )
        return found
