"""The Redis keys of a run: all begin with ``apexrl:{NAME}:``.

The braces put them into one slot of a Redis Cluster, so that scripts and pipelines may use several at once.
"""

from __future__ import annotations

import re
from typing import Final

from apexrl.errors import ConfigError

EVERY_RECORD: Final = "apexrl:{*}:record"
"""What SCAN matches for the records of all runs on a server."""

_KEY: Final = re.compile(r"apexrl:\{([\w.+=@-]{1,100})\}:", re.ASCII)
_NAME: Final = re.compile(r"[\w.+=@-]{1,100}", re.ASCII)


def tag_of(key: str) -> str:
    """What stands in the braces of a run's key, and decides where a cluster keeps it; empty: it is no such key."""
    found = _KEY.match(key)
    return found[1] if found else ""


def check_name(name: str) -> str:
    """``name`` itself; ``ConfigError`` unless it is 1 to 100 letters, digits or ``_.+=@-``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 120 else repr(name)[:117] + "..."
        raise ConfigError(f"{shown} cannot name a run; use 1 to 100 letters, digits or any of _ . + = @ -")
    return name


class RunKeys:
    """The keys of the run ``name``. Each attribute is one key; its docstring begins with the type of its value."""

    def __init__(self, name: str) -> None:
        self.name = check_name(name)
        self.pattern = self._key("*")
        """What SCAN matches for this run's keys; no character of a name is special there."""
        self.record = self._key("record")
        """String: the ``RunRecord`` that hosts read before they join."""
        self.state = self._key("state")
        """Hash: ``run_id``, ``taken`` (when the newest learner took its lease), ``phase`` (running or finished),
        ``stop`` (when a stop was requested), ``summary``."""
        self.learner = self._key("learner")
        """Hash: the learner's identity, last heartbeat, lease end and newest status."""
        self.members = self._key("members")
        """Hash: member -> its newest status, with the server's time of its last heartbeat."""
        self.generations = self._key("generations")
        """Hash: ``members`` and ``slot:N`` -> the last assigned generation."""
        self.slots = self._key("slots")
        """Hash: slot index -> its member, generation and lease end."""
        self.steps = self._key("steps")
        """String: the generation of the experience stream (members -> intake), ``TAKEN-TOKEN``: the learner's
        ``taken`` and a random token. The stream itself has the key ``steps:TAKEN-TOKEN``."""
        self.committed = self._key("committed")
        """Hash: ``member/generation`` -> the sequence up to which the learner's host has committed everything."""
        self.averaging = self._key("averaging")
        """Hash: how learners of several hosts find each other and agree who they are (``links.averaging``)."""
        self.messages = self._key("messages")
        """Stream: members' episodes and warnings, for the learner's metrics and terminal."""
        self.weights = self._key("weights")
        """String: the head of the newest weights (version, parts, bytes, checksum)."""
        self.weights_readers = self._key("readers")
        """Hash: reader -> the version that it reads, and the end of its turn."""
        self.weights_waiting = self._key("waiting")
        """Sorted set: readers that wait for a turn, by arrival."""
        self.doorbell = self._key("doorbell")
        """Channel: notified of every new version of the weights. ``doorbell:READER`` is notified of that reader's
        turn."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunKeys) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def _key(self, what: str) -> str:
        return f"apexrl:{{{self.name}}}:{what}"

    @classmethod
    def of_record(cls, key: str) -> RunKeys | None:
        """The run whose record has this ``key``; None: it is not the key of a record."""
        found = re.fullmatch(r"apexrl:\{([\w.+=@-]{1,100})\}:record", key, re.ASCII)
        return cls(found[1]) if found else None

    def weights_part(self, version: int, part: int) -> str:
        """String: one part of the weights of ``version``."""
        return self._key(f"weights:{version}:{part}")
