"""Steps environments with an agent: the part that all roles share which act where their environments are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from apexrl.agents import recorded
from apexrl.config import Config
from apexrl.protocols import Agent, Context
from apexrl.roles.action_check import ActionCheck
from apexrl.roles.env_arrays import EnvArrays, Which
from apexrl.roles.episode_reports import Episodes
from apexrl.roles.role_envs import first_reset, own_cores, role_envs
from apexrl.roles.schedules import Exploration
from apexrl.spec import Array, EnvSpec

VERSION = "version"
"""Field in which every step carries the weights version that chose its action."""


class EnvPlayer:
    """Steps M environments with an agent's actions and yields what every step was.

    Where environments go in lock-step, all are always ready, and ``which`` is None throughout. Else, as with
    ``vector = "threads"``, ``which`` [R] are the numbers of those that are ready.

    Slot ``context.index`` owns M rungs that span the ladder of ε or σ, whoever serves in it.

    Args:
        make_agent: makes who acts, on a device: where the environment's torch tensors lie, else on the CPU. Its
            parameters are the caller's business.
        partial: whether ``collect`` may yield rows of some environments where they go in lock-step otherwise.

    Attributes:
        agent: who acts. A shipped one is shown a simulator's tensors as they are.
        seen: observations of whoever waits for an action, name -> [R, (stack,) ...], until the next ``collect``; None:
            nobody does.
        which: whose steps were collected last.
        starts: [R], true where ``collect`` yielded a final observation: what is seen now begins an episode.
        idle: [R], true where it yielded no step: an agent took no part; None: everybody did.
        episodes: what has ended, to be reported.
    """

    def __init__(
        self,
        context: Context,
        config: Config,
        spec: EnvSpec,
        make_agent: Callable[[str], Agent],
        seed: int,
        partial: bool = False,
    ) -> None:
        from apexrl.agents import AGENTS
        from apexrl.envs import FrameStack

        envs = config.actor.envs_per_actor
        slots = config.actor.actor_slots or config.actor.actors
        self._context = context
        self._exploration = Exploration(context, config, spec.action, [context.index], slots, envs)
        self._env = role_envs(context, config, envs, seed, own_cores(config), partial)
        self._observation = first_reset(context, self._env)
        self.agent = make_agent(self._env.device)
        self._check = ActionCheck(config.agent.agent, spec.action, recorded(self.agent))
        # Frames are stacked in the host's memory, and an agent of one's own may know arrays only
        self._shows_tensors = spec.stack == 1 and config.agent.agent in AGENTS and not spec.masked
        self._frames = FrameStack(spec.stack, envs, spec.observation)
        self._state = EnvArrays(envs)
        self._begun = EnvArrays(envs)
        self._versions = np.zeros(envs, np.int64)
        self.seen: dict[str, Array] | None = self._frames.push(self._observation)
        self.which: Which = None if self._env.lockstep else np.arange(envs)
        self.starts = np.ones(envs, np.bool_)
        self.idle: NDArray[np.bool_] | None = None
        self.episodes = Episodes(context)

    def act(self, version: int, random: bool = False) -> None:
        """Choose for all who wait for an action, and let them step.

        Args:
            version: of the weights that choose.
            random: uniformly instead.

        Raises:
            AgentError: the agent's actions are none that the environment takes.
            EnvError: an environment raised an error.
        """
        if self.seen is None:
            return
        which = self.which
        exploration = self._exploration() if which is None else self._exploration()[which]
        if random:
            exploration = np.full_like(exploration, np.inf)
        seen = (self._shows_tensors and self._env.tensors) or self.seen
        acted = self.agent.act(seen, self._state.take(which) or None, exploration)
        actions, extras, state = self._check.parts(acted, len(exploration))
        self._check.first(actions, len(exploration), random)
        self._state.put(which, state or {})
        if version != self._versions[0]:
            self._versions = np.full(len(self._versions), version, np.int64)  # steps may still refer to the old one
        versions = self._versions[: len(actions)]
        self._begun.put(which, {**self._observation, "action": actions, **extras, VERSION: versions})
        try:
            self._env.send(actions, which)
        except Exception:
            self._check.look(actions, len(exploration))
            raise
        self.seen = None

    def collect(self, least: int = 1) -> dict[str, Array] | None:
        """The steps that are done: each observation, its action and the action's results, name -> [R, ...].

        None: fewer than ``least`` are, after the context's patience.

        Raises:
            AgentError, EnvError: as ``act``, where environments take their own time.
        """
        try:
            stepped = self._env.receive(least, self._context.patience)
        except Exception:
            actions = self._begun.take(None)["action"]
            self._check.look(actions, len(actions))
            raise
        if stepped is None:
            return None
        which = self.which = stepped.which
        steps: dict[str, Array] = {
            **self._begun.take(which),
            "reward": stepped.reward,
            "terminated": stepped.terminated,
            "truncated": stepped.truncated,
        }
        self._observation = stepped.observation
        self.starts, self.idle = stepped.starts, stepped.idle
        self.seen = self._frames.push(stepped.observation, stepped.starts, which)
        self._state.clear(which, stepped.starts)
        self._context.count(env_steps=stepped.steps)
        self.episodes.add(stepped.episodes)
        return steps

    def close(self) -> None:
        """Report the last episodes, close the environments."""
        self.episodes.report(last=True)
        with self._context.env_call():
            self._env.close()
