"""The environment worker role: steps environments with actions of an inference server. It has no agent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from apexrl.config import Config
from apexrl.protocols import Context
from apexrl.roles.env_splits import EnvSplits
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work
from apexrl.shared.usable_cores import usable_cores
from apexrl.spec import Array, EnvSpec, Field

if TYPE_CHECKING:
    from apexrl.links.local.inference import InferenceLink
    from apexrl.links.tcp.remote_inference import RemoteInference

IDLE = "idle"
"""Field of a request for several agents: one took no part, and its step is not to be recorded."""

SIMULATORS_SECONDS = 0.001  # between looks at environments in threads while no answer has come


def request_fields(spec: EnvSpec) -> dict[str, Field]:
    """What a worker tells the server of each environment: what the agent sees next, and the results of its last action.

    Frames are stacked by the worker: there are many of it and one server. And a server that dies loses none of them.
    """
    stack = (spec.stack,) if spec.stack > 1 else ()
    return {
        **{name: Field((*stack, *field.shape), field.dtype) for name, field in spec.observation.items()},
        "reward": Field((), "float32"),
        "terminated": Field((), "bool"),
        "truncated": Field((), "bool"),
        "starts": Field((), "bool"),  # the observation begins an episode; the action before it was ignored
        **({IDLE: Field((), "bool")} if spec.agents else {}),
    }


def reply_fields(spec: EnvSpec) -> dict[str, Field]:
    """What the server answers for each environment."""
    return {"action": Field(spec.action.shape, spec.action.dtype)}


def split_sizes(envs: int, splits: int, together: int = 1) -> tuple[int, ...]:
    """Environments of each group of a worker: as equal as can be, and none without any.

    Args:
        together: rows of which a group has all or none, as the agents of one environment; ``envs`` is a multiple.
    """
    whole = envs // together
    return tuple(together * len(part) for part in np.array_split(np.arange(whole), min(whole, max(1, splits))))


def group_sizes(config: Config, agents: int = 1) -> tuple[int, ...]:
    """Environments of each group of a worker, as ``--splits`` says; rows, where each has so many ``agents``.

    Where workers share cores, one steps while another waits, and the messages of two groups cost more than they gain.
    Workers of other hosts wait for the network, too. In lock-step a seed is to mean the same on every machine.
    """
    actor, splits = config.actor, config.wiring.splits
    if not splits:
        elsewhere = actor.actor_slots > actor.actors
        crowded = usable_cores() <= actor.actors
        splits = 1 if crowded and not (elsewhere or config.serial) else 2
    return split_sizes(config.actor.envs_per_actor, splits, agents)


def with_own_groups(config: Config, actors: int) -> Config:
    """``config`` of a run whose ``actors`` are all on this machine, its ``splits`` settled.

    Slots beyond them are for more actors here, and not for other hosts, which must all come to the same groups.
    """
    alone = replace(config, actor=replace(config.actor, actors=actors, actor_slots=actors))
    return replace(config, wiring=replace(config.wiring, splits=len(group_sizes(alone))))


class EnvWorker:
    """SEED's actor (Espeholt et al. 2020, §3.1) with Sample Factory's double buffering (``EnvSplits``)."""

    traits = RoleTraits("env_worker", Work("env_steps", "steps/s", "acting"), grace_seconds=10.0)

    def __init__(
        self, context: Context, *, config: Config, spec: EnvSpec, inference: InferenceLink | RemoteInference
    ) -> None:
        self._context = context
        self._end = inference.worker(context.index, context.generation)
        self._groups = EnvSplits(context, config, spec, inference.splits)
        self._unasked: dict[int, dict[str, Array]] = {}  # group -> a request that has no room yet
        for split, envs in enumerate(inference.splits):
            starts, nowhere = np.ones(envs, np.bool_), np.zeros(envs, np.bool_)
            results = {"reward": np.zeros(envs, np.float32), "terminated": nowhere, "truncated": nowhere}
            self._unasked[split] = {**self._groups.seen[split], **results, "starts": starts, IDLE: nowhere}

    def step(self) -> bool:
        """Step every group whose actions have come, and ask for the next ones. False: none has come."""
        groups, moved = self._groups, False
        for split in list(self._unasked):
            moved |= self._ask(split)
        answered = self._end.answered()
        if not (answered or moved or groups.stepping):
            self._end.wait(self._context.patience)
            answered = self._end.answered()
        for split in answered:
            groups.send(split, np.array(self._end.take(split)["action"]))
            self._collect(split)
        idle = not answered and not moved
        for split in list(groups.stepping):
            self._collect(split, SIMULATORS_SECONDS if idle else 0.0)
            moved = True  # they are at work
        groups.report()
        return moved or bool(answered)

    def _collect(self, split: int, timeout: float = 0.0) -> None:
        """Ask for a group's next actions, if its environments are done."""
        stepped = self._groups.receive(split, timeout)
        if stepped is None:
            return
        self._unasked[split] = {
            **self._groups.seen[split],
            "reward": stepped.reward,
            "terminated": stepped.terminated,
            "truncated": stepped.truncated,
            "starts": stepped.starts,
        }
        if stepped.idle is not None:
            self._unasked[split][IDLE] = stepped.idle
        self._ask(split)

    def _ask(self, split: int) -> bool:
        """Send a group's request. False: the server may still read that of a dead predecessor."""
        columns = self._end.room(split)
        if columns is None:
            return False
        request = self._unasked.pop(split)
        for name, column in columns.items():
            column[...] = request[name]
        self._end.ask(split, self._context.clock())
        return True

    def close(self) -> None:
        """Report the last episodes, close the environments. Steps under way are lost."""
        self._end.leave()
        self._groups.close()
