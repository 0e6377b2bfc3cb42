"""What the questions of cost run: the same agents and flags, with masks and without."""

from __future__ import annotations

from apexrl.agents import AGENTS

CELLS = ("apex:double_dqn", "seed:discrete_sac", "impala:ppo", "sample_factory:appo")
KINDS = ("without", "with")
WAYS = ("key", "info", "method")
"""In which masks are told (``apexrl.envs.toy.Doors``)."""


def doors(kind: str, way: str) -> list[str]:
    """Flags of the environment; of a kind that is in ``KINDS``."""
    told = way if kind == "with" else "nowhere"
    return ["--env", "apexrl.envs.toy:Doors-v0", "--env-kwargs", "told", told]


def flags(cell: str, defaults: bool = False) -> list[str]:
    """Of ``apexrl train``: agents whose time is mostly the environments', or ``defaults`` of everything that takes part
    in learning; evaluations that take next to none."""
    topology, agent = cell.split(":")
    words = ["--topology", topology, "--agent", agent, "--eval-period-seconds", "1000000", "--eval-episodes", "1"]
    if defaults:
        return words
    words += ["--envs-per-actor", "16", "--hidden", "64", "64"]
    return words + (["--updates-per-step", "0.1", "--min-size", "1000"] if AGENTS[agent].item != "unroll" else [])
