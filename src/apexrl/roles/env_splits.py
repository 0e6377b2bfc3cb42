"""Splits of a worker's environments: one split steps while the others wait for actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from apexrl.config import Config
from apexrl.protocols import Context
from apexrl.roles.episode_reports import Episodes
from apexrl.roles.role_envs import first_reset, own_cores, role_envs
from apexrl.spec import Array, EnvSpec

if TYPE_CHECKING:
    from apexrl.envs.vector import Stepped


class EnvSplits:
    """Sample Factory's double buffering (Petrenko et al. 2020, §3.2), for those who do not choose actions themselves.

    The environments of a group go in lock-step, also with ``vector = "threads"``: then those of all groups that have
    actions step at the same time.

    Args:
        sizes: environments of each group.

    Attributes:
        seen: of each group what the agent is to see next, name -> [E, (stack,) ...].
        observation: of each group the newest frames of that, name -> [E, ...].
        stepping: groups whose environments are at work.
    """

    def __init__(self, context: Context, config: Config, spec: EnvSpec, sizes: Sequence[int]) -> None:
        from apexrl.envs import FrameStack

        self._context = context
        seeds = np.random.SeedSequence(context.seed).generate_state(len(sizes))
        self._envs = [
            role_envs(context, config, envs, int(seed), own_cores(config))
            for envs, seed in zip(sizes, seeds, strict=True)
        ]
        self.observation: list[dict[str, Array]] = [first_reset(context, env) for env in self._envs]
        self._frames = [FrameStack(spec.stack, envs, spec.observation) for envs in sizes]
        self.seen = [
            frames.push(observation) for frames, observation in zip(self._frames, self.observation, strict=True)
        ]
        self.stepping: list[int] = []
        self._episodes = Episodes(context)

    def send(self, group: int, actions: Array) -> None:
        """Let the environments of a group step. ``actions`` [E, ...] are not kept."""
        self._envs[group].send(actions)
        self.stepping.append(group)

    def receive(self, group: int, timeout: float = 0.0) -> Stepped | None:
        """What a group's step was, when all of its environments have made it. None: not within ``timeout`` seconds."""
        env = self._envs[group]
        stepped = env.receive(env.num_envs, timeout)
        if stepped is None:
            return None
        self.stepping.remove(group)
        self._context.count(env_steps=stepped.steps)
        self._episodes.add(stepped.episodes)
        self.observation[group] = stepped.observation
        self.seen[group] = self._frames[group].push(stepped.observation, stepped.starts)
        return stepped

    def report(self) -> None:
        """Report finished episodes, when it is time."""
        self._episodes.report()

    def close(self) -> None:
        """Report the last episodes, close the environments."""
        self._episodes.report(last=True)
        with self._context.env_call():
            for env in self._envs:
                env.close()
