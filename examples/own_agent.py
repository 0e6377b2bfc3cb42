"""An agent of your own, in plain NumPy, trained by the same actors, replay and learner as the shipped ones.

python examples/own_agent.py
"""

from __future__ import annotations

import numpy as np

import apexrl
from apexrl.protocols import Acted, Learned


class LinearQ:
    """Q-learning; Q is linear in 128 random Fourier features of the observation (Rahimi & Recht 2007)."""

    def __init__(self, spec, config, device, seed):
        size = (*spec.observation["observation"].shape, 64)
        self.frequencies = np.random.default_rng(0).normal(size=size).astype(np.float32)  # equal in all processes
        self.w, self.rate = np.zeros((128, spec.action.n), np.float32), config.learning_rate
        self.rng = np.random.default_rng(seed)

    def features(self, x):  # [B, n] -> [B, 128]
        return np.c_[np.cos(x @ self.frequencies), np.sin(x @ self.frequencies)]

    def q(self, x):  # [B, n] -> [B, actions]
        return self.features(x) @ self.w

    def act(self, observations, state, exploration, greedy=False):
        actions = self.q(observations["observation"]).argmax(1)
        explore = self.rng.random(len(actions)) < (0.0 if greedy else exploration)
        return Acted(np.where(explore, self.rng.integers(self.w.shape[1], size=len(actions)), actions), {}, state)

    def delta(self, data):
        target = data["reward"] + data["discount"] * self.q(data["next_observation"]).max(1)
        return target - self.q(data["observation"])[np.arange(len(target)), data["action"]]

    def priorities(self, items):
        return np.abs(self.delta(items))

    def update(self, batch):
        delta, x = self.delta(batch.data), self.features(batch.data["observation"])
        np.add.at(self.w.T, batch.data["action"], self.rate * (batch.weights * delta)[:, None] * x / len(delta))
        return Learned(np.abs(delta), {})

    def weights(self):
        return {"w": self.w}

    def load(self, weights):
        self.w = np.array(weights["w"])

    state_dict, load_state_dict = weights, load


if __name__ == "__main__":
    run = apexrl.train("cartpole", agent="own_agent:LinearQ", learning_rate=0.05, env_steps=60_000)
    print(run.agent.act(np.zeros(4, np.float32)), run.summary["final_eval_return"])
