"""Is ratio 1.0 equal to plain vLLM on this model, here? The proof behind `cachecraft verify`.

In float32 every greedy text must be identical. In half precision plain vLLM itself changes with the shape of a batch
and the state of its prefix cache; that noise is measured first, on the same prompts, and ours must stay within it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cachecraft_rag.answer import Answer
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.verification.cases import Case, make_cases
from cachecraft_rag.verification.compare import Difference, compare

_SAMPLING = {"max_tokens": 10, "temperature": 0.0, "logprobs": 5}
_FLOAT32_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class CaseResult:
    """`difference`: the largest log-probability difference of ours to plain; `problem`: what is wrong, if anything."""

    name: str
    requests: int
    identical_texts: int
    difference: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """`noise`: the largest log-probability difference between two plain runs of different shape."""

    model: str
    dtype: str
    exact: bool
    noise: float
    plain_texts_changed: int
    cases: tuple[CaseResult, ...] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.model} in {self.dtype}: ratio 1.0 {'equals' if self.exact else 'DIFFERS FROM'} plain vLLM"]
        lines.append(f"noise of plain vLLM: {self.noise:.2e}; plain texts that changed: {self.plain_texts_changed}")
        for case in self.cases:
            mark = "ok " if case.problem is None else "BAD"
            lines.append(
                f"  {mark} {case.name}: {case.identical_texts}/{case.requests} texts identical, "
                f"largest difference {case.difference:.2e}"
            )
            if case.problem is not None:
                lines.append(f"      {case.problem}")
        return "\n".join(lines)


def verify_model(model: str, *, dtype: str = "float32", progress: bool = True, **options: Any) -> VerifyResult:
    """Start an engine of its own for `model` and run the proof; `options` are those of `EngineConfig`.

    Small batches are asked of vLLM, so that the longer prompts take several slices.
    """
    arguments = {"max_num_batched_tokens": 512, "kv_cache_gb": 1.0, "cpu_store_gb": 1.0, "max_model_len": 2048}
    with ChunkEngine(model, dtype=dtype, **{**arguments, **options}) as engine:
        return verify(engine, progress=progress)


def verify(engine: ChunkEngine, *, progress: bool = False) -> VerifyResult:
    """Run the proof on an engine that is started. It stores a few passages of its own in it."""
    from rich.progress import Progress

    cases = make_cases()
    references: dict[ChunkPrompt, Answer] = {}
    noise, changed = 0.0, 0
    results = []
    with Progress(transient=True, disable=not progress) as bar:
        task = bar.add_task("plain vLLM", total=len(cases))
        for case in cases:
            for difference in _plain_noise(engine, case, references):
                noise = max(noise, difference.logprob)
                changed += difference.parts_at is not None
            bar.advance(task)
        task = bar.add_task("ratio 1.0", total=len(cases))
        for case in cases:
            results.append(_run_case(engine, case, references, noise))
            bar.advance(task)
    return VerifyResult(
        model=engine.config.model,
        dtype=engine.dtype,
        exact=all(result.problem is None for result in results),
        noise=noise,
        plain_texts_changed=changed,
        cases=tuple(results),
    )


def _plain_noise(engine: ChunkEngine, case: Case, references: dict[ChunkPrompt, Answer]) -> list[Difference]:
    """Plain runs in three shapes: alone and fresh (the reference), on a filled prefix cache, and beside others."""
    prompts = [prompt for prompt in (*case.prompts, *case.beside) if prompt not in references]
    for prompt in prompts:
        references[prompt] = engine.generate(prompt, reuse=False, fresh=True, **_SAMPLING)
    twice = [prompt for prompt in prompts for _ in range(2)]  # the second time finds the first's blocks
    differences = [compare(references[prompt], engine.generate(prompt, reuse=False, **_SAMPLING)) for prompt in twice]
    others = list(references)[-len(prompts) - 2 :]
    together = engine.generate_batch(others, reuse=False, fresh=True, **_SAMPLING)
    differences += [compare(references[prompt], answer) for prompt, answer in zip(others, together, strict=True)]
    return differences


def _run_case(engine: ChunkEngine, case: Case, references: dict[ChunkPrompt, Answer], noise: float) -> CaseResult:
    if case.prewarm:
        engine.prewarm(case.prewarm, progress=False)
    for prompt in case.before:
        engine.generate(prompt, recompute_ratio=1.0, **_SAMPLING)
    answers: list[tuple[ChunkPrompt, Answer]] = []
    for _ in range(case.repeats):
        plain = [engine.submit(prompt, reuse=False, fresh=True, **_SAMPLING) for prompt in case.beside]
        ours = [engine.submit(prompt, recompute_ratio=1.0, **_SAMPLING) for prompt in case.prompts]
        pending = [*zip(case.prompts, ours, strict=True), *zip(case.beside, plain, strict=True)]
        answers += [(prompt, future.result()) for prompt, future in pending]
    differences = [compare(references[prompt], answer) for prompt, answer in answers]
    problems = [
        problem
        for (prompt, answer), difference in zip(answers, differences, strict=True)
        if (problem := _judge(engine.dtype, references[prompt], answer, difference, noise)) is not None
    ]
    problems += _unmet(case, answers)
    return CaseResult(
        name=case.name,
        requests=len(answers),
        identical_texts=sum(difference.parts_at is None for difference in differences),
        difference=max(difference.logprob for difference in differences),
        problem=problems[0] if problems else None,
    )


def _judge(dtype: str, reference: Answer, answer: Answer, difference: Difference, noise: float) -> str | None:
    allowed = max(noise, _FLOAT32_TOLERANCE) if dtype == "float32" else noise
    if difference.parts_at is not None and (dtype == "float32" or difference.margin > noise):
        return (
            f"texts part at token {difference.parts_at}: {answer.text!r} instead of {reference.text!r}, where the two "
            f"best log-probabilities are {difference.margin:.3g} apart"
        )
    if difference.logprob > allowed:
        return f"log-probabilities differ by {difference.logprob:.3g}, more than the {allowed:.3g} of plain vLLM itself"
    return None


def _unmet(case: Case, answers: list[tuple[ChunkPrompt, Answer]]) -> list[str]:
    """A case whose premise does not hold proves nothing, and says so."""
    report = answers[0][1].report
    assert report is not None
    unmet = [
        f"expected {count} {name}, the report has {getattr(report, name)}"
        for name, count in case.expects.items()
        if getattr(report, name) != count
    ]
    edges = {edge for chunk in report.chunks for edge in (chunk.offset, chunk.offset + chunk.tokens)}
    if case.cuts_chunk and (report.prefix_cache_tokens == 0 or report.prefix_cache_tokens in edges):
        unmet.append(f"the prefix-cache hit of {report.prefix_cache_tokens} tokens does not end inside a chunk")
    return unmet
