"""Agents of a user's own, each with one fault, for tests of what is said of it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from apexrl.protocols import Acted, Learned
from apexrl.spec import Field


class LinearQ:
    """Q-learning on a linear function of an observation of four numbers, for CartPole."""

    def __init__(self, spec: Any, config: Any, device: str, seed: int) -> None:
        self.w = np.zeros((4, 2), np.float32)
        self.rng = np.random.default_rng(seed)
        self.acts = self.updates = 0

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        self.acts += not greedy
        return Acted(self.choose(len(exploration)), {}, state)

    def choose(self, count: int) -> Any:
        return self.rng.integers(2, size=count)

    def priorities(self, items: Any) -> Any:
        return np.ones(len(items["reward"]), np.float32)

    def update(self, batch: Any) -> Learned:
        self.updates += 1
        return Learned(self.surprise(len(batch.keys)), {})

    def surprise(self, count: int) -> Any:
        return np.ones(count, np.float32)

    def weights(self) -> dict[str, Any]:
        return {"w": self.w}

    def load(self, weights: Any) -> None:
        self.w = np.array(weights["w"])

    def state_dict(self) -> dict[str, Any]:
        return self.weights()

    def load_state_dict(self, state: Any) -> None:
        self.load(state)


class TellsMore(LinearQ):
    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        acted = super().act(observations, state, exploration, greedy)
        return acted._replace(extras={"certainty": np.ones(len(exploration), np.float32)})


class TellsNothing(LinearQ):
    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        return super().act(observations, state, exploration, greedy)._replace(extras=None)  # type: ignore[arg-type]


class TellsLess(LinearQ):
    step_spec: ClassVar = {"certainty": Field((), "float32")}


class Unmade(LinearQ):
    def __init__(self, spec: Any, config: Any, device: str, seed: int) -> None:
        super().__init__(spec, config, device, seed)
        self.field = spec.observation["nothing"]


class OfTwo(LinearQ):
    def __init__(self, spec: Any, config: Any) -> None:
        super().__init__(spec, config, "cpu", 0)


class Hollow(LinearQ):
    def weights(self) -> dict[str, Any]:
        return {"head.weight": np.zeros((0, 2), np.float32)}


class Bare(LinearQ):
    def weights(self) -> dict[str, Any]:
        return {}


class Wordy(LinearQ):
    def weights(self) -> dict[str, Any]:
        return {"w": "none"}


class Column(LinearQ):
    def choose(self, count: int) -> Any:
        return self.rng.integers(2, size=(count, 1))


class Seven(LinearQ):
    def choose(self, count: int) -> Any:
        return np.full(count, 7)


class LaterSeven(LinearQ):
    """Its first actions are right, and those in evaluations."""

    def choose(self, count: int) -> Any:
        return np.full(count, 7 if self.acts > 5 else 0)


class Nan(LinearQ):
    def surprise(self, count: int) -> Any:
        return np.full(count, np.nan if self.updates == 3 else 1.0, np.float32)


class Negative(LinearQ):
    def surprise(self, count: int) -> Any:
        return np.full(count, -1.0, np.float32)


class Short(LinearQ):
    def surprise(self, count: int) -> Any:
        return np.ones(count - 1, np.float32)


class ActsNothing(LinearQ):
    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Any:
        return None if not greedy else super().act(observations, state, exploration, greedy)


class LearnsNothing(LinearQ):
    def update(self, batch: Any) -> Any:
        super().update(batch)


class TellsText(LinearQ):
    def update(self, batch: Any) -> Any:
        return super().update(batch)._replace(metrics={"mood": "good"})


class Records(LinearQ):
    """Declares a field of three numbers, and records what ``told`` says."""

    step_spec: ClassVar = {"feature": Field((3,), "float32")}

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        acted = super().act(observations, state, exploration, greedy)
        return acted._replace(extras={"feature": self.told(len(exploration))})

    def told(self, count: int) -> Any:
        return np.zeros((count, 3), np.float32)


class RecordsDoubles(Records):
    def told(self, count: int) -> Any:
        return np.zeros((count, 3))


class RecordsOneColumn(Records):
    def told(self, count: int) -> Any:
        return np.zeros((count, 1), np.float32)


class RecordsTooMany(Records):
    def told(self, count: int) -> Any:
        return np.zeros((count + 1, 3), np.float32)


class RecordsANumber(Records):
    def told(self, count: int) -> Any:
        return 0.5


class KeepsTooMany(LinearQ):
    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        acted = super().act(observations, state, exploration, greedy)
        return acted._replace(state={"h": np.zeros((len(exploration) + 1, 2), np.float32)})


class RecordsLists(Records):
    """Not as arrays, which the replay makes of them."""

    def told(self, count: int) -> Any:
        return [[0.0, 0.5, 1.0]] * count

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        acted = super().act(observations, state, exploration, greedy)
        return acted._replace(state={"h": [[0.0, 1.0]] * len(exploration)})
