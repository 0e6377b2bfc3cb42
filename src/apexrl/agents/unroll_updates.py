"""Learner updates from unrolls: several passes over a batch in minibatches, towards targets that are computed once.

An agent takes ``gradients``, ``apply``, ``update`` and ``steps`` into its class by name.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import pack, restore
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES, Gradients, Trained
from apexrl.agents.unroll_batch import Unrolls, among
from apexrl.config import AgentConfig
from apexrl.errors import NonFiniteError
from apexrl.protocols import Learned


class LearnsUnrolls(Protocol):
    """The attributes that the functions below need of an agent."""

    _config: AgentConfig
    _device: torch.device
    _rng: np.random.Generator
    _network: Trained[Any]
    _normalizer: Normalizer
    _remembers: bool  # steps of an unroll need each other: minibatches are whole unrolls
    updates: int  # learner updates made

    def aims(self, batch: Unrolls) -> Any:
        """What a scaled batch is to lead to: a NamedTuple of tensors [T, B], without gradient."""

    def gradients(self, batch: Any) -> Gradients: ...

    def apply(self, groups: Mapping[str, Tensor]) -> None: ...

    def part_gradients(self, batch: Unrolls, aims: Any, measured: bool) -> Gradients:
        """Of a scaled batch, or of a part towards the part of ``aims`` that is given; with metrics where
        ``measured``."""

    def step(self, groups: Mapping[str, Tensor]) -> None:
        """One step of the optimizer, which alone is no update."""


def gradients(agent: LearnsUnrolls, batch: Unrolls) -> Gradients:
    """The clipped gradient of the loss over the whole batch, in one pass, and the batch's statistics.

    Raises:
        NonFiniteError: a target or the gradient is NaN or infinite; parameters are as before.
    """
    statistics = agent._normalizer.groups(batch, agent.updates)
    found = agent.part_gradients(agent._normalizer.unrolls(batch), None, _measures(agent))
    return found._replace(groups=found.groups | statistics)


def apply(agent: LearnsUnrolls, groups: Mapping[str, Tensor]) -> None:
    """One step of the optimizer."""
    agent.step(groups)
    agent.updates += 1


def update(agent: LearnsUnrolls, prepared: Unrolls) -> Learned:
    """One learner update: ``epochs`` times over the batch in ``minibatches`` gradient steps each.

    With one step in all it is ``gradients`` and ``apply``. Else targets are computed once, before the first step
    (Schulman et al. 2017, algorithm 1).

    Raises:
        NonFiniteError: as ``gradients``, at any step; everything is as before the update.
    """
    if _single_step(agent, prepared):
        groups, _, metrics = agent.gradients(prepared)
        agent.apply(groups)
        return Learned(None, metrics)
    live = agent._network.vectors()
    before, drawn = {name: vector.clone() for name, vector in live.items()}, pack(agent._rng)
    going = steps(agent, prepared)
    try:
        found = next(going)
        while True:
            found = going.send(found.groups)
    except StopIteration as end:
        learned: Learned = end.value
        return learned
    except NonFiniteError:
        for name, vector in live.items():
            vector.copy_(before[name])
        restore(agent._rng, drawn)
        raise


def steps(agent: LearnsUnrolls, prepared: Unrolls) -> Generator[Gradients, Mapping[str, Tensor], Learned]:
    """The gradient steps of one update, one by one: each yields its gradient, and is sent what is to be applied."""
    if _single_step(agent, prepared):
        found = agent.gradients(prepared)
        agent.apply((yield found))
        return Learned(None, found.metrics)
    statistics, batch = agent._normalizer.groups(prepared, agent.updates), agent._normalizer.unrolls(prepared)
    with torch.no_grad():
        aims = agent.aims(batch)
    left = agent._config.epochs * _parts(agent, batch)
    for part, toward in minibatches(agent, batch, aims):
        left -= 1
        found = agent.part_gradients(part, toward, _measures(agent) and not left)
        if not left:  # statistics change behind the last step: until then the policy is the one that acted
            found = found._replace(groups=found.groups | statistics)
        agent.step((yield found))
    agent.updates += 1
    return Learned(None, found.metrics)


def _measures(agent: LearnsUnrolls) -> bool:
    """Whether this update has metrics: one in so many gradient steps."""
    return agent.updates % max(1, METRICS_PERIOD_UPDATES // (agent._config.epochs * agent._config.minibatches)) == 0


def minibatches(agent: LearnsUnrolls, batch: Unrolls, aims: Any) -> Iterator[tuple[Unrolls, Any]]:
    """Of every gradient step: single steps, of which those of one unroll are too much alike to be together; with a
    memory whole unrolls, whose steps need each other."""
    rows, times = batch.mask.t().nonzero(as_tuple=True)
    steps, unrolls = batch.mask.shape
    seen, taken = rows * (steps + 1) + times, times * unrolls + rows
    kind = type(aims)
    for share in shares(agent, unrolls if agent._remembers else len(rows), _parts(agent, batch)):
        index = torch.from_numpy(share).to(agent._device)
        if agent._remembers:
            yield batch.rows(index), kind(*(value[:, index] for value in aims))
        else:
            at = taken[index]
            yield batch.steps(seen[index], at), kind(*(among(value, at).unsqueeze(0) for value in aims))


def shares(agent: LearnsUnrolls, count: int, parts: int) -> Iterator[NDArray[np.int64]]:
    """Numbers 0 … ``count`` − 1 in so many parts: each once an epoch, shuffled anew."""
    for _ in range(agent._config.epochs):
        yield from np.array_split(agent._rng.permutation(count), parts)


def _single_step(agent: LearnsUnrolls, batch: Unrolls) -> bool:
    return agent._config.epochs * _parts(agent, batch) == 1


def _parts(agent: LearnsUnrolls, batch: Unrolls) -> int:
    """Minibatches, none of them empty; as many for all learners that make an update together."""
    steps, unrolls = batch.mask.shape
    # of two rows in order, at most one is a final observation, which is no step
    return min(agent._config.minibatches, unrolls * (1 if agent._remembers else max(1, steps // 2)))
