"""Actions that are choices and numbers at once, in a dict or a tuple."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from apexrl.agents import agent_class, with_agent
from apexrl.agents.transition_batch import Transitions
from apexrl.config import Config, EnvConfig
from apexrl.config.convert import override
from apexrl.envs import env_spec, make_vector
from apexrl.envs.action_spaces import action_spec
from apexrl.errors import AgentError, ConfigError, SpecError
from apexrl.networks.distributions import Hybrid
from apexrl.roles.action_check import ActionCheck
from apexrl.roles.executed_actions import check_actions
from apexrl.run.spec_json import spec_from_json, spec_to_json
from space_envs import Pair

SPACES = (
    Pair().action_space,
    Pair(tuples=True).action_space,
    Tuple([Discrete(3, start=2), Dict(a=MultiBinary(2), b=Box(-2.0, 3.0, (2, 2)))]),
    Dict(a=Discrete(3), b=MultiDiscrete([2, 4], start=[1, -1])),
    Tuple([Box(0.0, 1.0, (2,)), Box(-1.0, 0.0, (1, 2), np.float64)]),
)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_an_environment_gets_its_own_structure_back(space: gym.Space[Any]) -> None:
    """Every sample of the space, told as one array, comes back as it was."""
    spec = action_spec(space)
    assert spec_from_json(spec_to_json(env_spec(Box(0.0, 1.0), space))).action.parts == spec.parts
    rng = np.random.default_rng(0)
    choices = [rng.integers(n, size=50) for n in spec.nvec]
    numbers = [] if spec.low is None else list(rng.uniform(spec.low, spec.high, (50, len(spec.low))).T)
    actions = np.stack([*choices, *numbers], axis=1).astype(spec.dtype)
    counted = spec.as_counted(actions)
    seen = set()
    for row in counted:
        one = spec.of_one(row)
        assert space.contains(one), one
        flat = gym.spaces.flatten(space, one)
        seen.add(tuple(np.round(flat, 4)))
    assert len(seen) > 5
    together = spec.in_form(counted)
    assert gym.vector.utils.batch_space(space, 50).contains(together)


def test_choices_come_first_and_count_from_zero() -> None:
    spec = action_spec(SPACES[2])
    assert (spec.shape, spec.dtype, spec.nvec, spec.starts) == ((7,), "float32", (3, 2, 2), (2, 0, 0))
    assert spec.hybrid
    assert not spec.box
    assert not spec.discrete
    action = spec.of_one(spec.as_counted(np.array([1, 0, 1, -2, -1, 0, 3], np.float32)))
    assert action[0] == 3
    assert action[1]["a"].tolist() == [0, 1]
    assert action[1]["b"].tolist() == [[-2, -1], [0, 3]]


def test_only_choices_and_only_numbers_are_not_hybrid() -> None:
    assert action_spec(SPACES[3]).nvec == (3, 2, 4)
    assert action_spec(SPACES[3]).dtype == "int64"
    assert action_spec(SPACES[4]).box


@pytest.mark.parametrize("space", [Tuple([]), Dict(), Tuple([Discrete(2), Box(0, 5, (2,), np.int32)])], ids=str)
def test_actions_that_are_refused(space: gym.Space[Any]) -> None:
    with pytest.raises(SpecError, match="the action space is"):
        action_spec(space)


def test_agents_of_one_kind_refuse_both() -> None:
    spec = env_spec(Box(0.0, 1.0), SPACES[0])
    for name in ("dqn", "discrete_sac", "td3", "tqc"):
        config = with_agent(Config(), name)
        with pytest.raises(AgentError, match="1 discrete choices and 1 numbers at once"):
            agent_class(name)(spec, config.agent, "cpu", 0)


def test_settings_and_actions_that_mean_nothing_are_refused() -> None:
    spec = action_spec(SPACES[0])
    with pytest.raises(ConfigError, match=r"eval_epsilon .* 1 discrete choices and 1 numbers at once"):
        check_actions(replace(Config().evaluator, eval_epsilon=0.1), spec)
    check = ActionCheck("mine", spec)
    check.look(np.array([[1.0, 0.5]], np.float32), 1)
    for wrong in ([[2.0, 0.5]], [[0.5, 0.5]], [[1.0, np.nan]]):
        with pytest.raises(AgentError, match="first 1 columns are whole numbers below"):
            check.look(np.array(wrong, np.float32), 1)


def test_log_probabilities_and_entropies_are_sums() -> None:
    """Against PyTorch's own distributions; drawn actions have the probability that is told of them."""
    torch.manual_seed(0)
    policy = Hybrid((3, 2), 2)
    outputs = 0.5 * torch.randn(64, policy.outputs)
    logits, mean, log_std = outputs[:, :5], outputs[:, 5:7], outputs[:, 7:]
    action, log_prob = policy.sample(outputs.numpy(), np.random.default_rng(0))
    score = policy.score(outputs, torch.from_numpy(action))
    first, second = (torch.distributions.Categorical(logits=part) for part in (logits[:, :3], logits[:, 3:]))
    normal = torch.distributions.Normal(mean, log_std.exp())
    drawn = torch.from_numpy(action)
    expected = first.log_prob(drawn[:, 0]) + second.log_prob(drawn[:, 1]) + normal.log_prob(drawn[:, 2:]).sum(1)
    torch.testing.assert_close(score.log_prob, expected)
    torch.testing.assert_close(torch.from_numpy(log_prob), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(score.entropy, first.entropy() + second.entropy() + normal.entropy().sum(1))
    noise = np.random.default_rng(1).standard_normal((64, 4), np.float32)
    chosen = policy.chosen(outputs, torch.from_numpy(noise))
    np.testing.assert_allclose(policy.drawn(outputs.numpy(), noise).action, chosen, rtol=1e-5, atol=1e-6)


def test_choices_are_drawn_as_often_as_they_are_likely() -> None:
    policy = Hybrid((3,), 1)
    outputs = np.tile(np.array([[math.log(0.2), math.log(0.5), math.log(0.3), 0.0, 0.0]], np.float32), (20_000, 1))
    action = policy.sample(outputs, np.random.default_rng(0)).action
    shares = np.bincount(np.asarray(action)[:, 0].astype(int)) / 20_000
    np.testing.assert_allclose(shares, [0.2, 0.5, 0.3], atol=0.015)


def soft_agent() -> tuple[Any, Transitions]:
    settings = {"hidden": (8,), "initial_temperature": 0.3}
    config = override(with_agent(Config(), "sac"), settings)
    space = Tuple([Discrete(2), Discrete(3), Box(-2.0, 2.0, (2,))])
    agent = agent_class("sac")(env_spec(Box(-1.0, 1.0, (3,)), space), config.agent, "cpu", 0)
    torch.manual_seed(1)
    rows = 5
    action = torch.cat((torch.randint(2, (rows, 1)), torch.randint(3, (rows, 1))), 1).float()
    batch = Transitions(
        {"observation": torch.randn(rows, 3)},
        {"observation": torch.randn(rows, 3)},
        torch.cat((action, torch.rand(rows, 2) * 4 - 2), 1),
        torch.randn(rows),
        torch.full((rows,), 0.9),
        torch.rand(rows),
    )
    return agent, batch


def test_losses_of_sac_are_those_of_every_choice_by_itself() -> None:
    """The expectation over the six combinations, written as a loop."""
    agent, batch = soft_agent()
    assert type(agent).__name__ == "HybridSAC"
    noise = torch.randn(5, 2)
    alpha, own = 0.3, 0.3

    def policy(observation: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor]:
        out = agent.networks["policy"].network({"observation": observation})
        one, two = (torch.distributions.Categorical(logits=part) for part in (out[:, :2], out[:, 2:5]))
        mean, std = out[:, 5:7], out[:, 7:].exp()
        u = mean + std * noise
        density = torch.distributions.Normal(mean, std).log_prob(u) - torch.log(1 - torch.tanh(u).square())
        return (one, two), torch.tanh(u), density.sum(1)

    def soft(network: Any, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Σ_j π(j)·(min Q(j) − α_c·log π(j)) and log π of the numbers."""
        (one, two), unit, density = policy(observation)
        q = network({"observation": observation}, unit).amin(0)
        value = torch.zeros(5)
        for i in range(2):
            for j in range(3):
                log_p = one.log_prob(torch.tensor(i)) + two.log_prob(torch.tensor(j))
                value = value + log_p.exp() * (q[:, 3 * i + j] - own * log_p)
        return value, density

    critics = agent.networks["critics"]
    value, density = soft(critics.target, batch.next_observation["observation"])
    target = batch.reward + batch.discount * (value - alpha * density)
    index = (3 * batch.action[:, 0] + batch.action[:, 1]).long()
    q = critics.network(batch.observation, batch.action[:, 2:] / 2.0)[:, torch.arange(5), index]
    expected = sum((batch.weights * 0.5 * (target - one).square()).mean() for one in q)
    found = agent.critic_loss(batch, noise)
    torch.testing.assert_close(found.loss, expected, rtol=1e-4, atol=1e-5)
    value, density = soft(critics.network, batch.observation["observation"])
    found = agent.policy_loss(batch, noise)
    torch.testing.assert_close(found.loss, (alpha * density - value).mean(), rtol=1e-4, atol=1e-5)


def test_an_update_of_sac_changes_every_network_and_both_temperatures() -> None:
    agent, batch = soft_agent()
    before = {name: one.parameters.vector.clone() for name, one in agent.networks.items()}
    agent.apply(agent.gradients(batch).groups)
    assert set(before) == {"policy", "critics", "temperature", "choice_temperature"}
    for name, vector in before.items():
        assert not torch.equal(agent.networks[name].parameters.vector, vector), name


@pytest.mark.parametrize("name", ["sac", "ppo"])
@pytest.mark.parametrize("tuples", [False, True])
def test_an_agent_acts_in_the_environment(name: str, tuples: bool) -> None:
    """Drawn, random and greedy actions are such as the environment takes, and ``decide`` chooses the same."""
    vector = make_vector(EnvConfig(env=Pair, env_kwargs={"tuples": tuples}), 4, seed=0)
    agent = agent_class(name)(vector.spec, with_agent(Config(), name).agent, "cpu", 0)
    seen = vector.reset()
    chosen = set()
    for step in range(20):
        exploration = np.full(4, np.inf if step < 5 else 0.0, np.float32)
        actions = agent.act(seen, None, exploration, greedy=step > 10).actions
        assert (actions.shape, actions.dtype) == ((4, 2), np.float32)
        chosen |= set(actions[:, 0].tolist())
        stepped = vector.step(actions)
        seen = stepped.observation
    assert chosen == {0.0, 1.0}
    vector.close()
    with torch.no_grad():
        decided = agent.decide({"observation": torch.from_numpy(seen["observation"])}, {}).action
    greedy = agent.act(seen, None, np.zeros(4, np.float32), greedy=True).actions
    np.testing.assert_allclose(decided.numpy(), greedy, atol=1e-6)
