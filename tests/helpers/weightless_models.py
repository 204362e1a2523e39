"""Model folders with a tokenizer and a configuration, for what is found out before an engine is started."""

import json
from pathlib import Path

from made_tokenizers import byte_level, fast


def weightless_model(folder: Path, context: int) -> str:
    """`context`: tokens that the model would take."""
    fast(byte_level(add_bos=False)).save_pretrained(folder)
    config = {"model_type": "llama", "max_position_embeddings": context}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
