"""Full prefill's logits on disk, so that a later run that adds a way need not compute them again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np

from cachecraft_rag.bench.quality.divergence import Logits

_PARTIAL = ".partial"
_STALE_SECONDS = 3600.0  # until then another process may be writing it


class KeptLogits:
    """One .npy file for each question, float32 [tokens, vocabulary], named by the digest of run and question.

    Half precision would not do: at 16 its steps are 0.016, more than what is measured.
    """

    def __init__(self, folder: Path | None, run: str) -> None:
        """`folder` None keeps nothing; `run` as in `Records`. What an interruption left half written goes later."""
        self._folder = folder
        self._run = run
        for left in () if folder is None else folder.glob(f"*{_PARTIAL}"):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                left.unlink(missing_ok=True)

    def get(self, question: str, token_ids: Sequence[int]) -> Logits | None:
        """Of `question` (its digest); None where there is no file, or one that did not lead to `token_ids`."""
        if self._folder is None:
            return None
        try:
            logits = np.load(self._path(self._folder, question), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        if logits.dtype != np.float32 or logits.ndim != 2 or logits.argmax(axis=-1).tolist() != list(token_ids):
            return None
        found: Logits = logits
        return found

    def add(self, question: str, logits: Logits) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(self._folder, question)
        with NamedTemporaryFile(dir=self._folder, suffix=_PARTIAL, delete=False) as file:
            np.save(file, logits)
        Path(file.name).replace(path)

    def _path(self, folder: Path, question: str) -> Path:
        return folder / f"{hashlib.sha256(f'{self._run} {question}'.encode()).hexdigest()}.npy"
