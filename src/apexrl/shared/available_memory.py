"""Available memory: of this machine, and of the cgroups of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from apexrl import _native
from apexrl.errors import ConfigError

_NO_LIMIT = 2**60  # cgroup v1 reports no limit as a little less than 2**63
_ROOT = Path("/")


@dataclass(frozen=True)
class MemoryLimit:
    """``nbytes`` more are available; ``why`` says where that was read."""

    nbytes: int
    why: str


def memory_limits(root: Path = _ROOT) -> list[MemoryLimit]:
    """The limits on the memory of this process and its children; the smallest applies.

    Args:
        root: directory of ``proc`` and ``sys``.
    """
    return [*_machine(root), *_cgroups(root)]


def require_memory(segment: _native.Segment, needs: int, what: str, remedy: str) -> None:
    """Refuse a segment that could not be filled beside the other segments that this process created.

    Args:
        segment: most of it not written yet.
        needs: bytes when it is full, including what its users keep elsewhere.

    Raises:
        ConfigError: with the numbers, and ``remedy``.
    """
    segment.promise(needs)
    if (free := segment.free) is not None:
        _check(
            segment.promised_beside,
            MemoryLimit(free, f"{size(free)} are free in its directory's file system"),
            needs,
            what,
            remedy,
        )
    if segment.in_memory:
        for limit in memory_limits():
            _check(_native.Segment.promised(), limit, needs, what, remedy)


def oom_kills(root: Path = _ROOT) -> int:
    """Processes that the kernel killed for lack of memory, in this process's cgroup or else on this machine."""
    for kind, _, group in _memberships(root):
        counts = _fields(group / ("memory.events" if kind == "cgroup2" else "memory.oom_control"))
        if "oom_kill" in counts:
            return counts["oom_kill"]
    return _fields(root / "proc/vmstat").get("oom_kill", 0)


def _check(promised: int, limit: MemoryLimit, needs: int, what: str, remedy: str) -> None:
    if promised <= limit.nbytes:
        return
    others = promised - needs
    beside = f", besides {size(others)} that this process allocated before" if others > needs // 100 else ""
    raise ConfigError(f"{what} needs {size(needs)} of memory when full{beside}, but {limit.why}: {remedy}")


def size(nbytes: int) -> str:
    """``nbytes`` with a unit, for messages."""
    value = float(max(0, nbytes))
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.{0 if unit == 'bytes' else 1}f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def _machine(root: Path) -> Iterator[MemoryLimit]:
    fields = _fields(root / "proc/meminfo")
    if (available := fields.get("MemAvailable:")) is not None:
        yield MemoryLimit(available * 1024, f"{size(available * 1024)} are available on this machine (MemAvailable)")
    if _number(root / "proc/sys/vm/overcommit_memory") == 2 and "CommitLimit:" in fields:
        left = (fields["CommitLimit:"] - fields.get("Committed_AS:", 0)) * 1024
        yield MemoryLimit(left, f"{size(left)} may still be committed (vm.overcommit_memory=2, CommitLimit)")


def _cgroups(root: Path) -> Iterator[MemoryLimit]:
    """The limits of this process's memory cgroups, v1 and v2, and of their parents."""
    for kind, mount, group in _memberships(root):
        at = group
        while True:
            found = _v2(at) if kind == "cgroup2" else _v1(at)
            if found is not None:
                limit, used = found
                left = max(0, limit - used)
                yield MemoryLimit(left, f"{size(left)} are left of the {size(limit)} that the cgroup {at} may use")
            if at == mount or mount not in at.parents:
                break
            at = at.parent


def _memberships(root: Path) -> Iterator[tuple[str, Path, Path]]:
    """(kind of file system, mount point, this process's directory there)."""
    paths = {}  # "" (v2) or "memory" (v1) -> path in the hierarchy
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            paths["memory" if controllers else ""] = path
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        inside, mounted = (part.encode().decode("unicode_escape") for part in before.split()[3:5])
        kind, _, options = after.split(" ", 2)
        if not (kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(" ")[-1].split(","))):
            continue
        group = paths.get("" if kind == "cgroup2" else "memory")
        mount = root / mounted.lstrip("/")
        if group is None:
            continue
        below = os.path.relpath(group, inside)  # in a container, its own directory may be mounted
        yield kind, mount, mount if below.startswith("..") else mount / below


def _v2(group: Path) -> tuple[int, int] | None:
    limits = [n for n in (_number(group / "memory.max"), _number(group / "memory.high")) if n is not None]
    if not limits:
        return None
    return min(limits), (_number(group / "memory.current") or 0) - _cache(group, "")


def _v1(group: Path) -> tuple[int, int] | None:
    limit = _number(group / "memory.limit_in_bytes")
    if limit is None or limit >= _NO_LIMIT:
        return None
    return limit, (_number(group / "memory.usage_in_bytes") or 0) - _cache(group, "total_")


def _cache(group: Path, prefix: str) -> int:
    """Bytes of cached files, which the kernel frees before it kills a process."""
    stat = _fields(group / "memory.stat")
    return stat.get(prefix + "inactive_file", 0) + stat.get(prefix + "active_file", 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # another system, or not readable: no known limit
        return []


def _fields(path: Path) -> dict[str, int]:
    words = (line.split() for line in _lines(path))
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


def _number(path: Path) -> int | None:
    """None: there is no file, or it says ``max``."""
    text = " ".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None
