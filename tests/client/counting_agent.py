"""An agent without a network, whose every output says what it was made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from apexrl.config import AgentConfig
from apexrl.protocols import Acted, Arrays, Learned, State
from apexrl.spec import EnvSpec, Field


class CountingAgent:
    """q = (weights, sum of what it saw); the greedy action is 1, a random one 0. ε = 1 explores."""

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str, seed: int) -> None:
        self.spec = spec
        self.loaded = np.float32(0)
        self.seen: list[dict[str, Any]] = []
        self.exploration: list[float] = []
        self.calls: list[int] = []  # before this one, as the state has it

    @property
    def step_spec(self) -> dict[str, Field]:
        return {"q": Field((2,), "float32", sampled=False)}

    def act(self, observations: Arrays, state: State, exploration: Any, greedy: bool = False) -> Acted:
        self.seen.append({name: np.array(value) for name, value in observations.items()})
        self.exploration.append(float(exploration[0]))
        total = sum(float(np.sum(value)) for value in observations.values())
        actions = np.full((1, *self.spec.action.shape), int(greedy or exploration[0] < 1), self.spec.action.dtype)
        calls = 0 if state is None else int(state["calls"][0])
        self.calls.append(calls)
        return Acted(actions, {"q": np.array([[self.loaded, total]], np.float32)}, {"calls": np.array([calls + 1])})

    def priorities(self, items: Arrays) -> Any:
        """The reward, and what is estimated to come after it."""
        return np.abs(items["reward"] + items["discount"] * items["next_q"][:, 1]).astype(np.float32)

    def prepare(self, batch: Any) -> Any:
        return batch

    def update(self, prepared: Any) -> Learned:
        return Learned(None, {})

    def weights(self) -> dict[str, Any]:
        return {"w": np.array([self.loaded], np.float32)}

    def load(self, weights: Arrays) -> None:
        self.loaded = weights["w"][0]

    def state_dict(self) -> dict[str, Any]:
        return self.weights()

    def load_state_dict(self, state: Arrays) -> None:
        self.load(state)
