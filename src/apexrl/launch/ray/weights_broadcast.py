"""Sends the learner's newest weights to every group. Other nodes get them through the object store, which takes each
version once and which each node asks once; a group on the learner's node gets them in memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from apexrl.errors import ClosedError, SpecError
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.links.rounded_weights import Rounded
from apexrl.shared.weights_board import WeightsBoard
from apexrl.spec import Array

_LOOK_SECONDS, _SOON_SECONDS = 0.25, 0.01  # between looks at weights; while some are on their way
_TRIES = 20  # to send weights to a group that is there and cannot take them


def publish(board: WeightsBoard, weights: Mapping[str, Array], version: int) -> None:
    """Bring ``board`` up to ``version``; none goes back.

    Raises:
        SpecError: it cannot take them.
    """
    try:
        if version > board.version:
            board.publish(weights, version)
    except SpecError:
        if version > board.version:
            raise


class WeightsBroadcast:
    """Sends every group the newest of ``weights`` when it is done with an older one, and never those between. What one
    could not take, it is sent again.

    Args:
        weights: the board on the learner's node.
        node: where that is.
        rounded: whether large matrices go to other nodes as bfloat16.
    """

    def __init__(self, weights: WeightsBoard | ShardedParameters, node: str, rounded: bool = False) -> None:
        self.groups: dict[int, Any] = {}
        """The process of each that is there; None: it has gone."""
        self._weights = weights
        self._node, self._rounded = node, rounded
        self.refused: dict[int, str] = {}
        """Group that does not accept weights -> why. Its next generation is tried anew."""
        self._ways: dict[int, _Way] = {}
        self._version = 0
        self._newest: Mapping[str, Array] = {}
        self._reference: Any = None  # to them in the object store, once somebody elsewhere wants them

    def run(self) -> None:
        while True:
            under_way = any(way.pending is not None for way in self._ways.values())
            if self._weights.wait(self._version, _SOON_SECONDS if under_way else _LOOK_SECONDS):
                newest = self._weights.latest(newer_than=self._version)
                if newest is not None:
                    (self._version, self._newest), self._reference = newest, None
            for group, handle in list(self.groups.items()):
                self._serve(group, handle)

    def _serve(self, group: int, handle: Any) -> None:
        way = self._ways.get(group)
        if way is None or way.handle is not handle:  # a new generation, of which nothing is known
            self.refused.pop(group, None)
            if handle is None:
                self._ways.pop(group, None)
                return
            way = self._ways[group] = _Way(handle)
            way.pending = handle.board.remote(self._node)
        if way.pending is not None and not self._arrived(way):
            return
        if way.failures > _TRIES:
            self.refused[group] = way.trouble
            return
        if not self._version or way.sent == self._version or time.monotonic() < way.not_before:
            return
        if not way.known:  # whether it is near: the question was lost
            way.pending = handle.board.remote(self._node)
        elif way.board is not None:
            try:
                publish(way.board, self._newest, self._version)
            except SpecError as error:
                way.failed(error)
            else:
                way.sent, way.failures = self._version, 0
        else:
            if self._reference is None:
                self._reference = ray.put(Rounded.of(self._newest, self._rounded))
            way.pending = handle.weights.remote(self._version, [self._reference])
            way.sent = self._version

    def _arrived(self, way: _Way) -> bool:
        """False: the last call is still under way."""
        if not ray.wait([way.pending], timeout=0.0)[0]:
            return False
        pending, way.pending = way.pending, None
        try:
            answer = ray.get(pending)
        except RayError as error:
            way.failed(error)
            return True
        if not way.known:
            way.known = True
            with suppress(ClosedError):  # it has gone, or is in another container: then it is sent them
                way.board = None if answer is None else WeightsBoard._attach(*answer)
        way.failures = 0
        return True


class _Way:
    """Sending to one generation of a group."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.pending: Any = None  # what it was asked, or sent
        self.known = False  # whether it is on the learner's node; then
        self.board: WeightsBoard | None = None  # … its memory
        self.sent = 0  # the newest version
        self.failures = 0  # in a row, but for those of the dead, of which the driver hears
        self.trouble = ""  # the last of them
        self.not_before = 0.0  # monotonic seconds

    def failed(self, error: Exception) -> None:
        """Record a failed call; it is repeated, at most ``_TRIES`` times."""
        self.failures += not isinstance(error, RayActorError)
        self.trouble = str(error)
        self.not_before, self.sent = time.monotonic() + _LOOK_SECONDS, 0
