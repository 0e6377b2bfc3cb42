"""A model that all threads of a process act with and train."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from apexrl.config import Config
from apexrl.errors import NonFiniteError
from apexrl.protocols import Context, Item, WeightsReader, WeightsWriter
from apexrl.roles import checkpointing
from apexrl.roles.actor import FIRST_VERSION
from apexrl.roles.batch_source import Ready
from apexrl.roles.compute_device import device_of
from apexrl.roles.learner import nonfinite_message, quicken_products
from apexrl.roles.policy_lag import LagMeter, lags_of
from apexrl.roles.schedules import Anneal, ScheduleMetrics
from apexrl.spec import EnvSpec

if TYPE_CHECKING:

    class Weights(WeightsWriter, WeightsReader): ...


class SharedModel:
    """Parameters and optimizer of GA3C's one model (Babaeizadeh et al. 2017, section 4): there are no replicas.

    An agent is one thread's, with its random numbers and whatever it computes on its way. So every thread has one
    (``instance``), whose parameters are the same memory as all others'. Whoever acts, or takes a gradient, takes no
    lock: it may see some parameters from before an update and some from after, as in GA3C. Updates themselves are made
    one at a time, so that none is lost and the optimizer's state fits its parameters.

    Version v is that of the parameters after v − 1 updates. One that takes a dead one's place goes on from the newest
    checkpoint, with a version above all that there were, as a ``Learner`` does.

    Args:
        weights: published for whoever is in another process.
    """

    def __init__(self, context: Context, config: Config, spec: EnvSpec, weights: Weights) -> None:
        from apexrl.agents import agent_class, recorded

        self.device = device_of(config, spec)
        self._make: Any = agent_class(config.agent.agent)
        self._context = context
        self._config = config
        self._spec = spec
        self._weights = weights
        self._agent: Any = self._make(spec, config.agent, self.device, context.seed)
        quicken_products(self._agent, config, self.device, config.wiring.training_min_batch)
        self.item: Item = getattr(self._agent, "item", Item())
        self.records = recorded(self._agent)
        parts = config.agent.epochs * config.agent.minibatches
        self._splits = parts == 1 and all(hasattr(self._agent, name) for name in ("gradients", "apply"))
        checkpointing.restore(context, self._agent, weights, config.agent.agent, initial=config.learner.initial_weights)
        updates = context.total("updates")
        learned = updates > 0 or weights.version > FIRST_VERSION
        self.version = max(weights.version, updates) + 1 if learned else FIRST_VERSION
        self._anneal = Anneal(context, config)
        self._changing = threading.Lock()  # held while anything below changes, and while it must not
        self._lag = LagMeter(context)
        self._metrics: dict[str, float] = {}
        self._schedules = ScheduleMetrics(context, config, spec.action, self.item)
        self._items = self._batches = 0  # learned from since the last report
        self.publish()

    @property
    def updates(self) -> int:
        """Learner updates so far, over all generations of the run."""
        updates: int = self._agent.updates
        return updates

    def instance(self, seed: int, learns: bool) -> Any:
        """An agent for one more thread. To be made in the role's main thread.

        Args:
            learns: its updates are the model's; else it only acts.
        """
        from apexrl.agents.named_vectors import share

        agent = self._make(self._spec, self._config.agent, self.device, _seed(self._context.seed, seed, learns))
        share(agent, self._agent, learns)
        return agent

    def learn(self, agent: Any, ready: Ready) -> None:
        """One update, by an ``instance`` that learns.

        One gradient step is taken apart: gradients of several threads are computed at the same time, each from
        parameters that others may change meanwhile, and applied one by one. What takes several steps is done as a
        whole.

        Raises:
            NonFiniteError: the gradient is NaN or infinite; parameters are as before.
        """
        from apexrl.agents.trained_agent import refresh

        try:
            if self._splits:
                refresh(agent)
                agent.updates = self._agent.updates
                found = agent.gradients(ready.prepared)
                with self._changing:
                    agent.updates = self._agent.updates
                    self._anneal.tell(agent)
                    agent.apply(found.groups)
                    self._count(agent, ready, found.metrics)
            else:
                with self._changing:
                    refresh(agent)
                    agent.updates = self._agent.updates
                    self._anneal.tell(agent)
                    self._count(agent, ready, agent.update(ready.prepared).metrics)
        except NonFiniteError as error:
            raise NonFiniteError(nonfinite_message(self._context, error, self.version, ready.batch)) from error

    def _count(self, agent: Any, ready: Ready, metrics: dict[str, float]) -> None:
        self._agent.updates = agent.updates
        lags, aged = lags_of(ready.batch, self.version, self.item, ready.fresh)
        self._lag.add(lags)
        self._context.count(updates=1, aged_steps=aged)
        self.version += 1
        self._items, self._batches = self._items + len(ready.batch), self._batches + 1
        self._metrics = self._schedules.beside(metrics) or self._metrics

    def publish(self) -> None:
        """Hand the parameters to other processes, if they have changed since."""
        with self._changing:
            version = self.version
            arrays = self._agent.weights() if version > self._weights.version else None
        if arrays is not None:
            self._weights.publish(arrays, version)
            self._context.count(published=1)

    def save(self) -> None:
        """Write a checkpoint."""
        with self._changing:
            state = self._agent.state_dict()
        checkpointing.write_state(self._context, state, self._config.learner.checkpoints_kept)

    def report(self) -> None:
        """Tell of learning since the last report; ``training_batch``: mean unrolls of an update."""
        with self._changing:
            values, lag = dict(self._metrics), self._lag.report()
            if self._batches:
                values["training_batch"] = self._items / self._batches
            self._items = self._batches = 0
        self._context.send("metrics", values=values, updates=self._context.total("updates"), **lag)


def _seed(base: int, number: int, learns: bool) -> int:
    """Different for all agents of a process."""
    return int(np.random.SeedSequence([base, int(learns), number]).generate_state(1, np.uint32)[0])
