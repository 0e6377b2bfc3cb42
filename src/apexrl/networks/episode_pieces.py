"""Sequences cut where episodes begin in them, so that an LSTM runs through all pieces of about one length at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Group(NamedTuple):
    """S pieces, each more than half as long as the longest, of L steps."""

    steps: Ints  # [L, S], number t·B + b of every step; the shorter pieces repeat their last one
    rows: Ints  # [S], the sequence b that a piece is of
    goes_on: NDArray[np.bool_]  # [S], the piece begins with the sequence, and in the midst of an episode


class Pieces(NamedTuple):
    """B sequences of T steps as few groups, at most ⌈log2 T⌉ + 1, in which every step stands once and padding is less
    than the steps."""

    groups: list[Group]
    places: Ints  # [T·B], where each step t·B + b stands among the groups' steps, one group after the other


def pieces(first: NDArray[np.bool_]) -> Pieces:
    """Cut ``first`` [T, B] where it is true: there an episode begins."""
    steps, rows = first.shape
    begins = first.T.copy()  # [B, T]: the pieces of a sequence follow one another
    begins[:, 0] = True
    row, start = np.nonzero(begins)
    ends = np.append(start[1:], steps)
    ends[np.append(row[1:] != row[:-1], True)] = steps
    length = ends - start
    goes_on = (start == 0) & ~first[0, row]
    octave = np.frexp(length - 0.5)[1]  # 1 | 2 | 3, 4 | 5 … 8 | …
    groups, places, before = [], np.empty(steps * rows, np.int64), 0
    for some in (np.flatnonzero(octave == one) for one in np.unique(octave)):
        within = np.arange(length[some].max())[:, None]
        numbers = (start[some] + np.minimum(within, length[some] - 1)) * rows + row[some]
        groups.append(Group(numbers, row[some], goes_on[some]))
        real = within < length[some]
        places[numbers[real]] = before + np.flatnonzero(real)
        before += numbers.size
    return Pieces(groups, places)
