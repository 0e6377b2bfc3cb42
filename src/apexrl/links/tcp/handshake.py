"""The handshake of a connection to a gateway: each side proves that it knows the run's token.

    OPEN, with or without TLS  →  CHALLENGE, random bytes  →  HELLO, identity + random bytes, proof  →  WELCOME, proof
                                                                      or REFUSED, reason (+ proof, of another run)

OPEN is a frame of the least protocol that the caller speaks, and names the newest (one of protocol 3 names none); it
looks the same in all protocols. The challenge is a frame of the newest that both speak, and so is all that follows.

A proof is the HMAC of the challenge and the whole hello under the token, which itself is never sent. The two keys for
the codes of later frames are derived in the same way, unless TLS is used. A refusal may come from any peer: its text is
shown, but a host believes that another run is there only with a proof.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from apexrl.errors import FrameError, LinkError
from apexrl.links.printable import printable
from apexrl.links.protocol_numbers import Protocols
from apexrl.links.tcp import frames
from apexrl.links.tcp.slot_leases import LEASE_BITS, Lease
from apexrl.links.tcp.tls import ClientTls, in_words

LEAST_TOKEN: Final = 16
"""Least length of a token: a shorter one could be guessed from one recorded hello."""
HOST: Final = -1
"""Instead of a worker's number: the caller is a host."""
MOST_SLOTS: Final = 256
"""Of one connection."""

_NONCE_BYTES = _PROOF_BYTES = 32
_MOST_WHY = 400  # characters of a refusal
_RETRY_NAMES = frozenset((socket.EAI_AGAIN, socket.EAI_SYSTEM))  # the name server fails; the name may be right
_Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Name = Annotated[str, Meta(max_length=100)]
_Lease = tuple[Annotated[int, Meta(ge=0, lt=2**20)], Annotated[int, Meta(ge=0, lt=2**21)]]


class Hello(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The identity of a caller."""

    nonce: _Digest
    run: _Name
    """Id of the run that it works for; empty: any."""
    member: _Name
    """Id of its host's process."""
    worker: Annotated[int, Meta(ge=HOST, lt=2**20)]
    generation: Annotated[int, Meta(ge=0, lt=2**62)] = 0
    schema: Annotated[bytes, Meta(max_length=64)] = b""
    gmac: bool = False
    """It supports GMAC."""
    also: Annotated[list[_Lease], Meta(max_length=MOST_SLOTS - 1)] = []
    """(slot, generation of its lease) of further workers that it stands for."""

    @property
    def leases(self) -> dict[int, int]:
        """Slot -> generation of its lease, of every worker that the caller stands for."""
        return {self.worker: self.generation >> LEASE_BITS, **dict(self.also)}

    def generation_in(self, slot: int) -> int:
        """Of this connection as one of the worker in ``slot``."""
        return (self.leases[slot] << LEASE_BITS) + self.generation % (1 << LEASE_BITS)


class RefusedError(LinkError):
    """The gateway refused the connection, with a reason."""

    def __init__(self, text: str, replaced: bool) -> None:
        super().__init__(text)
        self.replaced = replaced
        """Proven: the gateway belongs to another run."""


class UnreachableError(LinkError, ConnectionError):
    """Nothing answers: another attempt may succeed."""


class Caller(NamedTuple):
    """A caller that knows the token, and the proofs for the answer."""

    hello: Hello
    welcome: bytes
    """For ``welcome``."""
    replaced: bytes
    """For ``refuse``: proves to the caller that this is another run."""
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
    also: Sequence[Lease] = (),
    tls: ClientTls | None = None,
) -> frames.Connection:
    """Connect to the gateway at ``address`` and complete the handshake.

    Args:
        seconds: timeout of connecting.
        run, member, worker, generation, schema, also: as of ``Hello``.
        tls: how to verify the gateway; None: no TLS.

    Raises:
        UnreachableError: nothing answers there, or it disconnected; or the name of a host that was found before
            (``run``) cannot be resolved now.
        RefusedError: it refused, with a reason.
        LinkError: it does not know the token, or is not the gateway that ``tls`` verifies; or no host has that name.
        FrameError: it is not a gateway of this version.
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
        raise UnreachableError(f"no gateway answers at {where}: {error}") from None
    peer = frames.Connection(connection)
    try:
        if tls and context:
            tls.check(peer.start_tls(context, time.monotonic() + frames.HELLO_SECONDS, address[0]), where)
        _say_hello(
            peer,
            where,
            token,
            Hello(secrets.token_bytes(_NONCE_BYTES), run, member, worker, generation, schema, frames.HAS_GMAC, [*also]),
        )
    except ssl.SSLEOFError as error:
        peer.close()
        raise UnreachableError(f"the gateway at {where} hung up: {error}") from None
    except ssl.SSLError as error:
        peer.close()
        raise LinkError(in_words(error, where, tls or ClientTls())) from None
    except OSError as error:
        peer.close()
        raise UnreachableError(f"the gateway at {where} hung up: {error}") from None
    except BaseException:
        peer.close()
        raise
    return peer


def _say_hello(peer: frames.Connection, where: str, token: str, hello: Hello) -> None:
    peer.send(frames.OPEN, head=msgspec.msgpack.encode(frames.PROTOCOLS))
    begun = _answer(peer, where, hello)
    if begun.kind != frames.CHALLENGE or len(begun.text) != _NONCE_BYTES:
        raise FrameError(f"what answers at {where} is no gateway")
    peer.agree(peer.heard)
    said = msgspec.msgpack.encode(hello)
    secret = _Secret(token, begun.text + said)
    peer.send(frames.HELLO, head=said, body=secret.proof(b"worker"))
    answer = _answer(peer, where, hello, secret)
    if answer.kind != frames.WELCOME:
        raise FrameError(f"what answers at {where} is no gateway")
    gmac = hello.gmac and hmac.compare_digest(answer.text, secret.proof(b"gateway with GMAC"))
    if not gmac and not hmac.compare_digest(answer.text, secret.proof(b"gateway")):
        raise LinkError(f"what answers at {where} does not know the run's token: it is not the gateway that it says")
    if not peer.encrypted:
        peer.seal(secret.proof(b"frames of worker"), secret.proof(b"frames of gateway"), gmac)


def _answer(peer: frames.Connection, where: str, hello: Hello, secret: _Secret | None = None) -> frames.Frame:
    """The gateway's answer. RefusedError: it is a refusal."""
    frame = peer.receive(seconds=frames.HELLO_SECONDS)
    if frame.kind != frames.REFUSED:
        return frame
    mark, why = _refusal(frame.text)
    replaced = secret is not None and hmac.compare_digest(mark, secret.proof(b"replaced"))
    who = "this host" if hello.worker == HOST else f"worker {hello.worker}"
    raise RefusedError(f"the gateway at {where} refused {who}: {why}", replaced)


