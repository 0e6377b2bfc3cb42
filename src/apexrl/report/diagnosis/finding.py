"""A cause of bad learning, as ``apexrl doctor`` names it."""

from __future__ import annotations

from typing import Final, NamedTuple

LISTED: Final = 0.3  # confidence from which a cause is named
LIKELY: Final = 0.6  # from which it is called likely


class Evidence(NamedTuple):
    """One number of the run, and the file that it was read in."""

    text: str
    where: str


class Cause(NamedTuple):
    """A cause, the evidence for it, and what to change."""

    name: str
    title: str
    confidence: float  # 0 … 1
    evidence: tuple[Evidence, ...]
    change: str  # flag and value, or what to do in the environment

    @property
    def likely(self) -> bool:
        return self.confidence >= LIKELY
