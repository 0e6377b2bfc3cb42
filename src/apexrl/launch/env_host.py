"""An environment host (``apexrl envs``): brings environment workers to a run whose inference server is elsewhere.

It has a supervisor, a ledger and a run folder of its own, with environment workers alone. A thread renews the host's
lease at the run's gateway, reports what ended here, and hears whether the run is over.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from apexrl.agents import AGENTS, with_agent
from apexrl.config import AgentConfig, Config, HostsConfig, StopConfig, convert
from apexrl.config.trust import entrusted
from apexrl.errors import ApexrlError, ConfigError, EnvError, ExhaustedError, FrameError, LinkError, SpecError
from apexrl.launch import contained_observers
from apexrl.launch.contained_observers import contained
from apexrl.launch.host_agreement import (
    actors_here,
    check_version,
    first_difference,
    on_this_host,
    refuse_difference,
)
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.local_run import supervise
from apexrl.launch.probe import probe_env
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Supervisor
from apexrl.links.backoff import Backoff
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.printable import host_name
from apexrl.links.tcp.gateway_messages import MOST_EPISODES, MOST_TEXT, MOST_TEXTS, Record
from apexrl.links.tcp.handshake import RefusedError, UnreachableError
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.remote_inference import RemoteInference
from apexrl.links.tcp.tls import ClientTls
from apexrl.roles.env_worker import reply_fields, request_fields
from apexrl.run.folder import spec_to_json
from apexrl.run.log_lines import LogFormat
from apexrl.run.observers import IdleObserver
from apexrl.run.status import Level, Observer, RunStatus
from apexrl.topologies.remote_envs import envs_side

ENVS_PRELOAD: Final = (
    "gymnasium",
    "apexrl.envs",
    "apexrl.launch.probe",
    "apexrl.launch.worker_process",
    "apexrl.links.tcp.remote_inference",
    "apexrl.roles",
)
"""What this host's fork server imports before the first worker: no agent, and so no PyTorch."""

_HURRIED: Final = frozenset(("finished", "replaced", "lost learner", "lost slots", "interrupted"))
"""Why workers end at once: nobody waits for what they have."""
_AGAIN: Final = frozenset(("lost slots", "replaced"))
"""Why a host joins once more."""
_BEAT_SECONDS: Final = 1.0
_EPISODES_KEPT: Final = 10 * MOST_EPISODES  # while the learner is away; of more, the newest
_TEXTS_KEPT: Final = 10 * MOST_TEXTS
_CLOSE_SECONDS: Final = 15.0
_FULL_LEASES: Final = 1.5  # that a host which was killed holds its slots


def join(
    address: tuple[str, int],
    token: str,
    *,
    tls: ClientTls | None = None,
    actors: int = 0,
    out: str = "runs",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    log_format: LogFormat = "text",
    observers: Sequence[Observer] = (),
    interrupts: Interrupts,
    began: float,
) -> dict[str, Any]:
    """Wait for the run, work until it is over, and return this host's summary; see ``remote_api.join_envs``.

    A host that lost its slots, or whose run was started anew, joins again.
    """
    observers = contained(observers)
    tell = partial(contained_observers.tell, observers)
    minutes = HostsConfig().patience_minutes
    while True:
        host = HostConnection(address, token, host_name(), os.getpid(), tls)
        with ExitStack() as stack:
            stack.callback(host.leave)
            record = _find(host, minutes, tell, interrupts)
            config = local_config(record, actors, out, env_kwargs or {}, f"the run at {host.where}", trust)
            config = replace(config, log_format=log_format)
            minutes = config.hosts.patience_minutes
            summary = _work(host, record, config, observers, tell, interrupts, began)
        if summary["stopped_by"] not in _AGAIN or interrupts.count:
            return summary
        tell(f"joining the run at {host.where} again", "info")


