"""Returns of random and of good play in well-known environments, between which scores are normalised.

Random: the mean of 100 episodes. Good: of rl-baselines3-zoo's ``benchmark.md``, or Gymnasium's reward threshold; the
suite of ``benchmarks/generality`` has the same, with the source of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RETURNS: Final[Mapping[str, tuple[float, float]]] = {
    "CartPole-v1": (23.68, 500.0),
    "MountainCar-v0": (-200.0, -100.8),
    "Pendulum-v1": (-1_207.56, -157.0),
    "LunarLander-v3": (-191.959, 242.1),
    "LunarLanderContinuous-v3": (-212.676, 260.4),
    "HalfCheetah-v5": (-282.487, 5819.0),
    "Acrobot-v1": (-497.08, -76.6),
    "MountainCarContinuous-v0": (-33.2517, 94.7),
    "Taxi-v4": (-777.48, 8.0),
    "InvertedPendulum-v5": (5.23, 950.0),
    "InvertedDoublePendulum-v5": (49.0903, 9_100.0),
    "Walker2d-v5": (1.77002, 3478.8),
    "Ant-v5": (-48.0484, 1327.2),
    "Swimmer-v5": (0.802948, 281.6),
    "BipedalWalker-v3": (-102.816, 297.7),
    "Hopper-v5": (16.6688, 2410.4),
    "Reacher-v5": (-43.292, -3.75),
    "MinAtar/Breakout-v1": (0.4, 10.0),
    "MinAtar/Freeway-v1": (0.39, 50.0),
    "MinAtar/Asterix-v1": (0.4, 15.0),
    "MinAtar/Seaquest-v1": (0.08, 20.0),
    "MinAtar/SpaceInvaders-v1": (4.48, 45.0),
}
