"""Goals drawn in hindsight: which field of a batch's episodes they are drawn from, and the arrays that they fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from apexrl import _native
from apexrl.errors import ConfigError
from apexrl.spec import ACHIEVED_GOAL, Array, Field, with_lengths

Strategy = Literal["none", "future", "final", "episode"]
STRATEGIES: tuple[Strategy, ...] = ("none", "future", "final", "episode")

RELABELLED, GOAL, ACHIEVED, STEPS = (f"hindsight/{name}" for name in ("relabelled", "goal", "achieved", "steps"))
GOALS = (RELABELLED, GOAL, ACHIEVED, STEPS)
"""What a batch has besides, where goals are drawn."""

OPTIONS: dict[str, Any] = {"hindsight": "none", "hindsight_share": 0.8, "hindsight_field": ACHIEVED_GOAL}
"""Options of a replay, and their defaults."""


@dataclass(frozen=True)
class Hindsight:
    """How a replay draws goals.

    Args:
        strategy: ``future``, ``final`` or ``episode``.
        share: of a batch's items.
        column: place of the field among the replay's.
        field: that says what was achieved.
        n_step: of an item, at most.
    """

    strategy: Strategy
    share: float
    column: int
    field: Field
    n_step: int

    def shapes(self, size: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of what a batch of ``size`` items has besides."""
        shape, dtype = self.field.shape, self.field.dtype
        return {
            RELABELLED: ((size,), "bool"),
            GOAL: ((size, *shape), dtype),
            ACHIEVED: ((size, self.n_step, *shape), dtype),
            STEPS: ((size,), "int32"),
        }

    def native(self, arrays: Mapping[str, Array]) -> tuple[Any, ...]:
        """What ``_native.Replay.outputs`` takes."""
        strategy = _native.GoalStrategy[self.strategy]
        return (self.column, strategy, self.share, *(arrays[name] for name in GOALS))


def check_goals(options: Mapping[str, Any]) -> None:
    """Refuse goals that the items of a replay cannot have.

    Raises:
        ConfigError: the message names the option.
    """
    if options["hindsight"] == "none":
        return
    if options["kind"] != "transition":
        raise ConfigError(f"hindsight={options['hindsight']!r} needs kind='transition', not {options['kind']!r}")
    if options["sampler"] not in ("prioritized", "uniform"):
        raise ConfigError(
            f"hindsight= draws goals for items that are drawn: it needs sampler='prioritized' or 'uniform', not "
            f"{options['sampler']!r}"
        )
    if options["remover"] != "fifo":
        raise ConfigError(
            f"hindsight= draws goals from whole episodes, of which remover={options['remover']!r} keeps single steps: "
            "leave one of them out"
        )


def hindsight_of(fields: Mapping[str, Field], options: Mapping[str, Any]) -> Hindsight | None:
    """What checked ``options`` say; None: no goals are drawn.

    Raises:
        ConfigError: there is no such field.
    """
    strategy = options.get("hindsight", "none")
    if strategy == "none":
        return None
    name = options["hindsight_field"]
    fields = with_lengths(fields)  # as the layout numbers them
    field = fields.get(name)
    if field is None or not field.sampled:
        raise ConfigError(
            f"hindsight={strategy!r} draws goals from the field {name!r}, which is not among the sampled fields "
            f"{', '.join(map(repr, fields))}: name the one that says what was achieved with hindsight_field="
        )
    if field.ragged or field.compressed:
        how = "ragged" if field.ragged else "compressed"
        raise ConfigError(f"hindsight={strategy!r} draws goals of fixed size, and the field {name!r} is {how}")
    return Hindsight(strategy, options["hindsight_share"], list(fields).index(name), field, options["n_step"])
