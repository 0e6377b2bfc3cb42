"""The Ray actors: one holds the memory that a group shares, with its shard; the others run one role each.

Ray restarts none of them (``max_restarts`` 0): it would repeat the arguments of the first start, with its generation,
its seeds, and handles of memory that may be gone. The driver starts the next generation itself, with the same limits
as on one machine.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import ray
from numpy.typing import NDArray

from apexrl.errors import ClosedError, ConfigError, OwnershipError
from apexrl.launch.probe import error_values, probe
from apexrl.launch.ray.gateway_port import GatewayPort
from apexrl.launch.ray.local_shard import Lent, node_id
from apexrl.launch.ray.role_output import Place, Printed, places, read
from apexrl.launch.ray.weights_broadcast import WeightsBroadcast, publish
from apexrl.launch.wiring import Wiring
from apexrl.launch.worker_process import keep_memory, label_output, run_role
from apexrl.links.local import worker_messages
from apexrl.links.local.control_board import COUNTERS, ControlBoard
from apexrl.links.local.role_context import SharedContext, WorkerIdentity
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.protocols import Role
from apexrl.replay import Replay
from apexrl.replay.sharded.shard import QUEUE_SECONDS, DrawResult, Shard, UpdateResult
from apexrl.run.folder import versions
from apexrl.run.ownership import lease_clock
from apexrl.shared.weights_board import WeightsBoard
from apexrl.topologies.program import Factory, Probe, Program

LEASE_SECONDS: Final = 10.0
"""How long a role may write into the run folder after the newest word of its that the driver is known to have heard."""

_NEVER = 1e-9  # a moment of ``lease_clock`` that is over

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _apart(group: str) -> Callable[[_Method], _Method]:
    """A method that runs in a concurrency group: one thread, beside those of other groups."""
    decorate: Any = ray.method(concurrency_group=group)
    return cast("Callable[[_Method], _Method]", decorate)


@dataclass(frozen=True)
class Hello:
    """The node of a Ray actor, and the versions there."""

    host: str
    node: str
    pid: int
    versions: dict[str, str]


def hello() -> Hello:
    have = {name: version for name, version in versions().items() if version}
    return Hello(platform.node(), node_id(), os.getpid(), have)


@dataclass(frozen=True)
class Look:
    """The state of a group's memory."""

    replay: dict[str, Any]  # `Replay.stats`; empty where there is none
    version: int  # of the weights here; 0: there are none
    spoilt: int  # reads of weights that were overtaken
    refused: dict[int, str] = field(default_factory=dict)  # (learner's node) group that takes no weights -> why


class GroupMemory:
    """Holds the memory that the roles of one group share on one node: the links of the learner's node, or those of an
    actor group: its shard and the weights, if it has any. The group ends with this process.

    Methods of the same concurrency group never run at once.

    Args:
        home: it is on the learner's node.
        gated: writers of its shard wait until its sampler says how much it may take in.
        updates: made so far.
    """

    def __init__(self, program: Program, home: bool, gated: bool, updates: int = 0) -> None:
        self._program = program
        self._wiring = Wiring(program, True, Path("/dev/null/none"), updates)
        ports = [port for node in program.nodes for port in self._wiring.ports(node).values()]
        self._weights = next((port for port in ports if isinstance(port, WeightsBoard | ShardedParameters)), None)
        replay = next((port for port in ports if isinstance(port, Replay)), None)
        self._shard = None if home or replay is None else Shard(replay, QUEUE_SECONDS)
        if self._shard is not None and gated:
            self._shard.admit(0)
        self._lent = False  # to a sampler on this node
        self._node = node_id()
        self._distribution: WeightsBroadcast | None = None

    def hello(self) -> Hello:
        return hello()

    def ports(self, role: str) -> dict[str, Any]:
        """Of a role here, for a process on this node."""
        return self._wiring.ports(next(node for node in self._program.nodes if node.name == role))

    def lent(self, slots: Sequence[int], node: str) -> dict[str, Any]:
        """(learner's node) Ports of a role in another group that asks here, for a process on ``node``.

        Args:
            slots: of the run that the group serves.
        """
        ports = next(ports for one in self._program.nodes if "listen" in (ports := self._wiring.ports(one)))
        gateway: GatewayPort = ports["listen"]
        if "inference" in ports:
            return {"inference": gateway.inference(ports["inference"], node == self._node)}
        return {"gateway": gateway.parameters(slots)}

    def look(self) -> Look:
        refused = {} if self._distribution is None else dict(self._distribution.refused)
        version, spoilt = self._wiring.weights_version(), self._wiring.spoilt_weight_reads()
        return Look(self._wiring.replay_stats(), version, spoilt, refused)

    def ping(self) -> bool:
        """Answers while the process runs."""
        return True

    @_apart("data")
    def draw(self, count: int, until: int | None, node: str) -> DrawResult | Lent:
        """See ``Shard.draw``. A caller on this ``node`` gets the replay itself, and samples it there."""
        assert self._shard is not None
        if node == self._node:
            self._shard.release()
            self._lent = True
            return Lent(self._shard.replay.handle, self._shard.generation, count, until)
        if self._lent:
            try:
                self._shard = Shard(self._shard.replay, QUEUE_SECONDS, self._shard.generation)
            except OwnershipError as error:  # it is killed, or will be: there is one sampler at a time
                raise ClosedError(str(error)) from None
            self._lent = False
        return self._shard.draw(count, until)

    @_apart("data")
    def update(self, generation: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> UpdateResult:
        """See ``Shard.update``; while another process samples, only how the shard stands."""
        assert self._shard is not None
        return self._shard.update("" if self._lent else generation, keys, priorities)

    def read(self, places: Sequence[Place]) -> Printed:
        """What a process on this node printed last, which has ended."""
        return read(places)

    def meet(self, group: int, handle: Any) -> None:
        """(learner's node) Send the weights to another group from now on; None: stop."""
        if self._distribution is None:
            assert self._weights is not None
            rounded = self._program.config.hosts.weights_precision == "bfloat16"
            self._distribution = WeightsBroadcast(self._weights, self._node, rounded)
            threading.Thread(target=self._keep_distributing, name="weights", daemon=True).start()
        self._distribution.groups[group] = handle

    def board(self, node: str) -> tuple[Any, ...] | None:
        """(group) What the weights' board pickles as, if ``node`` is this one: who has the weights publishes there."""
        assert isinstance(self._weights, WeightsBoard)
        return self._weights.__reduce__()[1] if node == self._node else None

    @_apart("weights")
    def weights(self, version: int, boxed: list[Any]) -> int:
        """(group) Weights that lie in the object store under the reference in ``boxed``: fetched once to this node."""
        assert isinstance(self._weights, WeightsBoard)
        if version > self._weights.version:
            publish(self._weights, ray.get(boxed[0]).weights(), version)
        return version

    def _keep_distributing(self) -> None:
        """(learner's node) Send weights; end this process if that fails: the run must not go on without."""
        assert self._distribution is not None
        try:
            self._distribution.run()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)


