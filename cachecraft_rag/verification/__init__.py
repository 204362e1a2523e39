"""Proof on a real model that ratio 1.0 equals plain vLLM: `cachecraft_rag.verify` is its door."""
