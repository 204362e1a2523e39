"""Ingest a folder in a process and with an engine of its own: `ingest_once.py MODEL FOLDER STORE`."""

import json
import sys

from llama_index.core import SimpleDirectoryReader
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.llms.cachecraft import AssignChunkIds, Cachecraft, PrewarmChunks

if __name__ == "__main__":
    model, folder, store = sys.argv[1:]
    options = {"dtype": "float32", "kv_cache_gb": 0.2, "cpu_store_gb": 0.2, "max_model_len": 512, "store_dir": store}
    with Cachecraft(model, engine_options=options) as llm:
        prewarm = PrewarmChunks(llm)
        splitter = SentenceSplitter(chunk_size=120, chunk_overlap=0)
        pipeline = IngestionPipeline(transformations=[splitter, AssignChunkIds(), prewarm])
        nodes = pipeline.run(documents=SimpleDirectoryReader(folder, recursive=True).load_data())
        report = prewarm.report
        print(
            json.dumps(
                {
                    "ids": [(node.node_id, node.metadata["chunk_id"]) for node in nodes],
                    "stored": len(report.stored),
                    "present": len(report.present),
                    "tokens": report.tokens,
                    "faults": llm.engine.check(),
                }
            )
        )
