"""The parameter keeper role: initialises the parameters that workers share, publishes and saves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apexrl.config import Config
from apexrl.links.local.shared_parameters import SharedParameters
from apexrl.protocols import Context, WeightsReader, WeightsWriter
from apexrl.roles import checkpointing
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work
from apexrl.spec import EnvSpec

if TYPE_CHECKING:

    class Weights(WeightsWriter, WeightsReader): ...


_PUBLISH_SECONDS = 0.05  # at least, between publications (ours: an evaluator looks once a second)


class ParameterKeeper:
    """Keeps the parameters that A3C's workers change in place.

    When it begins a run it writes them, from the newest checkpoint if there is one; workers wait for that. Then it only
    reads: it publishes them for whoever evaluates, and writes checkpoints. One that takes a dead one's place finds the
    parameters in shared memory and goes on from there: no update is lost, and workers notice nothing.

    A read while workers write is torn, and so are what it publishes and what it saves: each element is from before or
    after an update under way. A worker that was killed in the middle of one leaves the parameters like that.

    Where workers have statistics of their own, no checkpoint holds them: resumed workers begin with new ones.
    """

    traits = RoleTraits("parameter_server", Work("published", "publications/s", "serving"), writes_checkpoints=True)

    def __init__(
        self, context: Context, *, config: Config, spec: EnvSpec, parameters: SharedParameters, weights: Weights
    ) -> None:
        from apexrl.agents import agent_class
        from apexrl.agents.named_vectors import bind, vectors

        self._context = context
        self._settings = config.learner
        self._weights = weights
        self._agent: Any = agent_class(config.agent.agent)(spec, config.agent, "cpu", context.seed)
        if parameters.filled:
            context.send("log", text=f"{context.name} took up the shared parameters")
        else:
            checkpointing.restore(
                context, self._agent, weights, config.agent.agent, initial=config.learner.initial_weights
            )
            parameters.fill(vectors(self._agent))
        bind(self._agent, parameters.arrays, statistics=config.wiring.shared_statistics)
        self._saving = checkpointing.Saving(
            context, self._settings.checkpoint_seconds, kept=self._settings.checkpoints_kept
        )
        self._publish()

    def step(self) -> bool:
        """Publish and save when it is time. False: there was nothing to publish."""
        now = self._context.clock()
        news = self._context.total("updates") + 1 - self._weights.version
        due = news >= self._settings.publish_period_updates and now >= self._next_publication
        if due:
            self._publish()
        if self._saving.due:
            self._saving.now(self._save)
        return due

    def close(self) -> None:
        """The last weights, and the final checkpoint. A worker may still be at its last update."""
        self._publish()
        self._saving.last(self._save)

    def _publish(self) -> None:
        version = self._context.total("updates") + 1
        if version > self._weights.version:
            self._weights.publish(self._agent.weights(), version)
            self._context.count(published=1)
        self._next_publication = self._context.clock() + _PUBLISH_SECONDS

    def _save(self) -> None:
        self._agent.updates = self._context.total("updates")  # workers make them
        checkpointing.write(self._context, self._agent, self._settings.checkpoints_kept)
