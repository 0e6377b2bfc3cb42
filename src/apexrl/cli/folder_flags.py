"""The flags of commands that read the folder of a run: ``eval``, ``publish``, ``export``, ``doctor``, ``replay``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from apexrl.cli.host_flags import GivenActions, GivenFloat, GivenInt, Modules


@dataclass(frozen=True)
class Eval:
    """Play episodes with the best weights of a run, as its own evaluations did unless flags say otherwise."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train; or a published agent, hf:USER/NAME (needs apexrl[hub])."""
    episodes: int = 20
    """Episodes to play."""
    video: Annotated[str | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder for videos of the episodes (needs apexrl[video], and an environment that renders rgb_array).
    Default: no videos."""
    seed: int = 1_000_000_007
    """Seed of the environments; training uses others."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="best|latest|FILE")] = "best"
    """Weights to play with: those of the best evaluation, the last ones, or a checkpoint file."""
    actions: GivenActions = None
    """greedy: the best action, or the policy's mode; sampled: drawn from the policy.
    Default: as in the run's own evaluations; likewise for the next three."""
    epsilon: GivenFloat = None
    """Probability that an action is uniformly random instead."""
    sticky: GivenFloat = None
    """Probability that an environment repeats its previous action."""
    noops: GivenInt = None
    """Most no-ops (action 0) at the start of an episode."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the folder may name.
    Other code that is not installed is refused. May be given several times."""


@dataclass(frozen=True)
class Publish:
    """Publish a run's best weights with its settings, scores, a film and a card, in a folder or on Hugging Face.

    A run without a final evaluation is refused. What is published is itself a run folder: apexrl eval hf:USER/NAME, or
    apexrl eval FOLDER. It holds no pickle, and no code.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    to: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="hf:USER/NAME|FOLDER")]
    """Repository of the hub (needs apexrl[hub], and HF_TOKEN or hf auth login), or a new folder."""
    licence: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """Licence under which others may use the weights, by its name on the hub: apache-2.0, mit, cc-by-4.0 … Required."""
    video: bool = True
    """Film an episode, where the environment renders and apexrl[video] is installed."""
    private: bool = False
    """Make a new repository private."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the folder may name.
    Other code that is not installed is refused. May be given several times."""


@dataclass(frozen=True)
class Export:
    """Write a run's agent to a file that acts without apexrl: normalisation, recurrent state and choice inside.

    Inputs are observations as the environment shows them, a batch of them, with the last frames stacked where the agent
    sees several; a recurrent state begins as zeros. The file is checked against the agent before it is kept.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    onnx: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """ONNX file to write (needs apexrl[onnx])."""
    pt2: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """File of torch.export to write, which torch.export.load reads."""
    actions: Literal["greedy", "sampled"] = "greedy"
    """greedy: the best action, or the policy's mode; sampled: drawn from the policy.
    Sampled actions are drawn by random numbers, which are one more input: uniform, or normal for boxes."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="best|latest|FILE")] = "best"
    """Weights: those of the best evaluation, the last ones, or a checkpoint file."""
    trust: Modules = ()
    """Module or package whose environments, agents and networks the folder may name.
    Other code that is not installed is refused. May be given several times."""


@dataclass(frozen=True)
class Doctor:
    """Read a run's folder, finished or not, and name the likeliest three causes of bad learning.

    Each comes with numbers of the run and the setting to change. Exit code 3: at least one cause was named; 0: nothing
    looks wrong.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    json: bool = False
    """Print one JSON object instead of text."""


@dataclass(frozen=True)
class ReplayInspect:
    """Show what lies in the replay that a run has saved (--save-replay): its counters, how priorities and ages are
    spread, and some items with their observations. The file is only read; its replay is made in memory for a moment.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    items: int = 3
    """Items to show whole."""
    drawn: int = 2000
    """Items to draw for the histograms, as the replay's own sampler draws them; each counts for those like it."""
    pictures: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder for images of the shown items, frames and steps beside each other."""
    json: bool = False
    """Print one JSON object instead of text."""
