"""The progress bar of long measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def counting_bar(shown: bool) -> Progress:
    """A bar that says how many are done of how many; it leaves nothing behind."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, transient=True, disable=not shown)
