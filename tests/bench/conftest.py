import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("CACHECRAFT_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="session")
def evaluation_data() -> Path:
    """Folder of the public data sets, which are no part of this project."""
    if not (DATA / "xquad_questions.jsonl").exists():
        pytest.skip(f"no evaluation data in {DATA}; name their folder with CACHECRAFT_DATA")
    return DATA
