"""Every agent on small environments: what it reaches within a budget of environment steps, seed by seed.

    python benchmarks/agents/run.py learning --part cartpole             # ten agents, three seeds each
    python benchmarks/agents/run.py learning                             # all parts: many hours
    python benchmarks/agents/run.py learning --part pendulum --agents sac td3 --seeds 1 2 --jobs 2
    python benchmarks/agents/run.py learning --table                     # nothing is run: table and pictures anew

A run is ``apexrl train PRESET --agent NAME --seed N --env-steps BUDGET``, as a user types it. It ends at the preset's
own goal or when the budget is spent. Each is kept in ``records/agents/``: what is there already, with the same
settings, is not run again (unless ``--again``), and the table always holds all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.lib import learning

if TYPE_CHECKING:
    from apexrl.config import Config

Record = learning.Record


class Part(NamedTuple):
    """Agents on one environment."""

    preset: str
    agents: tuple[str, ...]
    env_steps: int  # the budget of a run
    bar: float | None  # the return that counts as solved
    seeds: tuple[int, ...] = (1, 2, 3)
    minutes: float = 90.0  # a run that takes longer is cut, and named


PARTS: dict[str, Part] = {
    "cartpole": Part(
        "cartpole",
        (
            "dqn", "double_dqn", "dueling_dqn", "c51", "qr_dqn", "iqn", "noisy_dqn", "rainbow", "munchausen_dqn",
            "discrete_sac",
        ),
        200_000,
        475.0,
    ),
    "position": Part("position-cartpole", ("r2d2",), 1_000_000, 400.0),
    "pendulum": Part("pendulum", ("sac", "td3", "ddpg", "bires_ddpg", "d4pg", "crossq"), 30_000, -200.0),
    "lunarlander-continuous": Part("lunarlander-continuous", ("sac", "td3"), 500_000, 200.0),
    "minatar": Part("minatar-breakout", ("rainbow",), 1_000_000, 8.0),
    "halfcheetah": Part("halfcheetah", ("sac", "td3"), 1_000_000, None, seeds=(1,), minutes=120.0),
}  # fmt: skip

# Runs of minutes, and those of hours.
TABLES = {
    "agents": ("cartpole", "position", "pendulum"),
    "agents-long": ("lunarlander-continuous", "minatar", "halfcheetah"),
}


def overrides(part: Part, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The settings in which a run differs from its preset."""
    minutes, steps = options.minutes or part.minutes, options.env_steps or part.env_steps
    return {"seed": seed, "env_steps": steps, "minutes": minutes}


def configured(part: Part, agent: str, seed: int, options: argparse.Namespace) -> Config:
    from apexrl import presets
    from apexrl.config import convert

    config = presets.with_agent(presets.preset(part.preset).config, agent)
    return convert.override(config, overrides(part, seed, options))


def planned(options: argparse.Namespace) -> Iterator[learning.Planned]:
    """All runs that were asked for: the first seed of all agents first."""
    for name in options.part:
        part = PARTS[name]
        for seed in options.seeds or part.seeds:
            for agent in [a for a in part.agents if not options.agents or a in options.agents]:
                wanted, config = overrides(part, seed, options), configured(part, agent, seed, options)
                record: Record = {
                    "part": name, "agent": agent, "seed": seed, "bar": part.bar, "budget": wanted["env_steps"],
                    "settings": learning.digest(config, options.flags), "jobs": options.jobs,
                }  # fmt: skip
                flags = ["--agent", agent]
                for setting, value in wanted.items():
                    flags += ["--" + setting.replace("_", "-"), str(value)]
                limit = 60 * wanted["minutes"] + 900
                yield learning.Planned(record, config, part.preset, [*flags, *options.flags], limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--agents", nargs="+", default=[], help="only these (default: all of the part)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="default: 1 2 3; halfcheetah 1")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; their minutes are then marked as shared")
    learning.add_flags(parser, "agents")
    options = parser.parse_args()
    known = {agent for part in PARTS.values() for agent in part.agents}
    if unknown := [agent for agent in options.agents if agent not in known]:
        parser.error(f"no part has the agents {', '.join(unknown)}; there are {', '.join(sorted(known))}")

    try:
        if not options.table:
            learning.run_missing(planned(options), "agent", "agents", options, options.jobs)
    finally:
        records = learning.kept(options.records)
        for table, parts in TABLES.items():
            found = [record for record in records if record["part"] in parts]
            if found:
                learning.write(table, "agent", found, {name: PARTS[name].agents for name in parts}, options.out)
