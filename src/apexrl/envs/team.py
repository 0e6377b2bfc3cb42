"""Agents that act at the same time and share one reward, as one: a step has what all of them see and do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.envs.agent_rows import ALONE, STATE, ParallelEnv, Shown, time_limit
from apexrl.errors import EnvError
from apexrl.spec import ACTION_MASK, LAST_ACTION, OBSERVATION, PRESENT, TEAM

AGENTS, THERE, MASK, DID = (name.removeprefix(f"{OBSERVATION}/") for name in (TEAM, PRESENT, ACTION_MASK, LAST_ACTION))


class TeamEnv(gym.Env[dict[str, Any], Any]):
    """An environment of PettingZoo's parallel API for one learner of all its k agents.

    Observation: ``agents``, what each sees, [k, ...]; ``present``, who takes part; with ``show_state`` also ``state``.
    Masks of actions go side by side, as of k choices. Action: MultiDiscrete, one for each agent. Reward: the mean of
    theirs, which is theirs where all get the same. Who has terminated sees zeros, has action 0 alone, and adds nothing
    to the reward; the episode ends with the last one. Where it is truncated, who was truncated sees what comes next.

    Args:
        env: whose agents have equal spaces, with Discrete actions.
        name: of the environment, for errors.
        show_agent: each sees which agent it is.
        show_state: adds the state of the environment.
        show_last_action: each sees what it did last, one-hot int8 [n] in the entry ``last_action``; zeros at first.

    Attributes:
        time_limit: as ``env`` says it.

    Raises:
        EnvError: they have not.
    """

    def __init__(
        self,
        env: ParallelEnv,
        name: str,
        show_agent: bool = False,
        show_state: bool = False,
        show_last_action: bool = False,
    ) -> None:
        self._env, self._name, self.agents = env, name, tuple(env.possible_agents)
        self.time_limit = time_limit(env)
        self._shown = Shown(env, name, self.agents, show_agent, False)
        action, each = self._shown.action_space, self._shown.observation_space
        if not isinstance(action, gym.spaces.Discrete):
            raise EnvError(f"{name}: the actions of a team's agents are Discrete, and these are {action}")
        self._start, self._n, k = int(action.start), int(action.n), len(self.agents)
        self._masked = isinstance(each, gym.spaces.Dict) and MASK in each.spaces
        if self._masked:
            each = gym.spaces.Dict({key: space for key, space in each.spaces.items() if key != MASK})  # type: ignore[attr-defined]
        self._did = np.zeros((k, self._n), np.int8)
        self._shows_last_action = show_last_action
        if show_last_action:
            seen = dict(each.spaces) if isinstance(each, gym.spaces.Dict) else {ALONE: each}
            if DID in seen:
                raise EnvError(f"{name}: agents see {DID} already; leave --show-last-action out")
            each = gym.spaces.Dict({**seen, DID: gym.spaces.MultiBinary(self._n)})
        self._each: gym.Space[Any] = each
        self._nothing = _zeros(each)
        entries: dict[str, gym.Space[Any]] = {
            AGENTS: _of_all(each, k),
            THERE: gym.spaces.MultiBinary(k),
            MASK: gym.spaces.MultiBinary(k * self._n),
        }
        self._state = show_state
        if show_state:
            space = getattr(env, "state_space", None)
            if space is None:
                raise EnvError(f"{name} has no state_space, so its state cannot be shown: leave --show-state out")
            entries[STATE] = space
        self.observation_space = gym.spaces.Dict(entries)
        self.action_space = gym.spaces.MultiDiscrete([self._n] * k)
        self._left: set[str] = set()  # agents that have ended in this episode, whether or not they are still listed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        super().reset(seed=seed)
        seen, _ = self._env.reset(seed=seed, options=options)
        if not self._env.agents:
            raise EnvError(f"{self._name} has no agent after its reset()")
        self._left = set()
        self._did[:] = 0
        return self._show(seen, self._acting()), {}

    def step(self, actions: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        acting = self._acting()
        chosen = dict(zip(self.agents, np.asarray(actions).tolist(), strict=True))
        self._did[:] = 0
        for number, agent in enumerate(self.agents):
            self._did[number, chosen[agent]] = agent in acting
        answer = self._env.step({agent: chosen[agent] + self._start for agent in acting})
        seen, rewards, terminated, truncated, infos = answer
        for agent in acting:
            if agent not in rewards or agent not in terminated or agent not in truncated:
                raise EnvError(
                    f"{self._name}: step() says nothing of agent {agent!r}, which acted: its reward, terminated and "
                    "truncated belong into the answer, also when it leaves"
                )
        self._left.update(agent for agent in acting if terminated[agent] or truncated[agent])
        cut_short = [agent for agent in acting if truncated[agent] and not terminated[agent]]
        there = self._acting()
        lives = [agent for agent in acting if agent not in self._left]
        if lives and not self._env.agents:
            raise EnvError(
                f"{self._name} has no agent left, and {lives[0]!r} has neither terminated nor been truncated"
            )
        ended = not there
        cut = ended and bool(cut_short)
        reward = sum(float(rewards[agent]) for agent in acting) / len(self.agents)
        told = dict(next((infos[agent] for agent in acting if infos.get(agent)), {}))
        return self._show(seen, cut_short if cut else there), reward, ended and not cut, cut, told

    def close(self) -> None:
        self._env.close()

    def render(self) -> Any:
        return self._env.render()  # type: ignore[attr-defined]

    def _acting(self) -> list[str]:
        return [agent for agent in self.agents if agent in self._env.agents and agent not in self._left]

    def _show(self, seen: Mapping[str, Any], takes_part: Sequence[str]) -> dict[str, Any]:
        there = [agent in takes_part for agent in self.agents]
        masks = np.zeros((len(self.agents), self._n), np.int8)
        masks[:, 0] = 1  # of those who are not there
        shown = []
        for number, agent in enumerate(self.agents):
            one: Any = self._nothing
            if there[number]:
                if agent not in seen:
                    raise EnvError(f"{self._name} shows nothing to agent {agent!r}, which takes part")
                one = self._shown.of(agent, seen[agent])
                masks[number] = one[MASK] if self._masked else 1
                if self._shows_last_action:
                    one = {**(one if isinstance(one, dict) else {ALONE: one}), DID: self._did[number]}
            shown.append(one)
        observation = {AGENTS: _stacked(self._each, shown), THERE: np.array(there, np.int8), MASK: masks.reshape(-1)}
        return {**observation, STATE: self._env.state()} if self._state else observation  # type: ignore[attr-defined]


def _of_all(space: gym.Space[Any], k: int) -> gym.Space[Any]:
    """The space of what k agents see."""
    match space:
        case gym.spaces.Dict():
            return gym.spaces.Dict({key: _of_all(inner, k) for key, inner in space.spaces.items()})
        case gym.spaces.Tuple():
            return gym.spaces.Tuple([_of_all(inner, k) for inner in space.spaces])
        case gym.spaces.MultiDiscrete():  # Gymnasium's batch of it has numbers, and these are categories
            return gym.spaces.MultiDiscrete(np.stack([space.nvec] * k), start=np.stack([space.start] * k))
    return gym.vector.utils.batch_space(space, k)


def _stacked(space: gym.Space[Any], values: Sequence[Any]) -> Any:
    """What k agents see as ``_of_all`` has it."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _stacked(inner, [value[key] for value in values]) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_stacked(inner, [value[at] for value in values]) for at, inner in enumerate(space.spaces))
    return np.stack([np.asarray(value) for value in values])


def _zeros(space: gym.Space[Any]) -> Any:
    """What somebody sees who is not there."""
    match space:
        case gym.spaces.Dict():
            return {key: _zeros(inner) for key, inner in space.spaces.items()}
        case gym.spaces.Tuple():
            return tuple(_zeros(inner) for inner in space.spaces)
        case gym.spaces.Discrete() | gym.spaces.MultiDiscrete():
            return np.array(space.start, space.dtype)
        case gym.spaces.Box() | gym.spaces.MultiBinary():
            return np.zeros(space.shape, space.dtype)
    raise EnvError(f"a team's agents see no text, sequence or graph, and these see {space}")
