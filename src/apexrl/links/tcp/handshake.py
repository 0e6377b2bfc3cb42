"""How a connection to an inference gateway begins: each side shows the other that it knows the run's token.

    OPEN, in TLS or not  →  CHALLENGE, random bytes  →  HELLO, who asks + random bytes, proof  →  WELCOME, proof
                                                                       or REFUSED, why (+ proof, of another run)

A proof is the HMAC of the challenge and the whole hello under the token, which itself never travels. So are the two
keys under which every later frame has a code, unless TLS protects them. A refusal may come from anybody: what it says
is shown, and only a proof makes a host believe that another run is there.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import time
from contextlib import suppress
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from apexrl.errors import FrameError, LinkError
from apexrl.links.redis.values import printable
from apexrl.links.tcp import frames as wire
from apexrl.links.tcp.tls import ClientTls, in_words

LEAST_TOKEN: Final = 16
"""Characters of a token: with fewer, who has heard one hello could find it by trying."""
HOST: Final = -1
"""In place of a worker's number: a host asks, for its workers."""

_NONCE_BYTES = _PROOF_BYTES = 32
_MOST_WHY = 400  # characters of a refusal
_RETRY_NAMES = frozenset((socket.EAI_AGAIN, socket.EAI_SYSTEM))  # the server of names is away, and not the name
_Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Name = Annotated[str, Meta(max_length=100)]


class Hello(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Who asks to be let in."""

    nonce: _Digest
    run: _Name
    """Id of the run that it works for; empty: whichever is there."""
    member: _Name
    """Id of its host's life."""
    worker: Annotated[int, Meta(ge=HOST, lt=2**20)]
    generation: Annotated[int, Meta(ge=0, lt=2**62)] = 0
    schema: Annotated[bytes, Meta(max_length=64)] = b""
    gmac: bool = False
    """It can make codes of frames so."""


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
    """For ``welcome``."""
    replaced: bytes
    """For ``refuse``: shows who has the token that another run is here than the wanted one."""
    keys: tuple[bytes, bytes]
    """Of what is sent to the worker, and by it."""
    gmac: bool
    """How the codes of frames are made."""


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
    tls: ClientTls | None = None,
) -> wire.Peer:
    """A connection to the gateway at ``address`` that it has welcomed.

    Args:
        seconds: that making the connection may take.
        tls: how the gateway is known; None: it speaks no TLS.

    Raises:
        UnreachableError: nobody answers there, or it hung up; or nobody can say now where a host is, of which it was
            known once (``run``).
        RefusedError: it refused, and says why.
        LinkError: it does not know the token itself, or is not the one that ``tls`` means; or no host has that name.
        FrameError: what answers there is no gateway of this version.
    """
    where = f"{address[0]}:{address[1]}"
    context = tls.context() if tls else None
    try:
        connection = socket.create_connection(address, timeout=seconds)
    except socket.gaierror as error:
        if run or error.errno in _RETRY_NAMES:  # a run was there: the name was good, and will be
            raise UnreachableError(f"nobody says where {where} is: {error.strerror}") from None
        raise LinkError(f"{where}: no host has that name ({error.strerror})") from None
    except OSError as error:
        raise UnreachableError(f"no inference gateway answers at {where}: {error}") from None
    peer = wire.Peer(connection)
    try:
        if tls and context:
            tls.check(peer.start_tls(context, time.monotonic() + wire.HELLO_SECONDS, address[0]), where)
        _say_hello(
            peer,
            where,
            token,
            Hello(secrets.token_bytes(_NONCE_BYTES), run, member, worker, generation, schema, wire.HAS_GMAC),
        )
    except ssl.SSLEOFError as error:
        peer.close()
        raise UnreachableError(f"the inference gateway at {where} hung up: {error}") from None
    except ssl.SSLError as error:
        peer.close()
        raise LinkError(in_words(error, where, tls or ClientTls())) from None
    except OSError as error:
        peer.close()
        raise UnreachableError(f"the inference gateway at {where} hung up: {error}") from None
    except BaseException:
        peer.close()
        raise
    return peer


