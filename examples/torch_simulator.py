"""A simulator of many CartPoles in torch, on a GPU if there is one.

python examples/torch_simulator.py
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

import apexrl


class CartPoles(gym.vector.VectorEnv):
    """Gymnasium's CartPole, ``num_envs`` at once: observations, rewards and ends are tensors on ``device``."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs=1, device="cpu", max_episode_steps=500):
        self.num_envs, self.device, self.longest = num_envs, torch.device(device), max_episode_steps
        self.generator = torch.Generator(self.device)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.state = self._start(num_envs)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.generator.manual_seed(seed)
        self.state = self._start(self.num_envs)
        self.steps.zero_()
        return self.state, {}

    def step(self, actions):  # a tensor on the same device
        x, speed, angle, spin = self.state.unbind(1)
        force = torch.where(actions == 1, 10.0, -10.0)
        sin, cos = angle.sin(), angle.cos()
        push = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        drive = push - 0.05 * turn * cos / 1.1
        state = torch.stack((x + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * spin, spin + 0.02 * turn), 1)
        self.steps += 1
        terminated = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 12 * torch.pi / 180)
        truncated = (self.steps >= self.longest) & ~terminated
        ended = terminated | truncated
        self.state = torch.where(ended[:, None], self._start(self.num_envs), state)
        self.steps[ended] = 0
        return self.state, torch.ones_like(x), terminated, truncated, {"final_obs": state}

    def _start(self, count):
        return torch.rand(count, 4, generator=self.generator, device=self.device) * 0.1 - 0.05


gym.register("CartPoles-v0", vector_entry_point=CartPoles)

if __name__ == "__main__":
    run = apexrl.train(
        env="torch_simulator:CartPoles-v0",
        env_kwargs={"device": "cuda" if torch.cuda.is_available() else "cpu"},
        agent="dqn",
        actors=1,
        envs_per_actor=64,
        env_steps=40_000,
        name="torch_simulator",
    )
    print(run.summary["final_eval_return"])
