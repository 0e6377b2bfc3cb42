"""Command-line flags that say where a run's parts live: this machine alone, Redis, TCP or Ray."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from apexrl.cli.host_flags import Address, File, Modules, Url, redis_url
from apexrl.config.placement import Listen, Redis
from apexrl.config.settings import flag
from apexrl.errors import ConfigError
from apexrl.links.tcp.tls import ServerTls, self_signed
from apexrl.links.tokens import read_token, shared_token


@dataclass(frozen=True, kw_only=True)
class PlacementFlags:
    """Flags that ``train``, ``learner`` and ``resume`` have in common."""

    redis: Url = ""
    """Redis server through which other hosts join: redis://USER:PASSWORD@HOST:PORT, with TLS rediss://.
    With --run alone, the environment variable APEXRL_REDIS_URL names it."""
    replace_run: bool = False
    """Delete another run of that name from the Redis server first, if no learner works at it."""
    listen: Address = ""
    """Address at which workers of other hosts (apexrl envs) connect, for topology seed, ga3c or a3c --no-hogwild.
    :PORT listens on this machine alone, 0.0.0.0:PORT on all its addresses. --actors 0 starts no workers here.
    With --redis hosts find the address themselves; default: any free port of the interface towards the server."""
    advertise: Address = ""
    """Address of this run for other hosts, with --redis, if --listen means another inside a container or behind NAT."""
    token_file: File = ""
    """File with the token that other hosts must know. train makes it if it is not there.
    Empty: the environment variable APEXRL_TOKEN. With --redis, the token signs the run's record."""
    tls_self_signed: File = ""
    """File with a self-signed certificate and its key, for TLS with --listen. Made if it is not there.
    The run prints its fingerprint, for apexrl envs --tls-fingerprint."""
    tls_cert: File = ""
    """Certificate of this run (PEM), signed by an authority that the other hosts trust."""
    tls_key: File = ""
    """Private key of --tls-cert; empty: the same file."""
    tls_ca: File = ""
    """Authorities (PEM), one of which must have signed the certificate of each other host."""
    trust: Modules = ()
    """Module or package whose environments, agents, networks and topologies FILE.toml or RUN may name.
    Code that is not installed is refused otherwise, unless a flag names it. May be given several times."""


def other_hosts(wanted: PlacementFlags, run: str, *, actors: bool | None, make: bool) -> Listen | Redis | None:
    """Where other hosts join; None: nowhere.

    Args:
        run: ``--run``.
        actors: whether the learner's machine brings actors too (``Redis.actors``); False: it must be told of a server.
        make: a token file, and a certificate of its own, that is not there is made.

    Raises:
        ConfigError: flags contradict each other, or lack what they need.
    """
    redis = bool(wanted.redis or run or actors is False)
    if wanted.token_file and not (wanted.listen or redis):
        raise ConfigError("--token-file means nothing without --listen, --redis or --run")
    if wanted.replace_run and not redis:
        raise ConfigError("--replace-run means nothing without --redis")
    for name in ("tls_self_signed", "tls_cert", "tls_key", "tls_ca"):
        if getattr(wanted, name) and redis:
            raise ConfigError(
                f"{flag(name)} means nothing with --redis: the run makes a certificate, which hosts find in its record"
            )
        if getattr(wanted, name) and not wanted.listen:
            raise ConfigError(f"{flag(name)} means nothing without --listen")
    if wanted.advertise and not redis:
        raise ConfigError("--advertise means nothing without --redis: hosts are told the address with --connect")
    if redis:
        token = shared_token(wanted.token_file, make=make)
        own = {"listen": wanted.listen, "advertise": wanted.advertise}
        return Redis(redis_url(wanted.redis), run, actors, token, wanted.replace_run, **own)
    if not wanted.listen:
        return None
    tls = _server_tls(wanted, make)
    return Listen(wanted.listen, read_token(wanted.token_file, make), tls)


def _server_tls(wanted: PlacementFlags, make: bool) -> ServerTls | None:
    if wanted.tls_self_signed and (wanted.tls_cert or wanted.tls_key):
        raise ConfigError("--tls-self-signed makes a certificate, --tls-cert names one: leave out one of them")
    if not (wanted.tls_self_signed or wanted.tls_cert):
        if wanted.tls_ca or wanted.tls_key:
            raise ConfigError("TLS needs a certificate of this run: --tls-cert FILE, or --tls-self-signed FILE")
        return None
    tls = ServerTls(wanted.tls_cert, wanted.tls_key, wanted.tls_ca)
    if wanted.tls_self_signed:
        tls = dataclasses.replace(self_signed(wanted.tls_self_signed, make), ca=wanted.tls_ca)
    tls.context()
    return tls
