"""Environments of several agents that act at the same time (PettingZoo's parallel API): each agent is a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import gymnasium as gym
import numpy as np

from apexrl.envs.action_spaces import action_spec
from apexrl.envs.lockstep import (
    Bools,
    EnvCall,
    Rows,
    Which,
    blame,
    close_all,
    each_of,
    empty_rows,
    flag,
    only_number,
    refuse_not_finite,
)
from apexrl.envs.spaces import LIMIT, Leaf, observation_leaves
from apexrl.envs.told_metrics import told_metrics
from apexrl.errors import EnvError, SpecError
from apexrl.space_values import LengthLimit
from apexrl.spec import GLOBAL_STATE, OBSERVATION, Array

if TYPE_CHECKING:
    from apexrl.envs.played_agents import PlayedAgents

AGENT, STATE = "agent", GLOBAL_STATE.removeprefix(f"{OBSERVATION}/")
"""Entries that an agent's observation may be given: which agent it is, and the state of the whole environment."""

ALONE = "obs"
"""Entry of an observation that was no ``Dict`` before."""

MOST_TURNS = 100_000
"""Of a game, in which a learned agent is waited for."""

EMPTY_GAMES = 100
"""In a row without a learned agent, which are an error."""

MOST_NAMED = 16
"""Agents whose returns are told one by one; of more, those with the same name but for its number are told together."""


class ParallelEnv(Protocol):
    """PettingZoo's parallel API (Terry et al. 2021, arXiv 2009.14471), as far as it is used here."""

    possible_agents: list[str]
    agents: list[str]

    def observation_space(self, agent: str) -> gym.Space[Any]: ...
    def action_space(self, agent: str) -> gym.Space[Any]: ...
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]: ...
    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]: ...
    def close(self) -> None: ...


class Shown:
    """What an agent is shown: its observation, and what is added to it.

    Args:
        env: whose agents all must have equal spaces.
        agent: adds ``agent``, the number of the agent among all.
        state: adds ``state``, the state of the environment.

    Raises:
        EnvError: agents have different spaces, or the environment has no state.
        SpecError: an entry of the observation has the name already.
    """

    def __init__(self, env: Any, name: str, agents: Sequence[str], agent: bool, state: bool) -> None:
        self._env, self._agent, self._state = env, agent, state
        spaces = {one: (env.observation_space(one), env.action_space(one)) for one in agents}
        seen, self.action_space = spaces[agents[0]]
        for one, (other, actions) in spaces.items():
            if other != seen or actions != self.action_space:
                raise EnvError(
                    f"{name}: agent {one!r} has other spaces than {agents[0]!r} ({other}, {actions}; {seen}, "
                    f"{self.action_space}), and one policy acts for both: pad them to equal ones (SuperSuit's "
                    "pad_observations_v0 and pad_action_space_v0 do)"
                )
        self._plain = not (agent or state)
        self._alone = not isinstance(seen, gym.spaces.Dict)
        entries = dict(seen.spaces) if isinstance(seen, gym.spaces.Dict) else {ALONE: seen}
        added: dict[str, gym.Space[Any]] = {}
        if agent:
            added[AGENT] = gym.spaces.Discrete(len(env.possible_agents))
        if state:
            space = getattr(env, "state_space", None)
            if space is None:
                raise EnvError(f"{name} has no state_space, so its state cannot be shown: leave --show-state out")
            added[STATE] = space
        if taken := entries.keys() & added.keys():
            raise SpecError(f"{name}: the observation has {', '.join(sorted(taken))} already")
        self.observation_space: gym.Space[Any] = seen if self._plain else gym.spaces.Dict({**entries, **added})
        self._numbers = {one: number for number, one in enumerate(env.possible_agents)}

    def of(self, agent: str, observation: Any) -> Any:
        if self._plain:
            return observation
        shown = {ALONE: observation} if self._alone else dict(observation)
        if self._agent:
            shown[AGENT] = self._numbers[agent]
        if self._state:
            shown[STATE] = self._env.state()
        return shown


