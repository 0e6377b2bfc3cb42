"""How figures are summarised, printed and drawn: the same for every benchmark."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUT = Path(__file__).parents[1] / "out"
RECORDS = Path(__file__).parents[1] / "records"  # of runs that take hours: they are part of the repository
OURS, THEIRS, FAINT = "#0b6e99", "#c26a3d", "#8a8f98"


def machine(device: str = "cpu") -> str:
    """What the figures were measured on, in one line; with the GPU if ``device`` is one."""
    if device.startswith("cuda"):
        import torch

        return f"{torch.cuda.get_device_name(device)}; {machine()}"
    cpu = _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    memory = _first("/proc/meminfo", "MemTotal")
    gib = f", {int(memory.split()[0]) / 2**20:.0f} GiB" if memory else ""
    return (
        f"{os.cpu_count()} cores ({cpu}){gib}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def versions(*distributions: str) -> str:
    """``name version`` of each that is installed; the others are named as left out."""
    return ", ".join(f"{name} {version(name) or '(not installed: left out)'}" for name in distributions)


def version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def made_with(records: Iterable[Mapping[str, Any]]) -> str:
    """The machines and versions of records, each once."""
    machines, used = set[str](), dict[str, set[str]]()
    for record in records:
        machines.add(record["machine"])
        for name, number in record.get("versions", {}).items():
            used.setdefault(name, set()).update({number} - {None})
    versions = ", ".join(f"{name} {'/'.join(sorted(numbers))}" for name, numbers in used.items() if numbers)
    return f"{'; '.join(sorted(machines))}; {versions}"


def huge_pages() -> str:
    """Whether the kernel gives huge pages: to a process's own arrays, and to shared memory."""
    told = []
    for name, what in (("enabled", "private"), ("shmem_enabled", "shared")):
        try:
            text = Path(f"/sys/kernel/mm/transparent_hugepage/{name}").read_text(encoding="utf-8")
        except OSError:
            return "huge pages: not known"
        told.append(f"{what} {text.partition('[')[2].partition(']')[0]}")
    return f"huge pages: {', '.join(told)}"


def stack(versions: Mapping[str, str]) -> str:
    """``a 1.0 (b 2.0)`` of a package first and then what it stands on, less what is the same as in this interpreter."""
    here = {"numpy": version("numpy"), "Python": platform.python_version()}
    parts = [f"{name} {number}" for name, number in versions.items() if here.get(name) != number]
    return parts[0] + (f" ({', '.join(parts[1:])})" if parts[1:] else "") if parts else ""


def short(value: float) -> str:
    """Three significant figures: 61.2, 2130, 15.4k, 2.42M."""
    size = abs(value)
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = {"M": 1e6, "k": 1e3}[unit]
            value, size = value / scale, size / scale
            return f"{value:.2f}{unit}" if size < 10 else f"{value:.1f}{unit}" if size < 100 else f"{value:.0f}{unit}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median, and the least and the greatest when there are several."""
    middle = f"**{short(median(values))}{unit}**"
    return middle if len(values) < 2 else f"{middle} ({short(min(values))}–{short(max(values))})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, str]:
    """Ratio of the medians, and its text with median and range of the ratios within each round."""
    whole = median(ours) / median(theirs)
    if len(ours) < 2:
        return whole, f"**{whole:.2f}×**"
    paired = [a / b for a, b in zip(ours, theirs, strict=True)]
    return whole, f"**{whole:.2f}×** (rounds {median(paired):.2f}×, {min(paired):.2f}–{max(paired):.2f})"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def save(name: str, text: str, data: Any, figure: Figure | None, out: Path = OUT) -> None:
    """Print ``text``; write it, the raw figures and the picture to ``out``."""
    print("\n" + text)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    (out / f"{name}.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    written = [out / f"{name}.md", out / f"{name}.json"]
    if figure is not None:
        written.append(out / f"{name}.png")
        figure.savefig(written[-1], dpi=150, facecolor="white", bbox_inches="tight")
    print("written: " + ", ".join(str(path) for path in written))


def style() -> None:
    """Quiet axes; draws without a display."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e6e8eb",
            "legend.frameon": False,
        }
    )


def _first(path: str, key: str) -> str | None:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
