"""SAC, TD3, DQN and QR-DQN of Stable-Baselines3 and sb3-contrib: so many environment steps, then 20 greedy episodes.

    python benchmarks/agents/sb3_run.py sac-pendulum --seed 1      # prints one JSON object

The settings are those of ``agents_sb3.CASES``, by which it is run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from apexrl.api import EVALUATION_SEED
from apexrl.config import EnvConfig
from apexrl.envs import FrameStack, make_vector
from apexrl.protocols import Acted
from apexrl.roles.trial import Trial

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.agents.sb3 import CASES, EPISODES, Case


def learner(case: Case, envs: int, seed: int) -> Any:
    """The peer's learner. With several environments it makes as many updates after each round as there are steps."""
    vector = make_vec_env(case.env, envs, seed=seed)
    given: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": vector,
        "learning_rate": case.learning_rate,
        "batch_size": case.batch_size,
        "buffer_size": case.capacity,
        "learning_starts": case.min_size,
        "gamma": case.gamma,
        "policy_kwargs": {"net_arch": list(case.hidden)},
        "seed": seed,
        "device": "cpu",
        "train_freq": max(1, case.every_steps // envs),
        "gradient_steps": case.updates_each if case.every_steps > 1 else -1,
    }
    if case.agent == "sac":
        return SAC(**given)
    if case.agent == "td3":
        none = np.zeros(vector.action_space.shape or ())
        return TD3(**given, action_noise=NormalActionNoise(none, 0.1 + none))
    given |= {
        "target_update_interval": case.target_every_steps,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
    }
    if case.agent == "dqn":
        return DQN(**given)
    from sb3_contrib import QRDQN

    given["policy_kwargs"] = {"net_arch": list(case.hidden), "n_quantiles": case.quantiles}
    return QRDQN(**given)


class Clock(BaseCallback):  # type: ignore[misc]  # where SB3 is not installed
    """Monotonic seconds of the first environment step."""

    began = 0.0

    def _on_training_start(self) -> None:
        self.began = time.monotonic()

    def _on_step(self) -> bool:
        return True


class Player:
    """A model of SB3 as a trial takes an agent."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool) -> Acted:
        actions, _ = self._model.predict(observations["observation"], deterministic=greedy)
        return Acted(actions, {}, state)


def score(model: Any, env: str) -> float:
    """The mean of the very episodes that ``apexrl.evaluate`` plays: the same seeds."""
    vector = make_vector(EnvConfig(env=env), 10, EVALUATION_SEED)
    frames = FrameStack(vector.spec.stack, 10, vector.spec.observation)
    player: Any = Player(model)
    trial = Trial(player, vector, frames, EPISODES, EVALUATION_SEED)
    while trial.step():
        pass
    vector.close()
    return trial.mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--env-steps", type=int, default=0, help="other than the case's")
    parser.add_argument("--envs", type=int, default=1, help="environments, stepped in turn")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--started", type=float, default=time.monotonic(), help="monotonic seconds of the command")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    case = CASES[options.case]
    model, clock = learner(case, options.envs, options.seed), Clock()
    model.learn(options.env_steps or case.env_steps, callback=clock)
    ended = time.monotonic()
    print(
        json.dumps(
            {
                "seconds": ended - clock.began,
                "whole_seconds": ended - options.started,
                "env_steps": model.num_timesteps,
                "updates": model._n_updates,
                "score": score(model, case.env),
            }
        )
    )


if __name__ == "__main__":
    main()
