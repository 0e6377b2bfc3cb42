"""The Redis keys of a run: all begin with ``apexrl:{NAME}:``.

The braces put them into one slot of a Redis Cluster, so that scripts and pipelines may use several at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from apexrl.errors import ConfigError

EVERY_RECORD: Final = "apexrl:{*}:record"
"""What SCAN matches for the records of all runs on a server."""

_NAME: Final = re.compile(r"[\w.+=@-]{1,100}", re.ASCII)


def check_name(name: str) -> str:
    """``name`` itself; ``ConfigError`` unless it is 1 to 100 letters, digits or ``_.+=@-``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 120 else repr(name)[:117] + "..."
        raise ConfigError(f"{shown} cannot name a run; use 1 to 100 letters, digits or any of _ . + = @ -")
    return name


@dataclass(frozen=True)
class RunKeys:
    """The keys of the run ``name``. Each property is one key; its docstring begins with the type of its value."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)

    def _key(self, what: str) -> str:
        return f"apexrl:{{{self.name}}}:{what}"

    @property
    def pattern(self) -> str:
        """What SCAN matches for this run's keys; no character of a name is special there."""
        return self._key("*")

    @property
    def record(self) -> str:
        """String: the ``RunRecord`` that hosts read before they join."""
        return self._key("record")

    @classmethod
    def of_record(cls, key: str) -> RunKeys | None:
        """The run whose record has this ``key``; None: it is not the key of a record."""
        found = re.fullmatch(r"apexrl:\{([\w.+=@-]{1,100})\}:record", key, re.ASCII)
        return cls(found[1]) if found else None

    @property
    def state(self) -> str:
        """Hash: ``run_id``, ``taken`` (when the newest learner took its lease), ``phase`` (running or finished),
        ``stop`` (when a stop was requested), ``summary``."""
        return self._key("state")

    @property
    def learner(self) -> str:
        """Hash: the learner's identity, last heartbeat, lease end and newest status."""
        return self._key("learner")

    @property
    def members(self) -> str:
        """Hash: member -> its newest status, with the server's time of its last heartbeat."""
        return self._key("members")

    @property
    def generations(self) -> str:
        """Hash: ``members`` and ``slot:N`` -> the last assigned generation."""
        return self._key("generations")

    @property
    def slots(self) -> str:
        """Hash: slot index -> its member, generation and lease end."""
        return self._key("slots")

    @property
    def steps(self) -> str:
        """String: the generation of the experience stream (members -> intake), ``TAKEN-TOKEN``: the learner's ``taken``
        and a random token. The stream itself has the key ``steps:TAKEN-TOKEN``."""
        return self._key("steps")

    @property
    def committed(self) -> str:
        """Hash: ``member/generation`` -> the sequence up to which the learner's host has committed everything."""
        return self._key("committed")

    @property
    def messages(self) -> str:
        """Stream: members' episodes and warnings, for the learner's metrics and terminal."""
        return self._key("messages")

    @property
    def weights(self) -> str:
        """String: the head of the newest weights (version, parts, bytes, checksum)."""
        return self._key("weights")

    def weights_part(self, version: int, part: int) -> str:
        """String: one part of the weights of ``version``."""
        return self._key(f"weights:{version}:{part}")

    @property
    def weights_readers(self) -> str:
        """Hash: reader -> the version that it reads, and the end of its turn."""
        return self._key("readers")

    @property
    def weights_waiting(self) -> str:
        """Sorted set: readers that wait for a turn, by arrival."""
        return self._key("waiting")

    @property
    def doorbell(self) -> str:
        """Channel: notified of every new version of the weights. ``doorbell:READER`` is notified of that reader's
        turn."""
        return self._key("doorbell")
