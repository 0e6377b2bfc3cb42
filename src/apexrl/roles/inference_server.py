"""The inference server role: chooses the actions of all environment workers, and writes experience into the replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apexrl.agents import recorded
from apexrl.config import Config
from apexrl.protocols import Agent, Context, WeightsReader
from apexrl.roles.actor import FIRST_VERSION, wanted_priorities
from apexrl.roles.compute_device import agent_on_device
from apexrl.roles.inference_batches import InferenceBatches
from apexrl.roles.newest_weights import NewestWeights
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work
from apexrl.spec import EnvSpec

if TYPE_CHECKING:
    from apexrl.links.local.inference import InferenceLink
    from apexrl.replay import Replay


class InferenceServer:
    """SEED's inference (Espeholt et al. 2020, §3.1): one network for all environments, their recurrent states and
    unfinished steps beside it (``InferenceBatches``), and no weights on their way to anybody.

    A server that takes a dead one's place answers what it finds. The steps that were under way are lost; recurrent
    states and streams begin anew, in the midst of episodes, the one like the other.
    """

    traits = RoleTraits("inference_server", Work("batches", "batches/s", "serving"), grace_seconds=10.0)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        inference: InferenceLink,
        replay: Replay,
        weights: WeightsReader,
        most_waiting: int = 0,
    ) -> None:
        from apexrl.agents.acting_products import quicken_acting

        self._context = context
        self._agent: Agent
        self._agent, device = agent_on_device(config, spec, 1 + context.index, context.seed)  # behind the learner
        quicken_acting(self._agent, device)
        self._weights = NewestWeights(context, self._agent, weights)
        self._random_start = config.actor.random_start
        priorities = wanted_priorities(config, self._agent)
        self._batches = InferenceBatches(
            context,
            config=config,
            spec=spec,
            inference=inference,
            replay=replay,
            records=recorded(self._agent),
            priorities=priorities,
            most_waiting=most_waiting,
        )

    def step(self) -> bool:
        """Answer whoever waits. False: nobody does, no weights are published yet, the replay takes no more, or
        too many unrolls wait to be learned from (``most_waiting``, see ``LagThrottle``)."""
        self._weights.pull()
        if self._weights.version == 0:
            return False
        batch = self._batches.next(random=self._random_start and self._weights.version == FIRST_VERSION)
        if batch is not None:
            acted = self._agent.act(batch.seen, batch.state, batch.exploration)
            self._batches.answer(batch, acted, self._weights.version)
        self._batches.report()
        return batch is not None

    def close(self) -> None:
        """Publish the steps written so far."""
        self._batches.close()