def local_config(
    record: Record, actors: int, out: str, env_kwargs: Mapping[str, Any], origin: str, trust: Sequence[str] = ()
) -> Config:
    """The run's configuration as this host uses it: when it ends is the learner's business.

    Raises:
        ConfigError: it is none, or names something to be called here that is not of a module in ``trust``.
    """
    config = convert.from_toml(record.config, origin)
    known = config.agent.agent if config.agent.agent in AGENTS else AgentConfig().agent
    config = replace(config, agent=with_agent(Config(), known).agent)  # no agent is called here
    entrusting = replace(config, topology=Config().topology)  # nor is the topology
    config = replace(entrusted(entrusting, trust, origin), topology=config.topology)
    config = on_this_host(
        config, record.name, actors_here(actors, max(1, config.actor.actors), origin), out, env_kwargs
    )
    config, actor = replace(config, stop=StopConfig()), config.actor
    convert.check_values(replace(config, actor=replace(actor, actor_slots=0)))
    if sum(record.splits) != actor.envs_per_actor:
        raise ConfigError(f"{origin} has groups of {record.splits} environments, and {actor.envs_per_actor} of them")
    return config


def _find(host: HostConnection, minutes: float, tell: Callable[[str, Level], None], interrupts: Interrupts) -> Record:
    """The run's record; waits for the learner."""
    deadline, told, backoff = time.monotonic() + 60.0 * minutes, False, Backoff(least=0.2)
    while True:
        try:
            record = host.connect()
            break
        except UnreachableError as error:
            if time.monotonic() >= deadline:
                raise LinkError(f"{error} (waited {minutes:g} minutes)") from None
            if not told:
                tell(f"waiting for a run at {host.where} ({error})", "info")
            told = True
            interrupts.pause(backoff.next())
    check_version(f"the run at {host.where}", record.apexrl, record.host)
    return record


def _work(
    host: HostConnection,
    record: Record,
    config: Config,
    observers: Sequence[Observer],
    tell: Callable[[str, Level], None],
    interrupts: Interrupts,
    began: float,
) -> dict[str, Any]:
    """Work for the run, from the probe to the summary."""
    with ExitStack() as stack:
        supervisor = stack.enter_context(closing(Supervisor(config, interrupts, ENVS_PRELOAD, _HURRIED)))
        try:
            seen = supervisor.probe(probe_env)
        except (EnvError, ConfigError, SpecError) as error:
            raise type(error)(f"on host {host_name()}: {error}") from error
        found = first_difference(spec_to_json(seen.spec), record.spec)
        if found is not None:
            refuse_difference(config, found, record.host, record.apexrl)
        _lease(host, record, config.actor.actors, tell, interrupts)
        keeper = stack.enter_context(closing(LeaseKeeper(host, record, 60.0 * config.hosts.patience_minutes)))
        inference = RemoteInference(
            host.address,
            host.token,
            request_fields(seen.spec),
            reply_fields(seen.spec),
            record.splits,
            run=record.run_id,
            member=host.member,
            leases=host.leases,
            tls=host.tls,
        )
        slots = ", ".join(str(slot) for slot, _ in host.leases)
        program = envs_side(config, seen.spec, host.leases, inference)

        def first(ledger: Ledger, board: ControlBoard) -> None:
            keeper.announce(ledger.tell)
            ledger.carried = {"learner": record.host, "slots": [slot for slot, _ in host.leases]}
            ledger.tell(f"joined run {record.name} at {host.where} with the slots {slots}", "info")

        return supervise(supervisor, program, config, [*observers, keeper], None, began, seen, first, keeper.check)


def _lease(
    host: HostConnection, record: Record, wanted: int, tell: Callable[[str, Level], None], interrupts: Interrupts
) -> None:
    """Slots for all workers; those of a host that was just killed are waited for, and a learner that is away."""
    deadline = time.monotonic() + _FULL_LEASES * record.lease_seconds
    told, backoff = False, Backoff()
    while True:
        try:
            host.join(wanted)
            return
        except ExhaustedError as error:
            if time.monotonic() > deadline:
                raise
            words = f"{error}; waiting, as those of a dead host are free after {record.lease_seconds:g} s"
            interrupts.pause(0.25)
        except UnreachableError as error:  # the probe took long, or the learner restarts
            if time.monotonic() > deadline:
                raise
            words = f"{error}; trying again"
            interrupts.pause(backoff.next())
            try:
                host.connect(record.run_id)
            except UnreachableError:
                continue
        if not told:
            tell(words, "warning")
        told = True


