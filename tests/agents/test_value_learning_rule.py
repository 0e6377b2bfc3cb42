"""One rule written plainly, in float64, from named parameters and the raw draws, for every agent that learns values."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from apexrl.agents import with_agent
from apexrl.agents.dqn import DQN
from apexrl.config import AgentConfig, Config
from apexrl.spec import ActionSpec, Array, EnvSpec, Field
from sampled_batch import Batch

ACTIONS, ROWS, UPDATES = 3, 24, 4
SPECS = {
    "vector": EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=ACTIONS)),
    "image": EnvSpec({"observation": Field((8, 8), "uint8")}, ActionSpec(n=ACTIONS), stack=2),
}
SMALL: dict[str, Any] = {
    "hidden": (16, 12),
    "image_units": 10,
    "atoms": 9,
    "v_min": -2.0,
    "v_max": 3.0,
    "quantiles": 5,
    "quantile_samples": 6,
    "cosines": 7,
    "munchausen_alpha": 0.7,
    "munchausen_temperature": 0.1,
    "munchausen_clip": -0.13,
    "huber": 0.4,
    "gradient_clip": 0.02,
    "learning_rate": 3e-3,
    "optimizer_eps": 1e-3,  # a small one would magnify what float32 rounds
    "target_period_updates": 3,
}
IMPLICIT: dict[str, Any] = {"distribution": "implicit_quantile"}
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {})
    for name in (
        "dqn",
        "double_dqn",
        "dueling_dqn",
        "c51",
        "qr_dqn",
        "iqn",
        "noisy_dqn",
        "rainbow",
        "munchausen_dqn",
    )
} | {
    "munchausen_iqn": ("munchausen_dqn", IMPLICIT),
    "munchausen_qr_dueling": ("munchausen_dqn", {"distribution": "quantile", "dueling": True}),
    "noisy_dueling_iqn": ("iqn", {"noisy": True, "dueling": True}),
    "double_iqn": ("iqn", {"double": True}),
    "polyak": ("dqn", {"polyak": 0.1}),
}
every_rule = pytest.mark.parametrize("rule", RULES)
every_spec = pytest.mark.parametrize("kind", SPECS)

Parameters = dict[str, Tensor]


def config_of(rule: str) -> AgentConfig:
    name, settings = RULES[rule]
    return replace(with_agent(Config(), name).agent, **{**SMALL, **settings})


def observe(rng: np.random.Generator, kind: str) -> Array:
    if kind == "vector":
        return rng.standard_normal((ROWS, 4), np.float32)
    return rng.integers(0, 256, (ROWS, 2, 8, 8)).astype(np.uint8)


def make_batch(kind: str, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    data = {
        "observation": observe(rng, kind),
        "next_observation": observe(rng, kind),
        "action": rng.integers(ACTIONS, size=ROWS),
        "reward": rng.standard_normal(ROWS, np.float32),
        "discount": np.where(rng.random(ROWS) < 0.75, 0.9 ** rng.integers(1, 4, ROWS), 0.0).astype(np.float32),
    }
    return Batch(data, np.arange(ROWS, dtype=np.uint64), rng.random(ROWS, np.float32) + np.float32(0.1))


def parameters_of(agent: DQN, part: str) -> Parameters:
    """Of ``online`` or ``target``, float64."""
    state = agent.state_dict()
    return {
        name.removeprefix(f"{part}/"): torch.tensor(array.astype(np.float64))
        for name, array in state.items()
        if name.startswith(f"{part}/")
    }


def agent_of(rule: str, kind: str) -> DQN:
    """One whose target has weights of another seed."""
    agent, other = (DQN(SPECS[kind], config_of(rule), seed=seed) for seed in (11, 99))
    state = agent.state_dict()
    state |= {name: array for name, array in other.state_dict().items() if name.startswith("target/")}
    agent.load_state_dict(state)
    return agent


class Draws:
    """What an agent is going to draw: for every pass raw noise ε, and fractions τ."""

    def __init__(self, agent: DQN, config: AgentConfig, parameters: Parameters) -> None:
        self._rng = copy.deepcopy(agent._rng)
        self._noise = torch.Generator()
        if "noise" in agent.generators:
            self._noise.set_state(agent._noise.get_state())
        self._noisy = [name.removesuffix(".weight_sigma") for name in parameters if name.endswith(".weight_sigma")]
        self._sizes = [tuple(parameters[f"{name}.weight"].shape) for name in self._noisy]
        self._implicit = config.distribution == "implicit_quantile"

    def next(self, samples: int, each: bool = False) -> tuple[dict[str, Tensor], Tensor | None]:
        """Layer -> f(ε_out)·f(ε_in)ᵀ with f(ε_out) as last column, of ``each`` row its own; τ [B, samples]."""
        noise = {}
        sizes = [size for layer in self._sizes for size in reversed(layer)]  # inputs first
        shape = (ROWS, sum(sizes)) if each else (sum(sizes),)
        raw = torch.randn(shape, generator=self._noise).double() if sizes else None
        if raw is not None:
            parts = list(raw.split(sizes, dim=-1))
            for index, name in enumerate(self._noisy):
                at_input, at_output = (e.sign() * e.abs() ** 0.5 for e in parts[2 * index : 2 * index + 2])
                with_bias = torch.cat((at_input, torch.ones(*at_input.shape[:-1], 1)), dim=-1)
                noise[name] = at_output[..., :, None] * with_bias[..., None, :]
        if not self._implicit:
            return noise, None
        return noise, torch.tensor(self._rng.random((ROWS, samples), np.float32).astype(np.float64))


def answer(
    p: Parameters, config: AgentConfig, observation: Array, draw: tuple[dict[str, Tensor], Tensor | None]
) -> Tensor:
    """z [B, n, N], N = 1 of values: encoder, ψ(τ), noisy layers, V + A − mean A, each by its formula."""
    noise, fractions = draw

    def linear(name: str, x: Tensor) -> Tensor:
        weight, bias = p[f"{name}.weight"], p[f"{name}.bias"]
        if name in noise:
            weight = weight + p[f"{name}.weight_sigma"] * noise[name][..., :-1]
            bias = bias + p[f"{name}.bias_sigma"] * noise[name][..., -1]
        if weight.ndim == 3:  # of each row its own
            return torch.stack([row @ w.T + b for row, w, b in zip(x, weight, bias, strict=True)])
        return x @ weight.T + bias

    def split(y: Tensor, actions: int) -> Tensor:
        return y.reshape(ROWS, actions, -1) if fractions is None else y.transpose(1, 2)

    x = torch.tensor(observation.astype(np.float64))
    image = x.ndim == 4
    if image:
        layer = "encoder.encoders.0.layers.0"
        x = conv2d(x / 255, p[f"{layer}.weight"], p[f"{layer}.bias"]).relu().flatten(1)
    else:
        for index in range(len(config.hidden)):
            x = linear(f"encoder.encoders.0.layers.{index}", x).relu()
    if fractions is not None:
        cosines = torch.cos(np.pi * torch.arange(config.cosines) * fractions[:, :, None])
        x = x[:, None] * linear("embedding", cosines).relu()
    if image:
        x = linear("streams", x).relu()
        a = split(linear("head", x[..., : config.image_units]), ACTIONS)
        v = split(linear("value", x[..., config.image_units :]), 1) if config.dueling else None
    else:
        if fractions is not None:
            x = linear("joint", x).relu()
        both = split(linear("head", x), ACTIONS + config.dueling)
        a, v = both[:, :ACTIONS], both[:, ACTIONS:] if config.dueling else None
    return a if v is None else v + a - a.mean(1, keepdim=True)


def support(config: AgentConfig) -> Tensor:
    return torch.linspace(config.v_min, config.v_max, config.atoms, dtype=torch.float64)


def means(z: Tensor, config: AgentConfig) -> Tensor:
    return z.softmax(2) @ support(config) if config.distribution == "categorical" else z.mean(2)


def target_of(
    online: Parameters, target: Parameters, config: AgentConfig, data: dict[str, Array], draws: Draws
) -> tuple[Tensor, Tensor]:
    """The reward [B] and Z of the later state [B, N], logits of categories."""
    n, few = config.quantile_samples, config.quantile_samples // 2
    rows, action = torch.arange(ROWS), torch.tensor(data["action"])
    reward = torch.tensor(data["reward"].astype(np.float64))
    if config.double:
        chooser = means(answer(online, config, data["next_observation"], draws.next(few)), config)
        later = answer(target, config, data["next_observation"], draws.next(n))
    else:
        noise, fractions = draws.next(n + few)
        values = None if fractions is None else fractions[:, :n]
        choice = None if fractions is None else fractions[:, n:]  # τ̃, independent of τ'
        later = answer(target, config, data["next_observation"], (noise, values))
        chooser = means(answer(target, config, data["next_observation"], (noise, choice)), config)
    if not config.munchausen:
        return reward, later[rows, chooser.argmax(1)]
    temperature = config.munchausen_temperature
    before = means(answer(target, config, data["observation"], draws.next(few)), config)
    bonus = temperature * torch.log_softmax(before / temperature, 1)[rows, action]
    assert 0 < int((bonus < config.munchausen_clip).sum()) < ROWS  # some are clipped
    log_policy = torch.log_softmax(chooser / temperature, 1)[:, :, None]
    value = (log_policy.exp() * (later - temperature * log_policy)).sum(1)
    return reward + config.munchausen_alpha * bonus.clamp(config.munchausen_clip, 0.0), value


def losses_of(
    z: Tensor, fractions: Tensor | None, reward: Tensor, discount: Tensor, later: Tensor, config: AgentConfig
) -> tuple[Tensor, Tensor]:
    """Of z [B, N] of the action taken: loss and priority of every row."""
    k = config.huber
    if config.distribution == "categorical":
        atoms = support(config)
        step = atoms[1] - atoms[0]
        moved = (reward[:, None] + discount[:, None] * atoms).clamp(config.v_min, config.v_max)
        near = (1 - (moved[:, :, None] - atoms).abs() / step).clamp(min=0)  # of each atom's mass to each
        m = (later.softmax(1)[:, :, None] * near).sum(1)
        cross = -(m * z.log_softmax(1)).sum(1)
        return cross, cross.detach() + torch.xlogy(m, m).sum(1)
    y = reward[:, None] + discount[:, None] * later
    u = y[:, None, :] - z[:, :, None]  # [B, N, M]
    huber = torch.where(u.abs() <= k, 0.5 * u**2, k * (u.abs() - 0.5 * k))
    assert 0 < int((u.abs() > k).sum()) < u.numel()
    if config.distribution == "expected":
        return huber[:, 0, 0], u.detach()[:, 0, 0].abs()
    n = z.shape[1]
    tau = (torch.arange(n) + 0.5).expand(ROWS, n) / n if fractions is None else fractions
    pinball = (tau[:, :, None] - (u < 0).double()).abs() * huber / k
    return pinball.mean(2).sum(1), (y.mean(1) - z.detach().mean(1)).abs()


@every_spec
@every_rule
def test_updates_are_the_published_rule(rule: str, kind: str) -> None:
    """From a target of other weights, with weights on the loss, clipping, terminations, γ^m, and Adam of PyTorch."""
    config, agent = config_of(rule), agent_of(rule, kind)
    online, target = parameters_of(agent, "online"), parameters_of(agent, "target")
    draws = Draws(agent, config, online)
    parameters = [parameter.requires_grad_() for parameter in online.values()]
    optimizer = torch.optim.Adam(parameters, config.learning_rate, eps=config.optimizer_eps)
    for update in range(1, UPDATES + 1):
        batch = make_batch(kind, update)
        learned = agent.update(agent.prepare(batch))

        draw = draws.next(config.quantile_samples)
        z = answer(online, config, batch.data["observation"], draw)[torch.arange(ROWS), batch.data["action"]]
        with torch.no_grad():
            reward, later = target_of(online, target, config, batch.data, draws)
        discount = torch.tensor(batch.data["discount"].astype(np.float64))
        losses, priorities = losses_of(z, draw[1], reward, discount, later, config)
        optimizer.zero_grad()
        (torch.tensor(batch.weights.astype(np.float64)) * losses).mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.gradient_clip)
        assert norm > config.gradient_clip
        optimizer.step()
        for name, parameter in online.items():
            if config.polyak:
                target[name] = target[name].lerp(parameter.detach(), config.polyak)
            elif update % config.target_period_updates == 0:
                target[name] = parameter.detach().clone()

        assert learned.priorities is not None
        np.testing.assert_allclose(learned.priorities, priorities.numpy(), rtol=1e-3, atol=2e-5)
    for part, expected in (("online", online), ("target", target)):
        for name, found in parameters_of(agent, part).items():
            torch.testing.assert_close(found, expected[name].detach(), rtol=0.0, atol=5e-6, msg=f"{part}/{name}")


@every_spec
@pytest.mark.parametrize("rule", ["dqn", "dueling_dqn", "iqn", "noisy_dqn", "noisy_dueling_iqn", "munchausen_iqn"])
def test_acting_reads_its_own_draw(rule: str, kind: str) -> None:
    """Half as many fractions as learning, and f(ε) of each row: the Q-values are those, and the best one is taken."""
    config, agent = config_of(rule), agent_of(rule, kind)
    online = parameters_of(agent, "online")
    draws = Draws(agent, config, online)
    seen = observe(np.random.default_rng(5), kind)
    acted = agent.act({"observation": seen}, None, np.zeros(ROWS, np.float32))
    q = means(answer(online, config, seen, draws.next(config.quantile_samples // 2, each=True)), config).numpy()
    np.testing.assert_allclose(acted.extras["q"], q, atol=1e-5)
    np.testing.assert_array_equal(acted.actions, q.argmax(axis=1))
