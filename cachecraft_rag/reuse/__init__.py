"""Deciding what to reuse and what to recompute: numpy only, no torch, no vLLM."""

from cachecraft_rag.reuse.plan import CaptureSpan, Plan, PlanSegment, StagedSpan, make_plan
from cachecraft_rag.reuse.policies import POLICIES, get_policy
from cachecraft_rag.reuse.runs import positions_to_runs
from cachecraft_rag.reuse.selection import SelectionContext, SelectionPolicy

__all__ = [
    "POLICIES",
    "CaptureSpan",
    "Plan",
    "PlanSegment",
    "SelectionContext",
    "SelectionPolicy",
    "StagedSpan",
    "get_policy",
    "make_plan",
    "positions_to_runs",
]
