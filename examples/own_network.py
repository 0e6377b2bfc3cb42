"""A network of your own in place of the shipped encoders, for any shipped agent.

python examples/own_network.py
"""

from __future__ import annotations

import numpy as np
from torch import nn

import apexrl


class Normed(nn.Module):
    """Two layers with LayerNorm; behind them comes whatever head the agent has."""

    features = 128  # numbers that forward returns per observation

    def __init__(self, spec):
        super().__init__()
        inputs = int(np.prod(spec.observation["observation"].shape)) * spec.stack
        norm, middle = nn.LayerNorm(self.features), nn.Linear(self.features, self.features)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, self.features), norm, nn.ReLU(), middle, nn.ReLU())

    def forward(self, observation):  # name -> [B, ...]; of a Dict space, observation["observation/KEY"]
        return self.layers(observation["observation"])


if __name__ == "__main__":
    run = apexrl.train("cartpole", network="own_network:Normed", stop_at_return=400, minutes=1.0)
    print(run.agent.act(np.zeros(4, np.float32)), run.summary["final_eval_return"])
