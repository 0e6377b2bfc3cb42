"""The page on the way from a step to a gradient names the functions that really call one another, in a traced run."""

from __future__ import annotations

import functools
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import apexrl
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch

SOURCE = Path(apexrl.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "explanation" / "from-step-to-gradient.md"
MOST_HOPS = 8


class Function(NamedTuple):
    file: str
    name: str


class Hop(NamedTuple):
    caller: Function
    called: Function


def hops_on_the_page() -> list[Hop]:
    row = re.compile(r"\| (\d+) \| `([^`]+)` `([^`]+)` \| `([^`]+)` `([^`]+)` \|")
    found = [row.match(line) for line in PAGE.read_text().splitlines()]
    rows = [match.groups() for match in found if match]
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    return [Hop(Function(a, b), Function(c, d)) for _, a, b, c, d in rows]


@functools.cache
def function_of(code: CodeType) -> Function | None:
    """The function of apexrl that has this code; None: it is of something else, or a part of a function."""
    file, name = Path(code.co_filename), code.co_qualname
    if not file.is_relative_to(SOURCE) or "<" in name:
        return None
    return Function(str(file.relative_to(SOURCE)), name)


def traced_run(out: Path) -> tuple[set[Hop], list[list[Function]]]:
    """A short serial run.

    Returns:
        Every call from one function of apexrl to another, and the stack of such functions at every call of the
        environment's ``step``.
    """
    calls: set[Hop] = set()
    stacks: list[list[Function]] = []

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        called = function_of(frame.f_code)
        stepped = frame.f_code.co_name == "step" and frame.f_code.co_filename.endswith("cartpole.py")
        if called is None and not stepped:
            return
        stack: list[Function] = []
        above = frame.f_back
        while above is not None and (stepped or not stack):
            if (function := function_of(above.f_code)) is not None:
                stack.append(function)
            above = above.f_back
        if stepped:
            stacks.append(stack)
        elif called is not None and stack:
            calls.add(Hop(stack[0], called))

    wanted = {"env": "CartPole-v1", "serial": True, "env_steps": 200, "min_size": 64, "batch_size": 32, "actors": 1}
    config = override(Config(out=str(out)), {**wanted, "envs_per_actor": 2, "eval_episodes": 1})
    sys.setprofile(look)
    try:
        launch(config)
    finally:
        sys.setprofile(None)
    return calls, stacks


def test_the_page_has_every_hop_of_a_traced_run(tmp_path: Path) -> None:
    hops = hops_on_the_page()
    calls, stacks = traced_run(tmp_path)
    assert len(hops) <= MOST_HOPS
    assert [hop for hop in hops if hop not in calls] == []
    first = [hop.called for hop in hops[:3]]  # down to the environment
    assert any(stack[:4] == [*reversed(first), hops[0].caller] for stack in stacks)
    for before, hop in pairwise(
        hops
    ):  # nothing between a hop and the next, but a role's own loop, and in the same file
        in_the_file = hop.caller.file == before.called.file and Hop(before.called, hop.caller) in calls
        assert hop.caller == before.called or in_the_file or hop.caller.name in ("Actor.step", "Learner.step")
