"""What a replay may be asked to be: the checks of its options."""

from __future__ import annotations

from typing import Any

import numpy as np

from apexrl.errors import ConfigError

CHUNK = 64  # item positions per slot; fewer when the capacity would give less than 32 chunks


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options with their defaults filled in; ConfigError names the first that is out of range."""

    def need(name: str, fine: bool, what: str) -> None:
        if not fine:
            raise ConfigError(f"{name}={options[name]!r} must be {what}")

    for name in ("capacity", "stack", "n_step", "writers", "min_size", "seed"):
        value = options[name]
        need(name, isinstance(value, int | np.integer) and not isinstance(value, bool), "an integer")
        options[name] = int(value)
    need("kind", options["kind"] in ("rows", "transition"), "'rows' or 'transition'")
    need("capacity", 1 <= options["capacity"] <= 2**36, "between 1 and 2**36")
    need("stack", 1 <= options["stack"] <= 255, "between 1 and 255")
    need("n_step", 1 <= options["n_step"] <= 1000, "between 1 and 1000")
    need("gamma", 0.0 <= options["gamma"] <= 1.0, "between 0 and 1")
    need("alpha", 0.0 <= options["alpha"] <= 2.0, "between 0 and 2")
    need("eps", 0.0 <= options["eps"] < 1e6, "a non-negative number")
    need("writers", 1 <= options["writers"] <= 4096, "between 1 and 4096")
    need("min_size", 0 <= options["min_size"] <= options["capacity"], "between 0 and capacity")
    need("samples_per_insert", 0.0 <= options["samples_per_insert"] < 1e6, "a non-negative number")
    need("insert_band", 0.0 <= options["insert_band"] < 1e6, "a non-negative number")
    if options["kind"] == "rows":
        for name, neutral in (("stack", 1), ("n_step", 1), ("streams", None)):
            need(name, options[name] in (neutral, 1), "left out in rows mode, which stores finished items")
        options["streams"] = 1
    options["streams_chosen"] = options["streams"] is not None
    chunk = min(CHUNK, options["capacity"] // 32)
    if options["streams"] is None:
        options["streams"] = 16 * options["writers"]
    elif options["kind"] != "rows":  # chunks still being written are never evicted: leave room for others
        chunk = min(chunk, options["capacity"] // (2 * max(1, options["streams"])))
    need("streams", 1 <= options["streams"] <= 65536, "between 1 and 65536")
    options["chunk"] = max(1, chunk)
    return options
