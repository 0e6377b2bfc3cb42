"""The ``apexrl`` command. Until something is trained, it imports neither PyTorch nor Gymnasium."""

from __future__ import annotations

import dataclasses
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from apexrl.cli import ended_runs, in_browser, running_runs, sweeping
from apexrl.cli.exit_codes import FAILED, HELD, INTERRUPTED, OK, USAGE
from apexrl.cli.run_display import NOT_UNDERSTOOD, complain, shown
from apexrl.config import Config
from apexrl.config.paths import start_folder
from apexrl.config.settings import did_you_mean
from apexrl.config.trust import entrusted
from apexrl.errors import ApexrlError, ConfigError, HeldError

if TYPE_CHECKING:
    from apexrl.cli.train_flags import RunFlags
    from apexrl.config.placement import Placement

TRAIN_MODULES = frozenset(
    ("gymnasium", "matplotlib", "msgspec", "rich", "safetensors", "tensorboard", "tomli_w", "torch", "tyro")
)
"""Import names of the extra ``train``."""

OTHER_MODULES = {
    "redis": "redis",
    "ray": "ray",
    "prometheus_client": "prometheus",
    "opentelemetry": "otel",
    "starlette": "dashboard",
    "uvicorn": "dashboard",
    "optuna": "sweep",
    "wandb": "wandb",
    "trackio": "trackio",
    "mlflow": "mlflow",
    "huggingface_hub": "hub",
    "minari": "minari",
    "h5py": "minari",
}
"""Import names of other extras -> their names."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, also when its output is closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed before the start: no other file may take its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if os.environ.get("NO_COLOR"):
        os.environ["PYTHON_TYRO_ANSI_CODES"] = "False"  # tyro looks at this alone, when it is imported
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # characters that the terminal's encoding lacks end no command
    try:
        with start_folder():
            return _main(argv)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # a failing flush at exit would change the exit code
                _forget(stream)


def _forget(stream: TextIO) -> None:
    """Discard what is still to be written to a stream."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if _names_own_code(words) and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # --env my_module:Id-v0 finds my_module.py here, as with `python -m`
    try:
        return _dispatch(words)
    except SystemExit as stop:  # tyro: 0 after --help, 2 after an error that it has printed
        if isinstance(stop.__context__, BrokenPipeError):  # rich: 1, where nobody reads what it prints
            return OK
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        complain("interrupted")  # before a run began, or of what is no run
        return INTERRUPTED
    except BrokenPipeError:  # `apexrl list | head`
        _forget(sys.stdout)
        return OK
    except ApexrlError as error:
        complain(str(error))
        return HELD if isinstance(error, HeldError) else USAGE if isinstance(error, NOT_UNDERSTOOD) else FAILED
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if extra := OTHER_MODULES.get(missing):
            complain(f"{missing} is not installed; run: pip install 'apexrl[train,{extra}]'")
            return USAGE
        if missing not in TRAIN_MODULES:
            raise
        complain(f"{error.name} is not installed; run: pip install 'apexrl[train]'")
        return USAGE


def _names_own_code(words: list[str]) -> bool:
    """Whether the command may name modules of the current folder.

    Otherwise nothing is imported from there: like a run folder, it may come from somebody else.
    """
    if words and words[0] in ("train", "learner", "compare") and not any(word.endswith(".toml") for word in words[1:2]):
        return True
    if words[:1] == ["list"] and any(":" in word for word in words[1:]):
        return True
    flags = {word.partition("=")[0] for word in words}
    return not flags.isdisjoint(("--trust", "--callback", "--env", "--envs", "--agent", "--network", "--topology"))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        from apexrl.cli.help import print_help

        print_help(COMMANDS)
        return OK if words else USAGE
    if words[0] in ("-V", "--version"):
        from apexrl import __version__

        print(f"apexrl {__version__}")
        return OK
    command = COMMANDS.get(words[0])
    if command is None:
        near = did_you_mean(words[0], (*COMMANDS, "--help", "--version"))
        raise ConfigError(f"unknown command {words[0]!r}{near}. Commands: {', '.join(COMMANDS)}; see: apexrl --help")
    return command(words[1:])


