"""Every topology on small environments: what it reaches within a budget of environment steps, seed by seed.

    python benchmarks/topologies/run.py learning                       # all parts: hours
    python benchmarks/topologies/run.py learning --part cartpole       # every topology to 475, three seeds each
    python benchmarks/topologies/run.py learning --part cartpole --topologies seed ga3c --seeds 1
    python benchmarks/topologies/run.py learning --table               # nothing is run: table and pictures anew

A run is ``apexrl train PRESET --topology NAME --seed N --env-steps BUDGET``, as a user types it, with the agent that
the topology takes by itself unless the part names one. Each is kept in ``records/topologies/``: what is there already,
with the same settings, is not run again (unless ``--again``), and the table always holds all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from apexrl import presets
from apexrl.agents import AGENTS
from apexrl.config import Config, convert
from apexrl.topologies import TOPOLOGIES
from benchmarks.lib import learning, processes

Record = learning.Record
MINUTES = 3.0  # that a run on CartPole may take on two cores
FEW, MANY = 200_000, 1_000_000  # environment steps: agents that replay transitions, and all others


class Run(NamedTuple):
    """A topology with an agent, and what differs from the preset's settings for it."""

    topology: str
    agent: str = ""  # empty: the one that comes with the topology
    settings: Mapping[str, Any] = {}


class Part(NamedTuple):
    """Topologies on one environment."""

    preset: str
    runs: tuple[Run, ...]
    bar: float  # the return that counts as solved
    env_steps: int = 0  # the budget of a run; 0: FEW or MANY, as the agent is
    minutes: float = 15.0  # a run that takes longer is cut, and named


PARTS: dict[str, Part] = {
    "cartpole": Part("cartpole", tuple(Run(name) for name in TOPOLOGIES), 475.0),
    "recurrent": Part(
        "position-cartpole", (Run("seed", "r2d2"), Run("impala", "impala", {"memory": "lstm"})), 400.0, MANY
    ),
    "lunarlander": Part(
        "lunarlander", (Run("impala", "impala"), Run("sample_factory", "appo")), 200.0, 2_000_000, 30.0
    ),
}


def overrides(part: Part, which: Run, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The settings in which a run differs from its preset."""
    config = presets.with_topology(presets.preset(part.preset).config, which.topology, which.agent)
    steps = options.env_steps or part.env_steps or (FEW if AGENTS[config.agent.agent].item == "transition" else MANY)
    return {"seed": seed, "env_steps": steps, "minutes": options.minutes or part.minutes, **which.settings}


def configured(part: Part, which: Run, seed: int, options: argparse.Namespace) -> Config:
    config = presets.with_topology(presets.preset(part.preset).config, which.topology, which.agent)
    return convert.override(config, overrides(part, which, seed, options))


def words(which: Run, wanted: Mapping[str, Any]) -> list[str]:
    """The same for the command line."""
    flags = ["--topology", which.topology, *(["--agent", which.agent] if which.agent else [])]
    for name, value in wanted.items():
        flag = name.replace("_", "-")
        flags += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return flags


def planned(options: argparse.Namespace) -> Iterator[learning.Planned]:
    """All runs that were asked for: the first seed of all topologies first."""
    for name in options.part:
        part = PARTS[name]
        for seed in options.seeds:
            for which in [one for one in part.runs if not options.topologies or one.topology in options.topologies]:
                wanted, config = overrides(part, which, seed, options), configured(part, which, seed, options)
                record: Record = {
                    "part": name, "topology": which.topology, "agent": config.agent.agent, "seed": seed,
                    "bar": part.bar, "budget": wanted["env_steps"], "settings": learning.digest(config, options.flags),
                }  # fmt: skip
                flags = [*words(which, wanted), *options.flags]
                yield learning.Planned(record, config, part.preset, flags, 60.0 * wanted["minutes"] + 300.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--topologies", nargs="+", choices=TOPOLOGIES, default=[], help="only these (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    learning.add_flags(parser, "topologies")
    options = parser.parse_args()
    processes.end_in_order()
    try:
        if not options.table:
            learning.run_missing(planned(options), "topology", "topologies", options)
    finally:
        if records := learning.kept(options.records):
            order = {name: tuple(which.topology for which in part.runs) for name, part in PARTS.items()}
            learning.write("topologies", "topology", records, order, options.out, {"cartpole": MINUTES})
