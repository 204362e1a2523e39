"""How far two sequences of next-token distributions are apart, from logits over the whole vocabulary."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


def kl_divergence(reference: Logits, other: Logits) -> npt.NDArray[np.float64]:
    """Kullback-Leibler divergence KL(reference || other) in nats at each position: [positions, vocabulary] each.

    Exact but for rounding: all of the vocabulary counts. Never negative.
    """
    log_p, log_q = log_softmax(reference), log_softmax(other)
    divergence: npt.NDArray[np.float64] = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
    return np.maximum(divergence, 0.0)


def agreement(reference: Logits, other: Logits) -> npt.NDArray[np.bool_]:
    """Whether both name the same best token, at each position; of equal logits the first counts, as in vLLM."""
    same: npt.NDArray[np.bool_] = np.argmax(reference, axis=-1) == np.argmax(other, axis=-1)
    return same


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Log-probabilities in float64, along the last axis."""
    shifted: npt.NDArray[np.float64] = logits.astype(np.float64) - np.max(logits, axis=-1, keepdims=True)
    normaliser: npt.NDArray[np.float64] = np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return shifted - normaliser
