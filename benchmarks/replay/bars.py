"""What apexrl.replay has to show, computed from a run.

The bars are stated for batches of 512, chunks of 50 and the default capacities on 2 cores; other shapes are not judged.
A ratio is of medians. "Best" is chosen by the run itself, so a peer that is faster on your machine becomes the rival.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

from benchmarks.lib import report
from benchmarks.replay.timed_contestant import CYCLE_OF_ALL, INSERT, LOOP, SAMPLE

Figures = Mapping[str, list[float]]  # contestant -> one figure a round
Infos = Mapping[str, Mapping[str, Any]]  # contestant -> what it said when it was opened
OURS, FLOOR, RIVAL_OF_MANY = "apexrl", "numpy-uniform", "cpprb-mp"

PACE_REACHED = 0.95  # of the pace asked for; below, a paced window shows nothing
BYTES_PER_TRANSITION = 8192


class Verdict(NamedTuple):
    """One bar."""

    what: str
    beside: str
    measured: str
    needed: str
    met: bool


def as_table(verdicts: list[Verdict]) -> str:
    rows = [[v.what, v.beside, v.measured, v.needed, "met" if v.met else "**missed**"] for v in verdicts]
    return report.table(["bar", "beside", "measured", "needed", ""], rows)


def best(figures: Figures, names: list[str]) -> str | None:
    """Of ``names``, the contestant with the greatest median."""
    present = [name for name in names if figures.get(name)]
    return max(present, key=lambda name: median(figures[name]), default=None)


def compared(ours: list[float], theirs: list[float]) -> tuple[float, str]:
    """``report.ratio`` over the rounds that both have; nothing, and a dash, when there is none."""
    rounds = min(len(ours), len(theirs))
    if not rounds:
        return 0.0, "–"
    return report.ratio(ours[:rounds], theirs[:rounds])


def rivals(infos: Infos) -> list[str]:
    """The prioritized peers of a run."""
    return [name for name, info in infos.items() if info["prioritized"] and name != OURS]


def one_process(rows: str, rates: Mapping[str, Figures], infos: Infos) -> list[Verdict]:
    """Bars 1 (small, medium) and 2 (atari): operation -> contestant -> rates."""
    if not all(figures.get(OURS) for figures in rates.values()):
        return []
    verdicts: list[Verdict] = []

    def against(operation: str, rival: str | None, needed: float, note: str = "", theirs: str = "") -> None:
        if rival is not None:
            value, text = compared(rates[operation][OURS], rates[theirs or operation][rival])
            needs = f"≥ {needed:g}×" + (f", {note}" if note else "")
            verdicts.append(Verdict(f"{rows}: {operation}", infos[rival]["title"], text, needs, value >= needed))

    peers = rivals(infos)
    if rows == "small":
        against(LOOP, best(rates[LOOP], peers), 4.0, "stretch 5×")
        against(CYCLE_OF_ALL, best(rates[CYCLE_OF_ALL], peers), 5.0)
    elif rows == "medium":
        against(LOOP, best(rates[LOOP], peers), 3.5, "stretch 5×")
    else:
        verdicts += _fastest_round(rates[LOOP], [name for name in peers if infos[name]["returns"] == "NumPy"], infos)
        against(LOOP, FLOOR if FLOOR in infos else None, 1.0, "its preallocated gather of as many bytes", SAMPLE)
        against(INSERT, best(rates[INSERT], peers), 5.0)
        size = infos[OURS]["bytes_per_transition"]
        met = size <= BYTES_PER_TRANSITION
        verdicts.append(
            Verdict("atari: bytes per transition", "", f"**{size:,.0f}**", f"≤ {BYTES_PER_TRANSITION}", met)
        )
    return verdicts


def _fastest_round(loops: Figures, peers: list[str], infos: Infos) -> list[Verdict]:
    """Our median beside the fastest round that any NumPy-returning prioritized peer had."""
    present = [name for name in peers if loops.get(name)]
    if not present:
        return []
    rival = max(present, key=lambda name: max(loops[name]))
    value = median(loops[OURS]) / max(loops[rival])
    title = f"{infos[rival]['title']}, fastest round"
    return [Verdict(f"atari: {LOOP}", title, f"**{value:.2f}×**", "≥ 1.2×", value >= 1.2)]


# Unpaced writers -> least ratios (learner, inserts) to cpprb MP.
UNPACED = {4: (10.0, 1.0), 8: (15.0, 0.5)}


def many_processes(rows: str, windows: Mapping[str, Any], infos: Infos) -> list[Verdict]:
    """Bar 3. ``windows``: label -> {"writers", "pace", "learner", "inserts"}, the latter two contestant -> rates."""
    if not all(window["learner"].get(OURS) for window in windows.values()):
        return []
    verdicts: list[Verdict] = []
    rival = RIVAL_OF_MANY if RIVAL_OF_MANY in infos else None
    alone = next((window for window in windows.values() if window["writers"] == 0), None)
    for label, window in windows.items():
        learner, inserts = window["learner"], window["inserts"]
        if rows == "small" and not window["pace"] and window["writers"] in UNPACED and rival:
            for what, figures, needed in zip(
                ("learner", "inserts"), (learner, inserts), UNPACED[window["writers"]], strict=True
            ):
                value, text = compared(figures[OURS], figures[rival])
                verdicts.append(
                    Verdict(f"{rows}, {label}: {what}", infos[rival]["title"], text, f"≥ {needed:g}×", value >= needed)
                )
        if window["pace"]:
            reached = median(inserts[OURS]) / window["pace"]
            kept = reached >= PACE_REACHED
            if alone is not None:
                needed = 0.7 if rows != "atari" else 0.8
                value, text = compared(learner[OURS], alone["learner"][OURS])
                text += f", at {reached:.0%} of the pace"
                needs = f"≥ {needed:.0%}, at ≥ {PACE_REACHED:.0%} of the pace"
                verdicts.append(
                    Verdict(
                        f"{rows}, {label}: learner", "apexrl without writers", text, needs, kept and value >= needed
                    )
                )
            if rows == "atari" and rival:
                value, text = compared(learner[OURS], learner[rival])
                verdicts.append(
                    Verdict(f"{rows}, {label}: learner", infos[rival]["title"], text, "≥ 1.2×", kept and value >= 1.2)
                )
    return verdicts


def sizes(rates: Mapping[int, Figures]) -> list[Verdict]:
    """Bar 4: capacity -> contestant -> batches/s of sampling."""
    figures = rates.get(10_000_000, {})
    if not (figures.get(OURS) and figures.get(FLOOR)):
        return []
    value, text = compared(figures[FLOOR], figures[OURS])
    return [Verdict("10⁷ rows: time of a sample", "NumPy's uniform gather", text, "≤ 3×", value <= 3.0)]
