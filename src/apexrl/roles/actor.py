"""The actor role: steps environments with the newest weights, and writes experience into the replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config
from apexrl.errors import AgentError, WaitTimeout
from apexrl.protocols import Agent, Arrays, Context, Item, Prioritizing, StepWriter, WeightsReader
from apexrl.roles.env_arrays import Which
from apexrl.roles.env_player import VERSION as VERSION
from apexrl.roles.env_player import EnvPlayer
from apexrl.roles.lag_throttle import LagThrottle
from apexrl.roles.newest_weights import NewestWeights
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work
from apexrl.spec import Array, EnvSpec, Field

if TYPE_CHECKING:
    from apexrl.replay import Replay

FIRST_VERSION = 1
"""Weights version of a run that has learned nothing yet, however often its learner was restarted."""

PriorityFn = Callable[[Arrays], NDArray[np.float32]]
"""Items (``protocols.Agent.priorities``) -> |δ| [N]."""


def step_fields(spec: EnvSpec, extras: dict[str, Field]) -> dict[str, Field]:
    """What an actor writes per step, beside reward, terminated and truncated, which every replay has.

    Raises:
        AgentError: the agent records a field under a name that is taken.
    """
    own = {**spec.observation, "action": Field(spec.action.shape, spec.action.dtype), VERSION: Field((), "int64")}
    taken = (own.keys() | {"reward", "terminated", "truncated"}) & extras.keys()
    if taken:
        raise AgentError(
            f"the agent's step_spec names {', '.join(sorted(taken))}, which every step has already: rename"
        )
    return {**own, **extras}


def wanted_priorities(config: Config, agent: Agent) -> PriorityFn | None:
    """What a replay's writer calls for the priorities of new items; None where draws are uniform, and of unrolls: then
    nobody reads them, some agents would evaluate networks for them, and agents of unrolls have none."""
    unrolls = getattr(agent, "item", Item()).kind == "unroll"
    return cast("Prioritizing", agent).priorities if config.replay.alpha and not unrolls else None


class Actor:
    """Ape-X's actor (Horgan et al. 2018, Algorithm 1) over M environments at once.

    Slot ``index`` of the run owns M rungs that span the ladder of ε or σ, whoever serves in it; environments and
    exploration noise are seeded anew in every generation.
    """

    traits = RoleTraits("actor", Work("env_steps", "steps/s", "acting"), grace_seconds=10.0, serial_steps=1)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        replay: Replay,
        weights: WeightsReader,
        most_waiting: int = 0,
    ) -> None:
        from apexrl.agents import agent_class
        from apexrl.agents.acting_products import quicken_acting

        envs = config.actor.envs_per_actor
        seeds = np.random.SeedSequence(context.seed).generate_state(2)
        self._context = context
        self._pull_period = config.actor.pull_period * envs
        self._random_start = config.actor.random_start

        def make_agent(device: str) -> Agent:
            agent = cast("Agent", agent_class(config.agent.agent)(spec, config.agent, device, int(seeds[0])))
            quicken_acting(agent, device)
            return agent

        self._player = EnvPlayer(context, config, spec, make_agent, int(seeds[1]), partial=True)
        self._agent = self._player.agent
        self._writer: StepWriter = replay.writer(streams=envs, priority_fn=wanted_priorities(config, self._agent))
        self._unwritten: dict[str, Array] | None = None
        self._weights = NewestWeights(context, self._agent, weights)
        self._throttle = LagThrottle(context, config, replay, most_waiting)
        self._rows = np.zeros(envs, np.int64)  # written to each stream
        self._written: Which = None  # whose steps ``_unwritten`` are
        self._until_pull = 0  # environment steps

    def step(self) -> bool:
        """One step of whichever environments are ready.

        False: no weights are published yet, the replay takes no more just now, or too many unrolls wait to be learned
        from (``most_waiting``, see ``LagThrottle``).
        """
        if self._begins_unrolls():
            if not self._throttle.wait():
                return False
            self._throttle.began()
            self._until_pull = 0  # they begin with the newest weights
        if self._until_pull <= 0:
            self._weights.pull()
            if self._weights.version:  # random actions end as soon as something was learned; a look costs a comparison
                self._until_pull = 0 if self._random else self._pull_period
        if self._weights.version == 0:
            return False
        player = self._player
        if self._unwritten is None:
            player.act(self._weights.version, self._random)
            self._unwritten = player.collect()
            if self._unwritten is None:
                return True  # every environment is at work
            self._until_pull -= len(player.starts)
            self._written = player.which
            if player.idle is not None and player.idle.any():
                self._leave_out(player.idle)
                if not self._unwritten:
                    return True
            self._rows[slice(None) if self._written is None else self._written] += 1
        streams = None if self._written is None else self._written.tolist()
        try:
            self._writer.append(self._unwritten, streams, timeout=self._context.patience)
        except WaitTimeout:
            return False  # nothing was taken; the same steps are offered again
        self._unwritten = None
        player.episodes.report()
        return True

    def _leave_out(self, idle: NDArray[np.bool_]) -> None:
        """Keep of the steps in hand those that were any."""
        assert self._unwritten is not None
        took_part = np.flatnonzero(~idle)
        self._unwritten = (
            {name: values[took_part] for name, values in self._unwritten.items()} if len(took_part) else None
        )
        self._written = took_part if self._written is None else self._written[took_part]

    def _begins_unrolls(self) -> bool:
        """Whether the next actions begin unrolls whose lag is bounded."""
        player = self._player
        if self._unwritten is not None or player.seen is None:
            return False
        return self._throttle.begins(self._rows if player.which is None else self._rows[player.which])

    @property
    def _random(self) -> bool:
        """Whether nothing is learned yet and actions are to be random until then."""
        return self._random_start and self._weights.version == FIRST_VERSION

    def close(self) -> None:
        """Publish the steps written so far, report the last episodes, close the environments."""
        self._writer.close()
        self._player.close()
