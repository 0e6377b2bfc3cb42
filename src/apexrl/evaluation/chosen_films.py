"""Films of the best, the median and the worst of some episodes, with what the agent expected drawn below."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from apexrl.config import Config
from apexrl.errors import ConfigError, EnvError
from apexrl.evaluation.loaded_agent import LoadedAgent
from apexrl.evaluation.shown_episodes import Picture, drawn, frames_per_second, moments
from apexrl.run.atomic_files import replace_text

FILMS: Final = "films"
"""Folder in the run folder."""
NOTES: Final = "films.json"
LONGEST_STEPS: Final = 20_000
"""Of an episode; one without an end would fill the disk."""


def film_chosen(loaded: LoadedAgent, config: Config, folder: Path, episodes: int, seed: int) -> dict[str, Path]:
    """Play greedy episodes and keep the films of three of them, or of fewer where there are fewer.

    Args:
        folder: gets ``best.mp4``, ``median.mp4``, ``worst.mp4`` and ``films.json`` with returns and lengths.

    Returns:
        Which of ``best``, ``median``, ``worst`` -> its film.

    Raises:
        ConfigError: fewer than one episode is wanted, or nothing can be written there.
        EnvError: the environment cannot be shown, or the encoder is not installed.
    """
    if episodes < 1:
        raise ConfigError(f"--record must be at least 1, not {episodes}")
    try:
        import imageio_ffmpeg  # noqa: F401
    except ModuleNotFoundError as error:
        raise EnvError("films need an encoder that is not installed; run: pip install 'apexrl[video]'") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write films to {folder}: {error.strerror or error}") from error
    for left in folder.glob(".episode-*.mp4"):  # by a process that was killed
        with suppress(OSError):
            left.unlink()
    drafts = [folder / f".episode-{number:04d}.mp4" for number in range(episodes)]
    try:
        played = _play(loaded, config, drafts, seed)
        return _keep(played, folder, drafts, str(loaded.checkpoint or ""))
    finally:
        for draft in drafts:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def _play(loaded: LoadedAgent, config: Config, drafts: list[Path], seed: int) -> list[dict[str, Any]]:
    """A film of every episode; returns return and length of each."""
    fps, played = frames_per_second(config.env), list[dict[str, Any]]()
    film: Generator[None, Picture, None] | None = None
    line: list[float] = []
    shown = moments(loaded, config, seed)
    with closing(shown):  # type: ignore[type-var]  # a generator
        for moment in shown:
            picture = drawn(moment, line, f"episode {len(played) + 1}")
            if film is None:
                film = _opened(drafts[len(played)], picture, fps)
            film.send(picture)
            if moment.ended or moment.step >= LONGEST_STEPS:
                film.close()
                played.append({"return": moment.episode_return, "steps": moment.step, "whole": moment.ended})
                film, line = None, []
                if len(played) == len(drafts) or not moment.ended:
                    break
    return played


def _opened(path: Path, picture: Picture, fps: int) -> Generator[None, Picture, None]:
    from imageio_ffmpeg import write_frames

    height, width = picture.shape[:2]
    film: Generator[None, Picture, None] = write_frames(
        str(path), (width, height), fps=fps, macro_block_size=1, quality=7
    )
    film.send(None)  # type: ignore[arg-type]
    return film


def _keep(played: list[dict[str, Any]], folder: Path, drafts: list[Path], weights: str) -> dict[str, Path]:
    order = sorted(range(len(played)), key=lambda place: played[place]["return"])
    chosen = {"best": order[-1], "median": order[len(order) // 2], "worst": order[0]}
    kept: dict[str, Path] = {}
    for name, place in chosen.items():
        if place in [chosen[other] for other in kept]:
            continue  # of one or two episodes
        kept[name] = drafts[place].replace(folder / f"{name}.mp4")
    for name in chosen.keys() - kept.keys():
        (folder / f"{name}.mp4").unlink(missing_ok=True)
    about = {name: played[chosen[name]] for name in kept}
    returns = [one["return"] for one in played]
    replace_text(folder / NOTES, json.dumps({"weights": weights, "films": about, "returns": returns}, indent=1) + "\n")
    return kept
