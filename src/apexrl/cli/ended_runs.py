"""The commands about what a run has left: ``eval``, ``export``, ``publish``, ``doctor`` and ``replay``."""

from __future__ import annotations

from typing import Literal

from apexrl.cli.exit_codes import OK
from apexrl.errors import ConfigError


def evaluate(words: list[str]) -> int:
    """play episodes with a run's best weights, and record videos"""
    from apexrl import api
    from apexrl.cli import flags, folder_flags

    wanted = flags.parse(folder_flags.Eval, words, "eval")

    result = api.evaluate(**vars(wanted))
    returns = result.returns
    print(f"return {result.mean:.2f} ± {result.std:.2f} (min {min(returns):.2f}, max {max(returns):.2f})", end="")
    print(f" over {len(returns)} episodes ({result.protocol})")
    print(f"weights: {result.checkpoint}")
    for film in result.films:
        print(f"video: {film}")
    return OK


def export(words: list[str]) -> int:
    """write a run's agent to an ONNX file, or to one of torch.export"""
    from apexrl import api
    from apexrl.cli import flags, folder_flags

    wanted = flags.parse(folder_flags.Export, words, "export")
    if not (wanted.onnx or wanted.pt2):
        raise ConfigError("say what to write: --onnx FILE or --pt2 FILE")
    agent = api.load(wanted.run, wanted.checkpoint, trust=wanted.trust)
    files: dict[Literal["onnx", "pt2"], str] = {"onnx": wanted.onnx, "pt2": wanted.pt2}
    for file_format, path in files.items():
        if path:
            shapes = agent.export(path, file_format, wanted.actions)
            print(f"{path}: the weights of {agent.checkpoint}")
            for way, values in shapes.items():
                for name, (dtype, shape) in values.items():
                    print(f"  {way[:-1]} {name}: {dtype} {shape}")
    return OK


def publish(words: list[str]) -> int:
    """publish a run's agent with its scores, in a folder or on Hugging Face"""
    from apexrl import api
    from apexrl.cli import flags, folder_flags

    wanted = flags.parse(folder_flags.Publish, words, "publish")
    print(api.publish(**vars(wanted)))
    return OK


def doctor(words: list[str]) -> int:
    """name the likeliest causes of bad learning in a run, and the settings to change"""
    from rich.console import Console

    from apexrl.cli import flags, folder_flags
    from apexrl.cli.doctor import examine

    wanted = flags.parse(folder_flags.Doctor, words, "doctor")
    return examine(wanted.run, wanted.json, Console(soft_wrap=False, highlight=False))


def replay(words: list[str]) -> int:
    """show what lies in the replay that a run has saved"""
    from rich.console import Console

    from apexrl.cli import flags, folder_flags

    if not words or words[0] not in ("inspect", "-h", "--help"):
        raise ConfigError("say what to do with the replay: apexrl replay inspect RUN")
    wanted = flags.parse(folder_flags.ReplayInspect, words[1:] if words[0] == "inspect" else words, "replay inspect")
    from apexrl.cli import replay_report

    console = Console(soft_wrap=True, highlight=False)
    return replay_report.show(wanted.run, wanted.items, wanted.drawn, wanted.json, wanted.pictures, console)
