"""The ``apexrl`` command. Light until something is trained: ``--help`` imports neither PyTorch nor Gymnasium.

Exit codes: 0 done, 1 the run failed, 2 the command was not understood, 75 another living process trains the run (try
again later), 130 Ctrl-C (after checkpoint and summary).
"""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from apexrl.config import Config
from apexrl.config.convert import from_toml
from apexrl.config.settings import did_you_mean
from apexrl.config.trust import entrusted
from apexrl.errors import AgentError, ApexrlError, ConfigError, EnvError, HeldError, SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from apexrl.api import Run
    from apexrl.config.placement import Placement
    from apexrl.run.status import Observer

TRAIN_MODULES = frozenset(
    ("gymnasium", "matplotlib", "msgspec", "rich", "safetensors", "tensorboard", "tomli_w", "torch", "tyro")
)
"""What the extra ``train`` brings, by import name, for a helpful word when it is missing."""

OK, FAILED, USAGE, HELD, INTERRUPTED = 0, 1, 2, os.EX_TEMPFAIL, 130
_NOT_UNDERSTOOD = (ConfigError, EnvError, AgentError, SpecError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code, also where nobody can be told any more."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed before we began: no file of ours may take its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    try:
        return _main(argv)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # what is left in it would make another exit code of ours
                _forget(stream)


def _forget(stream: TextIO) -> None:
    """Let what is still to be written to a stream go nowhere."""
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
    except SystemExit as stop:  # tyro: 0 after --help, 2 after a mistake that it has explained
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `apexrl list | head`
        _forget(sys.stdout)
        return OK
    except ApexrlError as error:
        _complain(str(error))
        return HELD if isinstance(error, HeldError) else USAGE if isinstance(error, _NOT_UNDERSTOOD) else FAILED
    except ModuleNotFoundError as error:
        if (extra := (error.name or "").partition(".")[0]) in ("redis", "ray"):
            _complain(f"{extra} is not installed; run: pip install 'apexrl[train,{extra}]'")
            return USAGE
        if (error.name or "").partition(".")[0] not in TRAIN_MODULES:
            raise
        _complain(f"{error.name} is not installed; run: pip install 'apexrl[train]'")
        return USAGE


def _names_own_code(words: list[str]) -> bool:
    """Whether the command may name modules of the current folder. Else nothing is imported from there: it may be
    somebody else's, as run folders are."""
    if words and words[0] in ("train", "learner", "compare") and not any(word.endswith(".toml") for word in words[1:2]):
        return True
    flags = {word.partition("=")[0] for word in words}
    return not flags.isdisjoint(("--trust", "--env", "--agent", "--network"))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        _print_help()
        return OK if words else USAGE
    if words[0] in ("-V", "--version"):
        from apexrl import __version__

        print(f"apexrl {__version__}")
        return OK
    command = COMMANDS.get(words[0])
    if command is None:
        raise ConfigError(
            f"unknown command {words[0]!r}{did_you_mean(words[0], COMMANDS)}. Commands: {', '.join(COMMANDS)}; "
            "see: apexrl --help"
        )
    return command(words[1:])


def _train(words: list[str]) -> int:
    """train a preset, a config.toml, or your own environment"""
    from apexrl.cli import train_flags

    again = train_flags.resumes_or_starts(words)
    config, placement = train_flags.parse_train(words, *_starting_point(words))
    return _run(config, None, placement, again)


def _learner(words: list[str]) -> int:
    """train with actors on other hosts, which meet through a Redis server"""
    from apexrl.cli import train_flags

    again = train_flags.resumes_or_starts(words)
    config, placement = train_flags.parse_train(words, *_starting_point(words, "learner"), "learner")
    return _run(config, None, placement, again)


def _actor(words: list[str]) -> int:
    """bring actors to a run whose learner works on another host"""
    from apexrl import remote_api
    from apexrl.cli import host_flags, train_flags
    from apexrl.links.tokens import shared_token

    wanted = train_flags.parse(host_flags.Actor, words, "actor")
    url, run = host_flags.redis_url(wanted.redis), host_flags.run_name(wanted.run, "actor")
    if wanted.actors < 0:
        raise ConfigError(f"--actors must be 0 or more, not {wanted.actors}")
    token = shared_token(wanted.token_file)

    def join(observers: list[Observer], on_folder: Callable[[Path], None]) -> Run:
        return remote_api.join(
            url,
            run,
            actors=wanted.actors,
            out=wanted.out,
            env_kwargs=wanted.env_kwargs,
            trust=wanted.trust,
            token=token,
            show=False,
            observers=observers,
            on_folder=on_folder,
        )

    return _shown(join)


def _envs(words: list[str]) -> int:
    """bring environment workers to a run that listens on another host (topology seed)"""
    from apexrl import remote_api
    from apexrl.cli import host_flags, train_flags
    from apexrl.links.tokens import read_token

    wanted = train_flags.parse(host_flags.Envs, words, "envs")
    if not wanted.connect:
        raise ConfigError("say where the run listens: apexrl envs --connect HOST:PORT")
    if wanted.actors < 0:
        raise ConfigError(f"--actors must be 0 or more, not {wanted.actors}")
    token, tls = read_token(wanted.token_file), host_flags.client_tls(wanted)

    def join(observers: list[Observer], on_folder: Callable[[Path], None]) -> Run:
        return remote_api.join_envs(
            wanted.connect,
            token,
            tls=tls,
            actors=wanted.actors,
            out=wanted.out,
            env_kwargs=wanted.env_kwargs,
            trust=wanted.trust,
            show=False,
            observers=observers,
            on_folder=on_folder,
        )

    return _shown(join)


def _status(words: list[str]) -> int:
    """show a run, or the runs at a Redis server or on a Ray cluster, and who works in them"""
    from apexrl.cli import host_flags, train_flags

    wanted = train_flags.parse(host_flags.Status, words, "status")
    if (wanted.redis and (wanted.folder or wanted.ray)) or (wanted.folder and wanted.run):
        raise ConfigError("say one of them: a run folder, --ray or --redis, of which --run NAME chooses a run")
    if wanted.folder or wanted.ray:
        from apexrl.cli import ray_status

        if wanted.folder:
            return ray_status.show_folder(wanted.folder, wanted.watch, address=wanted.ray)
        return ray_status.show_cluster(wanted.ray, wanted.run, wanted.watch)
    url = host_flags.redis_url(wanted.redis)
    from apexrl.cli.redis_status import show_status

    return show_status(url, wanted.run, wanted.watch)


def _stop(words: list[str]) -> int:
    """end a run over several hosts, in good order"""
    from apexrl.cli import host_flags, train_flags

    wanted = train_flags.parse(host_flags.Stop, words, "stop")
    url, run = host_flags.redis_url(wanted.redis), host_flags.run_name(wanted.run, "stop")
    from apexrl.cli.redis_status import stop

    return stop(url, run, wanted.wait_seconds)


def _starting_point(words: list[str], command: str = "train") -> tuple[Config, str]:
    """The configuration that the flags change, and its word on the command line; takes that word from ``words``."""
    from apexrl.presets import names, preset

    if words and not words[0].startswith("-"):
        word = words.pop(0)
        if word.endswith(".toml"):
            path = Path(word).expanduser()
            if not path.is_file():
                raise ConfigError(f"there is no file {path}")
            # the folder of the first run is taken: a new name is found
            start = dataclasses.replace(from_toml(path.read_text(encoding="utf-8"), str(path)), name="")
            return _with_names(start, words), word
        return _with_names(preset(word).config, words), word
    asks_help = "-h" in words or "--help" in words
    if not asks_help and not any(word == "--env" or word.startswith("--env=") for word in words):
        misplaced = next((word for word in words if word in names()), None)
        if misplaced:
            raise ConfigError(f"the preset comes first: apexrl {command} {misplaced} --flags")
        raise ConfigError(
            f"say what to train: apexrl {command} PRESET ({', '.join(names())}), or apexrl {command} --env ID; "
            f"see: apexrl {command} --help"
        )
    return _with_names(Config(), words), ""


def _with_names(config: Config, words: list[str]) -> Config:
    """``config`` with the settings that names stand for, where the flags name another topology or agent."""
    from apexrl.presets import with_agent, with_topology

    topology, agent = _given(words, "--topology"), _given(words, "--agent")
    if topology:
        return with_topology(config, topology, agent)
    return with_agent(config, agent) if agent else config


def _given(words: list[str], flag: str) -> str:
    """The value of ``flag``; empty: it is not there."""
    for place, word in enumerate(words):
        value = words[place + 1] if word == flag and place + 1 < len(words) else word.partition(f"{flag}=")[2]
        if value:
            return value
    return ""


def _resume(words: list[str]) -> int:
    """go on with a run that was stopped, in its own folder"""
    from apexrl.cli import train_flags

    wanted = train_flags.parse(train_flags.Resume, words, "resume")
    from apexrl.run.folder import RunFolder

    folder = RunFolder.open(wanted.run)
    folder.check_links()
    command = f"apexrl resume {wanted.run}"
    config = train_flags.resumed(folder.config(), wanted)
    config = entrusted(config, wanted.trust, str(folder.config_path), command=command)
    return _run(config, folder.path, train_flags.resume_placement(wanted, folder.path))


def _run(config: Config, resume: Path | None, placement: Placement | None = None, again: bool = False) -> int:
    from apexrl import api

    where: dict[str, Any] = {} if placement is None else {"placement": placement}
    if again:
        where["resume_or_start"] = True

    def train(observers: list[Observer], on_folder: Callable[[Path], None]) -> Run:
        return api.run(config, observers=observers, resume=resume, on_folder=on_folder, **where)

    return _shown(train)


def _shown(start: Callable[[list[Observer], Callable[[Path], None]], Run]) -> int:
    """Start a run, or a part of one, and show it; prints its folder at the end."""
    from apexrl.report.live_panel import panel

    path: Path | None = None

    def remember(folder: Path) -> None:
        nonlocal path
        path = folder

    try:
        run = start([panel()], remember)
    except ApexrlError as error:
        _complain(str(error))
        if isinstance(error, HeldError):
            return HELD
        return USAGE if path is None and isinstance(error, _NOT_UNDERSTOOD) else FAILED
    finally:
        if path is not None:
            with suppress(OSError, ValueError):  # a closed terminal hides nothing of how the run ended
                sys.stderr.flush()
                print(path, flush=True)
    return {"interrupted": INTERRUPTED, "error": FAILED}.get(run.summary["stopped_by"], OK)


def _eval(words: list[str]) -> int:
    """play greedy episodes with a run's best weights, and film them"""
    from apexrl import api
    from apexrl.cli import train_flags

    wanted = train_flags.parse(train_flags.Eval, words, "eval")

    result = api.evaluate(
        wanted.run,
        wanted.episodes,
        wanted.video,
        seed=wanted.seed,
        checkpoint=wanted.checkpoint,
        trust=wanted.trust,
    )
    returns = result.returns
    print(f"return {result.mean:.2f} ± {result.std:.2f} (min {min(returns):.2f}, max {max(returns):.2f})", end="")
    print(f" over {len(returns)} greedy episodes")
    print(f"weights: {result.checkpoint}")
    for film in result.films:
        print(f"video: {film}")
    return OK


def _compare(words: list[str]) -> int:
    """compare topologies or agents on equal terms; makes a table and pictures"""
    from apexrl.cli import train_flags

    named = ["--env"] if words and not words[0].startswith("-") else []  # the preset alone, as with the other commands
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
        change=change,
    )
    report = compare.compare(plan, wanted.out or compare.default_out(plan))
    return INTERRUPTED if report.interrupted else FAILED if report.failed else OK


