"""``apexrl --help``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_EXAMPLES = (
    ("apexrl train cartpole", "train CartPole with two actor processes"),
    ("apexrl train cartpole --actors 8 --seed 2", "any setting is a flag; see apexrl train cartpole --help"),
    ("apexrl train --env my_sim:Plant-v0 --minutes 30", "train on your own environment, from your own module"),
    ("apexrl init my-sim", "write a project with an environment, an agent and a test of your own"),
    ("apexrl eval runs/NAME --video films", "record videos of the trained agent"),
    ("apexrl dashboard", "look at all runs in a browser, while they go on"),
    ("apexrl doctor runs/NAME", "see why an agent does not learn, and what to change"),
    (
        "apexrl compare --env cartpole --topologies apex,impala --minutes 1",
        "see which topology learns better and faster",
    ),
    ("apexrl learner cartpole --redis redis://HOST --run cp", "train with actors on many hosts, here the learner …"),
    ("apexrl actor --redis redis://HOST --run cp --actors 8", "… and on every other host some actors"),
)


def print_help(commands: Mapping[str, Callable[..., int]]) -> None:
    """Print what the commands do; each one's docstring says it."""
    try:
        from rich.console import Console
        from rich.markup import escape
    except ModuleNotFoundError:
        print(f"apexrl COMMAND …, where COMMAND is one of {', '.join(commands)}; run: pip install 'apexrl[train]'")
        return
    start, server = "PRESET | FILE.toml [--flags]", "--redis URL --run NAME"
    usages = {
        "train": start,
        "eval": "RUN [--episodes N] [--video DIR]",
        "resume": "RUN",
        "export": "RUN --onnx FILE | --pt2 FILE",
        "publish": "RUN hf:USER/NAME|FOLDER --licence NAME",
        "doctor": "RUN [--json]",
        "replay": "inspect RUN",
        "dataset": "record RUN --to DIR | export RUN --to DIR | show DIR",
        "ope": "RUN --dataset DIR|ID",
        "dashboard": "[RUNS] [--address [HOST:]PORT]",
        "watch": "RUN [--record EPISODES]",
        "report": "RUN … [--out FILE]",
        "compare": "--env PRESET --topologies A,B --minutes M [--flags]",
        "sweep": "PRESET | --env ID [--trials N | --population N] [--over NAME …] | --resume STUDY | show STUDY",
        "list": "[presets | agents | topologies | NAME | MODULE:NAME]",
        "init": "NAME",
        "learner": f"{start} {server} | --standby {server}",
        "actor": f"{server} [--actors N]",
        "envs": "--connect HOST:PORT [--actors N]",
        "status": "RUN | --redis URL | --ray auto|HOST:PORT [--run NAME] [--watch]",
        "stop": f"RUN | {server}",
        "drain": f"HOST {server} [--undo]",
        "scale": f"RUN --actors N | HOST|all --actors N {server}",
        "completion": "bash | zsh | fish",
    }
    lines = ["[bold]apexrl[/]: distributed reinforcement learning. Many actors, one learner, a fast replay buffer.\n"]
    lines += ["[bold]Usage[/]\n"]
    for name, command in commands.items():
        lines.append(
            f"  apexrl [bold cyan]{name}[/] [cyan]{escape(usages.get(name, ''))}[/]\n      [dim]{command.__doc__}[/]"
        )
    lines += ["\n[bold]Examples[/]\n"]
    lines += [f"  [green]{example}[/]\n      [dim]{meaning}[/]" for example, meaning in _EXAMPLES]
    lines += ["\napexrl COMMAND --help lists all flags; apexrl --version prints the version."]
    Console(soft_wrap=False).print("\n".join(lines), highlight=False)
