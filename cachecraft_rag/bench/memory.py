"""The peak memory of an engine process, from Linux's own books."""

from __future__ import annotations

from pathlib import Path


def child_processes() -> set[int]:
    """Process ids of this process's children that are alive."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def peak_bytes(pid: int) -> int:
    """The largest resident set of a process since the last `reset_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no VmHWM line")


def reset_peak(pid: int) -> None:
    """Begin a new peak at the present resident set."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident_bytes(pid: int) -> int:
    """The resident set of a process now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no VmRSS line")


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
