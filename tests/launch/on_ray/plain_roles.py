"""Roles without PyTorch that use what actors and learners use on a cluster: a shard, weights, messages, counters."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
import ray

from apexrl.errors import FencedError, LinkError, NonFiniteError, WaitTimeout
from apexrl.protocols import Context
from apexrl.replay.sharded.bundled_batches import BundledBatches
from apexrl.roles import checkpointing
from apexrl.roles.role_traits import RoleTraits

BATCH = 16


class Actor:
    """Writes steps whose ``action`` is its slot's number; ``deeds`` maps "index.generation" to what it shall do."""

    def __init__(self, context: Context, *, replay: Any, weights: Any, deeds: dict[str, str]) -> None:
        self._context = context
        self._deed = deeds.get(f"{context.index}.{context.generation}", "")
        self._writer = replay.writer(streams=1)
        self._weights = weights
        self._version = 0
        self._turns = 0
        print(f"{context.name}.{context.generation} begins")

    def step(self) -> bool:
        newest = self._weights.latest(newer_than=self._version)
        if newest is not None:
            self._version, arrays = newest
            assert (arrays["w"] == self._version).all()
            self._context.count(weights_pulled=1)
        if not self._version:
            return False
        self._turns += 1
        if self._deed == "print much" and self._turns == 30:
            print("\n".join(f"line {n} " + 80 * "x" for n in range(10_000)))
        if self._deed == "kill" and self._turns == 30:
            print(f"last words of {self._context.name}.{self._context.generation}")
            os.kill(os.getpid(), signal.SIGKILL)
        if self._deed == "stand still" and self._turns == 30:
            time.sleep(3600)
        if self._deed == "not finite":
            raise NonFiniteError("the loss is nan")
        step = {
            "action": np.asarray([self._context.index]),
            "reward": np.ones(1, np.float32),
            "terminated": np.zeros(1, bool),
            "truncated": np.asarray([self._turns % 50 == 0]),
        }
        try:
            self._writer.append(step, timeout=self._context.patience)
        except WaitTimeout:
            return False
        self._context.count(env_steps=1)
        return True

    def close(self) -> None:
        self._writer.close()


class Count:
    """The state of an agent that learns nothing."""

    def __init__(self) -> None:
        self.updates = 0

    def state_dict(self) -> dict[str, Any]:
        return {"updates": np.asarray([self.updates])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"][0])

    def load(self, weights: dict[str, Any]) -> None: ...


class Learner:
    """Samples all shards, writes priorities back, publishes weights, and says what it saw and where it is."""

    traits = RoleTraits(writes_checkpoints=True)

    def __init__(self, context: Context, *, replay: BundledBatches, weights: Any) -> None:
        self._context = context
        self._replay = replay
        self._weights = weights
        self._seen: dict[str, int] = {}
        self._agent: Any = Count()
        checkpointing.restore(context, self._agent, weights)
        self._publish()
        self._about = {
            "node": ray.get_runtime_context().get_node_id(),
            "generation": context.generation,
            "restored": self._agent.updates,
            "first_version": weights.version,
        }

    def _publish(self) -> None:
        version = max(self._weights.version, self._context.total("updates")) + 1
        self._weights.publish({"w": np.full(1000, version, np.float32)}, version)

    def step(self) -> bool:
        try:
            batch = self._replay.sample(BATCH, timeout=self._context.patience)
        except WaitTimeout:
            return False
        for slot in batch.data["action"].tolist():
            self._seen[str(slot)] = self._seen.get(str(slot), 0) + 1
        self._replay.update_priorities(batch.keys, np.ones(BATCH))
        self._context.count(updates=1)
        self._publish()
        self._agent.updates = self._context.total("updates")
        if self._agent.updates % 50 == 0:
            with suppress(LinkError):  # the driver is late, on a busy machine
                checkpointing.write(self._context, self._agent, keep=2)
        made = self._context.total("updates")
        self._about["near"] = sum(end._near is not None for end in self._replay._replay._clients)  # type: ignore[attr-defined]
        self._context.send("seen", updates=made, slots=self._seen, **self._about, **self._replay.stats())
        return True

    def close(self) -> None: ...


class Scribe:
    """A learner whose agent is written all the time, and that notes in the run folder what became of it, by its
    generation. It samples, so as to be a learner."""

    traits = RoleTraits(writes_checkpoints=True)

    def __init__(self, context: Context, *, replay: BundledBatches, weights: Any) -> None:
        self._learner = Learner(context, replay=replay, weights=weights)
        self._context = context
        self._notes = context.folder / f"notes-{context.fence.generation}.txt"
        self._note("began")
        threading.Thread(target=self._keep_writing, daemon=True).start()

    def _note(self, what: str) -> None:
        with self._notes.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def _keep_writing(self) -> None:
        agent: Any = Count()
        while True:
            try:
                checkpointing.write(self._context, agent, keep=2)
                self._note("wrote")
            except (LinkError, FencedError) as error:
                self._note(type(error).__name__)
            time.sleep(0.2)

    def step(self) -> bool:
        return self._learner.step()

    def close(self) -> None: ...
