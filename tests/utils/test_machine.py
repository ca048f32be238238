"""What a machine has for a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierspec.utils import machine

GIB = 1 << 30


@pytest.mark.parametrize(("limit", "free"), [(8 * GIB, 5.1), ("max", 32)])
def test_files_that_were_read_leave_their_memory_to_a_process(monkeypatch, limit, free):
    """A container counts them as used, though the system gives their memory to whoever needs it."""
    files = {
        "/proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {32 << 20} kB\n",
        "/sys/fs/cgroup/memory.max": f"{limit}\n",
        "/sys/fs/cgroup/memory.current": f"{int(7.9 * GIB)}\n",
        "/sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {5 * GIB}\nactive_file 7\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path: files[str(path)])
    assert machine.available_memory() / GIB == pytest.approx(free)
