"""A simulator that brings torch tensors: examples/torch_simulator.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from apexrl.agents import agent_class
from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig
from apexrl.envs import make_vector
from apexrl.envs.host_arrays import HostArrays
from apexrl.roles.env_player import EnvPlayer

ENVS = 3
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_simulator.py"


@pytest.fixture(scope="module")
def cartpoles() -> Any:
    spec = importlib.util.spec_from_file_location("torch_simulator", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["torch_simulator"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.CartPoles
    del sys.modules["torch_simulator"], gym.registry["CartPoles-v0"]


def test_the_simulator_is_gymnasiums_cartpole(cartpoles: Any) -> None:
    env, single = cartpoles(ENVS), gym.make("CartPole-v1").unwrapped
    state, _ = env.reset(seed=1)
    single.reset()
    for step in range(60):
        before = state.clone()
        actions = torch.tensor([step % 2, 0, 1])
        state, _, terminated, _, infos = env.step(actions)
        for number in range(ENVS):
            single.state, single.steps_beyond_terminated = tuple(before[number].tolist()), None
            expected, _, ended, _, _ = single.step(int(actions[number]))
            np.testing.assert_allclose(infos["final_obs"][number], expected, rtol=1e-4, atol=1e-6)
            assert bool(terminated[number]) == ended


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
def test_the_agent_is_shown_the_tensors_and_the_replay_gets_arrays(cartpoles: Any, mode: Any) -> None:
    class Simulator(cartpoles):  # type: ignore[misc]
        metadata = {"autoreset_mode": mode}  # noqa: RUF012

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if options is None:
                return super().reset(seed=seed)
            mask = torch.from_numpy(options["reset_mask"])
            self.state = torch.where(mask[:, None], self._start(self.num_envs), self.state)
            self.steps[mask] = 0
            return self.state, {}

        def step(self, actions: Any) -> Any:
            assert isinstance(actions, torch.Tensor)
            begins = getattr(self, "ended", torch.zeros(self.num_envs, dtype=torch.bool))
            state, reward, terminated, truncated, infos = super().step(actions)
            if mode is gym.vector.AutoresetMode.SAME_STEP:
                return state, reward, terminated, truncated, infos
            kept = torch.where((terminated | truncated)[:, None], infos["final_obs"], state)
            if mode is gym.vector.AutoresetMode.NEXT_STEP:
                kept[begins] = self._start(self.num_envs)[begins]
                reward, terminated, truncated = reward * ~begins, terminated & ~begins, truncated & ~begins
                self.ended = terminated | truncated
            self.state = kept
            return kept, reward, terminated, truncated, {}

    env = make_vector(EnvConfig(env=Simulator, max_episode_steps=12), ENVS, 0, partial=True)
    assert (env.lockstep, env.device) == (True, "cpu")
    seen = env.reset()
    kept = [(seen["observation"], seen["observation"].copy())]
    ends = 0
    for step in range(60):
        assert isinstance(env.tensors["observation"], torch.Tensor)
        np.testing.assert_array_equal(env.tensors["observation"], seen["observation"])
        stepped = env.step(np.array([step % 2, 0, 1]))
        seen = stepped.observation
        kept.append((seen["observation"], seen["observation"].copy()))
        ended = stepped.terminated | stepped.truncated
        ends += int(ended.sum())
        assert (np.abs(seen["observation"][stepped.truncated]).max(axis=1, initial=1.0) > 0.05).all()
        assert not (ended & stepped.starts).any()
        assert (stepped.reward == ~stepped.starts).all()
    assert ends > 6
    for array, copy in kept:
        np.testing.assert_array_equal(array, copy)  # though the simulator writes into its tensors
    env.close()


@pytest.mark.parametrize(
    "where",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_no_copy_of_a_tensor_is_made_for_the_agent(
    where: str, cartpoles: Any, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(
        agent=AgentConfig(agent="dqn", hidden=(8,)),
        actor=ActorConfig(actors=1, envs_per_actor=ENVS),
        env=EnvConfig(env=cartpoles, env_kwargs={"device": where}),
    )
    env = make_vector(config.env, 1, 0)
    shown: list[Any] = []

    def make_agent(device: str) -> Any:
        assert device == where
        agent = agent_class("dqn")(env.spec, config.agent, device, 0)
        values = agent._online.values
        monkeypatch.setattr(agent._online, "values", lambda seen, draw: shown.append(seen) or values(seen, draw))
        return agent

    player = EnvPlayer(stage.context("actor"), config, env.spec, make_agent, 3)
    same, ended = 0, False
    for _ in range(30):
        simulator: Any = player._env._backend._env  # type: ignore[attr-defined]
        assert isinstance(simulator, HostArrays)
        brought = simulator.seen
        player.act(1)
        tensor = shown[-1]["observation"]
        assert (tensor.device.type, tensor.dtype) == (where, torch.float32)
        if not ended:  # else rows of the final observations were put into a copy on the device
            same += 1
            assert tensor.data_ptr() == brought.data_ptr()
        steps = player.collect()
        assert steps is not None
        assert all(isinstance(value, np.ndarray) for value in steps.values())
        ended = bool((steps["terminated"] | steps["truncated"]).any())
    assert same > 15
    player.close()
