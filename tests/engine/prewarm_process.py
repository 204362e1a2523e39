"""Prewarms in a process of its own: `python prewarm_process.py STORE_DIR COUNT SENTENCES`."""

import json
import os
import sys

from cachecraft_rag import ChunkEngine
from cachecraft_rag.verification.cases import passage


def main(store_dir, count, sentences):
    chunks = [passage(seed, int(sentences)) for seed in range(int(count))]
    options = {"dtype": "float32", "kv_cache_gb": 0.5, "cpu_store_gb": 0.5, "max_model_len": 2048}
    with ChunkEngine(os.environ["CACHECRAFT_TEST_MODEL"], store_dir=store_dir, **options) as engine:
        report = engine.prewarm(chunks, progress=False)
        print(json.dumps({"stored": len(report.stored), "present": len(report.present), "faults": engine.check()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
