"""The parameter server role: owns a slice of parameters and optimizer state, and applies gradients to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from apexrl.config import AgentConfig, Config
from apexrl.links.local.gradient_ring import Gradient, GradientLink
from apexrl.links.local.parameter_slices import ONLINE, TARGET, Floats, SlicePart
from apexrl.links.local.sharded_parameters import ShardedParameters, SliceMemory
from apexrl.protocols import Context
from apexrl.roles import checkpointing
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work
from apexrl.spec import EnvSpec

if TYPE_CHECKING:
    from apexrl.agents.trained_network import Trained

_LAST_GRADIENTS_SECONDS = 1.0  # at the end, for those that were sent before
_OTHERS_SECONDS = 5.0  # … and for the other servers to apply theirs, before the checkpoint
_LOOK_SECONDS = 0.01
_LAG_FORGETTING = 0.01  # weight of the newest in the running mean of gradient lags (ours)


class ParameterServer:
    """One of M shards (Nair et al. 2015, section 4; Dean et al. 2012, DistBelief): asynchronous descent.

    Gradients are applied as they come, and whoever sent them does not wait for it. One that was computed from
    parameters more than ``max_gradient_lag`` updates ago is refused and counted; each shard decides for its slice. As
    optimizers work on every value by itself, M shards that get the same gradients make the same parameters as one.

    A server's vectors lie in shared memory and outlive it. Its successor goes on where it was; only when it died amid
    an update, parameters and target go back to what was published last, and the optimizer's state stays as it is.

    The last shard also counts the run's updates and writes its checkpoints, of all shards' vectors as they are.
    """

    traits = RoleTraits("parameter_server", Work("published", "publications/s", "serving"), writes_checkpoints=True)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        parameters: ShardedParameters,
        gradients: GradientLink,
    ) -> None:
        import torch

        from apexrl.agents import agent_class
        from apexrl.agents.named_vectors import networks

        torch.set_num_threads(1)  # a slice is soon changed, and cores belong to learners and actors
        self._context = context
        self._settings = config.learner
        self._most_lag = config.wiring.max_gradient_lag
        self._shard = context.index
        self._parameters = parameters
        self._memory = parameters.memory(self._shard)
        self._gradients = gradients.receiver(self._shard)
        # Of the same seed in every shard: their slices are of one agent.
        agent: Any = agent_class(config.agent.agent)(spec, config.agent, "cpu", config.seed)
        counts = self._shard == parameters.shards.count - 1
        if not self._memory.filled:
            self._fill(agent, config.agent.agent, counts)
        elif self._memory.torn:
            self._mend()
        self._memory.end(False)
        trained = networks(agent)
        parts = parameters.shards.parts(self._shard)
        self._slices = [Slice(part, trained[part.group], self._memory, config.agent) for part in parts]
        self._agent = agent if counts else None
        self._unpublished = 0  # updates
        self._target_moved = True
        self._publish()
        self._saving = checkpointing.Saving(
            context, self._settings.checkpoint_seconds, kept=self._settings.checkpoints_kept
        )

    def step(self) -> bool:
        """Apply a gradient. False: none came.

        The parameters are published when no further one waits, at the latest after ``publish_period_updates``.
        """
        came = self._gradients.receive(self._context.patience)
        if came is not None:
            self._take(came)
        if self._unpublished >= self._settings.publish_period_updates or not self._gradients.waiting:
            self._publish()
        if self._agent is not None and self._saving.due:
            self._saving.now(self._save)
        return came is not None

    def close(self) -> None:
        """The last gradients, the last parameters, and from the last shard the final checkpoint."""
        deadline = time.monotonic() + _LAST_GRADIENTS_SECONDS
        while time.monotonic() < deadline and (came := self._gradients.receive(0.0)) is not None:
            self._take(came)
        self._publish()
        self._memory.end()
        if self._agent is not None:
            deadline = time.monotonic() + _OTHERS_SECONDS * (self._context.patience > 0)
            while not self._parameters.all_ended and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            self._saving.last(self._save)

    def _take(self, gradient: Gradient) -> None:
        """Apply a gradient, unless it is stale."""
        memory = self._memory
        lag = memory.version - gradient.base
        memory.gradient_lag += _LAG_FORGETTING * (lag - memory.gradient_lag)
        if self._most_lag and lag > self._most_lag:
            self._context.count(stale_gradients=1)
            return
        memory.begin_update()
        for slice_ in self._slices:
            if slice_.group in gradient.groups:
                slice_.step(gradient.groups[slice_.group])
        memory.version += 1
        for slice_ in self._slices:
            self._target_moved |= slice_.follow(memory.version - 1, gradient.complete)
        memory.end_update()
        self._unpublished += 1
        if self._agent is not None:
            self._context.count(updates=1)

    def _publish(self) -> None:
        memory = self._memory
        if memory.version > memory.published_version():
            memory.publish()
            self._context.count(published=1)
        if self._target_moved and memory.version > memory.published_version(TARGET):
            memory.publish(TARGET)
        self._unpublished, self._target_moved = 0, False
        self._gradients.settle()

    def _fill(self, agent: Any, name: str, counts: bool) -> None:
        """Write the first vectors of this run: the newest checkpoint's, or a new agent's."""
        from apexrl.agents.named_vectors import vectors

        made = checkpointing.restore(
            self._context, agent, self._parameters, name, counts, self._settings.initial_weights
        )
        own, shards = vectors(agent), self._parameters.shards
        for part in shards.parts(self._shard):
            for name in shards.names(part.group):
                full = f"{part.group}/{name}"
                self._memory.vectors[full][:] = own[full][part.where] if shards.sliced(part.group, name) else own[full]
        self._memory.version = made + 1
        self._memory.fill()

    def _mend(self) -> None:
        """Parameters and target as they were published last: those in memory are neither before nor after an update."""
        memory = self._memory
        for name in (ONLINE, TARGET):
            if (published := memory.published(name)) is not None:
                version, slices = published
                memory.version = max(memory.version, version)
                for group, values in slices.items():
                    memory.vectors[f"{group}/{name}"][:] = values
        memory.end_update()
        text = f"{self._context.name} died amid an update: it goes on from the parameters that it had published"
        self._context.send("log", text=text, level="warning")

    def _save(self) -> None:
        """A checkpoint of all shards, as any learner writes it."""
        from apexrl.agents.named_vectors import vectors

        agent = self._agent
        if agent is None or not self._parameters.version:
            return  # another shard writes them; or some shard holds nothing yet
        self._parameters.collect(vectors(agent))
        agent.updates = self._context.total("updates")
        checkpointing.write(self._context, agent, self._settings.checkpoints_kept)


class Slice:
    """What the shard owns of one group: parameters, target and optimizer over shared memory."""

    def __init__(self, part: SlicePart, network: Trained[Any], memory: SliceMemory, config: AgentConfig) -> None:
        import torch

        def own(name: str) -> torch.Tensor:
            return torch.from_numpy(memory.vectors[f"{part.group}/{name}"])

        self.group = part.group
        self._config = config
        self._vector = own(ONLINE)
        self._target = own(TARGET) if f"{part.group}/{TARGET}" in memory.vectors else None
        self._optimizer = network.optimizer_for(self._vector, part.start)
        for name in self._optimizer.state:
            self._optimizer.state[name] = own(f"optimizer/{name}")
        self._optimizer.steps = own("optimizer/steps")[0]

    def step(self, gradient: Floats) -> None:
        """One step of the optimizer."""
        import torch

        self._optimizer.step(self._vector, torch.from_numpy(gradient))

    def follow(self, updates: int, complete: bool) -> bool:
        """Let the target follow as agents do after that many updates: with ``polyak`` after every ``complete`` one,
        that of the policy too (with ``eager_targets``: after every one); else copied every ``target_period_updates``.
        False: it stayed as it was."""
        if self._target is None:
            return False
        if self._config.polyak:
            due = complete or self._config.eager_targets
            if due:
                self._target.lerp_(self._vector, self._config.polyak)
            return due
        due = updates % self._config.target_period_updates == 0
        if due:
            self._target.copy_(self._vector)
        return due
