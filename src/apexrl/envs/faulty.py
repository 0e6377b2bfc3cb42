"""Environments that fail on purpose, to prove that a run survives them: ``apexrl.envs.faulty:Raises-v0`` and so on.

All are CartPole until they fail. ``once`` names a file: whoever creates it first fails, and nobody after that.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Faulty(CartPoleEnv):
    """CartPole that calls ``fail`` at step ``at_step``, counted from 1 over all its episodes."""

    def __init__(self, at_step: int = 100, once: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._at_step, self._once, self._steps = at_step, once, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._at_step and self._first():
            self.fail()
        return super().step(action)  # type: ignore[no-any-return, no-untyped-call]

    def fail(self) -> None:
        raise RuntimeError(f"the simulator broke at step {self._steps}")

    def _first(self) -> bool:
        if not self._once:
            return True
        try:
            os.close(os.open(self._once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Hangs(Faulty):
    """Never returns from step ``at_step``."""

    def fail(self) -> None:
        while True:
            time.sleep(3600.0)


class RaisesOnMake(CartPoleEnv):
    """Cannot even be constructed."""

    def __init__(self, **kwargs: Any) -> None:
        raise RuntimeError("the simulator has no licence")


class SpawnsChild(CartPoleEnv):
    """Starts a child process, as game clients are started, and leaves it running unless it is closed.

    Args:
        pid_file: gets a line with the child's process id.
    """

    def __init__(self, pid_file: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.child = subprocess.Popen(["sleep", "3600"])
        if pid_file:
            with open(pid_file, "a", encoding="utf-8") as file:
                file.write(f"{self.child.pid}\n")

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        super().close()  # type: ignore[no-untyped-call]


gym.register("Raises-v0", entry_point="apexrl.envs.faulty:Faulty", max_episode_steps=500)
gym.register("Hangs-v0", entry_point="apexrl.envs.faulty:Hangs", max_episode_steps=500)
gym.register("RaisesOnMake-v0", entry_point="apexrl.envs.faulty:RaisesOnMake", max_episode_steps=500)
gym.register("SpawnsChild-v0", entry_point="apexrl.envs.faulty:SpawnsChild", max_episode_steps=500)
