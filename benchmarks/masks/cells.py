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


def flags(cell: str) -> list[str]:
    """Of ``apexrl train``: agents whose time is mostly the environments', and evaluations that take next to none."""
    topology, agent = cell.split(":")
    words = ["--topology", topology, "--agent", agent, "--envs-per-actor", "16", "--hidden", "64", "64"]
    words += ["--eval-period-seconds", "1000000", "--eval-episodes", "1"]
    return words + (["--updates-per-step", "0.1", "--min-size", "1000"] if AGENTS[agent].item != "unroll" else [])