def _train(words: list[str], command: str = "train") -> int:
    """train a preset, a config.toml, or your own environment"""
    from apexrl.cli import train_flags
    from apexrl.cli.starting_point import starting_point

    again = train_flags.resumes_or_starts(words)
    config, placement, watch = train_flags.parse_train(words, *starting_point(words, command), command)
    return _run(config, None, placement, watch, again)


def _learner(words: list[str]) -> int:
    """train with actors on other hosts, connected through a Redis server; --standby: in place of one that dies"""
    if "--standby" in words:
        return _stand_by([word for word in words if word != "--standby"])
    if near := [word for word in words if get_close_matches(word, ["--standby"], cutoff=0.8)]:
        raise ConfigError(f"apexrl learner has no {near[0]} (did you mean --standby?)")
    return _train(words, "learner")


def _stand_by(words: list[str]) -> int:
    from apexrl import remote_api
    from apexrl.cli import flags, host_flags
    from apexrl.cli.observer_flags import exporters
    from apexrl.links.tokens import shared_token

    wanted = flags.parse(host_flags.Standby, words, "learner --standby")
    url, run = host_flags.redis_url(wanted.redis), host_flags.run_name(wanted.run, "learner --standby")
    token = shared_token(wanted.token_file)

    given = {name: getattr(wanted, name) for name in ("name", "out", "trust", "checkpoint_url")}
    start = partial(remote_api.stand_by, url, run, **given, token=token, show=False)
    return shown(start, *exporters(wanted, "run", run), wanted.log_format)


def _actor(words: list[str]) -> int:
    """run actors for a run whose learner is on another host"""
    from apexrl import remote_api
    from apexrl.cli import flags, host_flags
    from apexrl.cli.observer_flags import exporters
    from apexrl.links.tokens import shared_token

    wanted = flags.parse(host_flags.Actor, words, "actor")
    url, run = host_flags.redis_url(wanted.redis), host_flags.run_name(wanted.run, "actor")
    if wanted.actors < 0:
        raise ConfigError(f"--actors must be 0 or more, not {wanted.actors}")
    if wanted.learners not in (0, 1):
        raise ConfigError(f"--learners must be 0 or 1, not {wanted.learners}: start the command once for each learner")
    token = shared_token(wanted.token_file)

    here = ("actors", "learners", "out", "env_kwargs", "trust", "log_format")
    given = {name: getattr(wanted, name) for name in here}
    start = partial(remote_api.join, url, run, **given, token=token, show=False)
    return shown(start, *exporters(wanted, "host", run), wanted.log_format)


def _envs(words: list[str]) -> int:
    """run environment workers for a run that listens on another host"""
    from apexrl import remote_api
    from apexrl.cli import flags, host_flags
    from apexrl.cli.observer_flags import exporters
    from apexrl.links.tokens import read_token

    wanted = flags.parse(host_flags.Envs, words, "envs")
    if not wanted.connect:
        raise ConfigError("give the address at which the run listens: apexrl envs --connect HOST:PORT")
    if wanted.actors < 0:
        raise ConfigError(f"--actors must be 0 or more, not {wanted.actors}")
    token, tls = read_token(wanted.token_file), host_flags.client_tls(wanted)

    given = {name: getattr(wanted, name) for name in ("actors", "out", "env_kwargs", "trust", "log_format")}
    start = partial(remote_api.join_envs, wanted.connect, token, tls=tls, **given, show=False)
    return shown(start, *exporters(wanted, "host"), wanted.log_format)


def _resume(words: list[str]) -> int:
    """resume a run in its own folder"""
    from apexrl.cli import resume_flags

    wanted = resume_flags.parse_resume(words)
    from apexrl.api import restored
    from apexrl.run.folder import RunFolder

    path, url = restored(wanted.run, wanted.out, wanted.checkpoint_url)
    folder = RunFolder.open(path)
    folder.check_links()
    command = f"apexrl resume {wanted.run}"
    config = resume_flags.resumed(folder.config(), wanted)
    config = entrusted(config, wanted.trust, str(folder.config_path), command=command)
    wanted = dataclasses.replace(wanted, checkpoint_url=url)
    return _run(config, folder.path, resume_flags.resume_placement(wanted, folder.path), wanted)