class LeaseKeeper(IdleObserver):
    """An observer that keeps a host's slots, from a thread of its own: the supervisor never waits for the learner.

    Args:
        host: let in, with its slots.
        patience_seconds: that the learner may be away.
    """

    ours = True

    def __init__(self, host: HostConnection, record: Record, patience_seconds: float) -> None:
        self.error: Exception | None = None
        self._host, self._run_id, self._name = host, record.run_id, record.name
        self._wanted = len(host.leases)
        self._period = min(_BEAT_SECONDS, record.lease_seconds / 4)
        self._patience_seconds = patience_seconds
        self._episodes: deque[tuple[float, int]] = deque(maxlen=_EPISODES_KEPT)
        self._texts: deque[tuple[Level, str]] = deque(maxlen=_TEXTS_KEPT)
        self._news: queue.SimpleQueue[tuple[str, Level]] = queue.SimpleQueue()  # bounded: only changes are told
        self._tell: Callable[[str, Level], None] | None = None
        self._restarts = 0
        self._reason = ""
        self._unanswered: dict[str, Any] = {}  # the beat of which no answer came
        self._away_since: float | None = None  # monotonic seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    def announce(self, tell: Callable[[str, Level], None]) -> None:
        """Set the function that shows news to the user, called from the supervisor's thread."""
        self._tell = tell

    def close(self) -> None:
        """Report the last episodes and release the slots."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    def check(self) -> None:
        """Raise what ended the membership, if it was an error."""
        if self.error is not None:
            raise self.error

    def update(self, status: RunStatus) -> str | None:
        self._restarts = sum(status.restarts.values())
        while self._tell is not None and not self._news.empty():
            self._tell(*self._news.get())
        return self._reason or None

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        if kind == "episodes":
            self._episodes.extend(zip(values["returns"], values["lengths"], strict=True))

    def message(self, text: str, level: Level = "info") -> None:
        if level != "info":
            self._texts.append((level, text[:MOST_TEXT].encode(errors="replace").decode()))

    def _keep(self) -> None:
        """The thread: beat until closed, then say goodbye."""
        backoff, pause = Backoff(), 0.0
        while not self._closing.wait(pause):
            pause = self._period
            if self._reason:
                continue
            try:
                if self._away_since is not None:
                    self._come_back()
                self._beat()
                backoff.reset()
            except UnreachableError as error:
                pause = backoff.next()
                self._miss(error)
            except ApexrlError as error:
                replaced = isinstance(error, RefusedError) and error.replaced
                self.error, self._reason = (None, "replaced") if replaced else (error, "error")
        if self._away_since is None and not self._reason:
            with suppress(LinkError, FrameError):
                self._beat()
        self._host.leave()

    def _beat(self) -> None:
        again = bool(self._unanswered)
        if not again:
            episodes = [self._episodes.popleft() for _ in range(min(len(self._episodes), MOST_EPISODES))]
            texts = [self._texts.popleft() for _ in range(min(len(self._texts), MOST_TEXTS))]
            self._unanswered = {
                "returns": [one for one, _ in episodes],
                "lengths": [length for _, length in episodes],
                "texts": texts,
            }
        orders = self._host.beat(**self._unanswered, restarts=self._restarts, again=again)
        self._unanswered = {}
        if orders.finished or orders.lost:
            self._reason = "finished" if orders.finished else "lost slots"

    def _come_back(self) -> None:
        self._host.connect(self._run_id)
        self._away_since = None
        if len(self._host.leases) < self._wanted:
            self._news.put(("other hosts have taken slots of this one while the learner was away", "warning"))
            self._reason = "lost slots"
            return
        self._news.put((f"the learner of run {self._name} is back", "info"))

    def _miss(self, error: Exception) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            self._news.put((f"the learner of run {self._name} is away: waiting for it ({error})", "warning"))
        if now - self._away_since > self._patience_seconds:
            minutes = self._patience_seconds / 60
            self.error = LinkError(f"no learner of run {self._name} for {minutes:g} minutes (--patience-minutes)")
            self._reason = "lost learner"
