"""Gorila's learner role: computes gradients at the newest parameters, and sends them to the parameter servers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from apexrl.config import Config
from apexrl.errors import NonFiniteError
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.protocols import Context, Item
from apexrl.roles.batch_source import DirectBatches, UnsentPriorities
from apexrl.roles.compute_device import agent_on_device
from apexrl.roles.goal_relabelling import goal_relabelling
from apexrl.roles.learner import nonfinite_message, quicken_products, write_back
from apexrl.roles.parameter_client import ParameterClient
from apexrl.roles.policy_lag import AgeLimit, LagMeter, lags_of, lags_with_dataset
from apexrl.roles.role_traits import RoleTraits
from apexrl.roles.schedules import Beta, ScheduleMetrics
from apexrl.roles.update_pace import UpdatePace
from apexrl.run.status import Work
from apexrl.spec import EnvSpec

if TYPE_CHECKING:
    from apexrl.replay import BatchServer, Replay

_REPORT_SECONDS = 0.5
_SETTLING_BATCHES = 100  # before a loss may count as an outlier (ours: until then mean and deviation mean little)
_FORGETTING = 0.01  # weight of the newest loss in the running mean, once it has settled (ours)


class GradientLearner:
    """One of Gorila's learners (Nair et al. 2015, arXiv 1507.04296, algorithm 1). Batches come from the replay role, or
    from a replay of its own; parameters and targets from the parameter servers, and there its gradients go.

    Before it pulls parameters its own last gradient is applied and published: only other learners' gradients make its
    next one stale.

    Versions are the servers': one more than the gradients that were applied. A policy lag is the learner's version less
    the step's; the servers count the lag of gradients.

    Targets are refreshed by global updates, as there; the servers do it, each its own slice, and this learner pulls
    what they publish. An agent that lets its target follow with ``polyak`` moves it with every gradient applied.

    Batches whose loss is an outlier are left out, as there, but their priorities are written back. What counts as the
    loss is the mean weighted error, which every agent has at hand for every batch.
    """

    traits = RoleTraits(
        "gradient_learner", Work("gradients", "gradients/s", "learning"), grace_seconds=10.0, serial_steps=1
    )

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        parameters: ShardedParameters,
        gradients: GradientLink,
        batches: BatchServer | None = None,
        replay: Replay | None = None,
    ) -> None:
        settings = config.learner
        self._context = context
        self._name = config.agent.agent
        self._agent, device = agent_on_device(config, spec, context.index, context.seed)
        quicken_products(self._agent, config, device, settings.batch_size)
        self._item: Item = getattr(self._agent, "item", Item())
        self._parameters = parameters
        self._client = ParameterClient(self._agent, parameters, gradients, context.index)
        limit = settings.max_policy_lag
        self._ages = AgeLimit(limit, 0, self._item) if limit else None
        source = replay if batches is None else batches.learner(context.index)
        assert source is not None  # one of the two is wired
        self._batches = DirectBatches(
            source,
            self._agent,
            settings.batch_size,
            Beta(context, config),
            context.patience,
            self._ages,
            goals=goal_relabelling(config),
        )
        self._unsent = UnsentPriorities(context, replay)
        self._outliers = Outliers(config.wiring.outlier_deviations)
        self._pace = UpdatePace(context, settings.updates_per_second / config.wiring.learners)
        self._lag = LagMeter(context)
        self._lags_of = lags_with_dataset if config.replay.dataset else lags_of
        self._metrics: dict[str, float] = {}
        self._schedules = ScheduleMetrics(context, config, spec.action, self._item)
        self._next_report = context.clock() + _REPORT_SECONDS

    def step(self) -> bool:
        """One gradient, or what is left to send of the last one.

        False: there are no parameters or no batch yet, or some server takes no gradient just now.
        """
        self._report()
        if not self._client.sent:
            return self._client.finish(self._context.patience)
        if not self._client.settled(self._context.patience):
            return False
        if not self._client.pull() or not self._pace.due():
            return False
        if self._ages is not None:
            self._ages.version = self._client.version
        ready = self._batches.next()
        if ready is None:
            return False
        self._pace.spend()
        batch = ready.batch
        try:
            found = self._agent.gradients(ready.prepared)
        except NonFiniteError as error:
            raise NonFiniteError(nonfinite_message(self._context, error, self._client.version, batch)) from error
        lags, aged = self._lags_of(batch, self._client.version, self._item, ready.fresh)
        write_back(self._context, self._name, self._batches, batch, self._client.version, found.priorities)
        self._metrics = self._schedules.beside(found.metrics) or self._metrics
        if self._outliers.leaves_out(float(np.mean(batch.weights * found.priorities))):
            self._context.count(outlier_batches=1)
            return True
        self._lag.add(lags)
        self._agent.updates += 1  # of this learner, which never applies by itself
        self._context.count(gradients=1, aged_steps=aged)
        self._client.send(found.groups, self._context.patience)
        return True

    def close(self) -> None:
        """Finish sending the last gradient, if the servers still accept it."""
        self._client.finish(self._context.patience)
        self._batches.close()
        self._report(last=True)

    def _report(self, last: bool = False) -> None:
        now = self._context.clock()
        if now >= self._next_report or last:
            self._next_report = now + _REPORT_SECONDS
            self._unsent.count()
            values = {**self._metrics, "gradient_lag": self._parameters.gradient_lag}
            updates = self._context.total("updates")
            self._context.send("metrics", values=values, updates=updates, **self._lag.report())


class Outliers:
    """Which losses lie far above the others (Nair et al. 2015, section 5: several standard deviations above the mean).

    Args:
        deviations: how many; 0: none is left out.
    """

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._seen = 0
        self._mean = self._square = 0.0

    def leaves_out(self, loss: float) -> bool:
        """Whether ``loss``, the next one, is an outlier. One counts in mean and deviation as the largest that were none
        would, so that losses that stay large are outliers for a while only."""
        if not self._deviations:
            return False
        spread = math.sqrt(max(0.0, self._square - self._mean**2))
        most = self._mean + self._deviations * spread
        outlier = self._seen >= _SETTLING_BATCHES and loss > most
        self._seen += 1
        rate = max(_FORGETTING, 1.0 / self._seen)
        counted = most if outlier else loss
        self._mean += rate * (counted - self._mean)
        self._square += rate * (counted**2 - self._square)
        return outlier
