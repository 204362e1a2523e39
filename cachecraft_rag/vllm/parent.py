"""The engine process ends with the process that started it, however that one ends."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait

logger = logging.getLogger(__name__)

GRACE_SECONDS = 10.0


def end_with_parent() -> None:
    """Watch the parent on a thread. vLLM 0.32 leaves an engine process that is idle, with all its memory, for ever.

    Nothing happens in a process that multiprocessing did not start.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), name="cachecraft-parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    logger.warning("the process that started this engine is gone: the engine ends too")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
