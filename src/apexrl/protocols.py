"""The seams: what an agent, a weights link, an experience writer and a role's context look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from apexrl.spec import Array

if TYPE_CHECKING:
    from apexrl.run.env_changes import EnvChange
    from apexrl.run.ownership import Fence

Arrays = Mapping[str, Array]
"""Field name -> array whose first axis is the batch."""

State = dict[str, Array] | None
"""An agent's recurrent state while acting, one row per environment; None for feed-forward agents, and at the beginning.

At an episode's first observation every array of it is zero: the roles see to that.
"""


class Item(NamedTuple):
    """What an agent learns from: a window of one stream (``apexrl.replay.Replay`` says what each kind holds)."""

    kind: Literal["transition", "sequence", "unroll"] = "transition"
    length: int = 0  # of a sequence or unroll: steps that are trained on
    stride: int = 0  # steps between the starts of sequences
    burn_in: int = 0  # steps before them that only warm a recurrent state


FRESH = "fresh"
"""Field of a batch of sequences or unrolls, bool [B, T]: the steps that are young enough to be learned from (losses
leave out the others); without it all are. Of transitions those that are too old have the importance weight 0."""


class Acted(NamedTuple):
    """What ``Agent.act`` returns for B environments."""

    actions: Array  # [B, *action.shape]
    extras: dict[str, Array]  # the fields of `step_spec`, [B, ...]
    state: State


class Sampled(Protocol):
    """A sampled batch, as ``Replay.sample`` returns it."""

    @property
    def data(self) -> dict[str, Array]: ...  # name -> [B, ...]
    @property
    def keys(self) -> NDArray[np.uint64]: ...  # [B]
    @property
    def weights(self) -> NDArray[np.float32]: ...  # [B] importance weights, largest is 1


class Learned(NamedTuple):
    """What one learner update yields."""

    priorities: NDArray[np.float32] | None  # [B] raw |δ|, before eps and alpha; None: nothing to write back
    metrics: dict[str, float]


@runtime_checkable
class Agent(Protocol):
    """An algorithm: acts, says how surprising its steps are, learns. Knows no process and no transport.

    Constructed as ``AgentClass(spec: EnvSpec, config: AgentConfig, device: str, seed: int)``. It may also have

    - ``step_spec``: dict of Field by name, what acting records with every step beside observation and action (Q-values,
      log-prob, …); without it, nothing;
    - ``prepare(batch: Sampled) -> Any``: turns a batch into what ``update`` takes (device copies), perhaps in a
      prefetch thread; without it, ``update`` takes the batch itself;
    - ``item`` (``Item``): what it learns from; without it, transitions;
    - ``expected_returns(observations) -> float32 [B]``: the discounted return that it expects of episodes that begin
      with these observations, in units of the learner's reward; evaluations compare it with what they observe;
    - ``Settings``: a dataclass with settings of its own (``config.settings``), which become flags; the constructor
      finds their values in ``config.agent_settings``: ``Settings(**config.agent_settings)``;
    - ``anneal(progress: float)``: called before every update with the part of the schedules' environment steps that are
      made, 0 … 1, where the run has ``--anneal``;
    - ``horizon`` (``agents.horizon.Horizon``): n and γ of the batch that is drawn next, where the run has
      ``--anneal-horizon``. An agent that learns from unrolls scales the recorded discounts to that γ by itself.

    Topologies that split its ``update`` (a3c, gorila, several learners) need of it besides, as all shipped agents have
    them:

    - ``gradients(prepared) -> agents.trained_network.Gradients`` and ``apply(groups)``: the two halves of one gradient
      step; and ``updates``, an int, how often ``apply`` was called;
    - ``networks``: dict from every group of gradients to the ``agents.trained_network.Trained`` that ``apply`` changes;
    - ``steps(prepared)``, if its update is more than one gradient step and several learners shall make them together: a
      generator that yields the ``Gradients`` of each, is sent the groups to apply, and returns ``Learned``;
    - ``refresh()``, if it keeps anything that was derived from its parameters: they were changed, or moved to other
      memory, from outside.

    It must have ``priorities`` (``Prioritizing``) too, unless it learns from unrolls, which are not drawn by priority.
    """

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Choose actions. ``observations`` name -> [B, (stack,) ...]; ``exploration`` [B]: ε of each environment,
        or σ where actions are a box; infinite: act uniformly at random. An agent whose policy is random by itself may
        pass it over."""

    def update(self, prepared: Any) -> Learned:
        """One gradient step on a batch (``Sampled``), or on what ``prepare`` made of it.

        Raises:
            NonFiniteError: the loss is not finite; parameters are as they were.
        """

    def weights(self) -> dict[str, Array]:
        """Acting parameters as named arrays (views or copies)."""

    def load(self, weights: Arrays) -> None:
        """Take acting parameters as published by another process."""

    def state_dict(self) -> dict[str, Array]:
        """All that a resume needs as flat named arrays: parameters, target, optimizer, RNG, counters."""

    def load_state_dict(self, state: Arrays) -> None: ...