def _list(words: list[str]) -> int:
    """show presets, agents and topologies; of one of them, all that is to know"""
    if "-h" in words or "--help" in words:
        print("usage: apexrl list [presets | agents | topologies | NAME]")
        return OK
    from apexrl.cli.listing import show

    show(words, _console())
    return OK


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "eval": _eval,
    "resume": _resume,
    "compare": _compare,
    "list": _list,
    "learner": _learner,
    "actor": _actor,
    "envs": _envs,
    "status": _status,
    "stop": _stop,
}

_EXAMPLES = (
    ("apexrl train cartpole", "learn CartPole with two actor processes"),
    ("apexrl train cartpole --actors 8 --seed 2", "any setting is a flag; see apexrl train cartpole --help"),
    ("apexrl train --env my_sim:Plant-v0 --minutes 30", "your own environment, from your own module"),
    ("apexrl eval runs/NAME --video films", "watch what was learned"),
    ("apexrl compare --env cartpole --topologies apex,impala --minutes 1", "which is better at it, and how fast"),
    ("apexrl learner cartpole --redis redis://HOST --run cp", "one learner for actors on many hosts …"),
    ("apexrl actor --redis redis://HOST --run cp --actors 8", "… of which each brings some"),
)


def _print_help() -> None:
    try:
        from rich.markup import escape
    except ModuleNotFoundError:
        print(f"apexrl COMMAND …, where COMMAND is one of {', '.join(COMMANDS)}; run: pip install 'apexrl[train]'")
        return
    start, server = "PRESET | FILE.toml [--flags]", "--redis URL --run NAME"
    usages = {
        "train": start,
        "eval": "RUN [--episodes N] [--video DIR]",
        "resume": "RUN",
        "compare": "--env PRESET --topologies A,B --minutes M [--flags]",
        "list": "[presets | agents | topologies | NAME]",
        "learner": f"{start} {server}",
        "actor": f"{server} [--actors N]",
        "envs": "--connect HOST:PORT [--actors N]",
        "status": "RUN | --redis URL | --ray auto|HOST:PORT [--run NAME] [--watch]",
        "stop": server,
    }
    lines = ["[bold]apexrl[/]: distributed reinforcement learning. Many actors, one learner, a fast replay.\n"]
    lines += ["[bold]Usage[/]\n"]
    for name, command in COMMANDS.items():
        lines.append(
            f"  apexrl [bold cyan]{name}[/] [cyan]{escape(usages.get(name, ''))}[/]\n      [dim]{command.__doc__}[/]"
        )
    lines += ["\n[bold]Examples[/]\n"]
    lines += [f"  [green]{example}[/]\n      [dim]{meaning}[/]" for example, meaning in _EXAMPLES]
    lines += ["\napexrl COMMAND --help tells more; apexrl --version tells the version."]
    _console().print("\n".join(lines), highlight=False)


def _console() -> Console:
    from rich.console import Console

    return Console(soft_wrap=False)


def _complain(text: str) -> None:
    """An error for a human, on stderr: no traceback, unless APEXRL_TRACEBACK is set."""
    with suppress(OSError):
        _print_error(text)


def _print_error(text: str) -> None:
    if os.environ.get("APEXRL_TRACEBACK"):
        traceback.print_exc()
    try:
        from rich.console import Console
        from rich.text import Text
    except ModuleNotFoundError:
        print(f"apexrl: {text}", file=sys.stderr)
        return
    message = Text.assemble(("apexrl: ", "bold red"), text)
    Console(stderr=True, soft_wrap=True, highlight=False).print(message)
