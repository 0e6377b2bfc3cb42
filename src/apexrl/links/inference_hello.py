"""How a connection to an inference gateway begins: each side shows the other that it knows the run's token.

    gateway: CHALLENGE, random bytes  →  HELLO, who asks + random bytes + proof  →  WELCOME, proof  or  REFUSED, why
                                                                                   (+ proof, of another run)

A proof is the HMAC of both sides' random bytes under the token, which itself never travels. What follows is neither
encrypted nor signed: use a network that you trust, or a tunnel. A refusal may come from anybody: what it says is shown,
and only a proof makes a host believe that another run is there.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from contextlib import suppress
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from apexrl.errors import FrameError, LinkError
from apexrl.links import inference_wire as wire
from apexrl.links.redis.values import printable

LEAST_TOKEN: Final = 16
"""Characters of a token: with fewer, who has heard one hello could find it by trying."""
HOST: Final = -1
"""In place of a worker's number: a host asks, for its workers."""

_NONCE_BYTES = 32
_MOST_WHY = 400  # characters of a refusal
_RETRY_NAMES = frozenset((socket.EAI_AGAIN, socket.EAI_SYSTEM))  # the server of names is away, and not the name
_Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Name = Annotated[str, Meta(max_length=100)]


class Hello(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Who asks to be let in."""

    nonce: _Digest
    proof: _Digest
    run: _Name
    """Id of the run that it works for; empty: whichever is there."""
    member: _Name
    """Id of its host's life."""
    worker: Annotated[int, Meta(ge=HOST, lt=2**20)]
    generation: Annotated[int, Meta(ge=0, lt=2**62)] = 0
    schema: Annotated[bytes, Meta(max_length=64)] = b""


class RefusedError(LinkError):
    """The gateway let nobody in, and said why."""

    def __init__(self, text: str, replaced: bool) -> None:
        super().__init__(text)
        self.replaced = replaced
        """Another run is there than the one that was wanted; known for certain."""


class UnreachableError(LinkError, ConnectionError):
    """Nobody is there: another attempt may succeed."""


class Caller(NamedTuple):
    """Who said hello and knows the token, and what may be answered."""

    hello: Hello
    welcome: bytes
    """For ``wire.WELCOME``."""
    replaced: bytes
    """For ``refuse``: shows who has the token that another run is here than the wanted one."""


_decoder = msgspec.msgpack.Decoder(Hello)
_refusals = msgspec.msgpack.Decoder(tuple[bytes, str])


def enter(
    address: tuple[str, int],
    token: str,
    seconds: float,
    *,
    run: str,
    member: str,
    worker: int,
    generation: int = 0,
    schema: bytes = b"",
) -> socket.socket:
    """A connection to the gateway at ``address`` that it has welcomed.

    Args:
        seconds: that making the connection may take.

    Raises:
        UnreachableError: nobody answers there, or it hung up; or nobody can say now where a host is, of which it was
            known once (``run``).
        RefusedError: it refused, and says why.
        LinkError: it does not know the token itself; or no host has that name.
        FrameError: what answers there is no gateway of this version.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        peer = socket.create_connection(address, timeout=seconds)
    except socket.gaierror as error:
        if run or error.errno in _RETRY_NAMES:  # a run was there: the name was good, and will be
            raise UnreachableError(f"nobody says where {where} is: {error.strerror}") from None
        raise LinkError(f"{where}: no host has that name ({error.strerror})") from None
    except OSError as error:
        raise UnreachableError(f"no inference gateway answers at {where}: {error}") from None
    try:
        wire.prepare(peer)
        kind, _, challenge, nbytes = wire.receive_head(peer, wire.HELLO_SECONDS)
        if kind != wire.CHALLENGE or len(challenge) != _NONCE_BYTES or nbytes:
            raise FrameError(f"what answers at {where} is no inference gateway")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        proof = _proof(token, b"worker", challenge, nonce)
        hello = Hello(nonce, proof, run, member, worker, generation, schema)
        wire.send(peer, wire.HELLO, head=msgspec.msgpack.encode(hello))
        kind, _, answer, nbytes = wire.receive_head(peer, wire.HELLO_SECONDS)
        if kind == wire.REFUSED:
            mark, why = _refusal(answer)
            replaced = hmac.compare_digest(mark, _proof(token, b"replaced", challenge, nonce))
            raise RefusedError(f"the inference gateway at {where} refused {_called(worker)}: {why}", replaced)
        if kind != wire.WELCOME or nbytes:
            raise FrameError(f"what answers at {where} is no inference gateway")
        if not hmac.compare_digest(answer, _proof(token, b"gateway", challenge, nonce)):
            raise LinkError(
                f"what answers at {where} does not know the run's token: it is not the gateway that it says"
            )
    except OSError as error:
        peer.close()
        raise UnreachableError(f"the inference gateway at {where} hung up: {error}") from None
    except BaseException:
        peer.close()
        raise
    return peer


def challenge(peer: socket.socket, token: str) -> Caller:
    """The gateway's side: whoever says hello and knows the token.

    Raises:
        LinkError: it does not know the token.
        FrameError: it says something else.
        OSError: it hung up, or says nothing.
    """
    own = secrets.token_bytes(_NONCE_BYTES)
    wire.send(peer, wire.CHALLENGE, head=own)
    kind, _, head, nbytes = wire.receive_head(peer, wire.HELLO_SECONDS)
    if kind != wire.HELLO or nbytes:
        raise FrameError("it did not say hello")
    try:
        hello = _decoder.decode(head)
    except msgspec.MsgspecError as error:
        raise FrameError(f"its hello cannot be read: {error}") from None
    if not hmac.compare_digest(hello.proof, _proof(token, b"worker", own, hello.nonce)):
        raise LinkError("it does not know the run's token")
    return Caller(hello, *(_proof(token, side, own, hello.nonce) for side in (b"gateway", b"replaced")))


def refuse(peer: socket.socket, why: str, replaced: bytes = b"") -> None:
    """Say why, if anybody still listens, and hang up."""
    with suppress(OSError):
        wire.send(peer, wire.REFUSED, head=msgspec.msgpack.encode((replaced, why[:_MOST_WHY])))
    peer.close()


def _proof(token: str, side: bytes, challenge: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), side + challenge + nonce, "sha256")


def _called(worker: int) -> str:
    return "this host" if worker == HOST else f"worker {worker}"


def _refusal(answer: bytes) -> tuple[bytes, str]:
    """What was sent by whom nobody knows yet, fit for a terminal."""
    try:
        mark, why = _refusals.decode(answer)
    except msgspec.MsgspecError:
        return b"", "without a word that can be read"
    return mark, printable(why, _MOST_WHY)
