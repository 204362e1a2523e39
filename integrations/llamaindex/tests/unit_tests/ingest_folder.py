"""Read a folder in a process of its own and print its nodes: `ingest_folder.py FOLDER`. Document ids are random."""

import json
import sys

from llama_index.core import SimpleDirectoryReader
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.llms.cachecraft import AssignChunkIds

if __name__ == "__main__":
    documents = SimpleDirectoryReader(sys.argv[1], recursive=True).load_data()
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(chunk_size=200, chunk_overlap=0), AssignChunkIds()])
    print(json.dumps([node.to_dict() for node in pipeline.run(documents=documents)]))
