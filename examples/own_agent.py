"""An agent of your own, in plain NumPy, trained by the same actors, replay and learner as the shipped ones.

python examples/own_agent.py
"""

from __future__ import annotations

import numpy as np

import apexrl
from apexrl.protocols import Acted, Learned


class LinearQ:
    """Q-learning on a linear function of the observation."""

    def __init__(self, spec, config, device, seed):
        self.w = np.zeros((spec.observation["observation"].shape[0] + 1, spec.action.n), np.float32)
        self.rate, self.rng = config.learning_rate, np.random.default_rng(seed)

    def q(self, x):  # [B, features] -> [B, actions]
        return x @ self.w[:-1] + self.w[-1]

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
        delta = self.delta(batch.data)
        x = np.c_[batch.data["observation"], np.ones(len(delta), np.float32)]
        np.add.at(self.w.T, batch.data["action"], self.rate * (batch.weights * delta)[:, None] * x / len(delta))
        return Learned(np.abs(delta), {})

    def weights(self):
        return {"w": self.w}

    def load(self, weights):
        self.w = np.array(weights["w"])

    state_dict, load_state_dict = weights, load


if __name__ == "__main__":
    run = apexrl.train(
        "cartpole", agent="own_agent:LinearQ", learning_rate=0.02, n_step=5, stop_at_return=150, minutes=0.5
    )
    print(run.agent.act(np.zeros(4, np.float32)), run.summary["final_eval_return"])
