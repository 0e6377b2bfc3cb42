"""Policies of pools that play the agents which a run does not learn."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np

from apexrl.config import Config, EnvConfig
from apexrl.config.agent_game_settings import OWN
from apexrl.config.game_names import has_opponents
from apexrl.config.trust import entrusted, modules
from apexrl.errors import ConfigError, SnapshotError
from apexrl.protocols import Agent, Context
from apexrl.run.folder import RunFolder
from apexrl.run.opponent_pool import NEWEST, OpponentPool, Ratings
from apexrl.run.ratings import draw_weights
from apexrl.spec import Array, EnvSpec

if TYPE_CHECKING:
    from apexrl.envs.players import Asked, MakePlayers

RANDOM = "random"

EXPLORATION = 0.05
"""ε or σ of those who play: without any, a policy of values would play the same game each time (ours)."""

_LOOK_SECONDS = 1.0  # between looks at what a pool holds
_MOST_BYTES = 256 << 20  # of policies that are kept in memory, at least two

How = Literal["pool", "random", "draw"]


class Source(NamedTuple):
    """Who plays some agents."""

    agents: str  # a glob
    run: str  # folder, or ``OWN``


def opponents(context: Context, config: Config, how: How = "draw") -> MakePlayers | None:
    """Makes who plays the agents that are not learned; None: all are."""
    if not has_opponents(config.env, config.env.env):
        return None
    tell = partial(context.send, "log", level="warning")
    return lambda seed: PoolPlayers(config, context.folder, seed, how, tell, context.clock)


def sources(config: EnvConfig) -> list[Source]:
    """What ``played_by`` says.

    Raises:
        ConfigError: an entry is no ``NAMES=RUN``.
    """
    found = []
    for text in config.played_by:
        names, equals, run = text.partition("=")
        if not (names and equals and run):
            raise ConfigError(f"--played-by {text!r} is no NAMES=RUN, as in 'good_*=runs/good' or '*={OWN}'")
        found.append(Source(names, run))
    return found


class PoolPlayers:
    """Draws policies of the run's own pool, or of other runs', and acts with them.

    A pool may grow while games go on; each draw sees it as it was a second ago at most. Where a pool is still empty,
    actions are random.

    Args:
        config: of the run whose environments these are.
        how: ``draw``: as the settings say; ``pool``: earlier policies of the own pool, all alike; ``random``: nobody
            is drawn, all actions are random.
        tell: takes ``text`` and ``once`` of a warning; None: nobody does.
        clock: says in seconds when to look at the pool again; the role's own, so that serial runs can be repeated.

    Attributes:
        rival: who plays all others in games that begin, as ``self:policy-000020000``; empty: somebody is drawn.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        seed: int,
        how: How = "draw",
        tell: Callable[..., None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._how, self._tell = config, how, tell
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._sources = sources(config.env)
        self._pools: dict[str, _Pool] = {OWN: _Pool(Path(folder), config, clock)}
        for source in self._sources:
            if source.run not in self._pools:
                self._pools[source.run] = _Pool(Path(source.run), None, clock, modules(config))
        self._policies: OrderedDict[str, _Policy] = OrderedDict()
        self._states: dict[tuple[int, str], dict[str, Array]] = {}  # of (game, agent)
        self._unreadable: set[str] = set()
        self.rival = ""

    def draw(self, agents: Sequence[str]) -> dict[str, str]:
        if self.rival or self._how == "random":
            return dict.fromkeys(agents, self.rival or RANDOM)
        drawn: dict[str, str] = {}  # from each pool one policy for a game
        found = {}
        for agent in agents:
            runs = [one.run for one in self._sources if fnmatchcase(agent, one.agents)] or [OWN]
            run = runs[int(self._rng.integers(len(runs)))]
            if run not in drawn:
                drawn[run] = self._drawn(run)
            found[agent] = drawn[run]
        return found

    def _drawn(self, run: str) -> str:
        ratings = self._pools[run].ratings()
        if ratings is None or not ratings.members:
            if run != OWN and self._tell is not None:
                there = "has no pool yet; until it has one"
                if not RunFolder(Path(run)).config_path.exists():
                    there = "is no run folder yet; until it has a pool"
                self._tell(
                    text=f"--played-by: {Path(run).absolute()} {there}, agents that it plays act at random",
                    once=f"played by {run}",
                )
            return RANDOM
        settings = self._config.env
        if self._how == "draw" and self._rng.random() < settings.newest_share:
            return f"{run}:{NEWEST}"
        earlier = {f"{run}:{member.name}": member.win_rate for member in ratings.members}
        for player in self._unreadable & earlier.keys():
            del earlier[player]
        if not earlier:
            return RANDOM
        how = settings.opponent_draw if self._how == "draw" and run == OWN else "uniform"
        weights = draw_weights(list(earlier.values()), how)
        return list(earlier)[int(self._rng.choice(len(weights), p=weights))]

    def act(self, asked: Sequence[Asked], spec: EnvSpec, observations: dict[str, Array]) -> Array:
        groups: dict[str, list[int]] = {}
        for place, one in enumerate(asked):
            groups.setdefault(one.player, []).append(place)
        actions: Array | None = None
        for player, places in groups.items():
            rows = {name: values[places] for name, values in observations.items()}
            chosen = self._acted(player, [asked[place] for place in places], spec, rows)
            if actions is None:
                actions = np.zeros((len(asked), *chosen.shape[1:]), chosen.dtype)
            actions[places] = chosen
        assert actions is not None
        return actions

    def _acted(self, player: str, asked: list[Asked], spec: EnvSpec, rows: dict[str, Array]) -> Array:
        policy = None if player == RANDOM else self._policy(player, spec)
        if policy is None:
            from apexrl.envs.players import random_actions

            return random_actions(self._rng, spec, rows, len(asked))
        state = self._state_of(policy, asked)
        exploration = np.full(len(asked), EXPLORATION, np.float32)
        actions, _, after = policy.agent.act(rows, state, exploration)
        if after:
            for row, one in enumerate(asked):
                self._states[one.game, one.agent] = {name: np.array(values[row]) for name, values in after.items()}
            policy.state = {name: np.zeros_like(values[0]) for name, values in after.items()}
        return np.asarray(actions)

    def _state_of(self, policy: _Policy, asked: list[Asked]) -> dict[str, Array] | None:
        """Recurrent states of those who act; zeros where one acts for the first time in a game."""
        if policy.state is None:
            return None
        kept = [{} if one.begins else self._states.get((one.game, one.agent), {}) for one in asked]
        return {name: np.stack([state.get(name, zeros) for state in kept]) for name, zeros in policy.state.items()}

    def can_play(self, player: str, spec: EnvSpec) -> bool:
        """Whether the weights of ``player`` can be had."""
        return self._policy(player, spec) is not None

    def _policy(self, player: str, spec: EnvSpec) -> _Policy | None:
        """A policy in memory, the newest as it was a second ago at most. None: it has just left the pool, or cannot be
        read, and is drawn no more."""
        if player in self._unreadable:
            return None
        run, _, name = player.rpartition(":")
        pool = self._pools[run]
        known = self._policies.get(player)
        if known is None or (name == NEWEST and pool.newest_changed(known.stamp)):
            try:
                known = pool.loaded(name, spec, self._seed, known)
            except SnapshotError as error:
                if known is None:
                    if name != NEWEST and pool.has(name):  # the newest is written anew all the time
                        self._leave_out(player, error)
                    return None
            self._policies[player] = known
            while len(self._policies) > 2 and sum(one.nbytes for one in self._policies.values()) > _MOST_BYTES:
                self._policies.popitem(last=False)
        self._policies.move_to_end(player)
        return known

    def _leave_out(self, player: str, error: SnapshotError) -> None:
        self._unreadable.add(player)
        if self._tell is not None:
            self._tell(
                text=f"a policy of a pool plays no more games, and acts at random in those that it has begun: {error}",
                once=f"unreadable {player}",
            )


class _Policy:
    """An agent with the weights of a policy.

    Attributes:
        state: zeros of its recurrent state, of one row; None: it has none, or has not acted yet.
        stamp: of the file that it came from.
    """

    def __init__(self, agent: Agent, nbytes: int, stamp: int) -> None:
        self.agent, self.nbytes, self.stamp = agent, nbytes, stamp
        self.state: dict[str, Array] | None = None


class _Pool:
    """One run's pool, looked at again after a while.

    Args:
        config: of that run; None: its folder says, when it is there.
        trust: modules of which that folder may name an agent or a network.
    """

    def __init__(self, run: Path, config: Config | None, clock: Callable[[], float], trust: Sequence[str] = ()) -> None:
        self._run, self._config, self._trust, self._clock = run, config, trust, clock
        self._pool = OpponentPool(run)
        self._looked, self._looked_newest = -np.inf, -np.inf
        self._ratings: Ratings | None = None
        self._stamp = 0

    def ratings(self) -> Ratings | None:
        now = self._clock()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._ratings = self._pool.ratings()
        return self._ratings

    def has(self, name: str) -> bool:
        """Whether an earlier policy belongs to the pool at this moment."""
        ratings = self._pool.ratings()
        return ratings is not None and any(member.name == name for member in ratings.members)

    def newest_changed(self, stamp: int) -> bool:
        now = self._clock()
        if now - self._looked_newest >= _LOOK_SECONDS:
            self._looked_newest, self._stamp = now, self._stamp_of(NEWEST)
        return self._stamp != stamp

    def loaded(self, name: str, spec: EnvSpec, seed: int, into: _Policy | None) -> _Policy:
        """A policy's weights, in an agent that there is, or in a new one."""
        from apexrl.agents import agent_class

        stamp = self._stamp_of(name)
        weights = self._pool.weights(name)
        if into is None:
            config = self._config
            if config is None:
                folder = RunFolder(self._run)
                config = entrusted(folder.config(), self._trust, str(folder.config_path), env=False)
            agent = cast("Agent", agent_class(config.agent.agent)(spec, config.agent, "cpu", seed))
            into = _Policy(agent, sum(array.nbytes for array in weights.values()), stamp)
        try:
            into.agent.load(weights)
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise ConfigError(
                f"policy {name} of {self._run} does not fit what its agents see here, or that run's agent: {error}. "
                "Both runs need the same environment, --show-agent and --show-state"
            ) from error
        into.stamp = stamp
        return into

    def _stamp_of(self, name: str) -> int:
        try:
            return self._pool.file(name).stat().st_mtime_ns
        except OSError:
            return 0
