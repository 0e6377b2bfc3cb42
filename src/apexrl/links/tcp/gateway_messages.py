"""Messages between a gateway and a host with workers: strict types, no pickle.

The gateway first sends the run's record. Then the host sends requests and the gateway answers: ``Join`` with
``Joined``, ``Beat`` with ``Orders``. ``Leave`` ends the connection.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from apexrl.errors import FrameError
from apexrl.links.tcp import frames
from apexrl.run.env_changes import MOST_BYTES
from apexrl.run.episode_metrics import MOST_CHARACTERS, MOST_NAMES

MOST_RECORD_BYTES: Final = 4 << 20
MOST_MESSAGE_BYTES: Final = 1 << 20
MOST_EPISODES: Final = 2000
"""In one beat."""
MOST_TEXTS: Final = 20
"""In one beat; others wait for the next one."""
MOST_REPORTS: Final = 64
"""In one beat; others wait for the next one."""
MOST_TEXT: Final = 4000
"""Characters."""

_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Slot = Annotated[int, Meta(ge=0, lt=2**20)]
_Lease = tuple[_Slot, Annotated[int, Meta(ge=0, lt=2**21)]]
_Word = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]
"""For messages: one line without control characters."""
Level = Literal["info", "warning", "error"]
COUNTED_THERE: Final = ("env_steps", "lost_gradients")
"""Counters of a host with workers that compute gradients; the learner's side adds them to its own."""
_Measurement = float | None
"""None: it is no number."""
_Histogram = dict[Annotated[str, Meta(pattern=r"^[0-9]{1,6}\Z")], _Count]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that another host needs to know of a run before its workers connect."""

    run_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{8,64}\Z")]
    name: Annotated[str, Meta(pattern=r"^[\w.+=@-][\w.+=@ -]{0,99}\Z")]
    apexrl: _Word
    """Version of the package that the learner runs."""
    host: _Word
    config: str
    """The settings, as in config.toml; for environment workers, without those of the agent."""
    brings: Literal["environments", "gradients", "learners"] = "environments"
    """What other hosts bring: workers that step environments alone, or that compute gradients of what they see, or
    learners, which compute them of what actors beside them see."""
    step_spec: dict[str, Any] = {}
    """The agent's extra fields; empty for environment workers."""
    schema: _Word = ""
    """A digest of the parameters and how they are cut; empty for environment workers."""
    spec: dict[str, Any]
    """The environment's spaces (``EnvSpec`` as plain data)."""
    splits: Annotated[list[Annotated[int, Meta(ge=1, le=2**16)]], Meta(max_length=2**16)] = []
    """Environments in each group of an environment worker."""
    lease_seconds: Annotated[float, Meta(gt=0.0, le=1e6)]
    """Silence after which a host's slots are free."""


