"""The policy worker role: chooses the actions of rollout workers, and keeps no state of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from apexrl.agents import recorded
from apexrl.config import Config
from apexrl.errors import AgentError
from apexrl.links.local.server_assignment import ServerAssignment
from apexrl.protocols import Agent, Context, State, WeightsReader
from apexrl.roles.action_check import ActionCheck
from apexrl.roles.actor import FIRST_VERSION, VERSION
from apexrl.roles.compute_device import agent_on_device
from apexrl.roles.inference_batches import InferenceMeter, Waiting
from apexrl.roles.newest_weights import NewestWeights
from apexrl.roles.role_traits import RoleTraits
from apexrl.roles.schedules import Exploration
from apexrl.run.status import Work
from apexrl.spec import EnvSpec, is_observation

if TYPE_CHECKING:
    from apexrl.links.local.inference import InferenceLink, Requests

_LOOK_SECONDS = 0.02  # between checks which servers are alive


class PolicyWorker:
    """Sample Factory's policy worker (Petrenko et al. 2020, §3.2): one network for the environments of many workers.

    It reads what they see from shared memory, and writes there what they are to do and what the agent records of it;
    recurrent states come with the request and go back with the answer. So it may die at any time: who comes in its
    place answers what it finds, and until then the other policy workers do (``ServerAssignment``).
    """

    traits = RoleTraits("policy_worker", Work("batches", "batches/s", "serving"), grace_seconds=10.0)

    def __init__(
        self, context: Context, *, config: Config, spec: EnvSpec, inference: InferenceLink, weights: WeightsReader
    ) -> None:
        from apexrl.agents.acting_products import quicken_acting

        slots, envs = config.actor.actor_slots or config.actor.actors, inference.envs_per_worker
        self._context = context
        self._agent: Agent
        self._agent, device = agent_on_device(config, spec, 1 + context.index, context.seed)  # behind the learner
        quicken_acting(self._agent, device)
        self._weights = NewestWeights(context, self._agent, weights)
        self._name = config.agent.agent
        self._check = ActionCheck(self._name, spec.action, recorded(self._agent))
        self._random_start = config.actor.random_start
        mine = inference.slots or range(inference.workers)
        self._exploration = Exploration(context, config, spec.action, mine, slots, envs)
        self._states = {name for name in inference.request if not is_observation(name)}
        place = inference.place(context.index)
        self._end = inference.server(place)
        self._assignment = ServerAssignment(inference, place)
        self._end.answer_partitions(self._assignment.held)
        self._next_look = context.clock()
        self._waiting = Waiting(context, config, inference, self._end)
        self._meter = InferenceMeter(context)

    def step(self) -> bool:
        """Answer whoever waits. False: nobody does, or no weights are published yet."""
        self._look()
        self._weights.pull()
        if self._weights.version == 0:
            return False
        groups = self._waiting.groups(self._end.pending, ())
        if groups:
            self._answer(self._end.read(groups))
        self._meter.report()
        return bool(groups)

    def _answer(self, requests: Requests) -> None:
        """Choose actions for a batch, which may include requests of workers that have died."""
        seen = {name: values for name, values in requests.columns.items() if is_observation(name)}
        state: State = {name: requests.columns[name] for name in self._states} or None
        exploration = self._exploration()[requests.rows]
        random = self._random_start and self._weights.version == FIRST_VERSION
        if random:
            exploration = np.full_like(exploration, np.inf)
        actions, extras, after = self._check.parts(self._agent.act(seen, state, exploration), len(exploration))
        self._check.first(actions, len(exploration), random)
        after = after or {}
        if after.keys() != self._states:
            raise AgentError(
                f"agent {self._name}: act() returned the recurrent state {sorted(after)}, and its step_spec has "
                f"{sorted(self._states)} as Field(…, per_item=True). Topology sample_factory keeps states where steps "
                "are recorded: declare each array of the state so, and record it as it was before the step"
            )
        versions = np.full(len(actions), self._weights.version, np.int64)
        self._end.answer(requests, {"action": actions, **extras, **after, VERSION: versions})
        self._context.count(batches=1)
        self._meter.add(len(actions), requests.waited_since)

    def _look(self) -> None:
        now = self._context.clock()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        if self._assignment.update():
            self._end.answer_partitions(self._assignment.held)

    def close(self) -> None:
        """Leave the groups to other policy workers."""
        self._assignment.close()
        self._meter.report(last=True)