def told_names(agents: Sequence[str]) -> dict[str, str]:
    """Agent -> the name of the metric that tells its return."""
    if len(agents) <= MOST_NAMED:
        return {agent: f"return/{agent}" for agent in agents}
    return {agent: f"return/{agent.rstrip('0123456789').rstrip('_') or 'agents'}" for agent in agents}


class AgentRows:
    """E environments of k agents as E·k rows: row e·k + i is the i-th agent of the e-th environment.

    An episode of an agent ends where it terminates or is truncated. It then waits until the next episode of its
    environment begins, at the step behind the one that ended the last agent's; its rows until then are ``waiting``. So
    is one that has not appeared yet.

    Args:
        envs: equal ones.
        name: of the environment, for errors.
        agents: k of them, in the order of the rows.
        show: adds to observations, one for each environment.
        others: plays the other agents; None: there are none. What remains of an episode when all k have appeared and
            ended is not played.
        call: entered around every call.
        info_metrics: keys of an agent's info that are told of an episode (``told_metrics``).
        limit: environment steps after which all agents are truncated; 0: none.

    Attributes:
        agents: their names, in the order of the rows.
        absent: [E·k], who did not appear at the last reset of all.
        time_limit: as the environments say it.
    """

    lockstep = True

    def __init__(
        self,
        envs: Sequence[ParallelEnv],
        name: str,
        agents: Sequence[str],
        show: Sequence[Shown],
        others: PlayedAgents | None = None,
        call: EnvCall = nullcontext,
        info_metrics: Sequence[str] = (),
        limit: int = 0,
        lengths: LengthLimit = LIMIT,
    ) -> None:
        self._envs, self._name, self._show, self._call = envs, name, show, call
        self._info_metrics, self._limit = info_metrics, limit
        self.time_limit = time_limit(envs[0])
        self.agents, self._others = tuple(agents), others
        self._shown: list[dict[str, Any]] = [{} for _ in envs]  # to agents that others play
        self._left: list[set[str]] = [set() for _ in envs]  # of these agents, who ended and is still listed
        self._empty_games = [0 for _ in envs]  # in a row in which none of the k came
        self.num_envs = len(envs) * len(self.agents)
        self.observation_space, self.action_space = show[0].observation_space, show[0].action_space
        self.leaves: tuple[Leaf, ...] = observation_leaves(self.observation_space, lengths)
        self._each = each_of(action_spec(self.action_space))
        self._told = told_names(self.agents)
        self._rows_of = {agent: number for number, agent in enumerate(self.agents)}
        self._last = empty_rows(self.leaves, self.num_envs).observation  # what each row was shown last
        self._lives = np.zeros(self.num_envs, np.bool_)
        self._came = np.zeros(self.num_envs, np.bool_)  # has appeared in this episode
        self._returns = np.zeros(self.num_envs)
        self._lingers = np.zeros(self.num_envs, np.bool_)  # ended, and is still listed by its environment
        self._steps = [0] * len(envs)
        self._rows: Rows | None = None
        self.absent: Bools = np.zeros(self.num_envs, np.bool_)

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        for array in self._last.values():
            array[...] = 0
        rows, self._empty_games = self._empty(), [0 for _ in self._envs]
        with self._call():
            for number in range(len(self._envs)):
                self._begin(number, seeds[number * len(self.agents)], rows)
        self.absent = ~self._lives
        self._finish(rows)
        return rows.observation

    def send(self, actions: Array, starting: Bools, which: Which = None) -> None:
        rows, chosen = self._empty(), self._each(actions)
        with self._call():
            played = self._played() if self._others is not None else {}
            for number in range(len(self._envs)):
                if self._goes_on(number):
                    self._step(number, chosen[self._part(number)], rows, played.get(number, {}))
                else:
                    self._begin(number, None, rows)
        self._finish(rows)
        self._rows = rows

    def receive(self, least: int = 1, timeout: float = 0.0) -> Rows | None:
        rows, self._rows = self._rows, None
        return rows

    def close(self) -> None:
        with self._call():
            close_all([env.close for env in self._envs], self._name)

    def _empty(self) -> Rows:
        """All wait; they are shown what they were shown last."""
        rows = empty_rows(self.leaves, self.num_envs)
        for name, array in self._last.items():
            rows.observation[name][...] = array
        return rows._replace(waiting=np.ones(self.num_envs, np.bool_))

    def _finish(self, rows: Rows) -> None:
        refuse_not_finite(rows, self.leaves, self._name)
        self._last = rows.observation

    def _part(self, number: int) -> slice:
        """The rows of an environment."""
        return slice(number * len(self.agents), (number + 1) * len(self.agents))

    def _goes_on(self, number: int) -> bool:
        """Whether an episode is played on: an agent lives, or others play and one is still to appear.

        Raises:
            EnvError: they have played for too long, and none has appeared.
        """
        part = self._part(number)
        if self._lives[part].any():
            return True
        if not self._shown[number] or self._came[part].all() or self._at_limit(number):
            return False
        if self._steps[number] < MOST_TURNS:
            return True
        if not self._came[part].any():
            self._refuse_absent(number, f"{MOST_TURNS:,} steps")
        return False

    def _refuse_absent(self, number: int, when: str) -> NoReturn:
        limit = f" of at most {self._limit} steps (--max-episode-steps)" if self._limit else ""
        raise EnvError(
            f"{self._name}: of --learned-agents {' '.join(self.agents)} none appeared in {when} of environment "
            f"{number}{limit}: learn an agent that does"
        )

    def _at_limit(self, number: int) -> bool:
        return bool(self._limit) and self._steps[number] >= self._limit

    def _begin(self, number: int, seed: int | None, rows: Rows) -> None:
        """Begin an episode: whoever is there takes part."""
        with blame(self._name, "reset", number):
            observations, _ = self._envs[number].reset(seed=seed)
        if self._others is not None:
            self._others.begin(number, *self.agents)
        self._steps[number], self._left[number] = 0, set()
        for noted in (self._lives, self._came, self._lingers):
            noted[self._part(number)] = False
        if not self._envs[number].agents:
            raise EnvError(f"{self._name}: environment {number} has no agent after its reset()")
        if self._empty_games[number] >= EMPTY_GAMES:
            self._refuse_absent(number, f"{EMPTY_GAMES} episodes in a row")
        self._empty_games[number] += 1
        self._appear(number, observations, rows)

    def _appear(self, number: int, observations: Mapping[str, Any], rows: Rows) -> None:
        """Begin the part of whoever is there and has none. The first observation has no results."""
        first, waiting = number * len(self.agents), rows.waiting
        assert waiting is not None
        here = self._envs[number].agents
        if self._others is not None:
            self._left[number].intersection_update(here)
            others = [agent for agent in here if agent not in self._rows_of and agent not in self._left[number]]
            if blind := [agent for agent in others if agent not in observations]:
                raise EnvError(
                    f"{self._name}: environment {number} shows nothing to agent {blind[0]!r}, which is to act"
                )
            self._shown[number] = {agent: observations[agent] for agent in others}
            here = [agent for agent in here if agent in self._rows_of]
        listed = [first + self._row_of(agent) for agent in here]
        self._lingers[self._part(number)] &= np.isin(np.arange(first, first + len(self.agents)), listed)
        for agent, row in zip(here, listed, strict=True):
            if not self._lives[row] and waiting[row] and not self._lingers[row]:
                self._lives[row], self._returns[row], waiting[row] = True, 0.0, False
                self._came[row], self._empty_games[number] = True, 0
                rows.reward[row] = 0.0
                self._store(number, agent, row, observations, rows)

    def _played(self) -> dict[int, dict[str, Any]]:
        """The actions of agents that others play, by environment."""
        assert self._others is not None
        asked, seen = [], []
        for number in range(len(self._envs)):
            if self._goes_on(number):
                for agent, observation in self._shown[number].items():
                    asked.append(self._others.asked(number, agent))
                    seen.append(self._others.shown(number, agent, observation))
        found: dict[int, dict[str, Any]] = {}
        for one, action in zip(asked, self._others.actions(asked, seen), strict=True):
            found.setdefault(one.game, {})[one.agent] = action
        return found

    def _step(self, number: int, actions: Sequence[Any], rows: Rows, played: Mapping[str, Any]) -> None:
        env, first = self._envs[number], number * len(self.agents)
        acting = {agent: actions[row] for agent, row in self._rows_of.items() if self._lives[first + row]}
        with blame(self._name, "step", number):
            observations, rewards, terminated, truncated, infos = env.step({**acting, **played})
        self._steps[number] += 1
        cut = self._at_limit(number)
        self._left[number].update(agent for agent in played if terminated.get(agent) or truncated.get(agent))
        assert rows.waiting is not None
        assert rows.metrics is not None
        for agent in acting:
            row = first + self._rows_of[agent]
            if agent not in rewards or agent not in terminated or agent not in truncated:
                raise EnvError(
                    f"{self._name}: step() of environment {number} says nothing of agent {agent!r}, which acted: its "
                    "reward, terminated and truncated belong into the answer, also when it leaves"
                )
            rows.waiting[row] = False
            who = f"{self._name}: step() of environment {number}, agent {agent!r},"
            reward = rewards[agent]
            if not isinstance(reward, float | int):
                reward = only_number(reward, who)
            rows.reward[row] = reward
            self._returns[row] += reward
            rows.terminated[row] = ends = flag(terminated[agent], "terminated", who)
            rows.truncated[row] = flag(truncated[agent], "truncated", who) or (cut and not ends)
            if agent in observations:
                self._store(number, agent, row, observations, rows)
            elif not ends:
                raise EnvError(
                    f"{self._name}: step() of environment {number} shows nothing to agent {agent!r}, which has not "
                    "terminated: what comes next for it is unknown"
                )
            if ends or rows.truncated[row]:
                self._lives[row], self._lingers[row] = False, True
                told = told_metrics((infos or {}).get(agent, {}), self._info_metrics)
                rows.metrics[row] = told | {self._told[agent]: float(self._returns[row])}
        if cut:
            return
        self._appear(number, observations, rows)
        if not env.agents and (alive := np.flatnonzero(self._lives[self._part(number)])).size:
            raise EnvError(
                f"{self._name}: environment {number} has no agent left, and {self.agents[alive[0]]!r} has neither "
                "terminated nor been truncated"
            )

    def _row_of(self, agent: str) -> int:
        if agent not in self._rows_of:
            raise EnvError(f"{self._name}: agent {agent!r} is none of possible_agents, {', '.join(self.agents)}")
        return self._rows_of[agent]

    def _store(self, number: int, agent: str, row: int, observations: Mapping[str, Any], rows: Rows) -> None:
        if agent not in observations:
            raise EnvError(f"{self._name}: environment {number} shows nothing to agent {agent!r}, which begins")
        shown = self._show[number].of(agent, observations[agent])
        store(self.leaves, shown, rows.observation, row, f"{self._name}: environment {number}", agent)


def time_limit(game: Any) -> int | None:
    """After how many steps a game truncates all its agents; None: it does not say. PettingZoo's families say it as
    ``max_cycles``."""
    limit = getattr(getattr(game, "unwrapped", game), "max_cycles", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def store(leaves: Sequence[Leaf], shown: Any, observation: dict[str, Array], row: int, where: str, agent: str) -> None:
    """Write what an agent is shown into a row of named arrays.

    Raises:
        EnvError: it does not fit its space.
    """
    try:
        for leaf in leaves:
            leaf.store(shown, observation, row)
    except SpecError as error:
        raise EnvError(f"{where} showed agent {agent!r} {error}") from error
