"""The learner update of SAC and discrete SAC, whose losses are in their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from apexrl.agents import diagnostics
from apexrl.agents.cuda_graphs import CudaGraphs, run
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.sequence_batch import Sequences
from apexrl.agents.sequence_steps import item_priorities
from apexrl.agents.temperature import Temperature
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES, Gradients, Trained, as_returned
from apexrl.agents.transition_batch import Transitions, as_array
from apexrl.config import AgentConfig
from apexrl.losses import probabilities


class CriticLoss(NamedTuple):
    """The result of ``critic_loss`` for a batch."""

    loss: Tensor  # scalar, to be minimised
    priorities: Tensor  # [B] |δ|, mean over the critics
    q: Tensor  # Q(s, a) [K, B]
    log_probs: Tensor  # of the policy at the later states: [B] of the actions drawn, or [B, n] of all


class PolicyLoss(NamedTuple):
    """The result of ``policy_loss`` for a batch."""

    loss: Tensor  # scalar, to be minimised
    log_prob: Tensor  # [B] log π(a|s), or its expectation: what the temperature learns from


class SoftAgent(Protocol):
    """The attributes that the functions below need of an agent."""

    _config: AgentConfig
    _policy: Trained[Any]
    _critics: Trained[Any]
    _temperature: Temperature
    networks: dict[str, Trained[Any]]
    _normalizer: Normalizer
    _graphs: CudaGraphs | None
    updates: int


def gradients(
    agent: SoftAgent,
    batch: Transitions | Sequences,
    losses: Callable[..., tuple[CriticLoss, Callable[[], PolicyLoss]]],
    draw: Callable[[int], tuple[Tensor, ...]] = lambda rows: (),
) -> Gradients:
    """Gradients of the ``critics`` and, every ``policy_period_updates``, of ``policy`` and ``temperature``, all at the
    same parameters; and the normalizer's statistics.

    Args:
        batch: of ``prepare``.
        losses: of a scaled batch and what was drawn for it: the critics', and what computes the policy's.
        draw: random numbers for so many rows.

    Raises:
        NonFiniteError: δ or a gradient is NaN or infinite; parameters are as before.
    """
    policy, critics, temperature = agent._policy, agent._critics, agent._temperature
    statistics = agent._normalizer.groups(batch, agent.updates)
    measured = agent.updates % METRICS_PERIOD_UPDATES == 0
    units = diagnostics.DeadUnits(measured)  # of policy and critics, which the policy's loss passes through
    moves = (agent.updates + 1) % agent._config.policy_period_updates == 0  # the policy
    graphs, scaled = None if measured else agent._graphs, agent._normalizer.transitions
    seen = scaled(batch) if graphs is None else batch

    def passes(given: Any, *drawn: Tensor) -> CriticLoss:
        seen: Transitions = given if graphs is None else scaled(given)
        found, policy_loss = losses(seen, *drawn)
        critics.differentiate(as_returned(CriticLoss, found, "critic_loss").loss)
        if moves or measured:
            with units, torch.set_grad_enabled(moves):
                loss, log_prob = as_returned(PolicyLoss, policy_loss(), "policy_loss")
        if moves:
            policy.differentiate(loss)
            temperature.gradient(log_prob)
        return found._replace(priorities=item_priorities(seen, found.priorities, agent._config.priority_eta))

    found = run(graphs, passes, seen, *draw(len(seen.weights)), variant=moves)
    priorities = as_array(found.priorities)
    norm = critics.clip(agent.updates, priorities)
    groups = {"critics": critics.gradient, **statistics}
    if moves:
        policy.clip(agent.updates)
        groups |= {"policy": policy.gradient, "temperature": temperature.trained.gradient}
    metrics: dict[str, float] = {}
    if measured:
        metrics = {
            "loss": float(found.loss.detach()),
            "priority": float(priorities.mean()),
            "q": float(found.q.detach().mean()) * agent._normalizer.unit,
            "gradient_norm": norm,
            "temperature": float(temperature.value),
            "entropy": float(_entropy(found.log_probs)),
            **diagnostics.of_weighted(seen, agent.networks, units),
        }
    return Gradients(groups, priorities, metrics)


def apply(agent: SoftAgent, groups: Mapping[str, Tensor]) -> None:
    """One step of each optimizer whose group is there. Target critics move a little with every step of the policy, with
    ``eager_targets`` with every update, or are copied every ``target_period_updates``."""
    agent._critics.step(groups["critics"])
    agent._normalizer.step(groups)
    agent.updates += 1
    if "policy" in groups:
        agent._policy.step(groups["policy"])
        agent._temperature.step(groups["temperature"])
    if "policy" in groups or agent._config.eager_targets or not agent._config.polyak:
        agent._critics.follow(agent.updates)


def _entropy(log_probs: Tensor) -> Tensor:
    """Mean over the batch, a scalar in nats, from log π [B] of drawn actions or [B, n] of all."""
    return -(log_probs if log_probs.ndim == 1 else (probabilities(log_probs) * log_probs).sum(dim=1)).mean()
