"""Unrolls that an actor-critic agent recorded, and its learning rule once more, written out in float64."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from apexrl.agents import with_agent
from apexrl.agents.actor_critic import ActorCritic
from apexrl.config import AgentConfig, Config, EnvConfig
from apexrl.envs import FrameStack, make_vector
from apexrl.networks.recurrent_trunk import RecurrentTrunk
from apexrl.networks.trunk import Trunk
from apexrl.replay import Batch, Replay
from apexrl.roles.actor import VERSION, step_fields
from apexrl.spec import Array, EnvSpec

LENGTH, ENVS = 8, 4
CARTPOLE = EnvConfig(env="CartPole-v1", max_episode_steps=22)  # some episodes are cut short
POSITIONS = EnvConfig(env="apexrl.envs.toy:PositionCartPole-v0", max_episode_steps=22)
PENDULUM = EnvConfig(env="Pendulum-v1", max_episode_steps=10)


def config_of(name: str, **changes: Any) -> AgentConfig:
    small = {
        "hidden": (10,),
        "recurrent_units": 7,
        "unroll_length": LENGTH,
        "gamma": 0.9,
        "epochs": 1,
        "minibatches": 1,
    }
    return replace(with_agent(Config(), name).agent, **{**small, **changes})


def spec_of(env: EnvConfig) -> EnvSpec:
    vector = make_vector(env, 1, 0)
    try:
        return vector.spec
    finally:
        vector.close()


def agent_for(name: str, env: EnvConfig = CARTPOLE, seed: int = 0, **changes: Any) -> ActorCritic:
    agent = ActorCritic(spec_of(env), config_of(name, **changes), "cpu", seed)
    with torch.no_grad():  # a policy that is sure of some things, so that it matters who acted
        agent._network.network.policy.weight.mul_(400.0)
    return agent


def played(agent: ActorCritic, env: EnvConfig, steps: int = 120) -> Batch:
    """All unrolls of so many steps of every environment; ``version`` numbers the steps."""
    vector = make_vector(env, ENVS, 0)
    replay = Replay(
        fields=step_fields(vector.spec, agent.step_spec),
        kind="unroll",
        length=agent.item.length,
        gamma=0.9,
        stack=vector.spec.stack,
        capacity=1000,
        sampler="fifo",
        writers=1,
        streams=ENVS,
    )
    writer = replay.writer(streams=ENVS)
    frames = FrameStack(vector.spec.stack, ENVS, vector.spec.observation)
    seen, state = vector.reset(), None
    shown = frames.push(seen)
    for step in range(steps + 1):
        acted = agent.act(shown, state, np.zeros(ENVS, np.float32))
        stepped = vector.step(acted.actions)
        results = {"reward": stepped.reward, "terminated": stepped.terminated, "truncated": stepped.truncated}
        numbers = step * ENVS + np.arange(ENVS)
        writer.append({**seen, "action": acted.actions, **acted.extras, VERSION: numbers, **results})
        state = {key: np.where(stepped.starts[:, None], 0, part) for key, part in (acted.state or {}).items()} or None
        seen, shown = stepped.observation, frames.push(stepped.observation, stepped.starts)
    vector.close()
    writer.flush()
    batch = replay.sample(len(replay))
    replay.close()
    return batch


def some(batch: Batch, rows: slice) -> Batch:
    data = {name: value[rows] for name, value in batch.data.items()}
    return Batch(data, batch.keys[rows], batch.probabilities[rows], batch.weights[rows])


def with_data(batch: Batch, data: dict[str, Array]) -> Batch:
    return Batch(data, batch.keys, batch.probabilities, batch.weights)


def through(trunk: Trunk, x: Tensor) -> Tensor:
    """A trunk for vectors, layer by layer."""
    for layer in cast("Any", trunk.encoder).encoders[0].layers:
        x = torch.relu(layer(x))
    return x


Aim = tuple[float, float, float]


class ByHand:
    """The learning rule of one agent, unroll by unroll and step by step."""

    def __init__(self, agent: ActorCritic) -> None:
        self.config = agent._config
        self.net = deepcopy(agent._network.network).double()
        self.net.zero_grad(set_to_none=True)
        for parameter in self.net.parameters():
            parameter.grad = None

    def says(self, data: dict[str, Array], row: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(log π, entropy, V) of every observation of one unroll; of the last only V means anything."""
        trunk, state = self.net.trunk, None
        if isinstance(self.net.recurrent, RecurrentTrunk):
            trunk = self.net.recurrent.trunk
            state = [torch.from_numpy(data[name][row : row + 1]).double() for name in ("lstm_h", "lstm_c")]
        assert trunk is not None
        own = self.net.value_trunk
        answers = []
        for column, first in enumerate(data["first"][row]):
            x = torch.from_numpy(data["observation"][row : row + 1, column]).double()
            seen = x
            x = through(trunk, seen)
            if state is not None:
                assert self.net.recurrent is not None
                state = [torch.zeros_like(part) if first else part for part in state]
                state = list(torch.lstm_cell(x, state, *self.net.recurrent.lstm.all_weights[0]))
                x = state[0]
            step = min(column, data["mask"].shape[1] - 1)
            value = self.net.value(x if own is None else through(own, seen))[0, 0]
            answers.append((*self.of_action(self.net.policy(x)[0], data, row, step), value))
        return answers

    def of_action(self, outputs: Tensor, data: dict[str, Array], row: int, step: int) -> tuple[Tensor, Tensor]:
        if self.net.free is not None:
            normal: Any = torch.distributions.Normal(outputs, self.net.free.exp())
            return normal.log_prob(torch.from_numpy(data["sample"][row, step])).sum(), normal.entropy().sum()
        choice: Any = torch.distributions.Categorical(logits=outputs)
        return choice.log_prob(torch.tensor(data["action"][row, step])), choice.entropy()

    def aims(self, data: dict[str, Array], row: int) -> list[Aim]:
        """(target, advantage, V) of every step of one unroll."""
        config, steps = self.config, data["mask"].shape[1]
        with torch.no_grad():
            says = self.says(data, row)
        values = [float(value) for _, _, value in says]
        found: list[Aim] = []
        surplus, later = 0.0, values[steps]  # Σ of the deltas behind, and the target there
        for t in reversed(range(steps)):
            reward, discount = float(data["reward"][row, t]), float(data["discount"][row, t])
            if not data["mask"][row, t]:
                surplus, later = 0.0, values[t]
                found.append((values[t], 0.0, values[t]))
                continue
            rho = c = 1.0
            if config.correction == "vtrace":
                ratio = float(torch.exp(says[t][0])) / float(np.exp(data["log_prob"][row, t]))
                rho, c = min(ratio, config.rho_clip), min(ratio, config.c_clip)
            delta = rho * (reward + discount * values[t + 1] - values[t])
            surplus = delta + discount * config.gae_lambda * c * surplus
            target = values[t] + surplus
            vtrace = rho * (reward + discount * later - values[t])
            found.append((target, vtrace if config.correction == "vtrace" else surplus, values[t]))
            later = target
        return found[::-1]

    def loss(self, data: dict[str, Array], aims: list[list[Aim]]) -> Tensor:
        """Of the whole batch, with the gradient."""
        config = self.config
        fresh = np.logical_and(data["mask"], data.get("fresh", data["mask"]))
        if config.normalize_advantages:
            taken = [aim[1] for row, some in enumerate(aims) for t, aim in enumerate(some) if fresh[row, t]]
            mean, deviation = float(np.mean(taken)), float(np.std(taken, ddof=1))
            aims = [[(target, (one - mean) / deviation, before) for target, one, before in some] for some in aims]
        total = torch.zeros((), dtype=torch.float64)
        for row, some in enumerate(aims):
            says = self.says(data, row)
            for t, (target, advantage, before) in enumerate(some):
                if not fresh[row, t]:
                    continue
                log_prob, entropy, value = says[t]
                gain = log_prob * advantage
                if config.surrogate == "clipped":
                    ratio = torch.exp(log_prob - float(data["log_prob"][row, t]))
                    held = ratio.clamp(1.0 - config.clip_ratio, 1.0 + config.clip_ratio)
                    gain = torch.minimum(ratio * advantage, held * advantage)
                error = 0.5 * (value - target) ** 2
                if config.value_clip:
                    near = before + (value - before).clamp(-config.value_clip, config.value_clip)
                    error = torch.maximum(error, 0.5 * (near - target) ** 2)
                total = total - gain + config.value_coefficient * error - config.entropy_coefficient * entropy
        return total if config.summed_loss else total / data["mask"].sum()

    def gradient(self, data: dict[str, Array], aims: list[list[Aim]]) -> dict[str, Tensor]:
        names, parameters = zip(*self.net.named_parameters(), strict=True)
        gradients = torch.autograd.grad(self.loss(data, aims), parameters)
        return dict(zip(names, gradients, strict=True))