@runtime_checkable
class Prioritizing(Protocol):
    """What an agent says of the experience that it would learn from."""

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """Raw |δ| [N] of freshly recorded transitions or sequences.

        ``items`` maps names as in ``Batch.data`` ([N, ...]), plus ``<extra>`` and ``next_<extra>`` for the recorded
        extras; it gathers lazily, so only what is read costs anything.
        """


STATISTICS = "/optimizer/"
"""In the names of an agent's flat vectors (``agents.named_vectors``), where they are an optimizer's state."""

NORMALIZER = "normalizer"
"""The group of an agent's running statistics of observations and rewards (``agents.normalizer``)."""


def is_optimizer_state(name: str) -> bool:
    """Whether a flat vector is the state of an optimizer. The number of batches in a running average is no such state:
    who averages without it overwrites the average."""
    return STATISTICS in name and not name.startswith(f"{NORMALIZER}/")


class Place(NamedTuple):
    """Where one of an agent's named weights lies among its flat vectors (``agents.parameter_layout``)."""

    group: str  # of gradients, and the vector of parameters that they change
    start: int  # in that vector, in values
    shape: tuple[int, ...]


class ChunkHead(NamedTuple):
    """What a chunk on its way to another host says of its body (``replay.chunks``): consecutive rows of one stream."""

    source: int  # of the stream: unique on the host that wrote it
    life: int  # of the slot that it was written in; chunks of one life follow one another there
    first: int  # its first item position in that slot
    positions: int  # item positions
    rows: int  # steps: those before and after that the items need are repeated
    cells: int  # per-item values
    items: int
    nbytes: int  # of the body


class WeightsWriter(Protocol):
    def publish(self, weights: Arrays, version: int) -> None: ...
    @property
    def version(self) -> int: ...  # newest ever published; 0 before the first


class WeightsReader(Protocol):
    def latest(self, newer_than: int = 0) -> tuple[int, dict[str, Array]] | None:
        """The newest (version, weights), or None when nothing newer than ``newer_than`` is there."""


class StepWriter(Protocol):
    """Where an actor's steps go (``Replay.writer(streams=B, priority_fn=…)``)."""

    def append(self, steps: Arrays, streams: Sequence[int] | None = None, timeout: float = 10.0) -> None: ...
    def flush(self, timeout: float = 5.0) -> None: ...
    def close(self) -> None: ...


class Context(Protocol):
    """What a role knows of the run it serves in."""

    name: str  # "actor-3"
    role: str  # "actor"
    index: int  # the leased slot, 0 … count-1: ε and seeds belong to it
    generation: int  # 0 at first, +1 at every restart
    seed: int  # of this slot and generation
    folder: Path  # the run folder
    fence: Fence  # asked before anything is written there
    patience: float  # seconds that one step may wait for others; 0 when roles take turns in one process

    def clock(self) -> float:
        """Seconds for periods. When roles take turns in one process it counts environment steps instead, so that a run
        can be repeated exactly."""

    def should_stop(self) -> bool:
        """True once the run is ending, or this worker's part in it; cheap enough for every step."""

    def hurried(self) -> bool:
        """True when the run is ending at a person's wish: skip what takes long, such as a final evaluation."""

    def count(self, **increments: int) -> None:
        """Add to this worker's shared counters (``env_steps``, ``episodes``, ``updates``, …)."""

    def total(self, counter: str) -> int:
        """A counter summed over the whole run, restarts and resumed runs included."""

    def send(self, kind: str, **values: Any) -> None:
        """Tell the supervisor something (JSON-able values); never blocks, drops are counted."""

    def env_change(self) -> EnvChange:
        """Settings of environments that callbacks have changed; cheap enough for every reset."""

    def env_call(self) -> AbstractContextManager[None]:
        """Marks an environment call, so that one which hangs beyond the limit is seen from outside. Several may be in
        progress, also in several threads: the oldest counts."""


class Role(Protocol):
    """One loop of the system, cut into steps so that a serial launcher can run roles in lock-step."""

    def step(self) -> bool:
        """One turn; False when there was nothing to do (the caller may then wait a little)."""

    def close(self) -> None:
        """Wind up after an orderly stop: last checkpoint, final evaluation, release."""
