"""The commands about runs that others work at: ``status``, ``stop``, ``drain`` and ``scale``."""

from __future__ import annotations

import os

from apexrl.errors import ConfigError


def status(words: list[str]) -> int:
    """show one run, or all runs of a Redis server or a Ray cluster"""
    from apexrl.cli import flags, host_flags

    wanted = flags.parse(host_flags.Status, words, "status")
    if (wanted.redis and (wanted.folder or wanted.ray)) or (wanted.folder and wanted.run):
        raise ConfigError("give one of: a run folder, --ray or --redis; --run NAME chooses a run of the latter two")
    if wanted.folder or wanted.ray:
        from apexrl.cli import ray_status

        if wanted.folder:
            return ray_status.show_folder(wanted.folder, wanted.watch, address=wanted.ray)
        return ray_status.show_cluster(wanted.ray, wanted.run, wanted.watch)
    if not wanted.redis and host_flags.REDIS_URL not in os.environ:
        raise ConfigError("say which runs: apexrl status RUN (a run folder), --redis URL, or --ray auto|HOST:PORT")
    url = host_flags.redis_url(wanted.redis)
    from apexrl.cli.redis_status import show_status

    return show_status(url, wanted.run, wanted.watch)


def stop(words: list[str]) -> int:
    """end a run of this machine, or over several hosts, after a final checkpoint"""
    from apexrl.cli import flags, host_flags

    wanted = flags.parse(host_flags.Stop, words, "stop")
    if wanted.folder and (wanted.redis or wanted.run):
        raise ConfigError("give a run folder, or --redis and --run, and not both")
    _check_wait(wanted.wait_seconds)
    if wanted.folder:
        from apexrl.cli import stop_run

        return stop_run.stop(wanted.folder, wanted.wait_seconds)
    if not (wanted.redis or wanted.run or host_flags.REDIS_URL in os.environ):
        raise ConfigError("say which run: apexrl stop RUN (a run folder), or --redis URL --run NAME")
    url, run = host_flags.redis_url(wanted.redis), host_flags.run_name(wanted.run, "stop")
    from apexrl.cli import redis_status

    return redis_status.stop(url, run, wanted.wait_seconds)


def drain(words: list[str]) -> int:
    """have a host leave a run over several hosts, and keep it away"""
    from apexrl.cli import drain_and_scale, flags, host_flags

    wanted = flags.parse(host_flags.Drain, words, "drain")
    _check_wait(wanted.wait_seconds)
    host = drain_and_scale.checked_host(wanted.host, "drain")
    url, run = host_flags.redis_url(wanted.redis), host_flags.run_name(wanted.run, "drain HOST")
    return drain_and_scale.drain(url, run, host, wanted.undo, wanted.wait_seconds)


def scale(words: list[str]) -> int:
    """change how many actors a run has, or a host brings to a run over several"""
    from apexrl.cli import drain_and_scale, flags, host_flags, scale_run

    wanted = flags.parse(host_flags.Scale, words, "scale")
    if not wanted.who:
        raise ConfigError("say whose actors: apexrl scale RUN --actors N, or HOST --actors N --redis URL --run NAME")
    if not (wanted.redis or wanted.run):
        return scale_run.scale(wanted.who, wanted.actors)
    host = drain_and_scale.checked_host(wanted.who, "scale")
    url, run = host_flags.redis_url(wanted.redis), host_flags.run_name(wanted.run, "scale HOST")
    return drain_and_scale.scale(url, run, host, wanted.actors)


def _check_wait(seconds: float) -> None:
    if not 0.0 <= seconds < float("inf"):
        raise ConfigError(f"--wait-seconds must be at least 0 and finite, not {seconds:g}")
