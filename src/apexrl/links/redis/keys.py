"""What a run is called on a server: every key of a run lies under ``apexrl:{NAME}:``.

The braces put all of them into one slot of a Redis Cluster, so that scripts and pipelines may touch several at once.
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
    """The keys of the run ``name``. Each property is one key; its type on the server stands beside it."""

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
        """The run whose record ``key`` is; None when it is nobody's."""
        found = re.fullmatch(r"apexrl:\{([\w.+=@-]{1,100})\}:record", key, re.ASCII)
        return cls(found[1]) if found else None

    @property
    def state(self) -> str:
        """Hash: ``run_id``, ``taken`` (when the newest learner took its place), ``phase`` (running or finished),
        ``stop`` (when it was asked for), ``summary``."""
        return self._key("state")

    @property
    def learner(self) -> str:
        """Hash: who is the learner, seen when, until when, and its newest status."""
        return self._key("learner")

    @property
    def members(self) -> str:
        """Hash: member -> its newest status, with the server's time of its last heartbeat."""
        return self._key("members")

    @property
    def generations(self) -> str:
        """Hash: ``members`` and ``slot:N`` -> the last generation given out."""
        return self._key("generations")

    @property
    def slots(self) -> str:
        """Hash: slot index -> who leases it, with which generation, until when."""
        return self._key("slots")

    @property
    def steps(self) -> str:
        """String: the life of the stream of experience, members -> intake: ``TAKEN-TOKEN``, after the learner's
        ``taken`` and anything that was never there before. The stream itself lies under ``steps:LIFE``."""
        return self._key("steps")

    @property
    def committed(self) -> str:
        """Hash: ``member/generation`` -> the sequence up to which the learner's host has everything."""
        return self._key("committed")

    @property
    def messages(self) -> str:
        """Stream: what members have to say to the learner's terminal and books."""
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
        """Hash: reader -> the version that it reads, and until when it has its turn."""
        return self._key("readers")

    @property
    def weights_waiting(self) -> str:
        """Sorted set: readers that wait for a turn, by when they came."""
        return self._key("waiting")

    @property
    def doorbell(self) -> str:
        """Channel: rung with every new version of the weights. Under ``doorbell:READER`` one is told of its turn."""
        return self._key("doorbell")