def challenge(peer: frames.Connection, token: str, tls: ssl.SSLContext | None = None) -> Caller:
    """The gateway's side: a caller that proves to know the token within ``frames.HELLO_SECONDS``.

    Raises:
        LinkError: it does not know the token, or uses TLS where it must not or the reverse.
        FrameError: it sent something else.
        OSError: it disconnected or is silent; ``ssl.SSLError``: TLS failed.
    """
    deadline = time.monotonic() + frames.HELLO_SECONDS
    if peer.speaks_tls(deadline):
        if tls is None:
            raise LinkError("it speaks TLS, and this run does not: give --tls-cert or --tls-self-signed here")
        peer.start_tls(tls, deadline)
    elif tls is not None:
        raise LinkError("it does not speak TLS, and this run does: give apexrl envs --tls-fingerprint or --tls-ca")
    opened = peer.receive(seconds=deadline - time.monotonic())
    if opened.kind != frames.OPEN:
        raise FrameError("it did not say hello")
    peer.agree(frames.PROTOCOLS.newest_common(_offered(opened.text, peer.heard), "it"))
    own = secrets.token_bytes(_NONCE_BYTES)
    peer.send(frames.CHALLENGE, head=own)
    kind, _, said, proof = peer.receive(_PROOF_BYTES, deadline - time.monotonic())
    if kind != frames.HELLO:
        raise FrameError("it did not say hello")
    secret = _Secret(token, own + said)
    try:
        hello = _decoder.decode(said)
    except msgspec.MsgspecError as error:
        raise FrameError(f"its hello cannot be read: {error}") from None
    if not hmac.compare_digest(proof, secret.proof(b"worker")):
        raise LinkError("it does not know the run's token")
    keys = secret.proof(b"frames of gateway"), secret.proof(b"frames of worker")
    gmac = hello.gmac and frames.HAS_GMAC
    answer = secret.proof(b"gateway with GMAC" if gmac else b"gateway")
    return Caller(hello, answer, secret.proof(b"replaced"), keys, gmac)


def _offered(text: bytes, heard: int) -> Protocols:
    """What the caller speaks, by its first frame."""
    try:
        least, newest = msgspec.msgpack.decode(text, type=tuple[int, int])
    except msgspec.MsgspecError:
        return Protocols(heard, heard)
    return Protocols(least, newest) if least == heard <= newest else Protocols(heard, heard)


def welcome(peer: frames.Connection, caller: Caller) -> None:
    """Accept the caller and begin to authenticate frames."""
    peer.send(frames.WELCOME, head=caller.welcome)
    if not peer.encrypted:
        peer.seal(*caller.keys, caller.gmac)


def refuse(peer: frames.Connection, why: str, replaced: bytes = b"") -> None:
    """Send the reason, if the peer still listens, and disconnect."""
    with suppress(OSError):
        peer.send(frames.REFUSED, head=msgspec.msgpack.encode((replaced, why[:_MOST_WHY])))
    peer.close()


class _Secret:
    """Derives proofs and keys from the token, for one challenge and hello."""

    def __init__(self, token: str, hello: bytes) -> None:
        self._token, self._hello = token.encode(), hello

    def proof(self, what: bytes) -> bytes:
        return hmac.digest(self._token, b"apexrl " + what + b"\0" + self._hello, "sha256")


def _refusal(answer: bytes) -> tuple[bytes, str]:
    """A refusal of an unverified peer, made safe for a terminal."""
    try:
        mark, why = _refusals.decode(answer)
    except msgspec.MsgspecError:
        return b"", "without a word that can be read"
    return mark, printable(why, _MOST_WHY)
