"""The flags of ``dataset`` and ``ope``: datasets that runs make, and what they say of an agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from apexrl.cli.host_flags import GivenActions, GivenFloat, Modules


@dataclass(frozen=True)
class Record:
    """Play episodes with a run's agent and write them as a Minari dataset (needs apexrl[minari]).

    Actions are chosen as in the run's own evaluations unless flags say otherwise. Of discrete actions the probability
    of each is written too, where it is known: apexrl ope needs it.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """New folder for the dataset."""
    episodes: int = 100
    """Episodes to play."""
    id: Annotated[str, tyro.conf.arg(metavar="NAMESPACE/NAME-v0")] = ""
    """Id of the dataset; empty: ENVIRONMENT/AGENT-v0."""
    seed: int = 2_000_000_011
    """Seed of the environments; training and apexrl eval use others."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="best|latest|FILE")] = "best"
    """Weights: those of the best evaluation, the last ones, or a checkpoint file."""
    actions: GivenActions = None
    """greedy: the best action, or the policy's mode; sampled: drawn from the policy."""
    epsilon: GivenFloat = None
    """Probability that an action is uniformly random instead."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the folder may name.
    Other code that is not installed is refused. May be given several times."""


@dataclass(frozen=True)
class ExportReplay:
    """Write the replay that a run has saved (--save-replay) as a Minari dataset (needs apexrl[minari]): what its actors
    did, in pieces of episodes. Its items must be single steps (--n-step 1).
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    to: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """New folder for the dataset."""
    id: Annotated[str, tyro.conf.arg(metavar="NAMESPACE/NAME-v0")] = ""
    """Id of the dataset; empty: ENVIRONMENT/AGENT-v0."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the folder may name.
    Other code that is not installed is refused. May be given several times."""


@dataclass(frozen=True)
class Show:
    """Show what a Minari dataset holds (needs apexrl[minari]), and whether it can be learned from."""

    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|ID")]
    """Its folder, or its id among those on this machine."""


@dataclass(frozen=True)
class Ope:
    """Estimate what a run's agent would return, from a dataset that another policy has made (off-policy evaluation).

    The agent acts greedily, with --epsilon at random. Estimates are of the discounted return from the dataset's first
    states, with intervals of 95 %. Importance sampling needs discrete actions, and a dataset that says with which
    probabilities they were chosen; it counts what was recorded, and of an episode that was cut nothing beyond its end.
    Fitted Q evaluation needs neither, and looks beyond a cut.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    dataset: Annotated[str, tyro.conf.arg(metavar="DIR|ID")]
    """Minari dataset: its folder, or its id among those on this machine (needs apexrl[minari])."""
    method: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="fqe|is|wis|pdis|wpdis")] = ()
    """fqe: fitted Q evaluation. is, wis: importance sampling of whole episodes, plain and weighted.
    pdis, wpdis: the same of each decision. May be given several times.
    Default: fqe, and of discrete actions wis and wpdis where they can be."""
    gamma: GivenFloat = None
    """Discount. Default: the run's."""
    epsilon: float = 0.0
    """Probability that the agent's discrete action is uniformly random instead."""
    updates: int = 5000
    """Gradient steps of fitted Q evaluation."""
    seed: int = 0
    """Seed of bootstrap samples and critics."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="best|latest|FILE")] = "best"
    """Weights: those of the best evaluation, the last ones, or a checkpoint file."""
    json: bool = False
    """Print one JSON object instead of text."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the folder may name.
    Other code that is not installed is refused. May be given several times."""
