"""Command-line flags that say where a run's parts live: this machine alone, Redis, TCP or Ray."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from apexrl.cli.host_flags import Address, File, Modules, Url, redis_url
from apexrl.config.placement import Listen, Redis
from apexrl.config.settings import flag
from apexrl.errors import ConfigError
from apexrl.links.tcp.tls import ServerTls, self_signed
from apexrl.links.tokens import read_token, shared_token

RAY_FLAGS: Final = ("actor_cpus", "learner_gpus", "replay_shards")


@dataclass(frozen=True, kw_only=True)
class PlacementFlags:
    """Flags that ``train``, ``learner`` and ``resume`` have in common."""

    redis: Url = ""
    """Redis server where other hosts join: redis[s]://USER:PASSWORD@HOST:PORT. With --run alone: APEXRL_REDIS_URL."""
    replace_run: bool = False
    """Delete what the server keeps of another run of that name, if it has no learner."""
    listen: Address = ""
    """Where environment workers of other hosts may ask (topology seed or ga3c; --actors 0: only they).
    :PORT is this machine alone, 0.0.0.0:PORT all its addresses."""
    token_file: File = ""
    """Holds the token that they must know; train makes it if it is not there. Empty: APEXRL_TOKEN says it.
    With --redis it signs what the hosts are told, for those that have it too."""
    tls_self_signed: File = ""
    """Certificate and key with which they know this run; made if not there. Its fingerprint is printed for them."""
    tls_cert: File = ""
    """Certificate of this run (PEM), of an authority that they trust."""
    tls_key: File = ""
    """Private key of --tls-cert; empty: it stands in that file."""
    tls_ca: File = ""
    """Authorities (PEM) of which they must show certificates, too."""
    trust: Modules = ()
    """Module or package of your own, of which FILE.toml or RUN may name environments, agent, network and topology.
    What it names is refused otherwise, unless a flag names it again. May be given several times."""


def other_hosts(wanted: PlacementFlags, run: str, *, actors: bool | None, make: bool) -> Listen | Redis | None:
    """Where other hosts may join; None: nowhere.

    Args:
        wanted: the flags.
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
        if getattr(wanted, name) and not wanted.listen:
            raise ConfigError(f"{flag(name)} means nothing without --listen")
    if wanted.listen:
        return _listen(wanted, redis, make)
    if not redis:
        return None
    token = shared_token(wanted.token_file, make=make)
    return Redis(redis_url(wanted.redis), run, actors=actors, token=token, replace_run=wanted.replace_run)


def _listen(wanted: PlacementFlags, redis: object, make: bool) -> Listen:
    """Where environment workers of other hosts may ask, the token that they must know, and TLS.

    Raises:
        ConfigError: there is no token, or both are meant; or TLS cannot be as it is wanted.
    """
    if redis:
        raise ConfigError("--listen is for environment workers, --redis and --run for actors: leave out one of them")
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
