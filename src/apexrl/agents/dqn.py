"""DQN and what was added to it, as switches that compose.

Double, dueling, n-step and prioritized are Ape-X's own (Horgan et al. 2018, section 3.1). With noisy layers and
categories besides it is Rainbow (Hessel et al. 2018). ``targets`` holds what the later state is worth, greedy or
Munchausen; ``returns`` what is learned of the return, its mean or its distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.bootstrap import targets_of
from apexrl.agents.discrete_actions import Choices
from apexrl.agents.return_heads import Fresh, midpoints, returns_of
from apexrl.agents.rng_state import pack_generator, unpack_generator
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES, Gradients, Trained, held
from apexrl.agents.transition_batch import Transitions, as_array, on_device, to_device, transitions
from apexrl.config import AgentConfig
from apexrl.networks import NOTHING, Differentiable, Draw, QNetwork, differentiable, scaled
from apexrl.protocols import Acted, Arrays, Learned, Sampled, State
from apexrl.spec import Array, EnvSpec, Field


class DQN:
    """Acts greedily on Q-values, but for ε and noisy layers, and learns them from prioritized n-step transitions.

    Args:
        spec: the environment; its actions must be Discrete or MultiDiscrete.
        config: the learning rule.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights, of exploration, and of all that a pass through the network draws.

    Raises:
        AgentError: the actions are a box, or too many; or switches that do not go together.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._choices = Choices(spec.action, config.agent)
        self._actions = self._choices.n
        self._targets = targets_of(config)
        self._returns = returns_of(config, self._device)
        self._implicit = config.distribution == "implicit_quantile"
        self._few = max(1, config.quantile_samples // 2) if self._implicit else 0  # fractions that a choice reads
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone, where layers are made
            network = QNetwork(
                spec,
                config.hidden,
                config.dueling,
                outputs=self._returns.outputs,
                cosines=config.cosines if self._implicit else 0,
                noisy_sigma=config.noisy_sigma if config.noisy else 0.0,
                image_units=config.image_units,
                network=config.network,
            ).to(self._device)
        self._network = Trained("", network, config, target=True)
        self.networks: dict[str, Trained[Any]] = {"q": self._network}
        self._online = differentiable(network)
        self._certain = not (network.noise_size or self._implicit)  # nothing in it is drawn
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """What priorities are computed from is recorded with every step."""
        return self._returns.fields(self._actions)

    def _draw(self, rows: int, samples: int = 0) -> Draw:
        """What one pass through the network draws anew: noise for all rows, τ ~ U(0, 1) for every row."""
        if self._certain:
            return NOTHING
        network = self._network.network
        noise = fractions = None
        if network.noise_size:
            noise = scaled(to_device(self._rng.standard_normal(network.noise_size, np.float32), self._device))
        if self._implicit:
            shape = (rows, samples or self._config.quantile_samples)
            fractions = to_device(self._rng.random(shape, np.float32), self._device)
        return Draw(noise, fractions)

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Actions, int64 [B] or [B, k], with what priorities need. ``exploration`` is ε of each environment, [B].

        Fresh noise, and fractions half as many as in learning (Dabney et al. 2018b: 32). Greedy: none and the same.
        """
        rows = len(exploration)
        if not greedy:
            draw = self._draw(rows, self._few)
        else:
            few = self._few
            draw = Draw(None, midpoints(few, self._device).expand(rows, few)) if self._implicit else NOTHING
        answers = self._returns.read(self._online.values(on_device(observations, self._device), draw)).cpu()
        q = self._returns.means(answers)
        actions = q.numpy().argmax(axis=1)
        if not greedy:
            explore = self._rng.random(rows, np.float32) < exploration
            actions = np.where(explore, self._rng.integers(self._actions, size=rows), actions)
        extras = self._returns.recorded(answers, q, actions)
        return Acted(self._choices.to_env(actions), extras, state)

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|δ| [N], or for categories the divergence, from what was recorded while acting.

        Horgan et al. 2018, section 3: no second forward pass. The later state counts as the actor's network saw it.
        """
        action = self._choices.index_array(cast("NDArray[np.int64]", items["action"]))
        reward, discount = torch.from_numpy(items["reward"]), torch.from_numpy(items["discount"])
        fresh = Fresh(torch.from_numpy(action), reward, discount, items)
        return cast("NDArray[np.float32]", self._returns.priorities(fresh, self._targets).numpy())

    # Learning

    def prepare(self, batch: Sampled) -> Transitions:
        """Hand a batch over to the device; asynchronous on CUDA, no copy on the CPU."""
        return transitions(batch, self._device)

    def gradients(self, batch: Transitions) -> Gradients:
        """The clipped gradient of the loss, as group ``q``, and every row's priority, before its weight.

        Raises:
            NonFiniteError: δ or the gradient is NaN or infinite; parameters are as before.
        """
        config, network, returns = self._config, self._network, self._returns
        gradient = network.gradient  # attached from here on
        here, there = batch.observation, batch.next_observation
        rows, action = len(batch.reward), self._choices.index(batch.action)

        draw = self._draw(rows)  # every pass has its own (Fortunato et al. 2018, section 3.1)
        selector = (there, self._draw(rows, self._few)) if config.double else (None, NOTHING)
        z, online_later = self._online.forward(here, selector[0], draw, selector[1])
        with torch.no_grad():
            target = self._target_of(batch, action, online_later)
            towards, errors = returns.differentiate(z, draw.fractions, action, target, batch.weights)
        self._online.backward(towards)
        priorities = as_array(errors)
        gradient_norm = network.clip(config.gradient_clip, self.updates, priorities)

        metrics: dict[str, float] = {}
        if self.updates % METRICS_PERIOD_UPDATES == 0:
            metrics = {
                "loss": float(returns.loss(z, draw.fractions, action, target, batch.weights)),
                "priority": float(priorities.mean()),
                "q": float(returns.means(returns.read(z)).mean()),
                "gradient_norm": gradient_norm,
            }
        return Gradients({"q": gradient}, priorities, metrics)

    def _target_of(self, batch: Transitions, action: Tensor, online_later: Tensor | None) -> Tensor:
        """What the answer for the action taken should be: [B], or a distribution [B, N].

        An implicit network is asked at N fractions for values, and at others, as many as acting reads, for the choice
        between actions or the soft policy: of the same ones the best mean would be the luckiest (Dabney et al. 2018b,
        section 2.3, π_β; Vieillard et al.'s M-IQN). One pass reads both, as its features serve all fractions.
        """
        returns, targets, rows = self._returns, self._targets, len(batch.reward)
        apart = self._few if online_later is None else 0
        draw = self._draw(rows, self._config.quantile_samples + apart)
        later = returns.read(self._target.values(batch.next_observation, draw))
        if online_later is not None:
            chooser = returns.means(returns.read(online_later))
        elif apart:
            chooser, later = returns.means(later[..., -apart:]), later[..., :-apart]
        else:
            chooser = returns.means(later)
        reward = batch.reward
        if targets.looks_back:
            before = returns.read(self._target.values(batch.observation, self._draw(rows, self._few)))
            reward = targets.reward(reward, returns.means(before), action)
        return returns.backed_up(reward, batch.discount, targets.value(later, chooser))

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of the optimizer; then the target follows, as ``target_period_updates`` or ``polyak`` says."""
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

    def refresh(self) -> None:
        """Parameters were changed, or moved to other memory, from outside: forget what was derived from them."""
        self._online = differentiable(self._network.network)
        self.__dict__.pop("_target", None)

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
        self.updates = int(held(state, "updates"))
        self._rng = unpack_generator(held(state, "rng"))
        self._online.refresh()
        self._target.refresh()

    @cached_property
    def _target(self) -> Differentiable:
        return differentiable(self._network.target)
