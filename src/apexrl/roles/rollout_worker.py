"""The rollout worker role: steps environments with actions of policy workers, and records experience."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config
from apexrl.errors import WaitTimeout
from apexrl.protocols import Context, StepWriter
from apexrl.roles.actor import VERSION
from apexrl.roles.env_splits import EnvSplits
from apexrl.roles.env_worker import SIMULATORS_SECONDS
from apexrl.roles.lag_throttle import LagThrottle
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work
from apexrl.spec import Array, EnvSpec, Field, is_observation

if TYPE_CHECKING:
    from apexrl.links.local.inference import InferenceLink
    from apexrl.replay import Replay


def request_fields(spec: EnvSpec, step_spec: dict[str, Field]) -> dict[str, Field]:
    """What a rollout worker tells of each environment: what the agent sees next, and its recurrent state before it.

    The state are the fields that the agent records once per item: as it was before the item's first step.
    """
    stack = (spec.stack,) if spec.stack > 1 else ()
    seen = {name: Field((*stack, *field.shape), field.dtype) for name, field in spec.observation.items()}
    return seen | {name: field for name, field in step_spec.items() if field.per_item}


def reply_fields(spec: EnvSpec, step_spec: dict[str, Field]) -> dict[str, Field]:
    """What a policy worker answers for each: the action, what the agent records beside it, the recurrent state behind
    it, and the version of the weights that chose."""
    action = {"action": Field(spec.action.shape, spec.action.dtype)}
    return action | dict(step_spec) | {VERSION: Field((), "int64")}


class RolloutWorker:
    """Sample Factory's rollout worker (Petrenko et al. 2020, §3.2): environments, and no policy.

    Of its groups of environments one steps while the others wait for actions. Everything about an environment stays
    here, recurrent states too, so a policy worker that dies takes nothing with it. What it answers lies in shared
    memory, and from there the worker writes it into the slots that the learner reads: no step passes through anybody
    else.

    Next actions are asked for before the last step is written. Where the replay takes no more, the step stays in hand,
    and its environments with it; others go on.
    """

    traits = RoleTraits("rollout_worker", Work("env_steps", "steps/s", "acting"), grace_seconds=10.0)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        inference: InferenceLink,
        replay: Replay,
        most_waiting: int = 0,
    ) -> None:
        self._context = context
        self._end = inference.worker(context.index, context.generation)
        self._groups = EnvSplits(context, config, spec, inference.splits)
        self._writer: StepWriter = replay.writer(streams=inference.envs_per_worker, priority_fn=None)
        envs = np.arange(inference.envs_per_worker)
        self._streams: list[list[int]] = [part.tolist() for part in np.split(envs, np.cumsum(inference.splits)[:-1])]
        self._written = list(self._streams)  # whose steps ``_unwritten`` are
        self._throttle = LagThrottle(context, config, replay, most_waiting)
        self._rows = [0 for _ in inference.splits]  # written for each environment of a group
        self._states = [name for name in inference.request if not is_observation(name)]
        self._begun: list[dict[str, Array]] = [{} for _ in inference.splits]  # what is known of the step under way
        self._after: list[dict[str, Array]] = [{} for _ in inference.splits]  # recurrent states behind it
        self._unasked: dict[int, NDArray[np.bool_] | None] = {}  # group without room for a request -> see `_ask`
        self._unwritten: dict[int, dict[str, Array]] = {}  # group -> its last step, which the replay did not take
        for split in range(len(inference.splits)):
            self._ask(split, None)

    def step(self) -> bool:
        """Step every group whose actions have come and whose last step is written. False: there is none."""
        groups, moved = self._groups, False
        for split, starts in list(self._unasked.items()):
            moved |= self._ask(split, starts)
        for split in list(self._unwritten):
            moved |= self._write(split)
        answered = self._answered()
        if not (answered or moved or groups.stepping):
            self._wait()
            answered = self._answered()
        for split in answered:
            self._act(split)
        idle = not answered and not moved
        for split in list(groups.stepping):
            self._collect(split, SIMULATORS_SECONDS if idle else 0.0)
            moved = True  # they are at work
        groups.report()
        return moved or bool(answered)

    def _answered(self) -> list[int]:
        """The groups that can step."""
        return [split for split in self._end.answered() if split not in self._unwritten]

    def _wait(self) -> None:
        """For an answer; or for the replay, if that is what there is to wait for."""
        for split in self._unwritten:
            self._write(split, self._context.patience)
            return
        held = [split for split in self._unasked if self._held(split)]
        if held:
            self._throttle.wait(held[0])
            return
        self._end.wait(self._context.patience)

    def _act(self, split: int) -> None:
        """Let a group step with the actions that have come."""
        # Views: request and reply of a step lie untouched until the request after the next, and by then it is written
        reply = self._end.take(split)
        self._after[split] = {name: reply.pop(name) for name in self._states}
        self._begun[split].update(reply)
        self._groups.send(split, np.array(reply["action"]))
        self._collect(split)

    def _collect(self, split: int, timeout: float = 0.0) -> None:
        """Ask for a group's next actions, if its environments are done, and write the step that they made."""
        stepped = self._groups.receive(split, timeout)
        if stepped is None:
            return
        self._unwritten[split] = {
            **self._begun[split],
            "reward": stepped.reward,
            "terminated": stepped.terminated,
            "truncated": stepped.truncated,
        }
        self._written[split] = self._streams[split]
        if stepped.idle is not None and stepped.idle.any():
            took_part = np.flatnonzero(~stepped.idle)
            self._unwritten[split] = {name: values[took_part] for name, values in self._unwritten[split].items()}
            self._written[split] = [self._streams[split][row] for row in took_part.tolist()]
        self._rows[split] += 1
        self._ask(split, stepped.starts)
        self._write(split)

    def _ask(self, split: int, starts: NDArray[np.bool_] | None) -> bool:
        """Send a group's request. False: a policy worker may still read that of a dead predecessor, or too many unrolls
        wait to be learned from.

        Args:
            starts: [E], true where an episode begins, with a recurrent state of zeros; None: everywhere.
        """
        columns = None if self._held(split) else self._end.room(split)
        if columns is None:
            self._unasked[split] = starts
            return False
        self._unasked.pop(split, None)
        self._throttle.began(split)
        for name, values in self._groups.seen[split].items():
            columns[name][...] = values
        for name in self._states:
            if starts is None:
                columns[name][...] = 0
            else:
                columns[name][...] = self._after[split][name]
                columns[name][starts] = 0
        self._end.ask(split, self._context.clock())
        self._begun[split] = {**self._groups.observation[split], **{name: columns[name] for name in self._states}}
        return True

    def _held(self, split: int) -> bool:
        """Whether a group is to begin no unrolls now."""
        return self._throttle.begins(self._rows[split]) and self._throttle.holds(split)

    def _write(self, split: int, timeout: float = 0.0) -> bool:
        """Write a group's last step. False: the replay takes no more just now."""
        try:
            if self._written[split]:
                self._writer.append(self._unwritten[split], self._written[split], timeout)
        except WaitTimeout:
            return False  # nothing was taken; the same step is offered again
        del self._unwritten[split]
        return True

    def close(self) -> None:
        """Publish the steps written so far, report the last episodes, close the environments."""
        self._end.leave()
        self._writer.close()
        self._groups.close()
