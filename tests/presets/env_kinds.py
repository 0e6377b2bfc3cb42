"""Facts of environments that recipes and choices are tried with."""

from __future__ import annotations

import numpy as np

from apexrl.agents import AGENTS
from apexrl.agents.env_facts import EnvFacts
from apexrl.presets.choice import FAST_STEP_SECONDS
from apexrl.spec import ActionSpec, EnvSpec, Field

ONES = np.ones(3, np.float32)
ACTIONS = {
    "discrete": ActionSpec(n=4),
    "choices": ActionSpec((2,), nvec=(3, 2)),
    "box": ActionSpec((3,), "float32", low=-ONES, high=ONES),
}
OBSERVATIONS = {
    "vector": {"observation": Field((8,), "float32")},
    "small image": {"observation": Field((10, 10, 4), "bool")},
    "image": {"observation": Field((84, 84), "uint8")},
    "categories": {"observation": Field((), "int64")},
    "map": {"observation": Field((8, 8), "int64")},
    "dict": {"observation/camera": Field((64, 64, 3), "uint8"), "observation/speed": Field((2,), "float32")},
}
FAST, SLOW = FAST_STEP_SECONDS / 2, FAST_STEP_SECONDS * 2


def facts(action: str = "discrete", seen: str = "vector", step: float | None = SLOW) -> EnvFacts:
    categories = {"observation": 16} if seen in ("categories", "map") else {}
    return EnvFacts(EnvSpec(OBSERVATIONS[seen], ACTIONS[action], categories=categories), 200, step)


def acting_on(action: str) -> list[str]:
    return [name for name, info in AGENTS.items() if ("Box" if action == "box" else "Discrete") in info.needs]
