"""What an inference gateway and a host that brings environment workers say to one another: strict types, no pickle.

The host's connection begins with the gateway's record. Then the host speaks and the gateway answers: ``Join`` with
``Joined``, ``Beat`` with ``Orders``; ``Leave`` ends it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from apexrl.errors import FrameError
from apexrl.links.tcp import frames as wire

MOST_RECORD_BYTES: Final = 4 << 20
MOST_MESSAGE_BYTES: Final = 1 << 20
MOST_EPISODES: Final = 2000
"""In one beat."""
MOST_TEXTS: Final = 20
"""In one beat; more wait for the next one."""
MOST_TEXT: Final = 4000
"""Characters."""

_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Slot = Annotated[int, Meta(ge=0, lt=2**20)]
_Lease = tuple[_Slot, Annotated[int, Meta(ge=0, lt=2**21)]]
_Word = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]
"""For people: one line, nothing that a terminal obeys."""
Level = Literal["info", "warning", "error"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that another host must know of a run before its workers ask."""

    run_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{8,64}\Z")]
    name: Annotated[str, Meta(pattern=r"^[\w.+=@-][\w.+=@ -]{0,99}\Z")]
    apexrl: _Word
    """Version of the package that the learner runs."""
    host: _Word
    config: str
    """As in config.toml, as far as it concerns environments."""
    spec: dict[str, Any]
    """The environment's spaces (``EnvSpec`` as plain data)."""
    splits: Annotated[list[Annotated[int, Meta(ge=1, le=2**16)]], Meta(min_length=1, max_length=2**16)]
    """Environments in each group of a worker."""
    lease_seconds: Annotated[float, Meta(gt=0.0, le=1e6)]
    """Of silence, after which a host's slots are free."""


class Join(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Lease me slots."""

    wanted: Annotated[int, Meta(ge=0, lt=2**20)]
    """That many new ones; 0: those that it holds already, no others."""
    host: _Word
    pid: _Count
    holding: Annotated[list[_Lease], Meta(max_length=2**20)] = []
    """Slots that it had before the connection broke, with the generations of their leases."""


class Joined(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The slots that this host has now."""

    slots: Annotated[list[_Lease], Meta(max_length=2**20)]
    full: Annotated[str, Meta(max_length=MOST_TEXT)] = ""
    """Why there are not as many as wanted (then there are none)."""


class Beat(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """This host lives; what happened on it."""

    number: _Count
    """Of this beat's episodes: they count once, however often it comes."""
    returns: Annotated[list[float], Meta(max_length=MOST_EPISODES)] = []
    lengths: Annotated[list[_Count], Meta(max_length=MOST_EPISODES)] = []
    texts: Annotated[list[tuple[Level, Annotated[str, Meta(max_length=MOST_TEXT)]]], Meta(max_length=MOST_TEXTS)] = []
    restarts: _Count = 0
    """Of its workers, since it joined."""
    slots: _Count = 0
    """That it thinks it has."""


class Orders(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What the run wants of a host."""

    number: _Count
    """The beat that this answers."""
    finished: bool = False
    """The run is over."""
    lost: bool = False
    """Another host has a slot of this one's."""
    env_steps: _Count = 0
    """Of the whole run."""


class Leave(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """This host is gone; its slots are free."""


Message = Join | Joined | Beat | Orders | Leave
_T = TypeVar("_T", bound=Message)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def say(peer: wire.Peer, message: Message | Record) -> None:
    """Send a message. Raises OSError when nobody takes it."""
    peer.send(wire.MESSAGE, body=msgspec.msgpack.encode(message))


def hear(peer: wire.Peer, kind: type[_T], seconds: float) -> _T:
    """The next message, which must be of ``kind``.

    Raises:
        FrameError: it is something else.
        OSError: the connection broke, or nothing came for ``seconds``.
    """
    message = hear_any(peer, seconds)
    if not isinstance(message, kind):
        raise FrameError(f"a {type(message).__name__} came where a {kind.__name__} must")
    return message


def hear_any(peer: wire.Peer, seconds: float) -> Message:
    """The next message. Raises as ``hear``."""
    try:
        return _decoder.decode(_body(peer, MOST_MESSAGE_BYTES, seconds))
    except msgspec.MsgspecError as error:
        raise FrameError(f"a message cannot be read: {error}") from None


def hear_record(peer: wire.Peer, seconds: float) -> Record:
    """The record with which a host's connection begins. Raises as ``hear``."""
    try:
        return msgspec.msgpack.decode(_body(peer, MOST_RECORD_BYTES, seconds), type=Record)
    except msgspec.MsgspecError as error:
        raise FrameError(f"the run's record cannot be read: {error}") from None


def _body(peer: wire.Peer, most: int, seconds: float) -> memoryview:
    frame = peer.receive(most, seconds)
    if frame.kind != wire.MESSAGE or frame.text:
        raise FrameError("what came is no message")
    return frame.body
