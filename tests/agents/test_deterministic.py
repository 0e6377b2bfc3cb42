"""DDPG, Bi-Res-DDPG, TD3 and D4PG against their published rules, written out with autograd and torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from soft_reference import half_square
from torch import Tensor, nn

from apexrl import agents
from apexrl.agents.d4pg import D4PG
from apexrl.agents.ddpg import DDPG
from apexrl.agents.deterministic import Deterministic
from apexrl.agents.td3 import TD3
from apexrl.config import AgentConfig, Config
from apexrl.errors import AgentError, NonFiniteError
from apexrl.losses.distributional import categorical_divergence, categorical_projection
from apexrl.spec import ActionSpec, Array, EnvSpec, Field
from sampled_batch import Batch

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)
SPEC = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec((2,), "float32", low=LOW, high=HIGH))


def config_of(name: str, **changes: Any) -> AgentConfig:
    small: dict[str, Any] = {"hidden": (16, 16), "critic_hidden": (), "learning_rate": 1e-2}
    small |= {"policy_learning_rate": 5e-3, "v_min": -5.0, "v_max": 5.0, "atoms": 11}
    return replace(agents.with_agent(Config(), name).agent, **small | changes)


def make(name: str, seed: int = 0, **changes: Any) -> Any:
    return agents.agent_class(name)(SPEC, config_of(name, **changes), "cpu", seed)


def make_batch(seed: int = 0, rows: int = 12) -> Batch:
    rng = np.random.default_rng(seed)
    data: dict[str, Array] = {
        "observation": rng.standard_normal((rows, 3), np.float32),
        "next_observation": rng.standard_normal((rows, 3), np.float32),
        "action": rng.uniform(LOW, HIGH, (rows, 2)).astype(np.float32),
        "reward": rng.standard_normal(rows, np.float32),
        "discount": np.where(rng.random(rows) < 0.8, 0.97, 0.0).astype(np.float32),
    }
    return Batch(data, np.arange(rows, dtype=np.uint64), rng.random(rows, np.float32))


def train(agent: Deterministic, updates: int, first: int = 0) -> list[Any]:
    return [agent.update(agent.prepare(make_batch(first + k))) for k in range(updates)]


def same(one: Deterministic, two: Deterministic) -> bool:
    first, second = one.state_dict(), two.state_dict()
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def parts(agent: Deterministic, part: str) -> dict[str, Array]:
    """Arrays of the state whose names hold ``part``, under names without it."""
    return {name.replace(part, ""): array for name, array in agent.state_dict().items() if part in name}


NAMES = ("ddpg", "bires_ddpg", "td3", "d4pg")


# The published rules


class Plain:
    """The networks of an agent as plain functions on plain modules, and a twin of each as its target."""

    def __init__(self, agent: Deterministic) -> None:
        self.config = agent._config
        self.policy: Any = deepcopy(agent._policy.network)
        self.critic: Any = deepcopy(agent._critic.network)
        self.policy_target, self.critic_target = deepcopy(self.policy), deepcopy(self.critic)

    @staticmethod
    def mu(policy: nn.Module, s: Tensor) -> Tensor:
        return torch.tanh(policy({"observation": s}))

    @staticmethod
    def q(critic: nn.Module, s: Tensor, a: Tensor) -> Tensor:
        """[K, B, O]"""
        layers: Any = critic
        answers = []
        for k in range(layers.layers.count):
            x = torch.cat((s, a), dim=1)
            for place, (weight, bias) in enumerate(zip(layers.layers.weights, layers.layers.biases, strict=True)):
                x = (torch.relu(x) if place else x) @ weight[k] + bias[k]
            answers.append(x)
        return torch.stack(answers)


Loss = Callable[[Plain, Batch], tuple[Tensor, Tensor, Tensor]]


def tensors(batch: Batch) -> list[Tensor]:
    s, later, a, r, d = (
        torch.from_numpy(batch.data[name])
        for name in ("observation", "next_observation", "action", "reward", "discount")
    )
    return [s, later, (a - torch.tensor([0.0, 0.5])) / torch.tensor([2.0, 0.5]), r, d, torch.from_numpy(batch.weights)]


def ddpg_rule(eta: float) -> Loss:
    def loss(nets: Plain, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        s, later, a, r, d, w = tensors(batch)
        with torch.no_grad():
            target = r + d * nets.q(nets.critic_target, later, nets.mu(nets.policy_target, later))[0, :, 0]
            held = nets.q(nets.critic_target, s, a)[0, :, 0]
            online = nets.mu(nets.policy, later)
        forward = target - nets.q(nets.critic, s, a)[0, :, 0]
        backward = r + d * nets.q(nets.critic, later, online)[0, :, 0] - held
        kappa = nets.config.huber
        critic = (w * half_square(forward, kappa)).mean() + eta * (w * half_square(backward, kappa)).mean()
        return critic, -nets.q(nets.critic, s, nets.mu(nets.policy, s)).mean(), forward.abs()

    return loss


def td3_rule(nets: Plain, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    s, later, a, r, d, w = tensors(batch)
    noise = torch.randn(a.shape, generator=torch.Generator().manual_seed(0)) * 0.2
    with torch.no_grad():
        smooth = (nets.mu(nets.policy_target, later) + noise.clip(-0.5, 0.5)).clip(-1, 1)
        one, two = nets.q(nets.critic_target, later, smooth)[..., 0]
        target = r + d * torch.minimum(one, two)
    deltas = [target - q for q in nets.q(nets.critic, s, a)[..., 0]]
    critic = sum(((w * half_square(delta, nets.config.huber)).mean() for delta in deltas), torch.tensor(0.0))
    climbed = nets.q(nets.critic, s, nets.mu(nets.policy, s))[0]
    return critic, -climbed.mean(), (deltas[0].abs() + deltas[1].abs()) / 2


def d4pg_rule(nets: Plain, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    s, later, a, r, d, w = tensors(batch)
    support = torch.linspace(nets.config.v_min, nets.config.v_max, 11)
    with torch.no_grad():
        next_probabilities = nets.q(nets.critic_target, later, nets.mu(nets.policy_target, later))[0].softmax(1)
        target = categorical_projection(r, d, next_probabilities, support)
    log_probabilities = nets.q(nets.critic, s, a)[0].log_softmax(1)
    cross_entropy = -(target * log_probabilities).sum(1)
    action = nets.mu(nets.policy, s)
    free = action.detach().requires_grad_()
    mean = (nets.q(nets.critic, s, free)[0].softmax(1) * support).sum()
    slope = torch.autograd.grad(mean, free)[0]
    assert bool(slope.abs().max() > 1) is (nets.config.v_max > 5)
    climbed = (slope.clip(-1, 1) * action).sum() / len(s)
    entropy = -torch.special.xlogy(target, target).sum(1)
    return (w * cross_entropy).mean(), -climbed, cross_entropy - entropy


RULES: dict[str, Loss] = {
    "ddpg": ddpg_rule(0.0),
    "bires_ddpg": ddpg_rule(0.05),
    "td3": td3_rule,
    "d4pg": d4pg_rule,
}


CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in NAMES]
CASES += [(name, {"huber": 0.3}) for name in NAMES if name != "d4pg"]
CASES += [("d4pg", {"v_min": -300.0, "v_max": 300.0})]  # slopes that reach the clip


@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_an_update_is_one_step_of_the_published_rule(name: str, changes: dict[str, Any]) -> None:
    agent = make(name, policy_period_updates=1, gradient_clip=0.0, **changes)
    # Targets that differ from the networks, so that taking one for the other shows.
    other = make(name, seed=5, **changes)
    state = agent.state_dict()
    state |= {key: array for key, array in other.state_dict().items() if "/target/" in key}
    agent.load_state_dict(state)
    nets = Plain(agent)
    nets.policy_target.load_state_dict(deepcopy(other._policy.network.state_dict()))
    nets.critic_target.load_state_dict(deepcopy(other._critic.network.state_dict()))
    batch = make_batch()

    groups, learned, _ = agent.gradients(agent.prepare(batch))
    found = {group: gradient.clone() for group, gradient in groups.items()}
    agent.apply(groups)

    critic_loss, policy_loss, priorities = RULES[name](nets, batch)
    critic_gradient = torch.autograd.grad(critic_loss, list(nets.critic.parameters()))
    policy_gradient = torch.autograd.grad(policy_loss, list(nets.policy.parameters()))
    for part, gradients in ((agent._critic, critic_gradient), (agent._policy, policy_gradient)):
        group = "critic" if part is agent._critic else "policy"
        split = part.parameters.split(found[group])
        for (key, _), gradient in zip(part.network.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(split[key], gradient, rtol=1e-3, atol=1e-6, msg=lambda text, key=key: key + text)
    for network, gradients, rate in ((nets.critic, critic_gradient, 1e-2), (nets.policy, policy_gradient, 5e-3)):
        optimizer = torch.optim.Adam(network.parameters(), rate)
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    np.testing.assert_allclose(learned, priorities.detach().numpy(), rtol=1e-4, atol=1e-5)
    expected = {f"critic/{key}": value for key, value in nets.critic.named_parameters()}
    expected |= {f"policy/{key}": value for key, value in nets.policy.named_parameters()}
    weights = agent.weights()
    assert weights.keys() == expected.keys()
    for key, array in weights.items():
        np.testing.assert_allclose(array, expected[key].detach().numpy(), rtol=1e-3, atol=1e-5, err_msg=key)


def test_eta_zero_is_ddpg() -> None:
    plain, bires = make("ddpg"), make("bires_ddpg", residual=0.0)
    train(plain, 3)
    train(bires, 3)
    assert same(plain, bires)


@pytest.mark.parametrize("name", NAMES)
def test_importance_weights_scale_the_critics_loss_and_not_the_priorities(name: str) -> None:
    batch = make_batch()
    results = []
    for weight in (1.0, 0.25):
        agent = make(name, gradient_clip=0.0)
        weighted = batch._replace(weights=np.full(12, weight, np.float32))
        groups, priorities, _ = agent.gradients(agent.prepare(weighted))
        results.append((groups["critic"].clone(), priorities))
    torch.testing.assert_close(results[1][0], results[0][0] * 0.25, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_td3s_target_noise_is_clipped_and_its_own() -> None:
    agent = make("td3", target_noise=50.0, target_noise_clip=0.1)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    asked: list[Tensor] = []
    network = agent._critic.target
    network.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[1].clone()))
    batch = agent.prepare(make_batch())
    policy = torch.tanh(agent._policy.target(batch.next_observation))
    agent.update(batch)
    moved = (asked[0] - policy).abs()
    assert asked[0].abs().max() <= 1.0
    assert moved.max() <= 0.1 + 1e-6
    assert (moved > 0.09).float().mean() > 0.5  # σ of 50 is nearly always clipped
    assert torch.equal(torch.rand(1), expected)  # PyTorch's own generator was left alone


def test_td3s_policy_and_targets_wait() -> None:
    agent = make("td3", policy_period_updates=3)
    for update in range(1, 10):
        before = agent.state_dict()
        train(agent, 1, first=update)
        after = agent.state_dict()
        changed = {key for key in before if not np.array_equal(before[key], after[key])}
        weights = {key for key in before if key.endswith(("layers.weights.0", "head.weight"))}
        due = update % 3 == 0
        assert "critic/online/layers.weights.0" in changed
        assert {key for key in weights if key.startswith("policy/online")} <= changed or not due
        assert any(key.startswith("policy/") for key in changed) is due
        assert any("/target/" in key for key in changed) is due


def test_targets_move_by_polyak() -> None:
    agent = make("ddpg", polyak=0.25)
    before = parts(agent, "/target")
    train(agent, 1)
    online, target = parts(agent, "/online"), parts(agent, "/target")
    for key, array in target.items():
        np.testing.assert_allclose(array, 0.75 * before[key] + 0.25 * online[key], rtol=1e-5, atol=1e-7, err_msg=key)


@pytest.mark.parametrize("delay", [1, 2])
def test_targets_are_copied_every_period(delay: int) -> None:
    agent = make("d4pg", target_period_updates=3, policy_period_updates=delay)
    for update in range(1, 8):
        train(agent, 1, first=update)
        online, target = parts(agent, "/online"), parts(agent, "/target")
        assert all(np.array_equal(online[key], target[key]) for key in target) is (update % 3 == 0)


# Priorities


@pytest.mark.parametrize("name", NAMES)
def test_actors_and_learner_agree_on_priorities(name: str) -> None:
    """Where the target is the network, and TD3 draws no noise."""
    agent = make(name, target_noise=0.0)
    train(agent, 4)
    actor = make(name, seed=8, target_noise=0.0)
    actor.load(agent.weights())
    state = agent.state_dict()
    state |= {key.replace("/online/", "/target/"): array for key, array in state.items() if "/online/" in key}
    agent.load_state_dict(state)
    batch = make_batch(9)
    given = actor.priorities(batch.data)
    assert given.dtype == np.float32
    assert given.shape == (12,)
    assert (given > 0).any()
    np.testing.assert_allclose(given, agent.update(agent.prepare(batch)).priorities, rtol=1e-4, atol=1e-6)


def test_priorities_take_one_pass_of_each_network() -> None:
    agent = make("td3")
    passes = []
    for part in (agent._policy, agent._critic):
        part.network.register_forward_hook(lambda module, *_: passes.append(type(module).__name__))
    agent.priorities(make_batch().data)
    assert sorted(passes) == ["Critics", "Policy"]
    assert "_following" not in vars(agent._critic)  # actors hold no target
    assert "gradient" not in vars(agent._critic)


def test_d4pgs_priority_is_its_loss() -> None:
    agent = make("d4pg")
    batch = make_batch()
    found = agent.critic_loss(agent.prepare(batch))
    np.testing.assert_allclose(
        float(found.loss.detach()), float((torch.from_numpy(batch.weights) * found.priorities).mean()), rtol=1e-5
    )
    logits = torch.zeros(1, 3)
    assert float(categorical_divergence(logits, torch.full((1, 3), 1 / 3))[0]) == pytest.approx(0.0, abs=1e-6)


# Acting


def test_noise_is_of_each_environment_and_within_bounds() -> None:
    agent = make("td3", seed=3)
    observation = {"observation": np.zeros((6000, 3), np.float32)}
    sigma = np.tile(np.array([0.0, 0.1, np.inf], np.float32), 2000)
    best = agent.act(observation, None, sigma, greedy=True).actions
    actions = agent.act(observation, None, sigma).actions.reshape(2000, 3, 2)
    assert actions.dtype == np.float32
    assert (actions >= LOW).all()
    assert (actions <= HIGH).all()
    np.testing.assert_array_equal(actions[:, 0], np.broadcast_to(best[0], (2000, 2)))
    np.testing.assert_allclose(actions[:, 1].std(axis=0), [0.2, 0.05], rtol=0.1)  # σ times half the width
    np.testing.assert_allclose(actions[:, 1].mean(axis=0), best[1], atol=0.02)
    np.testing.assert_allclose(actions[:, 2].mean(axis=0), [0.0, 0.5], atol=0.1)
    np.testing.assert_allclose(actions[:, 2].std(axis=0), [4 / 12**0.5, 1 / 12**0.5], rtol=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_it_refuses_what_it_cannot_do(name: str) -> None:
    with pytest.raises(AgentError, match=name):
        agents.agent_class(name)(EnvSpec(SPEC.observation, ActionSpec(n=3)), config_of(name), "cpu", 0)
    open_box = ActionSpec((1,), "float32", low=np.full(1, -np.inf, np.float32), high=np.ones(1, np.float32))
    most = np.full(1, np.finfo(np.float32).max)
    for box in (open_box, ActionSpec((1,), "float32", low=-most, high=most)):
        with pytest.raises(AgentError, match="finite bounds"):
            agents.agent_class(name)(EnvSpec(SPEC.observation, box), config_of(name), "cpu", 0)


@pytest.mark.parametrize("changes", [{"v_min": 10.0, "v_max": -10.0}, {"atoms": 1}])
def test_atoms_that_make_no_distribution_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match=r"^d4pg needs at least 2 atoms and v_min < v_max"):
        make("d4pg", **changes)


# State


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_gradient_that_is_not_finite_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(name, policy_period_updates=1)
    train(agent, 2)
    before = agent.weights()
    loss = agent.policy_loss
    monkeypatch.setattr(agent, "policy_loss", lambda batch: loss(batch) * float("inf"))
    with pytest.raises(NonFiniteError, match="update 3"):
        train(agent, 1)
    after = agent.weights()
    assert all(np.array_equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(("name", "kind"), [("ddpg", DDPG), ("bires_ddpg", DDPG), ("td3", TD3), ("d4pg", D4PG)])
def test_a_name_brings_its_algorithm(name: str, kind: type) -> None:
    config = agents.with_agent(Config(), name)
    assert agents.agent_class(name) is kind
    assert config.agent.residual == (0.05 if name == "bires_ddpg" else 0.0)
    assert config.replay.remover == ("proportional" if name == "d4pg" else "fifo")
    assert agents.with_agent(config, "td3").replay == agents.with_agent(Config(), "td3").replay