class Join(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """A request to lease slots."""

    wanted: Annotated[int, Meta(ge=0, lt=2**20)]
    """Number of new slots; 0: only those that it holds already."""
    host: _Word
    pid: _Count
    holding: Annotated[list[_Lease], Meta(max_length=2**20)] = []
    """Slots that it had before the connection broke, with the generations of their leases."""


class Joined(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The answer to ``Join``: the slots that this host now has."""

    slots: Annotated[list[_Lease], Meta(max_length=2**20)]
    full: Annotated[str, Meta(max_length=MOST_TEXT)] = ""
    """Why there are fewer than requested; then none are leased."""


class Report(msgspec.Struct, forbid_unknown_fields=True):
    """What a worker that computes gradients says of them: a ``metrics`` message."""

    worker: _Word
    generation: _Count
    values: Annotated[dict[_Word, _Measurement], Meta(max_length=200)]
    lag: tuple[_Measurement, _Measurement, _Measurement]
    lag_histogram: Annotated[_Histogram, Meta(max_length=64)]
    run_lag: tuple[_Measurement, _Measurement, _Measurement]
    run_lag_histogram: Annotated[_Histogram, Meta(max_length=64)]


class Beat(msgspec.Struct, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """A host's heartbeat and report."""

    number: _Count
    """Number of the beat; the episodes of a repeated beat count once."""
    returns: Annotated[list[float], Meta(max_length=MOST_EPISODES)] = []
    lengths: Annotated[list[_Count], Meta(max_length=MOST_EPISODES)] = []
    texts: Annotated[list[tuple[Level, Annotated[str, Meta(max_length=MOST_TEXT)]]], Meta(max_length=MOST_TEXTS)] = []
    counts: dict[Literal["env_steps", "lost_gradients"], _Count] = {}
    """What counters have grown by since the last beat."""
    reports: Annotated[list[Report], Meta(max_length=MOST_REPORTS)] = []
    restarts: _Count = 0
    """Restarts of its workers since it joined."""
    slots: _Count = 0
    """Slots that the host believes to have."""
    metrics: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS)], tuple[_Count, float, float, float]],
        Meta(max_length=MOST_NAMES),
    ] = {}
    """What environments told of these episodes (``run.episode_metrics.Spread``)."""


class Orders(msgspec.Struct, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """The answer to ``Beat``."""

    number: _Count
    """The beat that this answers."""
    finished: bool = False
    """The run is over."""
    lost: bool = False
    """Another host has one of this host's slots."""
    env_steps: _Count = 0
    """Of the whole run."""
    env_change: Annotated[bytes, Meta(max_length=MOST_BYTES)] = b""
    """Settings of environments that callbacks have changed (``run.env_changes``)."""


class Leave(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The host leaves; its slots are free."""


Message = Join | Joined | Beat | Orders | Leave
_T = TypeVar("_T", bound=Message)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_record_decoder = msgspec.msgpack.Decoder(Record)


def send(peer: frames.Connection, message: Message | Record) -> None:
    """Send a message. OSError: the connection broke, or the other side does not read."""
    values = _told(message) if isinstance(message, Record) else message
    peer.send(frames.MESSAGE, body=msgspec.msgpack.encode(values))


def _told(record: Record) -> dict[str, Any]:
    """Its fields but those with their default values: hosts of the release before need not know new ones. (msgspec's
    own ``omit_defaults`` compares texts by identity, which a record that came from another process has lost.)"""
    usual = {field.name: field.default for field in msgspec.structs.fields(Record)} | {"step_spec": {}, "splits": []}
    return {name: value for name, value in msgspec.structs.asdict(record).items() if value != usual[name]}


def receive(peer: frames.Connection, kind: type[_T], seconds: float) -> _T:
    """The next message, which must be of ``kind``.

    Raises:
        FrameError: it is something else.
        OSError: the connection broke, or nothing arrived for ``seconds``.
    """
    message = receive_any(peer, seconds)
    if not isinstance(message, kind):
        raise FrameError(f"a {type(message).__name__} came where a {kind.__name__} must")
    return message


def receive_any(peer: frames.Connection, seconds: float) -> Message:
    """The next message. Raises like ``receive``."""
    try:
        return _decoder.decode(_body(peer, MOST_MESSAGE_BYTES, seconds))
    except msgspec.MsgspecError as error:
        raise FrameError(f"a message cannot be read: {error}") from None


def receive_record(peer: frames.Connection, seconds: float) -> Record:
    """The record that begins a host's connection. Raises like ``receive``."""
    try:
        return _record_decoder.decode(_body(peer, MOST_RECORD_BYTES, seconds))
    except msgspec.MsgspecError as error:
        raise FrameError(f"the run's record cannot be read: {error}") from None


def _body(peer: frames.Connection, most: int, seconds: float) -> memoryview:
    frame = peer.receive(most, seconds)
    if frame.kind != frames.MESSAGE or frame.text:
        raise FrameError("what came is no message")
    return frame.body
