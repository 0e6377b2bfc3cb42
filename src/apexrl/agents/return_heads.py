"""Learned properties of the return in Q-learning: its mean, its distribution over categories, or its quantiles.

The network answers z for every action: one number, or N. ``read`` makes of it what the rest computes with: values,
probabilities or quantiles. Expected and quantile kinds record means while acting, from which |δ| is computed;
categories record the two distributions of which the divergence is computed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.accelerated import accelerated
from apexrl.agents.bootstrap import Targets
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import (
    categorical_divergence,
    categorical_projection,
    huber_loss,
    quantile_gradient,
    quantile_loss,
    taken,
    td_error,
    td_gradient,
)
from apexrl.protocols import Arrays
from apexrl.spec import Array, Field


class Fresh(NamedTuple):
    """Items just recorded by an actor, of which priorities are asked."""

    action: Tensor  # [B] int64
    reward: Tensor  # [B] float32, n-step
    discount: Tensor  # [B] float32
    extras: Arrays  # what was recorded: name, and next_name of the later step

    def tensor(self, name: str) -> Tensor:
        """A recorded field; of a later step zeros where there is none, as whatever stands there must not count."""
        tensor = torch.from_numpy(self.extras[name])
        if not name.startswith("next_"):
            return tensor
        return torch.where(self.discount.view(-1, *(1,) * (tensor.ndim - 1)) > 0, tensor, 0.0)


class Returns(Protocol):
    """One kind of answer. B is the batch, n the number of actions, N that of ``outputs``."""

    outputs: int

    def read(self, z: Tensor) -> Tensor:
        """Of the network's answers: values [B, n], or probabilities or quantiles [B, n, N]."""

    def means(self, answers: Tensor) -> Tensor:
        """Q [B, n], of what ``read`` returned."""

    def backed_up(self, reward: Tensor, discount: Tensor, later: Tensor) -> Tensor:
        """R + d·Z of the later state, [B] or [B, N]."""

    def losses(self, z: Tensor, fractions: Tensor | None, action: Tensor, target: Tensor) -> Tensor:
        """The loss of every row, [B]. ``fractions``: τ [B, N] of an implicit network."""

    def errors(self, z: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Their priorities, [B], without gradient."""

    def gradient(
        self, z: Tensor, fractions: Tensor | None, action: Tensor, target: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The accelerator of ``losses``: ∂ mean(w·losses) / ∂z in closed form, like z, and ``errors``."""

    def fields(self, actions: int) -> dict[str, Field]:
        """The fields that acting records."""

    def recorded(self, answers: Tensor, q: Tensor, action: NDArray[np.int64]) -> dict[str, Array]:
        """The same, of actions just chosen. ``answers`` as ``read`` returned them, on the CPU."""

    def priorities(self, fresh: Fresh, targets: Targets) -> Tensor:
        """Of recorded items, [B], on the scale of ``errors``."""


class RecordedMeans:
    """The part of those kinds that record Q-values while acting, and compute priorities from them."""

    def fields(self, actions: int) -> dict[str, Field]:
        return {"q": Field((actions,), "float32", sampled=False)}

    def recorded(self, answers: Tensor, q: Tensor, action: NDArray[np.int64]) -> dict[str, Array]:
        return {"q": cast("Array", q.numpy())}

    def priorities(self, fresh: Fresh, targets: Targets) -> Tensor:
        """|R + discount·V(s') − Q(s, action)| [B] of recorded Q-values (Horgan et al. 2018, section 3)."""
        q, later = fresh.tensor("q"), fresh.tensor("next_q")
        reward = targets.reward(fresh.reward, q, fresh.action)
        target = torch.addcmul(reward, fresh.discount, targets.value(later, later))
        return td_error(q, fresh.action, target).abs()


class Expected(RecordedMeans):
    """The mean alone (Mnih et al. 2015). κ of the Huber loss is 0 for ½δ²."""

    outputs = 1

    def __init__(self, huber: float) -> None:
        self._huber = huber

    def read(self, z: Tensor) -> Tensor:
        return z

    def means(self, answers: Tensor) -> Tensor:
        return answers

    def backed_up(self, reward: Tensor, discount: Tensor, later: Tensor) -> Tensor:
        return torch.addcmul(reward, discount, later)

    @accelerated
    def losses(self, z: Tensor, fractions: Tensor | None, action: Tensor, target: Tensor) -> Tensor:
        return huber_loss(td_error(z, action, target), self._huber)

    def errors(self, z: Tensor, action: Tensor, target: Tensor) -> Tensor:
        return td_error(z.detach(), action, target).abs()

    def gradient(
        self, z: Tensor, fractions: Tensor | None, action: Tensor, target: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        delta = td_error(z, action, target)
        return td_gradient(delta, action, weights, z.shape[1], self._huber), delta.abs()


class Categorical:
    """Probabilities of N returns evenly spaced from v_min to v_max (Bellemare et al. 2017, C51).

    The priority is the Kullback-Leibler divergence from the target (Hessel et al. 2018). Recorded fields are on the
    CPU, wherever the network is.
    """

    def __init__(self, support: Tensor) -> None:
        self.outputs = len(support)
        self._support = support

    def read(self, z: Tensor) -> Tensor:
        return torch.softmax(z, dim=2)

    def means(self, answers: Tensor) -> Tensor:
        return torch.matmul(answers, self._support.to(answers.device))

    def backed_up(self, reward: Tensor, discount: Tensor, later: Tensor) -> Tensor:
        return categorical_projection(reward, discount, later, self._support.to(later.device))

    @accelerated
    def losses(self, z: Tensor, fractions: Tensor | None, action: Tensor, target: Tensor) -> Tensor:
        return categorical_divergence(taken(z, action), target)

    def errors(self, z: Tensor, action: Tensor, target: Tensor) -> Tensor:
        return categorical_divergence(taken(z.detach(), action), target)

    def gradient(
        self, z: Tensor, fractions: Tensor | None, action: Tensor, target: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = taken(z, action)
        slope = (torch.softmax(logits, dim=1) - target) * (weights / len(weights))[:, None]
        return at_action(z, action, slope), categorical_divergence(logits, target)

    def fields(self, actions: int) -> dict[str, Field]:
        return {name: Field((self.outputs,), "float32", sampled=False) for name in ("taken", "greedy")}

    def recorded(self, answers: Tensor, q: Tensor, action: NDArray[np.int64]) -> dict[str, Array]:
        chosen = {"taken": taken(answers, torch.from_numpy(action)), "greedy": taken(answers, q.argmax(dim=1))}
        return {name: cast("Array", probabilities.numpy()) for name, probabilities in chosen.items()}

    def priorities(self, fresh: Fresh, targets: Targets) -> Tensor:
        target = self.backed_up(fresh.reward, fresh.discount, self._later(fresh))
        return categorical_divergence(fresh.tensor("taken").clamp(min=1e-12).log(), target)

    def _later(self, fresh: Fresh) -> Tensor:
        """Probabilities of the greedy action, any distribution where nothing follows."""
        return torch.where(fresh.discount[:, None] > 0, fresh.tensor("next_greedy"), 1.0 / self.outputs)


class Quantiles(RecordedMeans):
    """N quantiles of the return (Dabney et al. 2018a), or those at fractions that are asked for (2018b).

    Args:
        count: N.
        huber: κ; 0 is taken as 1, their papers' value.
    """

    def __init__(self, count: int, huber: float, device: torch.device) -> None:
        self.outputs = count
        self._huber = huber or 1.0
        self._middles = midpoints(count, device)

    def read(self, z: Tensor) -> Tensor:
        return z

    def means(self, answers: Tensor) -> Tensor:
        return answers.mean(dim=2)

    def backed_up(self, reward: Tensor, discount: Tensor, later: Tensor) -> Tensor:
        return torch.addcmul(reward[:, None], discount[:, None], later)

    @accelerated
    def losses(self, z: Tensor, fractions: Tensor | None, action: Tensor, target: Tensor) -> Tensor:
        asked = self._middles if fractions is None else fractions
        return quantile_loss(taken(z, action), asked, target, self._huber)

    def errors(self, z: Tensor, action: Tensor, target: Tensor) -> Tensor:
        return (target.mean(dim=1) - taken(z.detach(), action).mean(dim=1)).abs()

    def gradient(
        self, z: Tensor, fractions: Tensor | None, action: Tensor, target: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        quantiles = taken(z, action)
        asked = self._middles if fractions is None else fractions
        slope = quantile_gradient(quantiles, asked, target, self._huber) * (weights / len(weights))[:, None]
        return at_action(z, action, slope), (target.mean(dim=1) - quantiles.mean(dim=1)).abs()


def at_action(z: Tensor, action: Tensor, slope: Tensor) -> Tensor:
    """Zeros like z [B, n, N], but ``slope`` [B, N] at the action taken."""
    index = action[:, None, None].expand(-1, 1, z.shape[2])
    return torch.zeros_like(z).scatter_(1, index, slope.unsqueeze(1))


def midpoints(count: int, device: torch.device) -> Tensor:
    """τ̂_i = (2i − 1)/2N, float32 [N] (Dabney et al. 2018a, lemma 2)."""
    return (torch.arange(count, dtype=torch.float32, device=device) + 0.5) / count


def support_of(config: AgentConfig, device: torch.device) -> Tensor:
    """``atoms`` returns evenly spaced from ``v_min`` to ``v_max``, float32 [N].

    Raises:
        AgentError: they are fewer than 2, or not in that order.
    """
    if config.atoms < 2 or not config.v_min < config.v_max:
        raise AgentError(
            f"{config.agent} needs at least 2 atoms and v_min < v_max, not --atoms {config.atoms} --v-min "
            f"{config.v_min:g} --v-max {config.v_max:g}"
        )
    return torch.linspace(config.v_min, config.v_max, config.atoms, device=device)


def returns_of(config: AgentConfig, device: torch.device) -> Returns:
    """The kind that ``config.distribution`` names.

    Raises:
        AgentError: its numbers make no distribution.
    """
    kind = config.distribution
    if kind == "expected":
        return Expected(config.huber)
    if kind == "categorical":
        return Categorical(support_of(config, device))
    if kind == "quantile":
        if config.quantiles < 2:
            raise AgentError(f"{config.agent} needs at least 2 quantiles, not --quantiles {config.quantiles}")
        return Quantiles(config.quantiles, config.huber, device)
    if config.quantile_samples < 2 or config.cosines < 1:
        raise AgentError(
            f"{config.agent} needs at least 2 samples and 1 cosine, not --quantile-samples {config.quantile_samples} "
            f"--cosines {config.cosines}"
        )
    return Quantiles(config.quantile_samples, config.huber, device)
