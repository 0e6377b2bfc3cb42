"""The actor: steps its environments with the newest weights it has, and writes what happened into the replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from apexrl.config import Config
from apexrl.errors import AgentError, WaitTimeout
from apexrl.exploration import epsilon_ladder
from apexrl.protocols import Agent, Context, State, StepWriter, WeightsReader
from apexrl.spec import Array, EnvSpec, Field

if TYPE_CHECKING:
    from apexrl.replay import Replay

VERSION = "version"
"""Field in which every step carries the weights version that chose its action."""

_REPORT_SECONDS = 0.25
_REPORT_EPISODES = 1000  # a message holds no more


def step_fields(spec: EnvSpec, extras: dict[str, Field]) -> dict[str, Field]:
    """What an actor writes per step, beside reward, terminated and truncated, which every replay has.

    Raises:
        AgentError: the agent records a field under a name that is taken.
    """
    own = {**spec.observation, "action": Field(spec.action.shape, spec.action.dtype), VERSION: Field((), "int64")}
    taken = (own.keys() | {"reward", "terminated", "truncated"}) & extras.keys()
    if taken:
        raise AgentError(
            f"the agent's step_spec names {', '.join(sorted(taken))}, which every step has already: rename"
        )
    return {**own, **extras}


class Actor:
    """Ape-X's actor (Horgan et al. 2018, Algorithm 1) over M environments at once.

    Slot ``index`` of the run owns M neighbouring rungs of the ε ladder, whoever serves in it; environments and
    exploration noise are seeded anew in every generation.
    """

    def __init__(
        self, context: Context, *, config: Config, spec: EnvSpec, replay: Replay, weights: WeightsReader
    ) -> None:
        from apexrl.agents import agent_class
        from apexrl.envs import FrameStack, make_vector

        envs = config.actor.envs_per_actor
        ladder = epsilon_ladder(config.actor.actors * envs, config.actor.epsilon, config.actor.epsilon_alpha)
        seeds = np.random.SeedSequence(context.seed).generate_state(2)
        self._context = context
        self._weights = weights
        self._pull_period = config.actor.pull_period
        self._epsilon = ladder[context.index * envs : (context.index + 1) * envs]
        self._agent: Agent = agent_class(config.agent.agent)(spec, config.agent, "cpu", int(seeds[0]))
        with context.env_call():
            self._env = make_vector(config.env, envs, int(seeds[1]))
            self._observation = self._env.reset()
        self._frames = FrameStack(spec.stack, envs, spec.observation)
        self._seen = self._frames.push(self._observation)
        self._state: State = None
        self._writer: StepWriter = replay.writer(streams=envs, priority_fn=self._agent.priorities)
        self._unwritten: dict[str, Array] | None = None

        self._version = 0
        self._versions = np.zeros(envs, np.int64)
        self._until_pull = 0
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._next_report = context.clock() + _REPORT_SECONDS

    def step(self) -> bool:
        """One step of all M environments. False: no weights are published yet, or the replay takes no more just now."""
        if self._until_pull <= 0:
            self._pull()
        if self._version == 0:
            return False
        if self._unwritten is None:
            self._unwritten = self._act()
        try:
            self._writer.append(self._unwritten, timeout=self._context.patience)
        except WaitTimeout:
            return False  # nothing was taken; the same steps are offered again
        self._unwritten = None
        self._report()
        return True

    def _act(self) -> dict[str, Array]:
        """Choose, step, and return the steps that came of it: each observation, its action and the action's results."""
        actions, extras, self._state = self._agent.act(self._seen, self._state, self._epsilon)
        with self._context.env_call():
            stepped = self._env.step(actions)
        steps: dict[str, Array] = {
            **self._observation,
            "action": actions,
            **extras,
            VERSION: self._versions,
            "reward": stepped.reward,
            "terminated": stepped.terminated,
            "truncated": stepped.truncated,
        }
        self._observation = stepped.observation
        self._seen = self._frames.push(stepped.observation, stepped.starts)
        self._until_pull -= 1
        self._context.count(env_steps=len(actions) - int(np.count_nonzero(stepped.starts)))
        for episode in stepped.episodes:
            self._returns.append(episode.episode_return)
            self._lengths.append(episode.length)
        return steps

    def _pull(self) -> None:
        newest = self._weights.latest(newer_than=self._version)
        if newest is not None:
            self._version, arrays = newest
            self._agent.load(arrays)
            self._versions = np.full(len(self._versions), self._version, np.int64)
            self._context.count(weights_pulled=1)
        if self._version:
            self._until_pull = self._pull_period

    def _report(self, last: bool = False) -> None:
        if not self._returns:
            return
        now = self._context.clock()
        if now >= self._next_report or last or len(self._returns) >= _REPORT_EPISODES:
            values: dict[str, Any] = {"returns": self._returns, "lengths": self._lengths}
            self._context.count(episodes=len(self._returns))
            self._context.send("episodes", **values, env_steps=self._context.total("env_steps"))
            self._returns, self._lengths = [], []
            self._next_report = now + _REPORT_SECONDS

    def close(self) -> None:
        """Publish the steps written so far, report the last episodes, close the environments."""
        self._writer.close()
        self._report(last=True)
        with self._context.env_call():
            self._env.close()
