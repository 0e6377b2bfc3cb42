"""Where a run lives, by the arguments of ``train`` and ``resume``."""

from __future__ import annotations

from pathlib import Path

from apexrl.config.placement import Listen, Placement, Ray, Redis
from apexrl.errors import ConfigError
from apexrl.launch.ray import resources
from apexrl.links.tcp.tls import ServerTls


def chosen_placement(
    redis: str,
    run: str,
    listen: str,
    token: str,
    tls: ServerTls | None,
    ray: str | Ray,
    *,
    advertise: str,
    replace_run: bool,
    resumed: Path | None = None,
) -> Placement | None:
    """Where a run lives, by the arguments of ``train`` or ``resume``.

    Args:
        resumed: folder of a run to go on with, which may name its Ray cluster.
    """
    if replace_run and not redis:
        raise ConfigError("replace_run= needs a run on a Redis server: give redis= too")
    if advertise and not redis:
        raise ConfigError("advertise= is for a run on a Redis server: give redis= too")
    if listen and run and not redis:
        raise ConfigError(f"run={run!r} names a run on a Redis server; leave it out with listen=")
    if token and not (listen or redis):
        raise ConfigError("token= is shared with other hosts: it needs listen= or redis=")
    if tls and (redis or not listen):
        raise ConfigError("tls= is for a run that listens without redis=, where a run makes its own: it needs listen=")
    if run and not redis:
        raise ConfigError(f"run={run!r} names a run on a Redis server: give redis= too")
    if ray and (listen or redis):
        raise ConfigError("ray= runs on a cluster, redis= and listen= on hosts: give one of them")
    if redis:
        return Redis(redis, run, None if resumed else True, token, replace_run, listen, advertise)
    if listen:
        return Listen(listen, token, tls)
    if isinstance(ray, Ray):
        return ray
    if resumed is not None:
        return resources.resumed(resumed, ray)
    return Ray(ray) if ray else None
