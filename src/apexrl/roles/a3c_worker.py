"""A3C's worker: acts with a copy of the shared parameters, then changes them by the gradient of its own steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from apexrl.config import Config
from apexrl.errors import NonFiniteError
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.links.local.shared_parameters import SharedParameters
from apexrl.protocols import Context
from apexrl.roles import checkpointing
from apexrl.roles.actor import step_fields
from apexrl.roles.env_player import EnvPlayer
from apexrl.roles.hogwild import HogwildParameters
from apexrl.roles.learner import quicken_products
from apexrl.roles.parameter_client import ParameterClient
from apexrl.roles.policy_lag import LagMeter, lags_of
from apexrl.roles.role_traits import RoleTraits
from apexrl.roles.schedules import Anneal, ScheduleMetrics
from apexrl.roles.unroll_builder import UnrollBuilder
from apexrl.run.status import Work
from apexrl.spec import EnvSpec

_REPORT_SECONDS = 0.5


class A3CWorker:
    """A thread of A3C (Mnih et al. 2016, arXiv 1602.01783, algorithm S3), as a process, in M environments (there: 1).

    At the start of every unroll it copies the shared parameters, acts T steps in each environment with the copy, takes
    the gradient of these M unrolls at the copy, and changes the shared parameters by it: in place, one step of the
    optimizer, without a lock. Two workers that do so at once may lose elements of one another's changes, and one that
    is killed meanwhile leaves some elements changed and others not: Hogwild's bargain. Nobody waits for anybody.

    Or it sends the gradient to parameter servers, and copies what they have published. With a gradient still on its
    way, because a server is behind, it waits before it acts again.

    With ``shared_statistics`` off, each worker's optimizer has statistics of its own (the paper's plain RMSProp), which
    go with it.

    The version of a step is that of the copy; its policy lag is therefore the number of updates that others made
    between the copy and this worker's own update.

    Args:
        parameters: in shared memory.
        gradients: the way to their servers; None: they are changed in place.
    """

    traits = RoleTraits("worker", Work("env_steps", "steps/s", "acting"), grace_seconds=10.0, serial_steps=1)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        parameters: SharedParameters | ShardedParameters,
        gradients: GradientLink | None = None,
    ) -> None:
        import torch

        from apexrl.agents import agent_class, recorded

        torch.set_num_threads(max(1, config.learner.learner_threads))
        seeds = np.random.SeedSequence(context.seed).generate_state(2)

        def instance() -> Any:
            return agent_class(config.agent.agent)(spec, config.agent, "cpu", int(seeds[0]))

        self._context = context
        self._agent = agent = instance()
        quicken_products(agent, config, "cpu", config.actor.envs_per_actor)
        self._parameters: HogwildParameters | ParameterClient
        if isinstance(parameters, SharedParameters):
            shares, anneal = config.wiring.shared_statistics, Anneal(context, config)
            self._parameters = HogwildParameters(context, agent, instance(), parameters, shares, anneal)
        else:
            assert gradients is not None, "parameters of servers come with the way to them"
            self._parameters = ParameterClient(agent, parameters, gradients, context.index)
        self._envs = config.actor.envs_per_actor
        self._player = EnvPlayer(context, config, spec, lambda _: agent, int(seeds[1]))
        fields = step_fields(spec, recorded(agent))
        self._unrolls = UnrollBuilder(self._envs, agent.item.length, spec, fields, config.agent.gamma)
        self._copied = False  # for the unrolls that are being made
        self._lag = LagMeter(context)
        self._metrics: dict[str, float] = {}
        self._schedules = ScheduleMetrics(context, config, spec.action, agent.item)
        self._next_report = context.clock() + _REPORT_SECONDS

    def step(self) -> bool:
        """One step of every environment, and behind the unrolls' last an update.

        False: there are no parameters yet, or the gradient of the last unrolls is still to be taken.
        """
        player, unrolls, parameters = self._player, self._unrolls, self._parameters
        if not parameters.sent:
            return parameters.finish(self._context.patience)
        self._copied = self._copied or parameters.pull()
        if not self._copied:
            return False
        if player.seen is not None:
            unrolls.see(player.seen)
            player.act(parameters.version)
        steps = player.collect(least=self._envs)
        if steps is None:
            return True  # environments are at work
        unrolls.append(steps, player.starts if player.idle is None else player.starts | player.idle)
        if unrolls.full:
            assert player.seen is not None
            unrolls.see(player.seen)
            self._learn()
        player.episodes.report()
        self._report()
        return True

    def _learn(self) -> None:
        batch = self._unrolls.batch()
        try:
            found = self._agent.gradients(self._agent.prepare(batch))
        except NonFiniteError as error:
            raise NonFiniteError(
                f"an unroll of version {self._parameters.version}: {error}. "
                f"{checkpointing.last_good(self._context)}. Lower --learning-rate or --gradient-clip, or look for NaN, "
                "infinite or huge rewards and observations"
            ) from error
        lags, _ = lags_of(batch, self._parameters.newest, self._agent.item)
        self._lag.add(lags)
        self._parameters.send(found.groups, self._context.patience)
        self._agent.updates += 1  # of this worker, whose agent never applies by itself
        self._metrics = self._schedules.beside(found.metrics) or self._metrics
        self._copied = False
        self._unrolls.again()

    def _report(self, last: bool = False) -> None:
        now = self._context.clock()
        if now >= self._next_report or last:
            self._next_report = now + _REPORT_SECONDS
            updates = self._context.total("updates")
            self._context.send("metrics", values=self._metrics, updates=updates, **self._lag.report())

    def close(self) -> None:
        """Drop the unrolls that are not full, report the last episodes, close the environments."""
        self._parameters.finish(self._context.patience)
        self._report(last=True)
        self._player.close()
