"""The record through which learners on several nodes find each other (``links.averaging``), in a Ray actor beside the
driver, which ends with it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from apexrl.errors import LinkError
from apexrl.links.averaging.gradient_averaging import GradientAveraging

_ANSWER_SECONDS: Final = 5.0
_CALLS: Final = 2  # one is ``watch``, which stays
_remote: Any = ray.remote
_util: Any = ray.util  # whose types say nothing of it


class RecordHolder:
    """Holds the keys and values (an actor)."""

    def __init__(self) -> None:
        self._entries: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def all(self) -> dict[str, bytes]:
        with self._lock:
            return dict(self._entries)

    def put(self, key: str, value: bytes) -> dict[str, bytes]:
        with self._lock:
            self._entries[key] = value
            return dict(self._entries)

    def put_first(self, key: str, value: bytes) -> bytes:
        with self._lock:
            return self._entries.setdefault(key, value)

    def drop(self, keys: list[str]) -> None:
        with self._lock:
            for key in keys:
                self._entries.pop(key, None)

    def watch(self) -> None:
        """Never answers: its caller hears when the process is gone."""
        threading.Event().wait()


class RayRecord:
    """A ``SharedRecord`` of which every process has a handle. Picklable.

    Args:
        holder: a ``RecordHolder``.
    """

    def __init__(self, holder: Any) -> None:
        self._holder = holder

    def all(self) -> dict[str, bytes]:
        found: dict[str, bytes] = self._answer(self._holder.all)
        return found

    def put(self, key: str, value: bytes) -> dict[str, bytes]:
        found: dict[str, bytes] = self._answer(self._holder.put, key, value)
        return found

    def put_first(self, key: str, value: bytes) -> bytes:
        found: bytes = self._answer(self._holder.put_first, key, value)
        return found

    def drop(self, keys: list[str]) -> None:
        self._answer(self._holder.drop, keys)

    def address(self) -> str:
        return str(_util.get_node_ip_address())

    def _answer(self, method: Any, *arguments: Any) -> Any:
        try:
            return ray.get(method.remote(*arguments), timeout=_ANSWER_SECONDS)
        except RayError as error:  # GetTimeoutError is one
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise LinkError(f"the learners' record beside the driver does not answer: {first}") from None


class LearnerRecord:
    """The driver's side: makes the record, and another one when it is lost.

    Args:
        options: ``members`` and ``patience`` of ``GradientAveraging``.
        namespace: of the run's named actors: ``learners.0``, after a loss ``learners.1`` …
    """

    def __init__(self, options: Mapping[str, Any], namespace: str) -> None:
        self._options, self._namespace = options, namespace
        self._begun = 0
        self._holder: Any = None
        self.watched: Any = None
        """What comes when the process is gone."""
        self.begin()

    def begin(self) -> None:
        """A new one, of which no learner knows yet."""
        self.close()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        made = _remote(RecordHolder).options(
            name=f"learners.{self._begun}",
            namespace=self._namespace,
            num_cpus=0,
            max_restarts=0,
            max_concurrency=_CALLS,
            scheduling_strategy=here,
        )
        self._begun += 1
        self._holder = made.remote()
        self.watched = self._holder.watch.remote()

    def lost(self, come: Collection[Any]) -> bool:
        """Whether its process is gone, among the references that have come."""
        return self.watched in come

    @property
    def averaging(self) -> GradientAveraging:
        """The link of every learner."""
        return GradientAveraging(**self._options, record=RayRecord(self._holder))

    def close(self) -> None:
        """End the process. May be called again."""
        if self._holder is not None and ray.is_initialized():
            ray.kill(self._holder, no_restart=True)
        self._holder = self.watched = None
