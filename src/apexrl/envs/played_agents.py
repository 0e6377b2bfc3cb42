"""The agents of several games that are not learned: what they see, who plays them, what they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from apexrl.envs.agent_rows import Shown, store
from apexrl.envs.lockstep import each_of, empty_rows
from apexrl.envs.players import Asked, Players
from apexrl.envs.spaces import LIMIT, Leaf, env_spec, observation_leaves
from apexrl.errors import EnvError
from apexrl.space_values import LengthLimit
from apexrl.spec import ACTION_MASK, Array, EnvSpec


class PlayedAgents:
    """Asks ``players`` for the actions of agents; those of equal spaces together.

    Args:
        games: equal ones, each with all agents that are played.
        name: of the environment, for errors.
        show_agent, show_state: what all agents are shown besides (``Shown``).
        lengths: of values of variable length.
    """

    def __init__(
        self,
        games: Sequence[Any],
        name: str,
        players: Players,
        show_agent: bool,
        show_state: bool,
        lengths: LengthLimit = LIMIT,
    ) -> None:
        self._players = players
        agents = list(games[0].possible_agents)
        self._show = [{agent: Shown(game, name, [agent], show_agent, show_state) for agent in agents} for game in games]
        self._specs: dict[str, tuple[EnvSpec, tuple[Leaf, ...]]] = {}
        known: list[tuple[Any, Any, tuple[EnvSpec, tuple[Leaf, ...]]]] = []
        for agent, shown in self._show[0].items():
            spaces = shown.observation_space, shown.action_space
            same = next((made for seen, actions, made in known if (seen, actions) == spaces), None)
            if same is None:
                same = env_spec(*spaces, limit=lengths), observation_leaves(shown.observation_space, lengths)
                known.append((*spaces, same))
            self._specs[agent] = same
        self._agents = agents
        self._who: list[dict[str, str]] = [{} for _ in games]
        self._begun: list[set[str]] = [set() for _ in games]

    def begin(self, game: int, *learned: str) -> None:
        """A game begins: draw who plays all but the ``learned`` agents."""
        self._who[game] = self._players.draw([agent for agent in self._agents if agent not in learned])
        self._begun[game] = set()

    def asked(self, game: int, agent: str) -> Asked:
        """An agent that is to act."""
        begins = agent not in self._begun[game]
        self._begun[game].add(agent)
        return Asked(game, agent, self._who[game][agent], begins)

    def shown(self, game: int, agent: str, observation: Any) -> Any:
        return self._show[game][agent].of(agent, observation)

    def actions(self, asked: Sequence[Asked], seen: Sequence[Any]) -> list[Any]:
        """What they do, as the environment counts it."""
        found: list[Any] = [None] * len(asked)
        groups: dict[int, list[int]] = {}
        for place, one in enumerate(asked):
            groups.setdefault(id(self._specs[one.agent]), []).append(place)
        for places in groups.values():
            spec, leaves = self._specs[asked[places[0]].agent]
            who = [asked[place] for place in places]
            observations = _stacked([seen[place] for place in places], leaves, who)
            _look(spec, observations, who)
            actions = spec.action.as_counted(self._players.act(who, spec, observations))
            for place, action in zip(places, each_of(spec.action)(actions), strict=True):
                found[place] = action
        return found


def _look(spec: EnvSpec, observations: dict[str, Array], asked: Sequence[Asked]) -> None:
    """Refuse a mask that leaves nothing to an agent whose turn it is."""
    if spec.masked and not (some := spec.action.possible_in(observations[ACTION_MASK])).all():
        one = asked[int(np.flatnonzero(~some)[0])]
        raise EnvError(
            f"game {one.game} {spec.action.nothing_left} of agent {one.agent!r}, which is to act: a mask must leave one"
        )


def _stacked(seen: Sequence[Any], leaves: tuple[Leaf, ...], asked: Sequence[Asked]) -> dict[str, Array]:
    """N observations as named arrays, [N, ...]."""
    observation = empty_rows(leaves, len(seen)).observation
    for row, (shown, one) in enumerate(zip(seen, asked, strict=True)):
        store(leaves, shown, observation, row, f"game {one.game}", one.agent)
    return observation
