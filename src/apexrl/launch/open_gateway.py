"""The gateway of a run that hosts find through Redis: an address of this host, a certificate and a secret."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import time
from typing import Final

from apexrl.config.placement import Listen, host_and_port
from apexrl.errors import ConfigError
from apexrl.links.redis.checked_values import GatewayAddress
from apexrl.links.redis.server import Server
from apexrl.links.tcp.reserved_port import ReservedPort
from apexrl.links.tcp.tls import MadeCertificate, made_certificate

_TAKEN_SECONDS: Final = 10.0  # that an address may still be in use by a gateway that was just killed
_ALL: Final = ("0.0.0.0", "::")


class OpenGateway:
    """An address that is reserved for this run until ``close``, however often its gateway is started again.

    Args:
        listen: HOST:PORT; empty: any free port of the interface by which this host reaches ``server``.
        advertise: HOST:PORT that other hosts are told; empty: that one.
        token: that hosts have already; empty: a new secret, which the run's record tells them.

    Raises:
        ConfigError: an address is none, or nobody can listen there.
        LinkError: there is no way to the server.
    """

    def __init__(self, server: Server, listen: str, advertise: str, token: str) -> None:
        own = server.own_address()
        host, port = _address("--listen", listen) if listen else (own, 0)
        told = _address("--advertise", advertise) if advertise else None
        self._reserved = _reserve(host, port)
        port = self._reserved.address[1]
        told = told or (own if host in _ALL else host, port)
        tls = _certificate()
        secret = "" if token else secrets.token_urlsafe(32)
        self.listen: Final = Listen(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", token or secret, tls)
        """For the gateway."""
        pin = tls.fingerprint if tls else ""
        self.address: Final = GatewayAddress(host=told[0], port=told[1], fingerprint=pin, token=secret)
        """For the run's record."""
        self.warnings: Final = tuple(_warnings(told[0], tls is not None))

    def close(self) -> None:
        self._reserved.close()


def _warnings(host: str, encrypted: bool) -> list[str]:
    texts = []
    try:
        alone = ipaddress.ip_address(host).is_loopback
    except ValueError:
        alone = host == "localhost"
    if alone:
        texts.append(
            f"workers connect to {host}, which is this machine alone, as it reaches Redis there: for other hosts name "
            "the Redis server by an address that they use, or give --listen HOST:PORT"
        )
    if not encrypted:
        texts.append("connections of workers are not encrypted: install apexrl[tls] here and on their hosts")
    return texts


def _address(flag: str, text: str) -> tuple[str, int]:
    try:
        return host_and_port(text)
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is no HOST:PORT (an IPv6 address stands in brackets)") from None


def _reserve(host: str, port: int) -> ReservedPort:
    """The port, for this run: the gateway's process listens there."""
    deadline = time.monotonic() + _TAKEN_SECONDS
    while True:
        try:
            return ReservedPort(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            raise ConfigError(f"nobody can listen at {host}:{port} for other hosts: {error.strerror}") from None


def _certificate() -> MadeCertificate | None:
    """None: the package cryptography is not installed."""
    try:
        return made_certificate()
    except ConfigError:
        return None
