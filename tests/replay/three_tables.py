"""Tables of rows, and what is written to them, for the tests of tables."""

from __future__ import annotations

import numpy as np
from open_replays import kept

from apexrl.replay import Field, Replay, Tables

FIELDS = {"id": Field((), "int64")}
PLAIN = {"alpha": 1.0, "eps": 0.0, "writers": 2}
KINDS = {
    "all": {"n_step": 2, "kind": "transition"},
    "windows": {"kind": "sequence", "length": 4, "stride": 2, "burn_in": 1},
    "some": {"kind": "unroll", "length": 3, "sampler": "uniform"},
}


def three(**options):
    """Tables of rows: one takes all, one those that 3 divides, one has a field more and removes by priority."""
    more = {**FIELDS, "word": Field((4,), "uint8", ragged=True)}
    each = {
        "all": Replay(100, FIELDS, seed=1, **PLAIN, **options),
        "thirds": Replay(60, FIELDS, seed=2, sampler="lifo", **PLAIN, **options),
        "words": Replay(50, more, seed=3, remover="min_heap", **PLAIN, **options),
    }
    return Tables({name: kept(replay) for name, replay in each.items()})


def thirds(values):
    return values["id"] % 3 == 0


def numbered(first, count):
    ids = np.arange(first, first + count)
    return {"id": ids, "word": [np.full(n % 5, n % 256, "u1") for n in ids]}


def ids(tables, name):
    return sorted(tables[name].read(tables[name].keys()).data["id"].tolist())
