"""Turns a GGUF file into a Hugging Face folder: `python convert.py MODEL.gguf FOLDER`.

It runs as a process of its own, so that torch's memory and threads are gone when the engine starts.
"""

import sys
from pathlib import Path


def convert(gguf: Path, out: Path) -> None:
    """Writes config, tokenizer and bfloat16 safetensors. The weights are de-quantised, so they keep GGUF's rounding."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # transformers still takes the model for a quantised one, and would refuse to save it.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer, model.quantization_method = False, None, None
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
