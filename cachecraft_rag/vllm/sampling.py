"""vLLM's sampling parameters from what a caller gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cachecraft_rag.errors import InvalidInput

if TYPE_CHECKING:
    from vllm import SamplingParams

DEFAULTS: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 256}


def make_sampling(sampling: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    """A copy of `sampling`, or new parameters from `options`, made to stream deltas of one completion."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import RequestOutputKind

    if sampling is not None and options:
        raise InvalidInput(f"give either sampling= or its fields as keywords, not both: {', '.join(sorted(options))}")
    if sampling is not None and not isinstance(sampling, SamplingParams):
        raise InvalidInput(f"sampling={sampling!r:.60} is not vLLM's SamplingParams; give one, or keywords")
    if sampling is not None:
        made = sampling.clone()
    else:
        try:
            made = SamplingParams(**{**DEFAULTS, **_typed(options)})
        except (TypeError, ValueError, VLLMClientError) as error:
            raise InvalidInput(f"vLLM refuses the sampling parameters {dict(options)!r}: {error}") from error
    if made.n != 1:
        raise InvalidInput(f"n={made.n} is not supported: call generate_batch with the prompt {made.n} times")
    if "kv_transfer_params" in (made.extra_args or {}):
        raise InvalidInput("sampling.extra_args['kv_transfer_params'] is set by the engine; leave it out")
    made.output_kind = RequestOutputKind.DELTA
    return made


def _typed(options: Mapping[str, Any]) -> dict[str, Any]:
    """`structured_outputs` may be a mapping such as `{"json": schema}`."""
    from vllm.sampling_params import StructuredOutputsParams

    structured = options.get("structured_outputs")
    if not isinstance(structured, Mapping):
        return dict(options)
    return {**options, "structured_outputs": StructuredOutputsParams(**structured)}
