"""What the scheduler half knows of one request, and the report that comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cachecraft_rag.report import RequestReport, Timings
from cachecraft_rag.reuse import Plan
from cachecraft_rag.vllm.chunk_reports import chunk_reports, refused_reports
from cachecraft_rag.vllm.classify import Finding
from cachecraft_rag.vllm.protocol import PlanId, PlanResult, RequestParams


@dataclass
class RequestState:
    """A chunk request from its arrival to its end.

    `refusal`: why nothing of it may be reused; `salt`: its `cache_salt`; `withdrawn`: segments whose chunks were
    deleted since it arrived, so that it must not store them.
    """

    params: RequestParams
    token_ids: npt.NDArray[np.int32]
    salt: str | None = None
    refusal: str | None = None
    answer: dict[str, Any] | None = None
    plan_id: PlanId | None = None
    plan: Plan | None = None
    findings: list[Finding] = field(default_factory=list)
    result: PlanResult | None = None
    prefix_cache_tokens: int = 0
    lookup_seconds: float = 0.0
    plans: int = 0
    withdrawn: set[int] = field(default_factory=set)

    def report(self, request_id: str) -> RequestReport:
        params = self.params
        tokens = self.token_ids.size
        common: dict[str, Any] = {
            "request_id": request_id,
            "policy": params.policy,
            "ratio": params.ratio,
            "prompt_tokens": tokens,
            "replans": max(self.plans - 1, 0),
        }
        if self.refusal is not None or not self.findings:
            reason = self.refusal or "it ended before it was scheduled"
            return RequestReport(
                **common,
                prefix_cache_tokens=0,
                computed_tokens=tokens,
                chunks=refused_reports(params, reason),
                warnings=() if params.segments else (reason,),
            )
        result = self.result
        missing = result.missing if result is not None else {}
        computed = self.plan.compute.size if self.plan is not None else 0
        if result is not None:
            computed = result.computed_tokens
        end = self.plan.end if self.plan is not None else tokens - 1
        return RequestReport(
            **common,
            prefix_cache_tokens=self.prefix_cache_tokens,
            computed_tokens=computed + tokens - end,
            chunks=chunk_reports(params, self.findings, self.plan, self.prefix_cache_tokens, missing),
            timings=Timings(
                lookup=self.lookup_seconds,
                staging=result.staging_seconds if result is not None else 0.0,
                recompute=result.compute_seconds if result is not None else 0.0,
            ),
            slices=result.slices if result is not None else 0,
            selection_tokens=result.selection_tokens if result is not None else 0.0,
            variants_stored=sum(bool(span.pieces) for span in self.plan.captures) if result and self.plan else 0,
        )
