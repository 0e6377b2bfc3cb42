"""The values of a run's keys, as strict types, because any client of the server may have written them."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from apexrl.links.local.worker_messages import plain
from apexrl.links.printable import printable
from apexrl.links.protocol_numbers import Protocols
from apexrl.run.status import RunStatus

PROTOCOLS: Final = Protocols(2, 2)
"""Of what is on the server. ``newest`` is incremented when the meaning of anything there changes; ``least`` is what the
release before spoke, so that its hosts and learners work with those of this one."""

MOST_SEQUENCE: Final = 2**40
"""Chunks of one generation of a member."""
MOST_RECORD_BYTES: Final = 4 << 20
MOST_STATUS_BYTES: Final = 32 << 10
MOST_MESSAGE_BYTES: Final = 64 << 10
MOST_TROUBLE: Final = 200
"""Length of a text that says why something does not work."""

Identity = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]{8,64}$")]
Word = Annotated[str, msgspec.Meta(max_length=200)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Measurement = float | None
"""None stands for NaN, which JSON does not have."""


class GatewayAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where hosts reach the gateway of a run whose workers need the learner's servers."""

    host: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:%-]{1,253}\Z")]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?\Z", max_length=71)] = ""
    """Of its certificate; empty: it speaks no TLS."""
    token: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{0,200}\Z", max_length=200)] = ""
    """Its secret; empty: the token that learner and hosts share."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that another host needs to know of a run before it joins."""

    run_id: Identity
    name: Annotated[str, msgspec.Meta(pattern=r"^[\w.+=@-]{1,100}$")]
    apexrl: Word
    """Version of the package that the learner runs."""
    protocol: int = PROTOCOLS.least
    """The least that its learner speaks, and in which it writes what all hosts read."""
    config: str
    """As in config.toml, with values that depend on the learner's host resolved."""
    spec: dict[str, Any]
    """The environment's spaces (``EnvSpec`` as plain data)."""
    step_spec: dict[str, Any]
    """The agent's extra fields."""
    schema: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$", max_length=64)]
    """Digest of the layout of a chunk's body, as hex digits."""
    weights_nbytes: Count
    actor_slots: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    host: Word
    began: Annotated[float, msgspec.Meta(ge=0.0, le=2.0**33)]
    """Seconds since 1970, by the learner host's clock."""
    local: dict[str, Any]
    """Options of the replay in which an actor host keeps experience until it is sent."""
    gateway: GatewayAddress | msgspec.UnsetType = msgspec.UNSET
    """Where workers connect that need the learner's servers; unset: hosts bring experience, through this server."""
    learners_refused: Annotated[str, msgspec.Meta(max_length=1000)] | msgspec.UnsetType = msgspec.UNSET
    """Why other hosts cannot bring learners; empty: they can; unset: the learner's version knows of none."""
    learners_gateway: GatewayAddress | msgspec.UnsetType = msgspec.UNSET
    """Where learners of other hosts connect that send gradients to parameter servers; unset: they average."""
    newest_protocol: int | msgspec.UnsetType = (
        msgspec.UNSET if PROTOCOLS.newest == PROTOCOLS.least else PROTOCOLS.newest
    )
    """The newest that its learner takes; unset: ``protocol``."""
    signature: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$", max_length=64)] = ""
    """By ``signing.sign``, as in 0.2 without ``learners_refused`` and ``learners_gateway``; empty: its learner has no
    token."""
    whole_signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | msgspec.UnsetType = msgspec.UNSET
    """The same of everything, where there is a ``learners_gateway``."""

    @property
    def protocols(self) -> Protocols:
        newest = self.newest_protocol
        return Protocols(self.protocol, newest if isinstance(newest, int) else self.protocol)


