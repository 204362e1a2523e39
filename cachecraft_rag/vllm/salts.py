"""`cache_salt` of chunk requests: what they leave in vLLM's prefix cache is for their own kind only.

Repaired KV is not exact KV. The salt holds a secret of the engine, so that no plain request can ask for it by accident
or on purpose, and all that changes the repair: namespace, policy, ratio, the length of runs, how often something was
deleted, and the whole prompt where the policy looks at all of it.
"""

from __future__ import annotations

import hashlib
import json
import secrets

from cachecraft_rag.vllm.protocol import RequestParams


def cache_salt(secret: str, params: RequestParams) -> str:
    """The salt a request must carry. A prewarm's is its own: its blocks serve nobody else."""
    if params.prewarm:
        return f"{_prewarm_prefix(secret)}{secrets.token_hex(16)}"
    return _serving_salt(secret, params)


def is_valid_salt(secret: str, params: RequestParams, salt: str | None) -> bool:
    """Whether a request's salt keeps its blocks apart as they must be."""
    if salt is None:
        return False
    if params.prewarm:
        return salt.startswith(_prewarm_prefix(secret)) and len(salt) > len(_prewarm_prefix(secret))
    return secrets.compare_digest(salt.encode(), _serving_salt(secret, params).encode())


def _serving_salt(secret: str, params: RequestParams) -> str:
    repair = [params.namespace, params.policy, params.ratio, params.min_run, params.epoch, params.prompt]
    content = json.dumps([secret, *repair])
    return f"cachecraft:{hashlib.sha256(content.encode()).hexdigest()}"


def _prewarm_prefix(secret: str) -> str:
    return f"cachecraft-prewarm:{hashlib.sha256(secret.encode()).hexdigest()}:"
