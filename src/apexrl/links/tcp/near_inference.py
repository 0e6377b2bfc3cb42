"""An inference link for workers that are on its host at present, and may be elsewhere in another generation."""

from __future__ import annotations

from apexrl.links.local.inference import InferenceLink, RequestClient
from apexrl.links.tcp.slot_leases import GENERATION_BITS


class NearInference:
    """Replaces an ``InferenceLink`` for such workers: asks in its memory, with generations numbered as a gateway's.

    A worker that was elsewhere before, and is still connected, is cut off by the gateway.
    """

    def __init__(self, link: InferenceLink) -> None:
        self._link = link
        self.splits = link.splits

    def worker(self, slot: int, generation: int) -> RequestClient:
        return self._link.worker(slot, (generation << GENERATION_BITS) + 1)