class LearnerDigest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The learner host's status of the run, every second. Rates are per second."""

    phase: Word = "starting"
    elapsed_seconds: float = 0.0
    env_steps: Count = 0
    env_steps_per_second: float = 0.0
    updates: Count = 0
    updates_per_second: float = 0.0
    episodes: Count = 0
    train_return: Measurement = None
    eval_return: Measurement = None
    best_eval_return: Measurement = None
    replay_size: Count = 0
    replay_capacity: Count = 0
    updates_per_step: float = 0.0
    policy_lag: Measurement = None
    """Mean, in updates."""
    policy_lag_p95: Measurement = None
    weights_version: Count = 0
    actors: Count = 0
    """Actors on the learner's own host."""
    restarts: Count = 0
    committed_items: Count = 0
    """Items that came from other hosts into the replay."""
    missing_items: Count = 0
    """Items of hosts that never arrived: dropped by them, or lost with a host."""
    duplicate_items: Count = 0
    """Items that arrived again and were dropped."""
    refused_frames: Count = 0
    """Frames that do not belong to this run."""
    dropped_messages: Count = 0
    """Episodes and warnings that hosts could not deliver, or that could not be read."""
    weights_published: Count = 0
    """The newest version available to other hosts; 0: none yet."""
    weights_failures: Count = 0
    """Attempts to publish weights that the server did not take."""
    weights_trouble: Word = ""
    """Why weights cannot be published; empty: no problem."""

    @classmethod
    def of(cls, status: RunStatus, carried: Mapping[str, int] | None = None) -> LearnerDigest:
        """The digest of ``status``; ``carried``: the intake's totals, named as the fields here."""
        lag = status.policy_lag
        return cls(
            phase=status.phase,
            elapsed_seconds=_finite(status.elapsed_seconds) or 0.0,
            env_steps=status.env_steps,
            env_steps_per_second=_finite(status.env_steps_per_second) or 0.0,
            updates=status.updates,
            updates_per_second=_finite(status.updates_per_second) or 0.0,
            episodes=status.episodes,
            train_return=_finite(status.train_return),
            eval_return=_finite(status.eval_return),
            best_eval_return=_finite(status.best_eval_return),
            replay_size=status.replay_size,
            replay_capacity=status.replay_capacity,
            updates_per_step=_finite(status.updates_per_step) or 0.0,
            policy_lag=_finite(lag.mean),
            policy_lag_p95=_finite(lag.p95),
            weights_version=status.weights_version,
            actors=sum(worker.work.activity == "acting" for worker in status.workers),
            restarts=sum(status.restarts.values()),
            dropped_messages=status.dropped.get("host_messages", 0),
            weights_failures=status.dropped.get("weight_publications", 0),
            **carried_fields(cls, carried),
        )


class HostDigest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of an actor host or client, every second. Rates are per second."""

    state: Word = "starting"
    """A ``status.WorkerState``: ``acting``, ``waiting`` …"""
    env_steps: Count = 0
    env_steps_per_second: float = 0.0
    episodes: Count = 0
    train_return: Measurement = None
    weights_version: Count = 0
    sent_items: Count = 0
    uncommitted_items: Count = 0
    """Sent or waiting to be sent, and not yet in the learner's replay."""
    uncommitted_bytes: Count = 0
    dropped_items: Count = 0
    restarts: Count = 0
    dropped_messages: Count = 0
    """Episodes and warnings that could not be delivered."""
    weights_trouble: Word = ""
    """Why newer weights cannot be read; empty: no problem."""

    @classmethod
    def of(cls, status: RunStatus, carried: Mapping[str, int] | None = None) -> HostDigest:
        """The digest of a host's ``status``; ``carried``: the uplink's totals, named as the fields here."""
        states = [worker.state for worker in status.workers if worker.work.activity == "acting"]
        return cls(
            state=max(set(states), key=states.count) if states else "starting",
            env_steps=status.env_steps,
            env_steps_per_second=_finite(status.env_steps_per_second) or 0.0,
            episodes=status.episodes,
            train_return=_finite(status.train_return),
            weights_version=status.weights_version,
            restarts=sum(status.restarts.values()),
            **carried_fields(cls, carried),
        )


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's entry: its identity and status."""

    kind: Word
    """``host`` or ``client``."""
    host: Word
    pid: Count
    slots: Annotated[list[Count], msgspec.Meta(max_length=65536)]
    digest: HostDigest


T = TypeVar("T")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()


def whole(data: bytes | None) -> int:
    """A number from the server; 0 if it is invalid."""
    return int(data) if data and data.isdigit() and len(data) <= 15 else 0


def is_alive(seen: int, until: int, now: int) -> bool:
    """Whether a member last seen at ``seen``, with a lease ``until``, is alive; server times in milliseconds.

    ``now`` may have been read a little before the others. A time farther in the future means that the server's clock
    was set back.
    """
    return seen <= now + 1000 and until > now


def decode(data: bytes | None, kind: type[T]) -> T | None:
    """``data`` as a ``kind``; None: it is not one."""
    if data is None:
        return None
    try:
        found: T = (_decoders.get(kind) or _decoder(kind)).decode(data)
        return found
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Made by one thread: where two are the first to use a ``Struct``, the second finds it half prepared, and msgspec
    0.22 ends the process with a segmentation fault."""
    with _making:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


def encode(value: Any) -> bytes:
    """JSON; NumPy scalars and arrays become numbers and lists."""
    return msgspec.json.encode(value, enc_hook=plain)


def carried_fields(digest: type[msgspec.Struct], carried: Mapping[str, Any] | None) -> dict[str, Any]:
    """The values that ``digest`` has a field for."""
    told = {name: value for name, value in (carried or {}).items() if name in digest.__struct_fields__}
    return {name: printable(v, MOST_TROUBLE) if isinstance(v, str) else int(v) for name, v in told.items()}


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
