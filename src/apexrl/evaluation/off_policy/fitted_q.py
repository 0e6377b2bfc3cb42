"""Fitted Q evaluation (Le et al. 2019, Batch Policy Learning under Constraints, arXiv 1903.08738): the critics of a
fixed policy, learned from a dataset, say what it would return.

Each of several critics learns from a bootstrap sample of episodes; the interval is theirs (Hao et al. 2021,
Bootstrapping Fitted Q-Evaluation for Off-Policy Inference, arXiv 2102.03607).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.matrix_products import choose_products
from apexrl.evaluation.off_policy.importance import Estimate, interval, possible_together
from apexrl.networks.action_value_critic import ActionValues
from apexrl.networks.actor_critic import Critics
from apexrl.spec import ACTION_MASK, Array, EnvSpec


class Recorded(NamedTuple):
    """N steps of E episodes, and what the policy would do at the later states."""

    observation: Mapping[str, Array]  # name -> [N, ...]
    action: Array  # [N] numbers of discrete actions, or [N, d] in −1 … 1
    reward: NDArray[np.float32]  # [N]
    next_observation: Mapping[str, Array]
    next_action: Array  # as ``action``
    terminated: NDArray[np.bool_]  # [N]
    episode: NDArray[np.int64]  # [N]
    first: Mapping[str, Array]  # name -> [E, ...], first observations
    first_action: Array  # [E] or [E, d]


@dataclass(frozen=True)
class Fit:
    """How critics are learned.

    Args:
        gamma: discount.
        epsilon: probability with which the policy's discrete action is uniformly random instead, of those possible.
        updates: gradient steps.
        critics: how many, each of its own bootstrap sample.
        polyak: share by which targets follow with every update; None: as fast as ``updates`` reach as far as γ does.
    """

    gamma: float
    epsilon: float = 0.0
    updates: int = 5000
    critics: int = 10
    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    learning_rate: float = 1e-3
    polyak: float | None = None

    @property
    def horizon(self) -> float:
        """Steps that γ looks ahead."""
        return 1.0 / (1.0 - min(self.gamma, 0.999))

    @property
    def following(self) -> float:
        """``polyak`` in numbers: while a target has followed once, an answer reaches a step further. With 0.01 and 5000
        updates answers reached 50 steps, and with γ = 0.99 were 40 % of what they should be."""
        if self.polyak is not None:
            return self.polyak
        return min(_FASTEST, max(_SLOWEST, _HORIZONS * self.horizon / self.updates))

    @property
    def least_updates(self) -> int:
        """Below so many answers lack 5 % or more of what lies far ahead."""
        return math.ceil(3.0 * self.horizon / (_FASTEST if self.polyak is None else self.polyak))


_SLOWEST, _FASTEST = 0.01, 0.2
_HORIZONS = 8.0  # that targets follow; the learning rate is near 0 in the last of them


def fitted_q(
    spec: EnvSpec, data: Recorded, fit: Fit, seed: int = 0, progress: Callable[[int], None] = lambda updates: None
) -> Estimate:
    """mean Q(s_0, π(s_0)) over first observations, and an interval of 95 % over bootstrap samples.

    Args:
        progress: called after every update with how many were made.
    """
    precision = torch.get_float32_matmul_precision()
    try:
        return _fitted(spec, data, fit, seed, progress)
    finally:
        torch.set_float32_matmul_precision(precision)


def _fitted(spec: EnvSpec, data: Recorded, fit: Fit, seed: int, progress: Callable[[int], None]) -> Estimate:
    count = fit.critics + 1  # the last one learns from all episodes as they are
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    episodes = len(data.first_action)
    shares = np.ones((count, episodes), np.float32)
    shares[:-1] = rng.multinomial(episodes, np.full(episodes, 1.0 / episodes), size=fit.critics)
    scale = max(float(np.abs(data.reward).mean()), 1e-8) * fit.horizon  # answers are of size 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, target = (_network(spec, fit, count) for _ in range(2))
    target.load_state_dict(network.state_dict())
    choose_products({name: one.numpy() for name, one in target.state_dict().items()}, fit.batch_size)
    optimizer = torch.optim.Adam(network.parameters(), fit.learning_rate)
    weights, reward = torch.from_numpy(shares), torch.from_numpy(data.reward / scale).float()
    scaled = Scaled(data.observation)
    tensors = {"now": scaled(data.observation), "later": scaled(data.next_observation)}
    action, later = torch.from_numpy(data.action), torch.from_numpy(data.next_action)
    goes_on, episode = torch.from_numpy(~data.terminated).float(), torch.from_numpy(data.episode)
    for update in range(fit.updates):
        rows = torch.randint(len(reward), (min(fit.batch_size, len(reward)),), generator=generator)
        with torch.no_grad():
            answers = _values(target, _rows(tensors["later"], rows), later[rows], spec, fit.epsilon)
            y = reward[rows] + fit.gamma * goes_on[rows] * answers
        q = _values(network, _rows(tensors["now"], rows), action[rows], spec, 0.0)
        loss = (weights[:, episode[rows]] * (q - y).square()).mean(dim=1).sum()
        for group in optimizer.param_groups:  # noise of the last steps averages out
            group["lr"] = fit.learning_rate * (1.0 - update / fit.updates)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                slow.lerp_(fast, fit.following)
        progress(update + 1)
    with torch.no_grad():
        first = _values(network, scaled(data.first), torch.from_numpy(data.first_action), spec, fit.epsilon)
    values = scale * first.numpy().astype(np.float64)  # [K + 1, E]
    samples = (shares[:-1] * values[:-1]).sum(axis=1) / episodes
    return Estimate(float(values[-1].mean()), *interval(samples))


def _network(spec: EnvSpec, fit: Fit, count: int) -> torch.nn.Module:
    if spec.action.box:
        return Critics(spec, fit.hidden, count, 1)
    alternatives = int(np.prod(spec.action.nvec or (spec.action.n,)))
    return ActionValues(spec, fit.hidden, count, alternatives)


def _values(network: torch.nn.Module, seen: dict[str, Tensor], action: Tensor, spec: EnvSpec, epsilon: float) -> Tensor:
    """[K, B] of actions; with ε the mean over what is executed instead."""
    if spec.action.box:
        answers: Tensor = network(seen, action)
        return answers.squeeze(2)
    every: Tensor = network(seen)  # [K, B, n]
    taken = every.gather(2, action.expand(every.shape[:2]).unsqueeze(2)).squeeze(2)
    if not epsilon:
        return taken
    if not spec.masked:
        return (1.0 - epsilon) * taken + epsilon * every.mean(dim=2)
    possible = torch.from_numpy(possible_together(spec.action.choices, seen[ACTION_MASK].numpy())).float()
    drawn = (every * possible).sum(dim=2) / possible.sum(dim=1).clamp(min=1.0)  # behind an end none may be left
    return (1.0 - epsilon) * taken + epsilon * drawn


class Scaled:
    """Observations as tensors, their floats scaled to mean 0 and deviation 1 over those that it is made with."""

    def __init__(self, observation: Mapping[str, Array]) -> None:
        floats = {name: np.asarray(array, np.float64) for name, array in observation.items() if array.dtype.kind == "f"}
        self._by = {name: (array.mean(axis=0), array.std(axis=0) + 1e-3) for name, array in floats.items()}

    def __call__(self, observation: Mapping[str, Array]) -> dict[str, Tensor]:
        """name -> [N, ...]."""
        found = {}
        for name, array in observation.items():
            if name in self._by:
                mean, deviation = self._by[name]
                array = ((array - mean) / deviation).astype(np.float32)
            found[name] = torch.from_numpy(np.ascontiguousarray(array))
        return found


def _rows(tensors: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: tensor[rows] for name, tensor in tensors.items()}
