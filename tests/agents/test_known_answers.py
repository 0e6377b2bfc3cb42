"""DQN on environments whose answers are known, from a small uniform buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from apexrl.agents.dqn import DQN
from apexrl.config import AgentConfig, EnvConfig
from apexrl.envs import make_vector
from apexrl.protocols import Agent
from apexrl.spec import ActionSpec, Array, EnvSpec, Field
from corridor_values import q_star
from sampled_batch import Batch


class UniformBuffer:
    """The smallest replay that learning needs.

    Records ``agent`` in ``env`` for ``steps`` vector steps, then cuts windows of up to n steps within episodes.
    """

    def __init__(self, agent: Agent, env: str, steps: int, gamma: float, n_step: int, seed: int, **kwargs: Any) -> None:
        self._rng = np.random.default_rng(seed)
        envs = make_vector(EnvConfig(env=env, env_kwargs=kwargs), 4, seed)
        observation = envs.reset()
        records: list[dict[str, Array]] = []
        starts = []
        for _ in range(steps):
            actions, _, _ = agent.act(observation, None, np.ones(4, np.float32))
            stepped = envs.step(actions)
            rows = {"action": actions, "reward": stepped.reward, "terminated": stepped.terminated}
            records.append(rows | observation | {"truncated": stepped.truncated})
            starts.append(stepped.starts)
            observation = stepped.observation
        envs.close()
        columns = {name: np.stack([record[name] for record in records]) for name in records[0]}
        ignored = np.stack(starts)  # the step that led to a reset: its observation was final
        windows: dict[str, list[Any]] = {}
        for env_index in range(4):
            for begin in range(steps - n_step):
                if ignored[begin, env_index]:
                    continue
                total, discount, end = 0.0, 1.0, begin
                while end < begin + n_step:
                    total += discount * float(columns["reward"][end, env_index])
                    discount *= gamma * (not columns["terminated"][end, env_index])
                    ended = columns["terminated"][end, env_index] or columns["truncated"][end, env_index]
                    end += 1
                    if ended:
                        break
                row = {"action": columns["action"][begin, env_index], "reward": total, "discount": discount}
                for name in observation:
                    row[name] = columns[name][begin, env_index]
                    row[f"next_{name}"] = columns[name][end, env_index]
                for name, value in row.items():
                    windows.setdefault(name, []).append(value)
        self._data = {name: np.stack(values) for name, values in windows.items()}
        for name in ("reward", "discount"):
            self._data[name] = self._data[name].astype(np.float32)

    def sample(self, rows: int) -> Batch:
        chosen = self._rng.integers(len(self._data["reward"]), size=rows)
        data = {name: values[chosen] for name, values in self._data.items()}
        return Batch(data, chosen.astype(np.uint64), np.ones(rows, np.float32))


@pytest.mark.parametrize(("double", "dueling", "n_step"), [(True, True, 1), (True, False, 3), (False, True, 1)])
def test_it_finds_the_corridors_q_star(double: bool, dueling: bool, n_step: int) -> None:
    gamma, length = 0.8, 5
    config = AgentConfig(
        hidden=(32,),
        double=double,
        dueling=dueling,
        n_step=n_step,
        gamma=gamma,
        learning_rate=3e-3,
        target_period_updates=20,
    )
    spec = EnvSpec({"observation": Field((), "int64")}, ActionSpec(n=2), categories={"observation": length})
    agent = DQN(spec, config, seed=4)
    data = UniformBuffer(agent, "apexrl.envs.toy:Corridor-v0", 400, gamma, n_step, seed=4, length=length)
    for _ in range(1200):
        agent.update(agent.prepare(data.sample(64)))
    q = agent.act({"observation": np.arange(length)}, None, np.zeros(length, np.float32)).extras["q"]
    best = q_star(length, gamma)
    if n_step == 1:
        np.testing.assert_allclose(q, best, atol=0.03)
    else:  # uncorrected n-step returns of a random policy are biased; the order of the actions is not
        np.testing.assert_array_equal(q.argmax(axis=1), best.argmax(axis=1))


def test_a_time_limit_is_no_end() -> None:
    """Reward 1 for ever, cut every 10 steps: the value is 1 / (1 − γ) = 5. Taken for an end it would be 4.5 at most."""
    gamma = 0.8
    config = AgentConfig(hidden=(16,), n_step=3, gamma=gamma, learning_rate=3e-3, target_period_updates=20)
    spec = EnvSpec({"observation": Field((1,), "float32")}, ActionSpec(n=2))
    agent = DQN(spec, config, seed=0)
    data = UniformBuffer(agent, "apexrl.envs.toy:Endless-v0", 100, gamma, 3, seed=0)
    for _ in range(1000):
        agent.update(agent.prepare(data.sample(32)))
    q = agent.act({"observation": np.ones((1, 1), np.float32)}, None, np.zeros(1, np.float32)).extras["q"]
    np.testing.assert_allclose(q, 5.0, atol=0.05)


def test_it_learns_from_an_image_and_a_number_together() -> None:
    config = AgentConfig(
        hidden=(16,), image_units=32, n_step=1, gamma=0.5, learning_rate=3e-3, target_period_updates=20
    )
    spec = EnvSpec(
        {"observation/image": Field((16, 16), "uint8"), "observation/body/sign": Field((1,), "float32")},
        ActionSpec(n=2),
    )
    agent = DQN(spec, config, seed=0)
    data = UniformBuffer(agent, "apexrl.envs.toy:Signals-v0", 200, 0.5, 1, seed=0)
    for _ in range(60):
        agent.update(agent.prepare(data.sample(32)))
    batch = data.sample(100).data
    observation = {name: batch[name] for name in spec.observation}
    actions = agent.act(observation, None, np.zeros(100, np.float32)).actions
    right = batch["observation/image"][:, 0, -1] > 0
    positive = batch["observation/body/sign"][:, 0] > 0
    assert (actions == (right == positive)).mean() > 0.95
