"""``apexrl replay inspect``: what lies in the replay that a run has saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from apexrl.config.paths import expanded
from apexrl.errors import ConfigError
from apexrl.replay import Replay
from apexrl.replay.inspection import Inspection, histogram, inspect
from apexrl.run.folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

_BAR: Final = 40  # characters
_MOST_NUMBERS: Final = 12  # of an array that is printed whole
_STATS: Final = ("size", "capacity", "inserted", "sampled", "evicted", "observed_samples_per_insert", "max_priority")


def show(path: str, items: int, drawn: int, as_json: bool, pictures: str, console: Console) -> int:
    """Print what lies in the saved replay of the run in ``path``; returns 0.

    Args:
        items: how many are shown whole.
        drawn: how many are drawn for the histograms.
        pictures: folder for images of the shown items' observations; empty: none are written.

    Raises:
        ConfigError: there is no run, it has no saved replay, or a number is out of range.
        SnapshotError: the replay cannot be read.
    """
    if items < 0 or drawn < 1:
        raise ConfigError(f"--items must be 0 or more and --drawn 1 or more, not {items} and {drawn}")
    folder = RunFolder.open(path)
    if not folder.replay_path.is_file():
        raise ConfigError(
            f"{path} has no saved replay: a run writes it at its end, with --save-replay. Of a run that goes on, "
            "priorities and ages are in its metrics: apexrl dashboard"
        )
    with Replay.load(folder.replay_path) as replay:
        found = inspect(replay, drawn)
    if as_json:
        print(json.dumps(_values(path, found, items), indent=1))
    else:
        _print(path, found, items, console)
    if pictures:
        for picture in _pictures(found, items, expanded(pictures)):
            console.print(f"picture: {picture}", highlight=False)
    return 0


def _values(path: str, found: Inspection, items: int) -> dict[str, Any]:
    return {
        "run": path,
        "kind": found.options["kind"],
        "sampler": found.options["sampler"],
        "stats": {name: found.stats[name] for name in _STATS if name in found.stats},
        "drawn": len(found.keys),
        "priorities": [] if found.priorities is None else histogram(found.priorities, found.share),
        "ages": [] if found.ages is None else histogram(found.ages, found.share),
        "items": [
            {name: np.asarray(value).tolist() for name, value in _item(found, row).items()}
            for row in range(min(items, len(found.keys)))
        ],
    }


def _item(found: Inspection, row: int) -> dict[str, Any]:
    known = {"key": int(found.keys[row])}
    priority = {} if found.priorities is None else {"priority": float(found.priorities[row])}
    age = {} if found.ages is None else {"age": int(found.ages[row])}
    return {**known, **priority, **age, **{name: values[row] for name, values in found.data.items()}}


def _print(path: str, found: Inspection, items: int, console: Console) -> None:
    from rich.text import Text

    from apexrl.report.number_format import count, number

    stats = found.stats
    size = f"{count(stats['size'])} of {count(stats['capacity'])} items"
    words = f"  ·  {size}, kind {found.options['kind']}, sampler {found.options['sampler']}"
    console.print(Text.assemble((path, "bold"), words))
    told = f"{count(stats['inserted'])} inserted, {count(stats['sampled'])} sampled, {count(stats['evicted'])} evicted"
    console.print(Text(f"{told}; {number(stats['observed_samples_per_insert'])} samples per insert", style="dim"))
    titles = {"priority |δ|": found.priorities, "age, in weights versions (learner updates)": found.ages}
    for title, values in titles.items():
        if values is not None and len(values):
            drawn = Text(f"  of {len(values)} drawn items, as shares of all", "dim")
            console.print(Text(f"\n{title}", style="bold"), drawn)
            _bars(histogram(values, found.share), console)
    for row in range(min(items, len(found.keys))):
        console.print(Text(f"\nitem {row + 1}", style="bold"))
        for name, value in _item(found, row).items():
            console.print(Text.assemble((f"  {name}: ", "cyan"), _spelt(value)))


def _bars(bins: list[tuple[float, float, float]], console: Console) -> None:
    from rich.text import Text

    from apexrl.report.number_format import number

    most = max(share for _, _, share in bins)
    for begin, end, share in bins:
        bar = "█" * round(_BAR * share / most) if most > 0.0 else ""
        span = f"{number(begin, small=True):>8} … {number(end, small=True):<8}"
        console.print(Text.assemble(f"  {span} ", (f"{bar:<{_BAR}}", "cyan"), f" {share:6.1%}"))


def _spelt(value: Any) -> str:
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{array.item():.6g}" if array.dtype.kind == "f" else str(array.item())
    if array.size <= _MOST_NUMBERS:
        return np.array2string(array, precision=4, suppress_small=True, separator=", ").replace("\n", "")
    span = f"{array.min():.4g} … {array.max():.4g}" if array.dtype.kind in "fiu" else ""
    return f"{array.dtype}{list(array.shape)}  {span}"


def _pictures(found: Inspection, items: int, out: Path) -> list[Path]:
    """Images of the shown items, frames of a stack and steps of a sequence beside each other."""
    from PIL import Image

    try:
        out.mkdir(parents=True, exist_ok=True)
        paths = []
        for row in range(min(items, len(found.keys))):
            for name, pixels in _images(found.data).items():
                path = out / f"item-{row + 1:03d}-{name.replace('/', '-')}.png"
                Image.fromarray(np.concatenate(list(pixels[row]), axis=1)).save(path)
                paths.append(path)
    except OSError as error:
        raise ConfigError(f"cannot write --pictures {out}: {error.strerror or error}") from error
    return paths


def _images(data: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.uint8]]:
    """Fields of uint8 that are images: name -> ``[B, frames, height, width(, 3)]``."""
    found: dict[str, NDArray[np.uint8]] = {}
    for name, values in data.items():
        if values.dtype != np.uint8 or values.ndim < 3:
            continue
        colour = values.shape[-1] == 3 and values.ndim > 3
        sides = values.shape[-3:] if colour else values.shape[-2:]
        if min(sides[:2]) > 1:
            found[name] = values.reshape(len(values), -1, *sides)
    return found
