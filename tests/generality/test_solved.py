from __future__ import annotations

import argparse

from benchmarks.generality import solved


def options(**changes):
    base = {"tasks": ["CartPole-v1"], "agents": ["dqn"], "topologies": [], "seeds": [1, 2], "env_steps": 0}
    return argparse.Namespace(**(base | changes))


def test_a_cell_is_a_command_with_the_goal_as_its_only_flag():
    first, second = solved.wanted(options())
    assert (first.topology, first.env_steps, first.flags) == ("apex", 200_000, "--stop-at-return 475")
    assert (first.seed, second.seed) == (1, 2)
    (gorila, _) = solved.wanted(options(topologies=["gorila"]))
    assert gorila.topology == "gorila"


def test_the_table_counts_what_was_solved_and_shows_seconds_of_a_quiet_machine_alone():
    cell = vars(solved.wanted(options())[0])
    quiet = {"failure": "", "solved": True, "steps": 4_000, "seconds": 12.0, "final": 500.0, "shared": False}
    records = [
        cell | quiet,
        cell | quiet | {"seed": 2, "seconds": 99.0, "steps": 9_000, "shared": True},
        cell | quiet | {"seed": 3, "solved": False, "seconds": 70.0, "steps": 200_000, "final": 120.25},
        cell | {"seed": 4, "failure": "out of memory", "solved": False},
    ]
    (row,) = solved.as_table(records).splitlines()[2:]
    assert row == (
        "| `CartPole-v1` ≥ 475 | `dqn` | `apex` | 2/4 | **9000** (4000–200k) | 200k | **12.0** | 500 500 120.2 |"
    )
