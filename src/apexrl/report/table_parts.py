"""Parts of the tables that the live panel and ``apexrl status`` print."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apexrl.report.number_format import count


def figures_table() -> Table:
    """A table of name, value and remark."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True, min_width=9)
    table.add_column(no_wrap=True)
    return table


def columns_table(
    names: Sequence[str],
    left: Collection[str],
    least: Mapping[str, int] | None = None,
    most: Mapping[str, int] | None = None,
) -> Table:
    """A table without lines.

    Args:
        names: headers of its columns.
        left: those that are aligned to the left.
        least: smallest widths.
        most: largest widths.
    """
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(
            name,
            justify="left" if name in left else "right",
            no_wrap=True,
            overflow="ellipsis",
            min_width=(least or {}).get(name),
            max_width=(most or {}).get(name),
        )
    return table


def fill_bar(size: int, capacity: int, width: int) -> Table:
    """How full a replay is."""
    fill = min(1.0, size / capacity) if capacity else 0.0
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=1.0, completed=fill, width=width, complete_style="cyan", finished_style="cyan"),
        Text(f"{fill:4.0%} of {count(capacity)}", style="dim"),
    )
    return bar


def counted(value: int) -> Text:
    """A count of failures, coloured unless it is 0."""
    return Text(count(value), style="yellow" if value else "dim")
