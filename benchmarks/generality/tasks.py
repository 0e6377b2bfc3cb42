"""The tasks of the suite: environment, steps, and the two returns between which a score is normalised.

Needs nothing of apexrl. Random returns are the mean of 100 episodes: ``python benchmarks/generality/random_play.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ENVS = "benchmarks.generality.envs:"
ZOO = "benchmark.md of DLR-RM/rl-baselines3-zoo"
FIGURE = "rough, remembered reading of DQN's curves at 5M frames in Young & Tian 2019, which gives no numbers"


@dataclass(frozen=True)
class Task:
    """One environment of the suite."""

    env: str
    """What ``--env`` and a peer's ``gymnasium.make`` take."""
    half: Literal["tune", "report"]
    """Whether defaults may be chosen by it, or are only reported on it. The halves share no base environment."""
    actions: Literal["discrete", "switches", "box"]
    replay_steps: int
    """Environment steps of an agent that learns from a replay."""
    unroll_steps: int
    """Environment steps of an agent that learns from unrolls."""
    random: float
    """Mean return of random actions."""
    good: float
    """A published good return."""
    source: str
    """Of ``good``."""

    @property
    def name(self) -> str:
        """The environment's id, without a module."""
        return self.env.rpartition(":")[2]


def _zoo(agent: str, steps: str) -> str:
    return f"{agent} at {steps}, {ZOO}"


_ALL = (
    # Defaults may be chosen by these.
    Task("CartPole-v1", "tune", "discrete", 200_000, 1_000_000, 23.68, 500, _zoo("DQN", "50k")),
    Task("MountainCar-v0", "tune", "discrete", 120_000, 1_000_000, -200, -100.8, _zoo("DQN", "120k")),
    Task("Pendulum-v1", "tune", "box", 30_000, 300_000, -1_207.56, -157.0, _zoo("SAC", "20k")),
    Task("LunarLander-v3", "tune", "discrete", 300_000, 1_500_000, -191.959, 242.1, _zoo("PPO", "1M")),
    Task("LunarLanderContinuous-v3", "tune", "box", 150_000, 1_500_000, -212.676, 260.4, _zoo("SAC", "500k")),
    Task("MinAtar/Breakout-v1", "tune", "discrete", 500_000, 1_500_000, 0.4, 10.0, FIGURE),
    Task("HalfCheetah-v5", "tune", "box", 150_000, 1_000_000, -282.487, 5819.0, _zoo("PPO", "1M")),
    Task(
        f"{ENVS}LunarLanderRewards0001-v0",
        "tune",
        "discrete",
        300_000,
        1_500_000,
        -0.191959,
        0.2421,
        "as LunarLander-v3",
    ),
    Task(f"{ENVS}PendulumRewards1000-v0", "tune", "box", 30_000, 300_000, -1_207_560, -157_000.0, "as Pendulum-v1"),
    Task(f"{ENVS}CartPoleObservations10000-v0", "tune", "discrete", 200_000, 1_000_000, 23.68, 500.0, "as CartPole-v1"),
    Task(f"{ENVS}CartPolePositions-v0", "tune", "discrete", 200_000, 1_000_000, 23.68, 500.0, "as CartPole-v1"),
    Task(f"{ENVS}LunarLanderSwitches-v0", "tune", "switches", 300_000, 1_500_000, -337.068, 242.1, "as LunarLander-v3"),
    Task("Acrobot-v1", "tune", "discrete", 100_000, 500_000, -497.08, -76.6, _zoo("DQN", "100k")),
    Task("MountainCarContinuous-v0", "tune", "box", 50_000, 300_000, -33.2517, 94.7, _zoo("SAC", "50k")),
    Task(f"{ENVS}AcrobotRewards1000-v0", "tune", "discrete", 100_000, 500_000, -497_080, -76_600.0, "as Acrobot-v1"),
    Task(f"{ENVS}AcrobotGoal-v0", "tune", "discrete", 100_000, 500_000, 0.03, 1.0, "the greatest return there is"),
    Task(f"{ENVS}AcrobotDict-v0", "tune", "discrete", 100_000, 500_000, -497.08, -76.6, "as Acrobot-v1"),
    # Defaults are only reported on these.
    Task("Taxi-v4", "report", "discrete", 200_000, 1_000_000, -777.48, 8.0, "Gymnasium's reward threshold of Taxi"),
    Task("InvertedPendulum-v5", "report", "box", 30_000, 300_000, 5.23, 950.0, "Gymnasium's reward threshold"),
    Task(
        "InvertedDoublePendulum-v5", "report", "box", 50_000, 500_000, 49.0903, 9_100.0, "Gymnasium's reward threshold"
    ),
    Task("Walker2d-v5", "report", "box", 150_000, 1_000_000, 1.77002, 3478.8, _zoo("PPO", "1M")),
    Task("Ant-v5", "report", "box", 150_000, 1_000_000, -48.0484, 1327.2, _zoo("PPO", "1M")),
    Task("Swimmer-v5", "report", "box", 150_000, 1_000_000, 0.802948, 281.6, _zoo("PPO", "1M")),
    Task(f"{ENVS}FrozenLakeFirm-v0", "report", "discrete", 50_000, 300_000, 0, 1.0, "the greatest return there is"),
    Task("BipedalWalker-v3", "report", "box", 200_000, 1_500_000, -102.816, 297.7, _zoo("SAC", "500k")),
    Task("MinAtar/Freeway-v1", "report", "discrete", 500_000, 1_500_000, 0.39, 50.0, FIGURE),
    Task("MinAtar/Asterix-v1", "report", "discrete", 500_000, 1_500_000, 0.4, 15.0, FIGURE),
    Task("MinAtar/Seaquest-v1", "report", "discrete", 500_000, 1_500_000, 0.08, 20.0, FIGURE),
    Task("MinAtar/SpaceInvaders-v1", "report", "discrete", 500_000, 1_500_000, 4.48, 45.0, FIGURE),
    Task("Hopper-v5", "report", "box", 150_000, 1_000_000, 16.6688, 2410.4, _zoo("PPO", "1M")),
    Task("Reacher-v5", "report", "box", 50_000, 500_000, -43.292, -3.75, "Gymnasium's reward threshold"),
    Task(f"{ENVS}ReacherRewards0001-v0", "report", "box", 50_000, 500_000, -0.043292, -0.00375, "as Reacher-v5"),
    Task(f"{ENVS}ReacherObservations10000-v0", "report", "box", 50_000, 500_000, -43.292, -3.75, "as Reacher-v5"),
)

TASKS = {task.name: task for task in _ALL}

_SOLVED_ONLY = (
    Task(
        f"{ENVS}LunarLanderRewards100-v0",
        "tune",
        "discrete",
        300_000,
        1_500_000,
        -19_195.9,
        24_210.0,
        "as LunarLander-v3",
    ),
    Task(
        f"{ENVS}LunarLanderRewards001-v0",
        "tune",
        "discrete",
        300_000,
        1_500_000,
        -1.91959,
        2.421,
        "as LunarLander-v3",
    ),
)

KNOWN = TASKS | {task.name: task for task in _SOLVED_ONLY}
"""The suite, and tasks of ``solved.py`` alone."""
