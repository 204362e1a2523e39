"""Tensor work on keys and queries: thin wrappers, each with a plain reference beside it.

This package imports torch and nothing of vLLM; the rest of the core imports it only where tensors exist.
"""

from cachecraft_rag.kernels.attention_stats import AttentionMass, SegmentAttention, attention_mass, segment_attention
from cachecraft_rag.kernels.rotary import rotate, unrotate
from cachecraft_rag.kernels.rotary_spec import RotarySpec, UnsupportedRotary

__all__ = [
    "AttentionMass",
    "RotarySpec",
    "SegmentAttention",
    "UnsupportedRotary",
    "attention_mass",
    "rotate",
    "segment_attention",
    "unrotate",
]
