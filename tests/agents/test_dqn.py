from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from apexrl.agents.bootstrap import Greedy
from apexrl.agents.dqn import DQN
from apexrl.agents.return_heads import Expected
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES
from apexrl.config import AgentConfig
from apexrl.errors import AgentError, ConfigError, NonFiniteError, SnapshotError, SpecError
from apexrl.losses import td_loss
from apexrl.spec import ActionSpec, EnvSpec, Field
from sampled_batch import Batch

VECTOR = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=3))
PIXELS = EnvSpec({"observation": Field((16, 16), "uint8")}, ActionSpec(n=3), stack=2)


SMALL = AgentConfig(hidden=(32, 32), target_period_updates=10)


def make_batch(spec: EnvSpec = VECTOR, rows: int = 16, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    field = spec.observation["observation"]
    shape = (rows, *((spec.stack,) if spec.stack > 1 else ()), *field.shape)
    data = {
        "observation": (rng.random(shape) * 200).astype(field.dtype),
        "next_observation": (rng.random(shape) * 200).astype(field.dtype),
        "action": rng.integers(spec.action.n, size=rows),
        "reward": rng.random(rows, np.float32),
        "discount": np.where(rng.random(rows) < 0.8, 0.97, 0.0).astype(np.float32),
    }
    return Batch(data, np.arange(rows, dtype=np.uint64), rng.random(rows, np.float32))


def train(agent: DQN, updates: int, spec: EnvSpec = VECTOR, first: int = 0) -> list[Any]:
    return [agent.update(agent.prepare(make_batch(spec, seed=first + k))) for k in range(updates)]


def same(one: DQN, two: DQN) -> bool:
    first, second = one.state_dict(), two.state_dict()
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(AgentError, match="Box of shape"):
        DQN(EnvSpec(VECTOR.observation, ActionSpec((2,), "float32")), SMALL)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (ActionSpec(n=5000), "and here are 5000. More than 4096 are too many"),
        (ActionSpec((3,), "int64", nvec=(20, 20, 20)), "and here are 8000: 20 × 20 × 20 choices combined. More than"),
    ],
)
def test_too_many_actions_are_refused(action: ActionSpec, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        DQN(EnvSpec(VECTOR.observation, action), SMALL)


def test_an_unknown_optimizer_and_a_bad_step_size_are_refused() -> None:
    for config, message in (
        (replace(SMALL, optimizer="newton"), "'newton'"),
        (replace(SMALL, learning_rate=0.0), "learning_rate"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(DQN(VECTOR, config), 1)


# Acting


def test_acting_records_the_q_values_that_chose() -> None:
    agent = DQN(VECTOR, SMALL)
    observation = {"observation": np.random.default_rng(0).standard_normal((8, 4), np.float32)}
    actions, extras, state = agent.act(observation, None, np.ones(8, np.float32), greedy=True)
    assert state is None
    assert {
        name: Field(array.shape[1:], str(array.dtype), sampled=False) for name, array in extras.items()
    } == agent.step_spec
    np.testing.assert_array_equal(actions, extras["q"].argmax(axis=1))
    assert actions.dtype == np.int64
    later = agent.act({"observation": observation["observation"] + 1}, None, np.zeros(8, np.float32))
    assert not np.array_equal(later.extras["q"], extras["q"])  # the first answer was not overwritten
    np.testing.assert_array_equal(actions, extras["q"].argmax(axis=1))


def test_epsilon_is_per_environment() -> None:
    agent = DQN(VECTOR, SMALL, seed=3)
    observation = {"observation": np.zeros((3, 4), np.float32)}
    epsilon = np.array([0.0, 0.5, 1.0], np.float32)
    actions = np.stack([agent.act(observation, None, epsilon).actions for _ in range(3000)])
    best = agent.act(observation, None, epsilon, greedy=True).actions[0]
    others = (actions != best).mean(axis=0)  # a random action is another one in 2 of 3 cases
    assert others[0] == 0.0
    np.testing.assert_allclose(others[1:], [1 / 3, 2 / 3], atol=0.04)


def test_priorities_are_the_td_errors_of_recorded_q_values() -> None:
    agent = DQN(VECTOR, SMALL)
    items = {
        "reward": np.array([1.0, 2.0], np.float32),
        "discount": np.array([0.9, 0.0], np.float32),
        "action": np.array([2, 0]),
        "q": np.array([[1.0, 2.0, 3.0], [0.5, 9.0, 9.0]], np.float32),
        "next_q": np.array([[4.0, 5.0, 1.0], [np.nan, np.nan, np.nan]], np.float32),  # terminated: nothing later
    }
    np.testing.assert_allclose(agent.priorities(items), [1 + 0.9 * 5 - 3, 1.5], rtol=1e-6)


# Learning


def target_of(reward: float, discount: float, later: list[float], chooser: list[float] | None = None) -> float:
    """As DQN puts it together: y = R + d·Q⁻(s', a*)."""
    values = torch.tensor([later])
    value = Greedy().value(values, values if chooser is None else torch.tensor([chooser]))
    return float(Expected(0.0).backed_up(torch.tensor([reward]), torch.tensor([discount]), value))


def test_the_double_target_takes_the_online_networks_choice() -> None:
    assert target_of(1.0, 0.99, [5.0, 0.5, 4.0], [1.0, 3.0, 2.0]) == pytest.approx(1.495)


def test_the_plain_target_takes_the_largest_value() -> None:
    assert target_of(1.0, 0.99, [5.0, 0.5, 4.0]) == pytest.approx(5.95)


def test_of_a_termination_only_the_reward_is_left() -> None:
    assert target_of(2.0, 0.0, [5.0, 7.0]) == 2.0


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("spec", [VECTOR, PIXELS], ids=["vector", "pixels"])
def test_an_update_is_one_step_of_the_published_rule(spec: EnvSpec, double: bool) -> None:
    """Against the formulas written out with autograd and torch.optim on a copy of the network."""
    config = AgentConfig(hidden=(32,), double=double, gradient_clip=0.5, huber=1.0, learning_rate=0.01)
    agent = DQN(spec, config, seed=1)
    twin = DQN(spec, config, seed=1)
    _ = twin._network.gradient
    batch = make_batch(spec)
    prepared = agent.prepare(batch)
    learned = agent.update(prepared)

    network = twin._network.network
    for parameter in network.parameters():
        parameter.grad = None
    optimizer = torch.optim.Adam(network.parameters(), 0.01, eps=config.optimizer_eps)
    q, later = network(prepared.observation), network(prepared.next_observation).detach()  # target = online at first
    best = later.gather(1, later.argmax(1, keepdim=True))[:, 0] if double else later.max(1).values
    delta = prepared.reward + prepared.discount * best - q[torch.arange(len(q)), prepared.action]
    td_loss(delta, prepared.weights, 1.0).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
    optimizer.step()
    assert learned.priorities is not None
    np.testing.assert_allclose(learned.priorities, delta.detach().abs().numpy(), rtol=1e-4, atol=1e-5)
    expected = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}
    for name, array in agent.weights().items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_gradients_and_apply_are_an_update() -> None:
    one, two = DQN(VECTOR, SMALL), DQN(VECTOR, SMALL)
    for seed in range(3):
        one.update(one.prepare(make_batch(seed=seed)))
        groups, _, _ = two.gradients(two.prepare(make_batch(seed=seed)))
        two.apply({name: gradient.clone() for name, gradient in groups.items()})
    assert same(one, two)


def test_the_target_follows_every_period() -> None:
    agent = DQN(VECTOR, replace(SMALL, target_period_updates=3))
    for update in range(1, 10):
        train(agent, 1, first=update)
        state = agent.state_dict()
        equal = all(
            np.array_equal(state[name], state[name.replace("online", "target")]) for name in state if "online" in name
        )
        assert equal is (update % 3 == 0)
    assert agent.updates == 9


@pytest.mark.parametrize(
    ("poison", "huber"),
    [(np.nan, 0.0), (np.nan, 1.0), (np.inf, 0.0), (np.inf, 1.0), (1e30, 0.0)],  # the last overflows in the norm
)
def test_what_is_not_finite_changes_nothing(poison: float, huber: float) -> None:
    agent = DQN(VECTOR, replace(SMALL, huber=huber))
    train(agent, 3)
    twin = DQN(VECTOR, replace(SMALL, huber=huber))
    twin.load_state_dict(agent.state_dict())
    batch = make_batch()
    batch.data["reward"][5] = poison
    with pytest.raises(NonFiniteError, match="update 4"):
        agent.update(agent.prepare(batch))
    assert same(agent, twin)
    train(agent, 1)
    train(twin, 1)
    assert same(agent, twin)


def test_metrics_come_every_so_often() -> None:
    learned = train(DQN(VECTOR, SMALL), METRICS_PERIOD_UPDATES + 2)
    reported = [index for index, result in enumerate(learned) if result.metrics]
    assert reported == [0, METRICS_PERIOD_UPDATES]
    assert {"loss", "priority", "q", "gradient_norm"} <= set(learned[0].metrics)
    assert learned[0].metrics["priority"] == pytest.approx(float(learned[0].priorities.mean()))


# Weights and state


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(SpecError, match="another network"):
        DQN(VECTOR, SMALL).load(DQN(VECTOR, replace(SMALL, dueling=False)).weights())


def test_a_resume_with_the_other_optimizer_is_exact() -> None:
    config = replace(SMALL, optimizer="rmsprop")
    straight = DQN(VECTOR, config, seed=7)
    observation = {"observation": np.zeros((5, 4), np.float32)}
    half = np.full(5, 0.5, np.float32)
    train(straight, 13)
    straight.act(observation, None, half)
    resumed = DQN(VECTOR, config, seed=99)
    resumed.load_state_dict(straight.state_dict())
    assert same(straight, resumed)
    for agent in (straight, resumed):
        train(agent, 12, first=13)
    assert same(straight, resumed)
    for _ in range(20):
        one, two = (agent.act(observation, None, half).actions for agent in (straight, resumed))
        np.testing.assert_array_equal(one, two)


def test_state_is_plain_arrays_of_its_own() -> None:
    agent = DQN(VECTOR, SMALL)
    train(agent, 2)
    state = agent.state_dict()
    assert all(isinstance(array, np.ndarray) and array.dtype.kind in "fiu" for array in state.values())
    copies = {name: array.copy() for name, array in state.items()}
    train(agent, 2)
    assert all(np.array_equal(state[name], copies[name]) for name in state)


def test_the_state_of_another_optimizer_is_refused() -> None:
    agent = DQN(VECTOR, SMALL)
    train(agent, 1)
    with pytest.raises(SnapshotError, match="optimizer/square_average"):
        DQN(VECTOR, replace(SMALL, optimizer="rmsprop")).load_state_dict(agent.state_dict())
