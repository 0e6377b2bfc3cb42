"""Checks of an agent's actions. They are validated only when cheap, or after a failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from apexrl.errors import AgentError
from apexrl.protocols import State
from apexrl.spec import ActionSpec, Array, Field


class ActionCheck:
    """Looks at the first actions of each kind that an agent chooses, and at those on which an environment failed.

    The others are not checked: that would cost as much as a step of a small environment.

    Args:
        agent: its name, for errors.
        space: what the environment takes.
        records: the fields that ``act`` records with every step: the agent's ``step_spec``. None: nothing is recorded,
            and extras are not looked at.
    """

    def __init__(self, agent: str, space: ActionSpec, records: Mapping[str, Field] | None = None) -> None:
        self._agent = agent
        self._space = space
        self._records = records
        self._looked_at: set[bool] = set()
        self._has_lists = False  # in place of arrays

    def parts(self, acted: Any, count: int) -> tuple[Array, dict[str, Array], State]:
        """Actions, extras and state of what ``act`` returned for ``count`` environments.

        Raises:
            AgentError: it is something else than ``Acted``, the first extras are not what the agent records, or the
                first state has not a row for each environment.
        """
        try:
            actions, extras, state = acted
        except (TypeError, ValueError) as error:
            raise AgentError(
                f"agent {self._agent}: act() returned {type(acted).__name__}; it must return Acted(actions, extras, "
                "state), as apexrl.protocols.Agent describes"
            ) from error
        if not self._looked_at:
            if self._records is not None:
                self._look_at_extras(extras, self._records, count)
            self._look_at_state(state, self._records or {}, count)
            values = [*extras.values(), *(state or {}).values()] if self._records is not None else []
            self._has_lists = any(not hasattr(value, "dtype") for value in values)
        if self._has_lists and self._records is not None:
            extras = {name: np.asarray(value, self._records[name].dtype) for name, value in extras.items()}
            state = {name: np.asarray(value) for name, value in state.items()} if state else state
        return actions, extras, state

    def _look_at_extras(self, extras: Any, records: Mapping[str, Field], count: int) -> None:
        """AgentError: they are no dict, or have other names, shapes or dtypes than what the agent records."""
        if not isinstance(extras, Mapping):
            raise AgentError(
                f"agent {self._agent}: the extras of act() are a {type(extras).__name__}; they must be a dict, empty "
                "where it records nothing, as apexrl.protocols.Agent describes"
            )
        wrong = [f"no {name!r}" for name in records if name not in extras]
        wrong += [f"{name!r}, which is none of them" for name in extras if name not in records]
        if wrong:
            said = ", ".join(map(repr, records)) or "no field"
            raise AgentError(
                f"agent {self._agent}: its step_spec declares {said} for act() to record, and the extras of act() have "
                f"{', '.join(wrong)}. Make the two agree, as apexrl.protocols.Agent describes"
            )
        for name, field in records.items():
            self._look_at_field(f"the extra {name!r}", extras[name], field, count)

    def _look_at_state(self, state: Any, records: Mapping[str, Field], count: int) -> None:
        """AgentError: it lacks a row for each environment, or is not as the fields of its name that are recorded."""
        for name, value in state.items() if isinstance(state, Mapping) else ():
            what = f"the recurrent state {name!r}"
            if name in records:
                self._look_at_field(what, value, records[name], count)
            elif np.shape(value)[:1] != (count,):
                raise AgentError(
                    f"agent {self._agent}: act() returned {what} of shape {list(np.shape(value))}; for {count} "
                    f"observations its first dimension must be {count}"
                )

    def _look_at_field(self, what: str, value: Any, field: Field, count: int) -> None:
        if field.ragged:
            return
        shape, wanted = np.shape(value), (count, *field.shape)
        dtype = str(value.dtype) if isinstance(value, np.ndarray) else field.dtype  # the replay converts lists
        if shape != wanted or dtype != field.dtype:
            raise AgentError(
                f"agent {self._agent}: act() returned {what} as {dtype} {list(shape)}; for {count} observations its "
                f"step_spec declares {field.dtype} {list(wanted)}. Make the two agree"
            )

    def first(self, actions: Any, count: int, random: bool = False) -> None:
        """Look, if none of its kind was looked at yet.

        Args:
            actions: what ``act`` returned for ``count`` environments.
            random: they were to be drawn uniformly, for which an agent may have other code.

        Raises:
            AgentError: as ``look``.
        """
        if random not in self._looked_at:
            self._looked_at.add(random)
            self.look(actions, count)

    def look(self, actions: Any, count: int) -> None:
        """Refuse actions that no environment with this action space takes. Those outside a box's bounds pass: many
        environments clip them.

        Raises:
            AgentError: of another shape or kind, not finite, or no choice that there is.
        """
        wrong = self._wrong(actions, (count, *self._space.shape))
        if wrong:
            raise AgentError(
                f"agent {self._agent}: act() returned {wrong}; for {count} observations this environment takes "
                f"{self._wanted(count)}. Mend the agent's act(), which apexrl.protocols.Agent describes"
            )

    def _wrong(self, actions: Any, shape: tuple[int, ...]) -> str:
        """What is wrong with them; empty: nothing."""
        if not hasattr(actions, "dtype"):
            return f"actions in a {type(actions).__name__}, which is no array"
        values, space = np.asarray(actions), self._space
        if values.shape != shape:
            return f"actions of shape {list(values.shape)}"
        if values.dtype.kind not in ("iuf" if space.box or space.hybrid else "iu"):
            return f"{values.dtype} actions"
        if space.box:
            bad = ~np.isfinite(values)
        elif space.hybrid:
            bad, chosen = ~np.isfinite(values), values[:, : len(space.nvec)]
            bad[:, : len(space.nvec)] |= (chosen < 0) | (chosen >= np.array(space.nvec)) | (chosen != np.floor(chosen))
        else:
            bad = (values < 0) | (values >= np.array(space.nvec or space.n))
        if not bad.any():
            return ""
        where = tuple(np.argwhere(bad)[0].tolist())
        return f"the action {values[where]} in row {where[0]}" + "".join(f", column {i}" for i in where[1:])

    def _wanted(self, count: int) -> str:
        space = self._space
        what = f"{space.dtype} {[count, *space.shape]}"
        if space.discrete:
            return f"{what}, each from 0 to {space.n - 1}"
        if space.hybrid:
            return f"{what}, of which the first {len(space.nvec)} columns are whole numbers below {space.nvec}"
        if space.nvec:
            return f"{what}, from 0 to {', '.join(str(n - 1) for n in space.nvec)} by column"
        return f"{what}, all finite"
