"""The threads of a client: one transfers experience and weights, one renews the lease of its slot."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apexrl.config import Config, convert
from apexrl.config.trust import entrusted
from apexrl.errors import ApexrlError, ClosedError, ConfigError, LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.local.role_context import InlineContext, InlineRun, WorkerIdentity
from apexrl.links.redis.checked_values import PROTOCOLS, carried_fields
from apexrl.links.redis.members import HostDigest, HostLease, renewal_pause
from apexrl.links.redis.run_record import Orders, RunRecord, find_run
from apexrl.links.redis.server import Server
from apexrl.links.redis.signing import trusted_modules
from apexrl.links.redis.weights_head import MOST_BYTES
from apexrl.roles.newest_weights import version_of
from apexrl.roles.uplink import Uplink
from apexrl.run.metrics import RateMeter
from apexrl.run.spec_json import spec_from_json
from apexrl.spec import EnvSpec, Field
from apexrl.topologies.host_cut import options_from_json, passing

if TYPE_CHECKING:
    from apexrl.replay import Replay
    from apexrl.replay.writer import Writer
    from apexrl.shared.weights_board import WeightsBoard

_SILENT_SECONDS = 5.0  # without an answer of the server: not connected
_IDLE_SECONDS = 0.005
_MEAN_EPISODES = 100  # of the return that is reported
_END_SECONDS = 20.0  # for each thread to end; the uplink has a shorter limit of its own
_HURRY_SECONDS = 2.0


class Carrier:
    """A client's connection to a run: its slot, a replay that passes steps on, the newest weights, and two threads."""

    def __init__(self, server: Server, record: RunRecord, trust: Sequence[str] = (), token: str = "") -> None:
        self.server = server
        self.record = record
        origin = f"run {record.name} at {server.address}"
        allowed = trusted_modules(record, token, trust, origin)
        self.config: Config = entrusted(
            convert.from_toml(record.config, f"the record of {origin}"), allowed, origin, env=False
        )
        convert.check_values(self.config, elsewhere=True)
        self._make_links()
        self._lease = HostLease.join(server, record, 1, "client", self.config.hosts.lease_seconds)
        self._pid = os.getpid()
        self.slot = self._lease.slots[0].index
        lease = self._lease.slots[0]
        entropy = [self.config.seed, zlib.crc32(b"client"), lease.index, lease.generation]
        self.seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        self.ended: str | None = None
        """Why the run has ended; None: it has not."""
        self.writer: Writer | None = None
        self._failed: BaseException | None = None
        self._closed = False
        self._closing = threading.Event()
        self._heard = time.monotonic()  # last answer of the server
        self._trouble = ""
        self._learner_alive = True
        self._returns: deque[float] = deque(maxlen=_MEAN_EPISODES)
        self._carried: Mapping[str, Any] = {}
        self._run = InlineRun(self._hear, steps_per_second=1.0, real_time=True)
        uplink = WorkerIdentity(f"client-{self.slot}", "uplink", index=0, generation=0, seed=0, folder=Path())
        self.context = InlineContext(self._run, uplink)
        try:
            self._threads = self._start()
        except BaseException:
            self._lease.leave()
            raise

    @classmethod
    def join(cls, url: str, run: str, timeout: float, trust: Sequence[str] = (), token: str = "") -> Carrier:
        """Find the run and lease a slot. Raises what ``client.connect`` does."""
        server = Server(url)
        server.check()
        return cls(server, find_run(server, run, timeout), trust, token)

    def _make_links(self) -> None:
        """Make a replay that only passes steps on, and a weights board, as the record describes them."""
        from apexrl.replay import Replay
        from apexrl.replay.chunks import schema
        from apexrl.shared.weights_board import WeightsBoard

        server, record = self.server, self.record
        try:
            self.spec: EnvSpec = spec_from_json(record.spec)
            window = int(self.config.hosts.window_mb * 2**20)
            options = passing(options_from_json(record.local), writers=1, streams=1, window_bytes=window)
            if record.weights_nbytes > MOST_BYTES:
                raise ValueError(f"weights of {record.weights_nbytes} bytes")
            fits = schema(**options).hex() == record.schema
            self.fields: Mapping[str, Field] = options["fields"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the record of run {record.name} at {server.address} is invalid: {error}") from None
        if not fits:
            raise ConfigError(
                f"run {record.name} at {server.address} was started by apexrl {record.apexrl}, which stores steps in "
                "another format: install the same version on both hosts"
            )
        try:
            self.replay: Replay = Replay(**options)
            self.weights: WeightsBoard = WeightsBoard(record.weights_nbytes)
        except (TypeError, RuntimeError, MemoryError) as error:
            raise ConfigError(f"the replay or weights of run {record.name} cannot be allocated: {error}") from None

    # --- for the program's thread

    def check(self, ended: bool = True) -> None:
        """Raise if the actor is closed or its link failed; with ``ended``, also if the run has ended."""
        if self._closed:
            raise ClosedError("this actor was closed; connect() again")
        if self._failed is not None:
            raise ApexrlError(f"this actor's link to run {self.record.name} failed: {self._failed}") from self._failed
        if ended and self.ended is not None:
            raise ClosedError(self.ended)

    @property
    def connected(self) -> bool:
        return not self._closed and time.monotonic() - self._heard < _SILENT_SECONDS

    def why_silent(self) -> str:
        """Why no data is transferred, as far as is known here."""
        if self._trouble:
            return self._trouble
        if not self._learner_alive:
            return f"run {self.record.name} at {self.server.address} has no learner at present"
        if self._carried.get("trouble"):
            return str(self._carried["trouble"])
        return f"the learner of run {self.record.name} is alive and has not got that far"

    def count(self, **increments: int) -> None:
        self.context.count(**increments)

    def episode(self, episode_return: float, length: int) -> None:
        """An episode has ended; ``episode_return`` is unclipped."""
        self.context.count(episodes=1)
        self._returns.append(episode_return)
        self._lease.outbox.episodes([episode_return], [length])

    def close(self) -> None:
        """Send what is left and leave the run. In a forked child nothing: everything belongs to the parent."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            if self.writer is not None:
                self.writer.close()
            self._end(_END_SECONDS)
        except BaseException:  # Ctrl-C
            self._run.hurried = True
            self._end(_HURRY_SECONDS)
            raise
        finally:
            self.replay.close()

    def _end(self, timeout: float) -> None:
        uplink, lease = self._threads
        self._run.hurried |= self.ended is not None  # the learner takes nothing any more
        self._run.stopping = True
        uplink.join(timeout)
        self._closing.set()  # last: data counts only while the lease is held
        lease.join(timeout)

    # --- threads

    def _start(self) -> list[threading.Thread]:
        uplink = Uplink(
            self.context,
            protocol=PROTOCOLS.newest_common(self.record.protocols, f"run {self.record.name}"),
            config=self.config,
            server=self.server,
            keys=self._lease.keys,
            run_id=self.record.run_id,
            member=self._lease.member,
            generation=self._lease.generation,
            replay=self.replay,
            weights=self.weights,
        )
        # Daemons: at exit the interpreter joins other threads before finalizers could end them.
        threads = [
            threading.Thread(target=self._carry, args=(uplink,), name="apexrl-uplink", daemon=True),
            threading.Thread(target=self._keep_lease, name="apexrl-lease", daemon=True),
        ]
        for thread in threads:
            thread.start()
        return threads

    def _carry(self, uplink: Uplink) -> None:
        try:
            try:
                while not self.context.should_stop():
                    if not uplink.step():
                        time.sleep(_IDLE_SECONDS)
            except BaseException:
                self._run.hurried = True
                raise
            finally:
                uplink.close()
        except BaseException as error:
            self._failed = error

    def _keep_lease(self) -> None:
        backoff, rate = Backoff(), RateMeter()
        pause = 0.0
        while not self._closing.wait(pause):
            try:
                orders = self._lease.renew(self._digest(rate))
            except LinkError as error:
                self._trouble, pause = str(error), backoff.next()
                continue
            except BaseException as error:
                self._failed = error
                break
            backoff.reset()
            self._heard, self._trouble, pause = (
                time.monotonic(),
                "",
                renewal_pause(orders, self.config.hosts.lease_seconds),
            )
            self._learner_alive = orders.learner_alive
            self._run.totals["run_env_steps"] = max(self._run.totals["run_env_steps"], orders.env_steps)
            if self._lease.slots:  # none: all were taken meanwhile; the old ε stays until one is free
                self.slot = self._lease.slots[0].index
            if self.ended is None:
                self.ended = why_ended(self.record.name, orders)
            if orders.finished or orders.replaced:  # the learner waits for its clients to leave
                self._run.hurried = self._run.stopping = True
                break
        self._lease.leave(self._digest(rate))

    def _digest(self, rate: RateMeter) -> HostDigest:
        totals, returns = self._run.totals, list(self._returns)
        return HostDigest(
            state="acting" if self.weights.version else "waiting",
            env_steps=totals["env_steps"],
            env_steps_per_second=rate.add(time.monotonic(), totals["env_steps"]),
            episodes=totals["episodes"],
            train_return=sum(returns) / len(returns) if returns else None,
            weights_version=version_of(self.weights.version),
            **carried_fields(HostDigest, self._carried),
        )

    def _hear(self, name: str, kind: str, values: dict[str, Any]) -> None:
        """Receive the uplink's totals and its trouble."""
        if kind == "uplink":
            self._carried = values


def why_ended(run: str, orders: Orders) -> str | None:
    """Why the run has ended; None: it has not."""
    if orders.replaced:
        return f"another run has taken the name {run}: call connect() to join it"
    if orders.finished:
        return f"run {run} has finished"
    if orders.stop:
        return f"run {run} is being stopped"
    return None
