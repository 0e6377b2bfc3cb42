"""DQN with what Ape-X adds: double, dueling, n-step, prioritized (Horgan et al. 2018, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.choices import Choices
from apexrl.agents.rng import pack_generator, unpack_generator
from apexrl.agents.trained import Trained
from apexrl.agents.transitions import Transitions, on_device, transitions
from apexrl.config import AgentConfig
from apexrl.losses import q_target, td_error, td_gradient, td_loss
from apexrl.networks import Differentiable, QNetwork, differentiable
from apexrl.protocols import Acted, Arrays, Learned, Sampled, State
from apexrl.spec import Array, EnvSpec, Field

METRICS_PERIOD_UPDATES = 50  # metrics cost about a tenth of a small update


class Gradients(NamedTuple):
    groups: dict[str, Tensor]  # group name -> flat gradient, clipped; holds until the next call
    priorities: NDArray[np.float32]  # [B] |δ|
    metrics: dict[str, float]


class DQN:
    """Acts ε-greedily on Q-values and learns them from prioritized n-step transitions.

    Args:
        spec: the environment; its actions must be Discrete or MultiDiscrete.
        config: the learning rule.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights and of exploration.

    Raises:
        AgentError: the actions are a box, or too many.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._choices = Choices(spec.action, config.agent)
        self._actions = self._choices.n
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone, where layers are made
            network = QNetwork(spec, config.hidden, config.dueling).to(self._device)
        self._network = Trained("", network, config)
        self._online = differentiable(network)
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """Every step records the Q-values that chose its action; priorities are computed from them."""
        return {"q": Field((self._actions,), "float32", sampled=False)}

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """ε-greedy actions, int64 [B], with their Q-values. ``exploration`` is ε of each environment, [B]."""
        q = self._online.values(on_device(observations, self._device)).cpu().numpy()
        actions = q.argmax(axis=1)
        if not greedy:
            rows = len(actions)
            explore = self._rng.random(rows, np.float32) < exploration
            actions = np.where(explore, self._rng.integers(self._actions, size=rows), actions)
        return Acted(self._choices.to_env(actions), {"q": q}, state)

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|R + discount·max_a Q(s', a) − Q(s, action)|, [N], from the Q-values recorded while acting.

        Horgan et al. 2018, section 3: no second forward pass.
        """
        reward, discount = (cast("NDArray[np.float32]", items[name]) for name in ("reward", "discount"))
        q, next_q = (cast("NDArray[np.float32]", items[name]) for name in ("q", "next_q"))
        action = self._choices.index_array(cast("NDArray[np.int64]", items["action"]))
        # A terminated window has no later step: whatever stands there must not count, even if it is not finite.
        later = np.where(discount > 0, next_q.max(axis=1), np.float32(0))
        delta: NDArray[np.float32] = reward + discount * later - q[np.arange(len(action)), action]
        return np.abs(delta)

    # Learning

    def prepare(self, batch: Sampled) -> Transitions:
        """Hand a batch over to the device; asynchronous on CUDA, no copy on the CPU."""
        return transitions(batch, self._device)

    def gradients(self, batch: Transitions) -> Gradients:
        """The clipped gradient of the TD loss, as group ``q``, and |δ| of every row.

        Raises:
            NonFiniteError: δ or the gradient is NaN or infinite; parameters are as before.
        """
        config, network = self._config, self._network
        q, next_q_online = self._online.forward(batch.observation, batch.next_observation if config.double else None)
        next_q = self._target.values(batch.next_observation)
        target = q_target(batch.reward, batch.discount, next_q, next_q_online)
        action = self._choices.index(batch.action)
        delta = td_error(q, action, target)
        gradient = network.gradient  # attached from here on
        self._online.backward(td_gradient(delta, action, batch.weights, self._actions, config.huber))
        priorities = delta.abs()
        gradient_norm = network.clip(config.gradient_clip, self.updates, priorities)
        metrics: dict[str, float] = {}
        if self.updates % METRICS_PERIOD_UPDATES == 0:
            metrics = {
                "loss": float(td_loss(delta, batch.weights, config.huber)),
                "td_error": float(priorities.mean()),
                "q": float(q.mean()),
                "gradient_norm": gradient_norm,
            }
        return Gradients({"q": gradient}, priorities.cpu().numpy(), metrics)

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of the optimizer; every ``target_period_updates`` of them the online network becomes the target."""
        self._network.step(groups["q"])
        self._online.refresh()
        self.updates += 1
        if self._network.follow(self.updates):
            self._target.refresh()

    def update(self, prepared: Transitions) -> Learned:
        """One learner update: ``gradients`` and ``apply``.

        Raises:
            NonFiniteError: as ``gradients``; nothing was changed.
        """
        groups, priorities, metrics = self.gradients(prepared)
        self.apply(groups)
        return Learned(priorities, metrics)

    # Weights and state

    def weights(self) -> dict[str, Array]:
        """The online network: parameter name -> float32 copy."""
        return self._network.weights()

    def load(self, weights: Arrays) -> None:
        """Take an online network.

        Raises:
            SpecError: the names or shapes are of another network.
        """
        self._network.load(weights)
        self._online.refresh()

    def state_dict(self) -> dict[str, Array]:
        """Parameters, target, optimizer, counters and RNG as flat named arrays."""
        counters = {"updates": np.array(self.updates, np.int64), "rng": pack_generator(self._rng)}
        return self._network.state_dict() | counters

    def load_state_dict(self, state: Arrays) -> None:
        """Go on exactly where ``state_dict`` was taken.

        Raises:
            SnapshotError: something is missing: the state is of another agent or optimizer.
            SpecError: arrays are of another network.
        """
        self._network.load_state_dict(state)
        self.updates = int(state["updates"])
        self._rng = unpack_generator(state["rng"])
        self._online.refresh()
        self._target.refresh()

    @cached_property
    def _target(self) -> Differentiable:
        return differentiable(self._network.target)
