"""An agent that plans in a learned model of its environment, after TD-MPC2 (Hansen et al. 2024, arXiv 2310.16828).

It differs from the paper: networks and plans are small enough for a CPU, there are two critics instead of five, and one
of n actions is planned as n numbers of which the greatest is chosen.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.config import AgentConfig
from apexrl.config.settings import Range
from apexrl.errors import AgentError, NonFiniteError
from apexrl.protocols import Acted, Arrays, Item, Learned, Sampled, State
from apexrl.spec import EnvSpec
from apexrl_world_model.actions import Actions
from apexrl_world_model.networks import WorldModel, cross_entropy, expected
from apexrl_world_model.planner import Planner, drawn_action

PLAN = "plan"
CONSISTENCY, REWARD, VALUE = 20.0, 0.1, 0.1  # coefficients of the loss (the paper's table 8)
CLOSER = 0.5  # weight of each step of a sequence against the one before
ENCODER_RATE = 0.3  # of the learning rate


class WorldModelAgent:
    """Acts by plans in the model, which it learns from short sequences."""

    @dataclass(frozen=True)
    class Settings:
        """Settings of world_model."""

        plan_horizon: Annotated[int, Range(1, 32)] = 3
        """Steps that are planned ahead, and steps of the sequences that are learned from."""
        plan_samples: Annotated[int, Range(32, 4096)] = 96
        """Sequences of actions that each iteration of planning draws; a sixth of them come from the policy."""
        plan_iterations: Annotated[int, Range(1, 16)] = 4
        """Iterations of planning for each step."""
        plan_temperature: Annotated[float, Range(above=0)] = 0.5
        """How much the best sequences count more than the good ones, in units of return."""
        latent_numbers: Annotated[int, Range(8, 4096)] = 64
        """Size of a latent state; a multiple of 8."""
        model_units: Annotated[int, Range(8, 4096)] = 128
        """Units of each hidden layer."""
        policy_entropy: Annotated[float, Range(0)] = 1e-4
        """Coefficient of the policy's entropy."""

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str, seed: int) -> None:
        settings = self.Settings(**config.agent_settings)
        field = spec.observation.get("observation")
        if field is None or len(spec.observation) > 1 or len(field.shape) != 1 or spec.stack > 1:
            raise AgentError("world_model takes observations that are one vector, without a frame stack")
        if settings.latent_numbers % 8:
            raise AgentError(f"--latent-numbers must be a multiple of 8, not {settings.latent_numbers}")
        if device != "cpu":
            raise AgentError(f"world_model learns on the CPU, not on {device}: give --device cpu")
        self.item = Item("sequence", settings.plan_horizon, 1)
        self._settings, self._config = settings, config
        self._actions = Actions(spec.action)
        self._rng = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model = WorldModel(field.shape[0], self._actions.size, settings.latent_numbers, settings.model_units)
        self._target = deepcopy(self._model.values).requires_grad_(False)
        rate, policy = config.learning_rate, list(self._model.policy.parameters())
        rest = (*self._model.dynamics.parameters(), *self._model.reward.parameters(), *self._model.values.parameters())
        encoder = list(self._model.encoder.parameters())
        self._learned = [*encoder, *rest]
        self._optimizer = torch.optim.Adam([{"params": encoder, "lr": ENCODER_RATE * rate}, {"params": rest}], lr=rate)
        self._policy_optimizer = torch.optim.Adam(policy, lr=rate, eps=1e-5)
        self._scale = torch.ones(1)  # of values: between their 5th and 95th percentile
        self._updates = torch.zeros(1)
        samples = settings.plan_samples
        self._planner = Planner(
            self._model, self._actions, settings.plan_horizon, samples, samples // 6, samples // 8,
            settings.plan_iterations, settings.plan_temperature, 0.05,
        )  # fmt: skip

    # Acting

    @torch.no_grad()
    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        rows, size = len(exploration), self._actions.size
        mean = torch.zeros(rows, self._settings.plan_horizon, size)
        anything = 2 * torch.rand(rows, size, generator=self._rng) - 1
        if not greedy and np.isinf(exploration).all():
            return Acted(self._actions.to_env(anything), {}, {PLAN: mean.numpy()})
        before = mean if state is None else torch.from_numpy(np.array(state[PLAN]))
        z = self._model.encoder(torch.from_numpy(np.asarray(observations["observation"], np.float32)))
        mean, std = self._planner.plan(z, before, self._config.gamma, self._rng)
        numbers = mean[:, 0]
        if not greedy:
            chance = torch.from_numpy(np.asarray(exploration, np.float32))
            at_random = torch.isinf(chance)
            if self._actions.discrete:
                at_random |= torch.rand(rows, generator=self._rng) < chance
            numbers = numbers + std[:, 0] * torch.randn(rows, size, generator=self._rng)
            numbers = torch.where(at_random[:, None], anything, numbers)
        return Acted(self._actions.to_env(numbers), {}, {PLAN: mean.numpy()})

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        return np.ones(len(items["reward"]), np.float32)  # all sequences are drawn alike

    # Learning

    def update(self, prepared: Sampled) -> Learned:
        data = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in prepared.data.items()}
        observation, action = data["observation"].float(), self._actions.recorded(data["action"])
        reward, discount, mask = data["reward"], data["discount"], data["mask"].float()
        horizon = reward.shape[1]
        nearness = mask * CLOSER ** torch.arange(horizon)  # [B, T]
        with torch.no_grad():
            seen = self._model.encoder(observation)  # [B, T + 1, latent]
            following = self._actions.seen(drawn_action(self._model, seen[:, 1:], self._rng)[0])
            target = reward + discount * self._target_value(seen[:, 1:], following)
        states = [self._model.encoder(observation[:, 0])]
        for step in range(horizon):
            states.append(self._model.next(states[-1], action[:, step]))
        z = torch.stack(states, 1)  # [B, T + 1, latent], predicted
        behind, inputs = z[:, :-1], torch.cat((z[:, :-1], action), -1)
        consistency = ((z[:, 1:] - seen[:, 1:]) ** 2).mean(-1)
        rewards = cross_entropy(self._model.reward(inputs), reward)
        values = cross_entropy(self._model.value_logits(behind, action), target).mean(0)
        loss = (nearness * (CONSISTENCY * consistency + REWARD * rewards + VALUE * values)).mean()
        if not torch.isfinite(loss):
            raise NonFiniteError(f"the loss of the world model is {loss.item()}")
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._learned, self._config.gradient_clip)
        self._optimizer.step()
        policy_loss = self._improve_policy(z.detach(), torch.cat((nearness, nearness[:, -1:]), 1))
        with torch.no_grad():
            torch._foreach_lerp_(list(self._target.parameters()), list(self._model.values.parameters()), 0.01)
            self._updates += 1
        metrics = {
            "loss": float(loss.detach()),
            "consistency": float((nearness * consistency).mean().detach()),
            "policy_loss": policy_loss,
            "q": float(target.mean()),
            "gradient_norm": float(norm),
        }
        return Learned(None, metrics)

    def _target_value(self, z: Tensor, action: Tensor) -> Tensor:
        x = torch.cat((z, action), -1)
        return torch.minimum(*(expected(value(x)) for value in self._target))

    def _improve_policy(self, z: Tensor, nearness: Tensor) -> float:
        """One step of the policy towards actions of greater value, of states [B, T + 1, latent]."""
        for parameter in self._model.values.parameters():
            parameter.requires_grad_(False)
        numbers, entropy = drawn_action(self._model, z, self._rng)
        q = expected(self._model.value_logits(z, self._actions.seen(numbers))).mean(0)
        spread = torch.quantile(q.detach(), 0.95) - torch.quantile(q.detach(), 0.05)
        self._scale.lerp_(spread.clamp(min=1.0).reshape(1), 0.01)
        loss = -(nearness * (q / self._scale + self._settings.policy_entropy * entropy)).mean()
        self._policy_optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.policy.parameters(), self._config.gradient_clip)
        self._policy_optimizer.step()
        for parameter in self._model.values.parameters():
            parameter.requires_grad_(True)
        return float(loss.detach())

    # Weights and state

    def weights(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self._model.state_dict().items()}

    def load(self, weights: Arrays) -> None:
        self._model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in weights.items()})

    def state_dict(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self._state().items()}

    def load_state_dict(self, state: Arrays) -> None:
        for optimizer in (self._optimizer, self._policy_optimizer):  # Adam makes its averages at its first step
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                if not optimizer.state[parameter]:
                    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    optimizer.state[parameter] = {"step": torch.zeros(()), **zeros}
        kept = self._state()
        with torch.no_grad():
            for name, tensor in kept.items():
                tensor.copy_(torch.from_numpy(np.array(state[name])))
        self._rng.set_state(kept["rng"])

    def _state(self) -> dict[str, Tensor]:
        """All tensors that a resume needs, by name."""
        found = {f"model/{name}": tensor for name, tensor in self._model.state_dict().items()}
        found |= {f"target/{name}": tensor for name, tensor in self._target.state_dict().items()}
        for kind, optimizer in (("adam", self._optimizer), ("policy_adam", self._policy_optimizer)):
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            for number, parameter in enumerate(parameters):
                moments = optimizer.state.get(parameter, {})
                found |= {f"{kind}/{number}/{name}": tensor for name, tensor in moments.items()}
        return {**found, "scale": self._scale, "updates": self._updates, "rng": self._rng.get_state()}
