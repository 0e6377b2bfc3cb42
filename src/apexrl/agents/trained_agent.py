"""Methods that the shipped agents share: one update, weights to publish, checkpoints.

An agent takes them into its class by name (``weights, load = trained_agent.weights, trained_agent.load``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from apexrl.agents import diagnostics
from apexrl.agents.horizon import Horizon
from apexrl.agents.horizon import horizon as horizon_at
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, pack, restore
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES, Gradients, Loss, Trained, as_returned, held
from apexrl.agents.transition_batch import Transitions, as_array, transitions
from apexrl.config import AgentConfig
from apexrl.protocols import Arrays, Learned, Sampled
from apexrl.spec import Array


class TrainedAgent(Protocol):
    """The attributes that the methods below need of an agent."""

    networks: dict[str, Trained[Any]]  # parameter group -> network
    generators: dict[str, RandomGenerator]  # name in a checkpoint -> random generator
    updates: int  # learner updates made
    _config: AgentConfig

    def gradients(self, batch: Any) -> Gradients: ...
    def apply(self, groups: Mapping[str, Tensor]) -> None: ...


class OnDevice(Protocol):
    """An agent on one device."""

    _device: torch.device


def prepare(agent: OnDevice, batch: Sampled) -> Transitions:
    """Copy a batch to the device: asynchronously on CUDA, not at all on the CPU."""
    return transitions(batch, agent._device)


class ValueAgent(Protocol):
    """An agent of one network, with a loss of it."""

    networks: dict[str, Trained[Any]]  # its own is the first
    updates: int
    _network: Trained[Any]
    _normalizer: Normalizer

    def loss(self, batch: Any) -> Loss: ...

    def _scaled(self, batch: Any) -> Any:
        """A batch of ``prepare``, as ``loss`` takes it."""

    def _differentiated(self, batch: Any, measured: bool) -> Loss:
        """``loss`` of a scaled batch, with its gradient in the network; the loss itself may be left out where it is not
        ``measured``."""

    def _measure(self, q: Tensor, batch: Any) -> diagnostics.Metrics:
        """Metrics of what a loss was of."""


def differentiated(agent: ValueAgent, batch: Any, measured: bool = True) -> Loss:
    """``loss`` of a scaled batch, whose gradient is in the network from here on.

    Raises:
        AgentError: a ``loss`` of your own returned no ``Loss``.
    """
    found = as_returned(Loss, agent.loss(batch), "loss")
    agent._network.differentiate(found.loss)
    return found


def gradients(agent: ValueAgent, batch: Any) -> Gradients:
    """The clipped gradient of ``loss``, as the network's group, and every item's priority, before its weight.

    Args:
        batch: of ``prepare``.

    Raises:
        AgentError: a ``loss`` of your own returned no ``Loss``.
        NonFiniteError: δ or the gradient is NaN or infinite; parameters are as before.
    """
    statistics = agent._normalizer.groups(batch, agent.updates)
    measured = agent.updates % METRICS_PERIOD_UPDATES == 0
    by_graph: Callable[[Any], Loss] | None = getattr(agent, "by_graph", None)  # of an agent that has CUDA graphs
    if by_graph is None or measured:
        batch = agent._scaled(batch)
        with diagnostics.DeadUnits(measured) as units:
            found = agent._differentiated(batch, measured)
    else:
        found = by_graph(batch)
    priorities = as_array(found.priorities)
    norm = agent._network.clip(agent.updates, priorities)
    metrics: dict[str, float] = {}
    if measured:
        metrics = {
            "loss": float(found.loss.detach()),
            "priority": float(priorities.mean()),
            **agent._measure(found.q.detach(), batch),
            "gradient_norm": norm,
            **diagnostics.of_weighted(batch, agent.networks, units),
        }
    return Gradients({next(iter(agent.networks)): agent._network.gradient, **statistics}, priorities, metrics)


def apply(agent: ValueAgent, groups: Mapping[str, Tensor]) -> None:
    """One step of the optimizer; then the target follows, as ``target_period_updates`` or ``polyak`` says."""
    agent._network.step(groups[next(iter(agent.networks))])
    agent._normalizer.step(groups)
    agent.updates += 1
    agent._network.follow(agent.updates)


def update(agent: TrainedAgent, prepared: Any) -> Learned:
    """One learner update: ``gradients``, then ``apply``.

    Raises:
        NonFiniteError: as ``gradients``; nothing was changed.
    """
    groups, priorities, metrics = agent.gradients(prepared)
    agent.apply(groups)
    return Learned(priorities, metrics)


def anneal(agent: TrainedAgent, progress: float) -> None:
    """Before an update: how much of the run is behind it, 0 … 1. Step sizes fall with it to ``learning_rate_end``."""
    left = 1.0 - progress * (1.0 - agent._config.learning_rate_end)
    for network in agent.networks.values():
        network.anneal(left)


def _horizon(agent: TrainedAgent) -> Horizon:
    """n and γ of the batch that is drawn next, at most the n of the replay's items."""
    return horizon_at(agent._config, agent.updates)


horizon = property(_horizon)  # of the class that takes it


def weights(agent: TrainedAgent) -> dict[str, Array]:
    """The parameters of all networks: name -> float32 copy."""
    return {name: array for network in agent.networks.values() for name, array in network.weights().items()}


def load(agent: TrainedAgent, weights: Arrays) -> None:
    """Take parameters that ``weights`` gave.

    Raises:
        SpecError: the names or shapes are of other networks.
    """
    for network in agent.networks.values():
        network.load(weights)
    refresh(agent)


def state_dict(agent: TrainedAgent) -> dict[str, Array]:
    """Parameters, targets, optimizers, the update counter and random generators as flat named arrays."""
    state: dict[str, Array] = {}
    for network in agent.networks.values():
        state |= network.state_dict()
    state["updates"] = np.array(agent.updates, np.int64)
    return state | {name: pack(generator) for name, generator in agent.generators.items()}


def load_state_dict(agent: TrainedAgent, state: Arrays) -> None:
    """Go on exactly where ``state_dict`` was taken.

    Raises:
        SnapshotError: something is missing: the state is of another agent or optimizer.
        SpecError: arrays are of other networks.
    """
    for network in agent.networks.values():
        network.load_state_dict(state)
    agent.updates = int(held(state, "updates"))
    for name, generator in agent.generators.items():
        restore(generator, held(state, name))
    refresh(agent)


def refresh(agent: Any) -> None:
    """Tell an agent that its parameters were changed from outside, if it has a ``refresh`` for that."""
    getattr(agent, "refresh", lambda: None)()