def _run(config: Config, resume: Path | None, placement: Placement | None, watch: RunFlags, again: bool = False) -> int:
    from apexrl import api
    from apexrl.cli.named_callbacks import named_callbacks
    from apexrl.cli.observer_flags import exporters
    from apexrl.config.placement import Redis

    run = placement.run if isinstance(placement, Redis) else ""
    where: dict[str, Any] = {"placement": placement, "checkpoint_url": watch.checkpoint_url}
    start = partial(api.run, config, resume=resume, resume_or_start=again, **where)
    callbacks = named_callbacks(watch.callback)
    observers, told = exporters(watch, "run", run)
    for name in watch.tracker:
        from apexrl.report.tracker import TrackerExport

        observers.append(TrackerExport(name))
    return shown(start, [*observers, *callbacks], told, config.log_format)


def _dataset(words: list[str]) -> int:
    """record a run's episodes as a Minari dataset, export its replay as one, or show one"""
    from apexrl.cli.datasets import dataset

    return dataset(words)


def _ope(words: list[str]) -> int:
    """estimate from a dataset what a run's agent would return"""
    from apexrl.cli.datasets import ope

    return ope(words)


def _compare(words: list[str]) -> int:
    """compare topologies or agents: a table and pictures"""
    from apexrl.cli import train_flags
    from apexrl.cli.starting_point import recipe_given

    named = ["--env"] if words and not words[0].startswith("-") else []  # a preset without --env, as with train
    wanted, rest = train_flags.parse_compare([*named, *words])

    def change(config: Config) -> Config:
        return train_flags.parse_train(rest, config, "", "compare")[0] if rest else config

    from apexrl import compare

    plan = compare.plan(
        wanted.env,
        wanted.topologies,
        wanted.agents,
        seeds=wanted.seeds,
        minutes=wanted.minutes,
        env_steps=wanted.env_steps,
        until_goal=wanted.until_goal,
        recipe=recipe_given(rest),
        change=change,
        look=lambda config: train_flags.parse_look(rest, config),
    )
    report = compare.compare(plan, wanted.out or compare.default_out(plan))
    return INTERRUPTED if report.interrupted else FAILED if report.failed else OK


def _list(words: list[str]) -> int:
    """list presets, agents and topologies, or describe one of them"""
    if "-h" in words or "--help" in words:
        print("usage: apexrl list [presets | agents | topologies | NAME | MODULE:NAME]")
        return OK
    from rich.console import Console

    from apexrl.cli.listing import show

    show(words, Console(soft_wrap=False))
    return OK


def _init(words: list[str]) -> int:
    """write a project to start from: an environment, an agent and a test of your own"""
    from apexrl.cli import command_flags, flags, new_project

    wanted = flags.parse(command_flags.Init, words, "init")
    print(new_project.write(wanted.name, wanted.out))
    return OK


def _completion(words: list[str]) -> int:
    """print a script by which bash, zsh or fish completes commands, flags and names"""
    from apexrl.cli import command_flags, completion, flags

    wanted = flags.parse(command_flags.Completion, words, "completion")
    print(completion.script(wanted.shell, COMMANDS), end="")
    return OK


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "eval": ended_runs.evaluate,
    "resume": _resume,
    "export": ended_runs.export,
    "publish": ended_runs.publish,
    "doctor": ended_runs.doctor,
    "replay": ended_runs.replay,
    "dataset": _dataset,
    "ope": _ope,
    "dashboard": in_browser.dashboard,
    "watch": in_browser.watch,
    "report": in_browser.report,
    "compare": _compare,
    "sweep": sweeping.sweep,
    "list": _list,
    "init": _init,
    "learner": _learner,
    "actor": _actor,
    "envs": _envs,
    "status": running_runs.status,
    "stop": running_runs.stop,
    "drain": running_runs.drain,
    "scale": running_runs.scale,
    "completion": _completion,
}
