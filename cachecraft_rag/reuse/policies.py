"""All selection policies by name."""

from __future__ import annotations

from collections.abc import Mapping

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse.blend import Blend, BlendVariants
from cachecraft_rag.reuse.fixed_policies import AllTokens, CacheCraft, FirstTokens, NoTokens, RandomTokens
from cachecraft_rag.reuse.looking_policies import DeviatingTokens, QuestionTokens
from cachecraft_rag.reuse.selection import SelectionPolicy

POLICIES: Mapping[str, SelectionPolicy] = {
    policy.name: policy
    for policy in (
        FirstTokens(),
        RandomTokens(),
        CacheCraft(),
        DeviatingTokens(),
        QuestionTokens(),
        Blend(),
        BlendVariants(),
        NoTokens(),
        AllTokens(),
    )
}


def get_policy(name: str) -> SelectionPolicy:
    """The policy of that name; `InvalidInput` names the known ones otherwise."""
    try:
        return POLICIES[name]
    except KeyError:
        known = ", ".join(sorted(POLICIES))
        raise InvalidInput(f"unknown selection policy {name!r}; choose one of: {known}") from None


def recomputes_all(policy: str, ratio: float) -> bool:
    """Whether nothing stored can enter the result, so that it equals a full prefill."""
    return policy == "all" or (policy != "none" and ratio >= 1.0)


def follows_no_ratio(policy: SelectionPolicy) -> bool:
    """Whether a policy recomputes the same at every ratio: nothing, or all."""
    return policy.budget(1000, 0.5) in (0, 1000)
