"""The options of a replay: their checks, and the native sizes that follow from them."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np

from apexrl import _native
from apexrl.errors import ConfigError
from apexrl.replay.hindsight import STRATEGIES, check_goals
from apexrl.replay.layout import KINDS

Sampler = Literal["prioritized", "uniform", "fifo", "lifo", "max_heap", "min_heap"]
Remover = Literal["fifo", "proportional", "uniform", "lifo", "max_heap", "min_heap"]
Draws = Literal["stratified", "independent"]

CHUNK = 64  # item positions per slot; fewer if the capacity had less than 32 chunks, or two for each stream
STREAMS = 16  # default number of streams per writer
SOFT = 4  # a soft capacity may be exceeded by 1/SOFT between evictions

_HEAPS = ("max_heap", "min_heap")
_BY_ITEM = ("proportional", "uniform", *_HEAPS)  # removers that leave others of a chunk in place

_WHOLE = (
    *("capacity", "stack", "n_step", "length", "burn_in", "trim_every", "writers", "min_size", "seed"),
    "max_times_sampled",
)
OPTIONS: tuple[str, ...] = ("kind", "stride", "sampler", "draws", "remover", "streams")  # and _WHOLE and _REAL
_REAL = (
    *("gamma", "alpha", "eps", "remover_alpha", "samples_per_insert", "insert_band"),
    *("recency_half_life", "lag_half_life", "hindsight_share"),
)
OPTIONS += _WHOLE + _REAL + ("hindsight", "hindsight_field")
_RANGES: dict[str, tuple[float, float]] = {
    "capacity": (1, 2**36),
    "stack": (1, 255),
    "n_step": (1, 1000),
    "gamma": (0, 1),
    "length": (0, 10_000),
    "burn_in": (0, 255),
    "alpha": (0, 2),
    "eps": (0, 1e6),
    "remover_alpha": (-10, 10),
    "trim_every": (1, 1_000_000),
    "writers": (1, 4096),
    "max_times_sampled": (0, 1),
    "samples_per_insert": (0, 1e6),
    "insert_band": (0, 1e6),
    "recency_half_life": (0, 1e6),
    "lag_half_life": (0, 1e12),
    "hindsight_share": (0, 1),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "kind": KINDS,
    "sampler": get_args(Sampler),
    "draws": ("stratified", "independent"),
    "remover": get_args(Remover),
    "hindsight": STRATEGIES,
}
# Options of some kinds only, and their values in the other kinds.
_OF_KINDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "stack": (("transition", "sequence", "unroll"), 1),
    "n_step": (("transition",), 1),
    "length": (("sequence", "unroll"), 0),
    "stride": (("sequence",), None),
    "burn_in": (("sequence", "unroll"), 0),
}


def checked(options: dict[str, Any], chunk: int = 0) -> dict[str, Any]:
    """The options with defaults filled in. ConfigError: names the first that is out of range.

    Args:
        chunk: item positions of a slot; 0: as many as suit the others.
    """

    def need(name: str, fine: bool, what: str) -> None:
        if not fine:
            raise ConfigError(f"{name}={options[name]!r} must be {what}")

    for name in _WHOLE + tuple(n for n in ("stride", "streams") if options[n] is not None):
        value = options[name]
        need(name, isinstance(value, int | np.integer) and not isinstance(value, bool), "an integer")
        options[name] = int(value)
    for name in _REAL:
        value = options[name]
        need(name, isinstance(value, int | float | np.number) and not isinstance(value, bool), "a number")
        options[name] = float(value)
    for name, (least, most) in _RANGES.items():
        need(name, least <= options[name] <= most, f"between {least:,} and {most:,}")
    for name, choices in _CHOICES.items():
        value = options[name]
        need(name, isinstance(value, str) and value in choices, "one of " + ", ".join(map(repr, choices)))
    kind = options["kind"]
    for name, (kinds, neutral) in _OF_KINDS.items():
        if kind not in kinds:
            need(name, options[name] == neutral, f"left out with kind={kind!r}")
    if options["length"] == 0 and kind in ("sequence", "unroll"):
        raise ConfigError(f"kind={kind!r} needs length=, the steps of an item")
    if kind == "sequence":
        options["stride"] = options["length"] if options["stride"] is None else options["stride"]
        need("stride", 1 <= options["stride"] <= 10_000, "between 1 and 10,000")
    need("min_size", 0 <= options["min_size"] <= options["capacity"], "between 0 and capacity")
    _check_together(options)
    if kind == "rows":
        need("streams", options["streams"] in (None, 1), "left out in rows mode, which stores finished items")
        options["streams"] = 1
    options["streams_chosen"] = options["streams"] is not None
    options["chunk"] = chunk or _chunk(options)
    items = native_sizes(options)["chunk_items"]
    if options["streams"] is None:
        options["streams"] = STREAMS * options["writers"]
        if options["sampler"] != "fifo":
            options["streams"] = max(1, min(options["streams"], options["capacity"] // items))
    need("streams", 1 <= options["streams"] <= 65536, "between 1 and 65536")
    # Except in a fifo replay, whose writers wait, chunks being written are never evicted: they must fit the capacity.
    held = options["streams"] * items
    if kind != "rows" and options["sampler"] != "fifo" and held > options["capacity"]:
        raise ConfigError(
            f"capacity={options['capacity']} is too small for streams={options['streams']}: the chunks that they write "
            f"hold up to {held} items. Make the capacity at least {held}, or streams= at most "
            f"{options['capacity'] // items}"
        )
    return options


def _check_together(options: dict[str, Any]) -> None:
    sampler, remover = options["sampler"], options["remover"]
    check_goals(options)
    if sampler == "fifo":
        if options["samples_per_insert"] != 0:
            raise ConfigError(
                f"samples_per_insert={options['samples_per_insert']} must be left out with sampler='fifo', which "
                "samples every item once"
            )
        if remover != "fifo" or options["trim_every"] != 1:
            raise ConfigError("sampler='fifo' evicts what it samples: leave out remover= and trim_every=")
    if sampler not in ("prioritized", "uniform") and (options["recency_half_life"] or options["lag_half_life"]):
        raise ConfigError(
            f"sampler={sampler!r} samples in a fixed order: leave out recency_half_life= and lag_half_life="
        )
    if options["max_times_sampled"]:
        if sampler not in ("fifo", "lifo", *_HEAPS):
            raise ConfigError(
                f"max_times_sampled=1 needs a sampler that gives each item of a batch once, not {sampler!r}: "
                "'fifo', 'lifo', 'max_heap' or 'min_heap'"
            )
        if options["samples_per_insert"] != 0:
            raise ConfigError(
                f"samples_per_insert={options['samples_per_insert']} must be left out with max_times_sampled=1"
            )
    unranked = sampler == "uniform" or options["alpha"] == 0
    if remover in ("proportional", *_HEAPS) and unranked:
        raise ConfigError(f"remover={remover!r} needs priorities: a sampler other than 'uniform', and alpha > 0")
    if sampler in _HEAPS and unranked:
        raise ConfigError(f"sampler={sampler!r} needs priorities: alpha > 0")


def consumes(options: dict[str, Any]) -> bool:
    """Whether an item goes when it is sampled."""
    return bool(options["sampler"] == "fifo" or options["max_times_sampled"] == 1)


def gives_once(options: dict[str, Any]) -> bool:
    """Whether a batch has each of its items once: then it cannot be larger than the replay."""
    return options["sampler"] not in ("prioritized", "uniform")


def _chunk(options: dict[str, Any]) -> int:
    """Item positions in a slot."""
    capacity = options["capacity"]
    if options["remover"] in _BY_ITEM or (options["sampler"] in _HEAPS and consumes(options)):
        items = 1  # a chunk is freed with its last item: one that stays long must not keep the memory of others
    elif options["kind"] in ("rows", "transition"):
        items = min(CHUNK, capacity // 32)
    else:  # four times as many rows as the next slot repeats
        items = min(
            64, math.ceil(4 * (options["burn_in"] + options["stack"] - 1 + options["length"]) / stride_of(options))
        )
        items = min(items, capacity // 32, 60_000 // stride_of(options))
    if options["streams_chosen"] or options["sampler"] != "fifo":
        # Chunks being written are never evicted: leave room for others.
        writing = (
            options["writers"] if options["kind"] == "rows" else options["streams"] or STREAMS * options["writers"]
        )
        items = min(items, capacity // (2 * max(1, writing)))
    return int(max(1, items)) * stride_of(options)


def stride_of(options: dict[str, Any]) -> int:
    """Steps between the starts of items; unrolls are back to back."""
    if options["kind"] == "unroll":
        return int(options["length"])
    return int(options["stride"] or 1)


def native_sizes(options: dict[str, Any]) -> dict[str, Any]:
    """Checked options as the native core takes them (native/layout.h, Geometry)."""
    kind, chunk, stride = options["kind"], options["chunk"], stride_of(options)
    rows = kind in ("sequence", "unroll")
    cells = {"sequence": 2 * chunk // stride, "unroll": chunk // stride}.get(kind, 0)
    capacity = options["capacity"]
    return {
        **{name: options[name] for name in ("capacity", "chunk", "streams", "stack", "burn_in", "trim_every")},
        **{name: options[name] for name in ("gamma", "eps", "min_size", "samples_per_insert", "insert_band")},
        "remover_alpha": 0.0 if options["remover"] == "uniform" else options["remover_alpha"],
        "kind": _native.Kind[kind],
        "sampler": _native.Sampler["prioritized" if options["sampler"] == "uniform" else options["sampler"]],
        "remover": _native.Remover["proportional" if options["remover"] == "uniform" else options["remover"]],
        "consumes": int(consumes(options)),
        "independent": int(options["draws"] == "independent"),
        "most": capacity if options["trim_every"] == 1 else capacity + max(1, capacity // SOFT),
        "chunk_items": cells or chunk,
        "behind": 0 if kind == "rows" else options["burn_in"] + options["stack"] - 1,
        "ahead": {"rows": 0, "transition": options["n_step"]}.get(kind, options["length"]),
        "lanes": options["writers"],
        "n_step": options["length"] if rows else options["n_step"],
        "stride": stride if rows else 0,
        "cells": cells,
        # a half-life below one item, or one version, counts as one
        "recency_half_life": _at_least_one(options["recency_half_life"] * capacity),
        "lag_half_life": _at_least_one(options["lag_half_life"]),
        "alpha": 0.0 if options["sampler"] == "uniform" else options["alpha"],
        "seed": options["seed"] & (2**64 - 1),
    }


def _at_least_one(half_life: float) -> float:
    """0 stays 0: it has no effect."""
    return max(1.0, half_life) if half_life else 0.0


def checked_streams(options: dict[str, Any], streams: Any) -> int:
    """The streams of one writer. ConfigError: the replay cannot hold the chunks that they write."""
    streams = 1 if streams is None else streams
    if not isinstance(streams, int | np.integer) or isinstance(streams, bool):
        raise ConfigError(f"streams={streams!r} must be an integer")
    open_items = streams * native_sizes(options)["chunk_items"]
    if open_items > options["capacity"] and not options["streams_chosen"]:
        waits = options["sampler"] == "fifo"
        remedy = f"the replay with streams={streams} (of all writers)" if waits else f"that at least {open_items}"
        raise ConfigError(
            f"the chunks that {streams} streams write at a time hold {open_items} items, more than the capacity of "
            f"{options['capacity']}: make {remedy}"
        )
    if not 1 <= streams <= options["streams"]:
        raise ConfigError(f"streams={streams} is out of range 1 … {options['streams']} (the replay's streams=)")
    return int(streams)
