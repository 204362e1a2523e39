"""The soak test's own parts; the run itself needs an engine."""

import json
import os
import subprocess
import sys

import pytest

from cachecraft_rag.bench.faults import FAULTS, full_disk
from cachecraft_rag.bench.memory import open_files, resident_bytes
from cachecraft_rag.bench.soak_result import Sample, SoakResult


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_changes_its_file(tmp_path, name):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(1, 251)) * 20)
    before = path.read_bytes()
    FAULTS[name](path)
    if name == "read fails":
        with pytest.raises(OSError, match="symbolic"):
            path.read_bytes()
    else:
        assert not path.exists() or path.read_bytes() != before


def test_a_full_disk_ends_with_the_block(tmp_path):
    script = (
        "import sys\n"
        "for number, line in enumerate(sys.stdin):\n"
        "    try:\n"
        f"        open(r'{tmp_path}/' + str(number), 'wb').write(bytes(10_000))\n"
        "        print('written', flush=True)\n"
        "    except OSError:\n"
        "        print('full', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def ask():
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert ask() == "written"
        with full_disk(process.pid):
            assert ask() == "full"
        assert ask() == "written"
        process.stdin.close()


def test_growth_is_from_the_second_quarter_to_the_last():
    samples = [Sample(float(n), 100 if n < 2 else 200 if n < 6 else 230, 5) for n in range(8)]
    assert SoakResult("m", 1.0, samples=samples).growth_bytes == 30
    assert SoakResult("m", 1.0).growth_bytes == 0


@pytest.mark.parametrize("change", [{"wrong": ["x"]}, {"errors": ["x"]}, {"books": ["x"]}, {"cache_usage": 0.1}])
def test_it_passes_only_without_any_fault_of_ours(change):
    assert SoakResult("m", 1.0).passed
    result = SoakResult("m", 1.0, **change)
    assert not result.passed
    assert json.loads(json.dumps(result.to_dict()))["passed"] is False
    assert "m" in str(result)


def test_this_process_has_memory_and_files():
    assert resident_bytes(os.getpid()) > 1 << 20
    assert open_files(os.getpid()) > 2
