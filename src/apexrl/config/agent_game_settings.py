"""Settings of environments of several agents: what each is shown, who is learned, and who plays the others; and how the
values of a team make up one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from apexrl.config.paths import expanded
from apexrl.config.settings import Needs, Range

OWN: Final = "self"
"""In ``played_by``: the run's own pool."""


@dataclass(frozen=True, kw_only=True)  # EnvConfig begins with the environment
class AgentGameSettings:
    """Of environments of several agents, as package.module:parallel_env or package.module:env names them."""

    show_agent: bool = False
    """Of an environment of several agents: adds to each one's observation which agent it is, as agent."""
    show_state: bool = False
    """Of an environment of several agents: adds the state of the whole environment to each observation, as state."""
    team: bool = False
    """Of an environment of several agents that act at the same time: all of them are one learner's, and get the mean of
    their rewards. A step then has what all of them see and do, as vdn and qmix learn from."""
    show_last_action: Annotated[bool, Needs("team")] = False
    """Adds to the observation of each agent of a team what it did last, one-hot, as last_action (as in PyMARL)."""
    learned_agents: tuple[str, ...] = ()
    """Agents that this run learns, by their names, as 'adversary_*'; others are played by policies of played_by.
    None named: all; where they take turns, another one in each game, and the others are played."""
    played_by: tuple[str, ...] = ()
    """Who plays the agents that are not learned, as 'good_*=runs/good': policies of the pool of that run.
    'NAMES=self': policies of this run's own pool, which also plays agents that are not named.
    Of several entries for an agent one is drawn."""
    newest_share: Annotated[float, Range(0, 1)] = 0.5
    """Share of games that the newest policy of a pool plays; earlier ones play the others (AlphaStar: 0.35)."""
    opponent_draw: Literal["hard", "even", "uniform"] = "hard"
    """How earlier policies are drawn, by the probability p that the newest one beats them. hard: ∝ (1 − p)².
    even: ∝ p(1 − p). uniform: all alike. Prioritised fictitious self-play (Vinyals et al. 2019)."""
    pool_period_steps: Annotated[int, Range(1)] = 20_000
    """Environment steps between two policies that are added to the pool (ours)."""
    pool_size: Annotated[int, Range(2, 10_000)] = 50
    """Policies in the pool; beyond it the one that the newest beats most often leaves, never the first (ours)."""
    match_games: Annotated[int, Range(1, 10_000)] = 20
    """Games of a match between the newest policy and one of the pool, for Elo ratings and opponent_draw."""
    match_period_seconds: Annotated[float, Range(above=0)] = 5.0
    """Seconds between the starts of two matches (ours)."""
    eval_opponents: Literal["random", "pool"] = "random"
    """Who plays the others in evaluations. random: uniformly random actions, the same yardstick for the whole run.
    pool: its earlier policies, all alike, which get better as it does."""
    elo_k: Annotated[float, Range(above=0, at_most=1000)] = 16.0
    """Elo's K: most points that one game changes a rating by."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "played_by", tuple(map(_whole, self.played_by)))


def _whole(entry: str) -> str:
    """NAMES=RUN with the whole path of RUN: a run may be resumed from another working folder."""
    names, equals, run = entry.partition("=")
    return f"{names}={expanded(run).absolute()}" if equals and run not in ("", OWN) else entry


@dataclass(frozen=True)
class MixingSettings:
    """How the values of a team's agents make up one."""

    mixer: Literal["sum", "monotonic"] = "monotonic"
    """sum: they are added (VDN). monotonic: by a network that grows with each (QMIX).
    Its weights follow from the state, which --show-state adds to observations, else from what all agents see."""
    mixing_units: Annotated[int, Range(1, 1 << 20), Needs("mixer", ("monotonic",))] = 32
    """Units of the mixing network's hidden layer (QMIX: 32)."""