def _say_hello(peer: wire.Peer, where: str, token: str, hello: Hello) -> None:
    peer.send(wire.OPEN)
    begun = _answer(peer, where, hello)
    if begun.kind != wire.CHALLENGE or len(begun.text) != _NONCE_BYTES:
        raise FrameError(f"what answers at {where} is no inference gateway")
    said = msgspec.msgpack.encode(hello)
    secret = _Secret(token, begun.text + said)
    peer.send(wire.HELLO, head=said, body=secret.proof(b"worker"))
    answer = _answer(peer, where, hello, secret)
    if answer.kind != wire.WELCOME:
        raise FrameError(f"what answers at {where} is no inference gateway")
    gmac = hello.gmac and hmac.compare_digest(answer.text, secret.proof(b"gateway with GMAC"))
    if not gmac and not hmac.compare_digest(answer.text, secret.proof(b"gateway")):
        raise LinkError(f"what answers at {where} does not know the run's token: it is not the gateway that it says")
    if not peer.encrypted:
        peer.seal(secret.proof(b"frames of worker"), secret.proof(b"frames of gateway"), gmac)


def _answer(peer: wire.Peer, where: str, hello: Hello, secret: _Secret | None = None) -> wire.Frame:
    """What the gateway says. Raises RefusedError when that is a refusal."""
    frame = peer.receive(seconds=wire.HELLO_SECONDS)
    if frame.kind != wire.REFUSED:
        return frame
    mark, why = _refusal(frame.text)
    replaced = secret is not None and hmac.compare_digest(mark, secret.proof(b"replaced"))
    raise RefusedError(f"the inference gateway at {where} refused {_called(hello.worker)}: {why}", replaced)


def challenge(peer: wire.Peer, token: str, tls: ssl.SSLContext | None = None) -> Caller:
    """The gateway's side: whoever says hello and knows the token, within ``wire.HELLO_SECONDS``.

    Raises:
        LinkError: it does not know the token, or does not speak TLS where it must.
        FrameError: it says something else.
        OSError: it hung up, or says nothing; as ``ssl.SSLError``: TLS failed.
    """
    deadline = time.monotonic() + wire.HELLO_SECONDS
    if peer.speaks_tls(deadline):
        if tls is None:
            raise LinkError("it speaks TLS, and this run does not: give --tls-cert or --tls-self-signed here")
        peer.start_tls(tls, deadline)
    elif tls is not None:
        raise LinkError("it does not speak TLS, and this run does: give apexrl envs --tls-fingerprint or --tls-ca")
    if peer.receive(seconds=deadline - time.monotonic()).kind != wire.OPEN:
        raise FrameError("it did not say hello")
    own = secrets.token_bytes(_NONCE_BYTES)
    peer.send(wire.CHALLENGE, head=own)
    kind, _, said, proof = peer.receive(_PROOF_BYTES, deadline - time.monotonic())
    if kind != wire.HELLO:
        raise FrameError("it did not say hello")
    secret = _Secret(token, own + said)
    try:
        hello = _decoder.decode(said)
    except msgspec.MsgspecError as error:
        raise FrameError(f"its hello cannot be read: {error}") from None
    if not hmac.compare_digest(proof, secret.proof(b"worker")):
        raise LinkError("it does not know the run's token")
    keys = secret.proof(b"frames of gateway"), secret.proof(b"frames of worker")
    gmac = hello.gmac and wire.HAS_GMAC
    answer = secret.proof(b"gateway with GMAC" if gmac else b"gateway")
    return Caller(hello, answer, secret.proof(b"replaced"), keys, gmac)


def welcome(peer: wire.Peer, caller: Caller) -> None:
    """Let it in: from now on, frames of this connection are its own."""
    peer.send(wire.WELCOME, head=caller.welcome)
    if not peer.encrypted:
        peer.seal(*caller.keys, caller.gmac)


def refuse(peer: wire.Peer, why: str, replaced: bytes = b"") -> None:
    """Say why, if anybody still listens, and hang up."""
    with suppress(OSError):
        peer.send(wire.REFUSED, head=msgspec.msgpack.encode((replaced, why[:_MOST_WHY])))
    peer.close()


class _Secret:
    """What only who knows the token can tell of one hello: its challenge and all that was said."""

    def __init__(self, token: str, hello: bytes) -> None:
        self._token, self._hello = token.encode(), hello

    def proof(self, what: bytes) -> bytes:
        return hmac.digest(self._token, b"apexrl " + what + b"\0" + self._hello, "sha256")


def _called(worker: int) -> str:
    return "this host" if worker == HOST else f"worker {worker}"


def _refusal(answer: bytes) -> tuple[bytes, str]:
    """What was sent by whom nobody knows yet, fit for a terminal."""
    try:
        mark, why = _refusals.decode(answer)
    except msgspec.MsgspecError:
        return b"", "without a word that can be read"
    return mark, printable(why, _MOST_WHY)
