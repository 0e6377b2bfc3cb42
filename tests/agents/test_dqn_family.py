"""What the switches of DQN add: targets, gradients, priorities, noise, and how they go together."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from apexrl.agents import AGENTS, with_agent
from apexrl.agents.dqn import DQN
from apexrl.agents.return_heads import Categorical, Expected, Quantiles, Returns, midpoints
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES
from apexrl.config import AgentConfig, Config
from apexrl.errors import AgentError
from apexrl.roles.env_arrays import zeroed
from apexrl.spec import ActionSpec, Array, EnvSpec, Field
from sampled_batch import Batch

VECTOR = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=3))
PIXELS = EnvSpec({"observation": Field((10, 10, 4), "bool")}, ActionSpec(n=3))
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "hidden": (16,),
    "image_units": 16,
    "atoms": 11,
    "v_min": -2.0,
    "v_max": 4.0,
    "quantiles": 7,
    "quantile_samples": 6,
    "cosines": 8,
    "target_period_updates": 4,
}
KINDS: list[Any] = ["expected", "categorical", "quantile", "implicit_quantile"]
RULES: list[Any] = [True, False, "munchausen"]  # double or not
FAMILY = [
    name
    for name, info in AGENTS.items()
    if info.where == "apexrl.agents.dqn:DQN" and name != "discrete_cql"  # test_offline_agents.py
]


def config_of(name: str, **settings: Any) -> AgentConfig:
    return replace(with_agent(Config(), name).agent, **{**SMALL, **settings})


def make_batch(spec: EnvSpec = VECTOR, rows: int = 16, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    shape, dtype = spec.observation["observation"].shape, spec.observation["observation"].dtype
    data = {
        "observation": (2 * rng.random((rows, *shape))).astype(dtype),
        "next_observation": (2 * rng.random((rows, *shape))).astype(dtype),
        "action": rng.integers(spec.action.n, size=rows),
        "reward": rng.random(rows, np.float32),
        "discount": np.where(rng.random(rows) < 0.8, 0.97, 0.0).astype(np.float32),
    }
    return Batch(data, np.arange(rows, dtype=np.uint64), rng.random(rows, np.float32))


def train(agent: DQN, updates: int, spec: EnvSpec = VECTOR, first: int = 0) -> list[Any]:
    return [agent.update(agent.prepare(make_batch(spec, seed=first + k))) for k in range(updates)]


def test_the_names_are_the_familys() -> None:
    assert FAMILY == [
        "dqn",
        "double_dqn",
        "dueling_dqn",
        "c51",
        "qr_dqn",
        "iqn",
        "noisy_dqn",
        "rainbow",
        "bbf",
        "munchausen_dqn",
    ]


def test_rainbow_is_everything() -> None:
    config = with_agent(Config(), "rainbow")
    agent = config.agent
    assert (agent.double, agent.dueling, agent.noisy, agent.distribution) == (True, True, True, "categorical")
    assert (agent.n_step, config.replay.alpha, config.replay.beta, config.actor.epsilon) == (3, 0.5, 0.4, 0.0)
    assert with_agent(config, "dqn").actor.epsilon == 0.4  # and another name takes all of it back


# What is learned


def kinds() -> list[tuple[Returns, int]]:
    return [(Expected(0.7), 1), (Categorical(torch.linspace(-1.0, 2.0, 6)), 6), (Quantiles(5, 0.7, CPU), 5)]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), kind=st.integers(0, 2), own=st.booleans())
def test_the_closed_gradient_is_that_of_the_weighted_loss(seed: int, kind: int, own: bool) -> None:
    returns, n = kinds()[kind]
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn((8, 3) if n == 1 else (8, 3, n), generator=generator, requires_grad=True)
    later = torch.randn((8,) if n == 1 else (8, n), generator=generator)
    target = returns.backed_up(torch.rand(8), torch.full((8,), 0.9), later.softmax(1) if kind == 1 else later)
    fractions = torch.rand(8, n, generator=generator) if own and kind == 2 else None
    action = torch.randint(3, (8,), generator=generator)
    weights = torch.rand(8, generator=generator)
    losses = returns.losses(z, fractions, action, target)
    assert losses.shape == (8,)
    (expected,) = torch.autograd.grad((weights * losses).mean(), z)
    found, priorities = returns.gradient(z.detach(), fractions, action, target, weights)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(priorities, returns.errors(z, action, target))
    heavier, unweighted = returns.gradient(z.detach(), fractions, action, target, 3 * weights)
    torch.testing.assert_close(heavier, 3 * found)  # the weights are on the loss
    assert torch.equal(unweighted, priorities)  # and not on the priorities


@pytest.mark.parametrize("kind", range(3))
def test_a_termination_leaves_only_the_reward(kind: int) -> None:
    returns, n = kinds()[kind]
    later = torch.full((1,) if n == 1 else (1, n), 1.0 / n)
    target = returns.backed_up(torch.tensor([0.8]), torch.zeros(1), later)
    answers = target.view(1, 1) if n == 1 else target.view(1, 1, n)
    torch.testing.assert_close(returns.means(answers), torch.tensor([[0.8]]))
    if kind == 2:
        assert (target == 0.8).all()


def test_categories_answer_with_means_of_their_softmax() -> None:
    returns = Categorical(torch.linspace(0.0, 2.0, 3))
    z = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]]))
    torch.testing.assert_close(returns.means(returns.read(z)), torch.tensor([[0.75, 1.5]]))


def test_midpoints() -> None:
    torch.testing.assert_close(midpoints(4, CPU), torch.tensor([0.125, 0.375, 0.625, 0.875]))


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", ["c51", "qr_dqn"])
@pytest.mark.parametrize("spec", [VECTOR, PIXELS], ids=["vector", "pixels"])
def test_an_update_is_the_published_rule(spec: EnvSpec, name: str, double: bool) -> None:
    """Against the formulas written out with autograd, the targets from a network of other weights."""
    config = config_of(name, double=double, gradient_clip=0.0, dueling=True)
    agent, other = DQN(spec, config, seed=1), DQN(spec, config, seed=2)
    _ = agent._target
    agent.load(other.weights())  # online is now another network than the target
    online = other._network.network
    target = DQN(spec, config, seed=1)._network.network
    batch = agent.prepare(make_batch(spec))
    rows = torch.arange(16)
    z = online(batch.observation)[rows, batch.action]
    with torch.no_grad():
        later, chosen_by = target(batch.next_observation), (online if double else target)(batch.next_observation)
        if name == "c51":
            support = torch.linspace(-2, 4, 11)
            best = (torch.softmax(chosen_by, 2) @ support).argmax(1)
            p = torch.softmax(later, 2)[rows, best]
            b = ((batch.reward[:, None] + batch.discount[:, None] * support).clamp(-2, 4) + 2) / 0.6
            m = (p[:, :, None] * (1 - (b[:, :, None] - torch.arange(11)).abs()).clamp(min=0)).sum(1)
        else:
            best = chosen_by.mean(2).argmax(1)
            y = batch.reward[:, None] + batch.discount[:, None] * later[rows, best]
    if name == "c51":
        losses = -(m * torch.log_softmax(z, 1)).sum(1)
        priorities = losses.detach() + torch.xlogy(m, m).sum(1)
    else:
        u = y[:, None, :] - z[:, :, None]
        tau = (torch.arange(7)[:, None] + 0.5) / 7
        huber = torch.where(u.abs() <= 1, 0.5 * u**2, u.abs() - 0.5)
        losses = ((tau - (u < 0).float()).abs() * huber).mean(2).sum(1)
        priorities = (y.mean(1) - z.detach().mean(1)).abs()
    for parameter in online.parameters():
        parameter.grad = None
    (batch.weights * losses).mean().backward()
    expected = {name: parameter.grad for name, parameter in online.named_parameters()}
    gradients = agent.gradients(batch)
    np.testing.assert_allclose(gradients.priorities, priorities.numpy(), rtol=1e-3, atol=1e-5)
    for name, parameter in agent._network.network.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5)


# Acting and priorities


@pytest.mark.parametrize("name", FAMILY)
def test_actors_and_learner_measure_alike(name: str) -> None:
    """Of one network without noise, what acting recorded gives the priorities that the learner would."""
    config = config_of(name, noisy=False, double=False, quantile_samples=400)
    agent = DQN(VECTOR, config, seed=3)
    batch = make_batch(rows=32)
    exploration = np.zeros(32, np.float32)
    items: dict[str, Array] = {name: batch.data[name] for name in ("reward", "discount")}
    ones = np.ones(32, np.float32)  # random actions, so that taken and greedy differ
    acted = agent.act({"observation": batch.data["observation"]}, None, ones)
    items |= acted.extras | {"action": acted.actions}
    batch.data["action"] = acted.actions
    later = agent.act({"observation": batch.data["next_observation"]}, None, exploration).extras
    assert {n: Field(a.shape[1:], str(a.dtype), sampled=False) for n, a in later.items()} == agent.step_spec
    for field, values in later.items():
        values[batch.data["discount"] == 0] = np.nan  # nothing follows there
        items[f"next_{field}"] = values
    found = agent.priorities(items)
    learned = agent.gradients(agent.prepare(batch)).priorities
    assert found.dtype == np.float32
    close = {"rtol": 0.1, "atol": 0.02} if config.distribution == "implicit_quantile" else {"rtol": 1e-3, "atol": 1e-5}
    np.testing.assert_allclose(found, learned, **close)


@pytest.mark.parametrize("name", ["noisy_dqn", "rainbow", "iqn"])
def test_every_act_draws_anew_and_a_greedy_one_never(name: str) -> None:
    agent = DQN(VECTOR, config_of(name), seed=1)
    observation = {"observation": np.random.default_rng(0).standard_normal((5, 4), np.float32)}
    none = np.zeros(5, np.float32)
    field = next(iter(agent.step_spec))

    def answers(greedy: bool) -> Array:
        return agent.act(observation, None, none, greedy).extras[field]

    assert not np.array_equal(answers(False), answers(False))
    before = agent.state_dict()["rng"]
    np.testing.assert_array_equal(answers(True), answers(True))
    np.testing.assert_array_equal(before, agent.state_dict()["rng"])
    if name == "noisy_dqn":  # linear in the noise, whose mean is 0
        many = np.mean([answers(False) for _ in range(1500)], axis=0)
        np.testing.assert_allclose(many, answers(True), atol=0.04)


def test_every_environment_explores_by_noise_of_its_own() -> None:
    agent = DQN(VECTOR, config_of("noisy_dqn"))
    alike = {"observation": np.ones((6, *VECTOR.observation["observation"].shape), np.float32)}
    q = agent.act(alike, None, np.zeros(6, np.float32)).extras["q"]
    assert len({tuple(row) for row in q.tolist()}) == 6


def test_an_environment_holds_its_noise_for_as_many_of_its_steps_as_are_set() -> None:
    agent = DQN(VECTOR, config_of("noisy_dqn", noise_period=3))
    alike = {"observation": np.ones((2, *VECTOR.observation["observation"].shape), np.float32)}
    states: dict[str, Any] = {"left": None, "right": None}

    def q(group: str, greedy: bool = False) -> Any:
        acted = agent.act(alike, states[group], np.zeros(2, np.float32), greedy)
        states[group] = acted.state
        return acted.extras["q"].tolist()

    left, right = zip(*((q("left"), q("right")) for _ in range(7)), strict=True)  # as of a server that answers two
    for steps in (left, right):
        assert [steps[step] == steps[step - 1] for step in range(1, 7)] == [True, True, False, True, True, False]
    assert left[0] not in (right[0], q("left", greedy=True))
    states["left"] = zeroed(states["left"], np.array([True, False]))  # an episode begins in one of them
    anew, goes_on = q("left")
    assert anew not in left[6]
    assert goes_on == left[6][1]


@pytest.mark.parametrize("double", [True, False])
def test_every_pass_of_an_update_has_its_own_noise(double: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = DQN(VECTOR, config_of("noisy_dqn", double=double))
    seen: list[Tensor] = []
    network = type(agent._network.network)
    passed = network.forward

    def watched(self: Any, observation: Any, draw: Any) -> Tensor:
        seen.append(draw.noise)
        return passed(self, observation, draw)

    monkeypatch.setattr(network, "forward", watched)
    train(agent, 2)
    assert len(seen) == (6 if double else 4)
    assert len({tuple(noise.tolist()) for noise in seen}) == len(seen)


@pytest.mark.parametrize("name", FAMILY)
def test_it_learns_what_one_batch_says(name: str) -> None:
    """All rewards 1 and all ends: every value taken goes to 1."""
    agent = DQN(VECTOR, config_of(name, learning_rate=5e-3, target_period_updates=20), seed=0)
    batch = make_batch()
    batch.data["reward"][:], batch.data["discount"][:] = 1.0, 0.0
    first = agent.update(agent.prepare(batch)).metrics
    learned = [agent.update(agent.prepare(batch)) for _ in range(2 * METRICS_PERIOD_UPDATES)][-1]
    assert {"loss", "priority", "q", "gradient_norm"} <= set(learned.metrics)
    assert learned.metrics["loss"] < 0.3 * first["loss"]


# What does not go together


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"munchausen": True, "double": True, "n_step": 1}, "--munchausen does not go with --double"),
        ({"munchausen": True, "distribution": "categorical", "n_step": 1}, "--distribution categorical"),
        ({"munchausen": True, "n_step": 3}, "--n-step 3.* set --n-step 1$"),
        ({"munchausen": True, "n_step": 1, "munchausen_temperature": 0.0}, "--munchausen-temperature"),
        ({"distribution": "categorical", "v_min": 4.0}, "v_min < v_max"),
        ({"distribution": "categorical", "atoms": 1}, "--atoms 1"),
        ({"distribution": "quantile", "quantiles": 1}, "--quantiles 1"),
        ({"distribution": "implicit_quantile", "cosines": 0}, "--cosines 0"),
    ],
)
def test_what_is_not_defined_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentError, match=message):
        DQN(VECTOR, replace(config_of("dqn"), **settings))


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize(
    ("kind", "double"), [pair for pair in product(KINDS, RULES) if pair != ("categorical", "munchausen")]
)
def test_everything_else_goes_together(kind: Any, double: Any, dueling: bool, noisy: bool) -> None:
    soft = double == "munchausen"
    config = config_of(
        "dqn", distribution=kind, double=double is True, munchausen=soft, dueling=dueling, noisy=noisy, n_step=1
    )
    agent = DQN(VECTOR, config)
    before = agent.weights()
    learned = train(agent, 2)
    assert all(not np.array_equal(before[name], after) for name, after in agent.weights().items())
    for result in learned:
        assert result.priorities is not None
        assert result.priorities.shape == (16,)
        assert (result.priorities >= 0).all()
