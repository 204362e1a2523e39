"""From findings and plan to one line of the report for each chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachecraft_rag.report import ChunkReport, Outcome
from cachecraft_rag.reuse import Plan
from cachecraft_rag.reuse.policies import recomputes_all
from cachecraft_rag.reuse.runs import count_in
from cachecraft_rag.vllm.classify import Finding
from cachecraft_rag.vllm.protocol import RequestParams


def refused_reports(params: RequestParams, reason: str) -> tuple[ChunkReport, ...]:
    """Every chunk refused for the same reason."""
    return tuple(
        ChunkReport(chunk_id, Outcome.REFUSED, reason, start, stop - start, stop - start, True, document_id)
        for start, stop, chunk_id, _, document_id in params.segments
        if chunk_id is not None
    )


def chunk_reports(
    params: RequestParams,
    findings: Sequence[Finding],
    plan: Plan | None,
    prefix_cache_tokens: int,
    missing: Mapping[int, str],
) -> tuple[ChunkReport, ...]:
    """`plan` is None where vLLM's own prefix cache held all; `missing`: handles that could not be read, and why."""
    full = recomputes_all(params.policy, params.ratio)
    all_exact = full or prefix_cache_tokens == 0
    reports = []
    for finding in findings:
        segment = finding.segment
        tokens = segment.stop - segment.start
        computed = _computed(segment.start, segment.stop, plan, prefix_cache_tokens)
        outcome, reason = finding.outcome, finding.reason
        if segment.handle is not None and segment.handle in missing:
            outcome, reason = Outcome.REFUSED, missing[segment.handle]
            computed = segment.stop - max(segment.start, prefix_cache_tokens)
        exact = full or (outcome is Outcome.HIT and segment.exact) or (all_exact and computed == tokens)
        all_exact = all_exact and exact
        if finding.chunk is None or outcome is None:
            continue
        _, _, chunk_id, _, document_id = params.segments[finding.chunk]
        assert chunk_id is not None
        if full and outcome is Outcome.HIT:
            reason = f"recomputed in full (policy {params.policy}, ratio {params.ratio:g})"
        if segment.start < prefix_cache_tokens:
            cached = min(segment.stop, prefix_cache_tokens) - segment.start
            if cached == tokens or plan is None:
                outcome, reason = Outcome.HIT, "in vLLM's prefix cache, from an earlier request of this kind"
            else:
                reason += f"; its first {cached} tokens were in vLLM's prefix cache"
        reports.append(ChunkReport(chunk_id, outcome, reason, segment.start, tokens, computed, exact, document_id))
    return tuple(reports)


def _computed(start: int, stop: int, plan: Plan | None, prefix_cache_tokens: int) -> int:
    """Tokens of a piece that the model ran, those counted that vLLM computes itself behind the plan's end."""
    if plan is None:
        return max(0, stop - max(start, prefix_cache_tokens))
    return count_in(plan.compute, start, stop) + max(0, stop - max(start, plan.end))