@dataclass(frozen=True)
class RayAssignment:
    """What one generation of a worker must know, but its ports."""

    worker: WorkerIdentity
    keeps: bool
    factory: Factory
    nice: int = 0
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Of the lines that it prints, as JSON; empty: they stay as they are."""


@dataclass(frozen=True)
class News:
    """What the driver tells a role."""

    stop: int
    others: dict[str, int]  # counters of all others and of earlier generations
    heard: float = 0.0  # ``Report.said_at`` of the newest one that it has; 0: it has none
    env_change: bytes = b""  # settings of environments that callbacks have changed


@dataclass(frozen=True)
class Report:
    """What a role tells the driver."""

    counters: dict[str, int]  # of this generation
    said: list[worker_messages.Message] = field(default_factory=list)
    state: str = "starting"
    busy_seconds: float = 0.0  # of the oldest environment call in progress
    quiet_seconds: float = 0.0  # since its loop went on, outside of environment calls
    pid: int = 0
    status: int | None = None  # at the end: 0 cleanly
    said_at: float = 0.0  # by ``ownership.lease_clock`` of its machine
    printed: Printed = field(default_factory=Printed)  # since the report before


class RoleProcess:
    """One generation of a worker. ``live`` runs the role; ``poll`` answers meanwhile."""

    def __init__(self, assignment: RayAssignment) -> None:
        self._assignment = assignment
        self._board = ControlBoard(1)
        if assignment.worker.folder_generation:
            self._board.held_until = _NEVER
        self._row = self._board.row(0)
        self._row.begin(os.getpid(), assignment.worker.generation)
        self._row.heartbeat = time.monotonic()
        self._ours, self._theirs = worker_messages.channel()
        self._hearing = threading.Lock()
        self._env_change = b""
        self._printed = Printed(places=places())

    @_apart("run")
    def run(self, ports: Mapping[str, Any], lent: Mapping[str, Any], news: News) -> Report:
        """Until told to stop, or an error, which is in the report. ``lent``: ports that the learner's node gives."""
        assignment = self._assignment
        os.nice(assignment.nice)
        keep_memory()
        if assignment.labels:
            label_output({**assignment.labels, "host": platform.node()})
        self._hear(news)
        context = SharedContext(assignment.worker, self._board, 0, self._theirs)
        return self._report(run_role(context, self._made, {**ports, **lent}))

    @_apart("talk")
    def poll(self, news: News) -> Report:
        self._hear(news)
        self._board.stop = news.stop
        if self._assignment.worker.folder_generation and news.heard:
            self._board.held_until = news.heard + LEASE_SECONDS
        return self._report(None)

    @_apart("talk")
    def stacks(self) -> str:
        """Where every thread is."""
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read().decode(errors="replace")

    def _hear(self, news: News) -> None:
        for name, value in news.others.items():
            self._board.set_base(name, value)
        if news.env_change != self._env_change:
            self._env_change = news.env_change
            self._board.set_env_change(news.env_change)

    def _report(self, status: int | None) -> Report:
        with self._hearing:
            said = worker_messages.receive(self._ours)
            printed = self._printed = read(self._printed.places)
        since, now = self._row.busy_since, time.monotonic()
        return Report(
            counters={name: self._row.counter(name) for name in COUNTERS},
            said=said,
            state=self._row.state,
            busy_seconds=now - since if since else 0.0,
            quiet_seconds=0.0 if since else now - self._row.heartbeat,
            pid=os.getpid(),
            status=status,
            said_at=lease_clock(),
            printed=printed,
        )

    def _made(self, context: SharedContext, **ports: Any) -> Role:
        """The role; whoever writes checkpoints must write where the driver reads."""
        if self._assignment.keeps or self._assignment.worker.role == "evaluator":
            folder = self._assignment.worker.folder
            if not (folder / "config.toml").exists():
                raise ConfigError(
                    f"node {platform.node()} does not see the run folder {folder}: put --out on a file system that all "
                    "nodes share, or start the command on the node that has the learner's processor or GPU"
                )
        return self._assignment.factory(context, **ports)


def probe_on(config: Any) -> Probe | dict[str, Any]:
    """A task: look at environment and agent on a node; an error as its description."""
    try:
        return probe(config)
    except Exception as error:
        return error_values(error)
