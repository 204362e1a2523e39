"""The same folder in three processes, each with an engine of its own over one store on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from cachecraft_rag.verification.cases import passage

INGEST = Path(__file__).with_name("ingest_once.py")


def test_nothing_is_prewarmed_twice(tmp_path):
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("\n\n".join(passage(900 + number, 3).text for number in range(3)))
    (folder / "sub" / "b.md").write_text(passage(950, 3).text)
    runs = []
    for seed, cwd, name in [("1", tmp_path, "docs"), ("2", folder, "."), ("3", Path("/"), str(folder))]:
        os.utime(folder / "a.md", (1e9 * int(seed), 1e9 * int(seed)))
        output = subprocess.run(
            [sys.executable, INGEST, os.environ["CACHECRAFT_TEST_MODEL"], name, tmp_path / "store"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=cwd,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        runs.append(json.loads(output.stdout.splitlines()[-1]))
    first, *later = runs
    count = len({chunk_id for _, chunk_id in first["ids"]})
    assert count == len(first["ids"]) >= 4
    assert (first["stored"], first["present"], first["faults"]) == (count, 0, [])
    for run in later:
        assert run["ids"] == first["ids"]
        assert (run["stored"], run["present"], run["tokens"], run["faults"]) == (0, count, 0, [])
