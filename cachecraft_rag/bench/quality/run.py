"""The quality benchmark: what `cachecraft bench quality` does."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from cachecraft_rag.bench.machine import describe_machine
from cachecraft_rag.bench.progress import counting_bar
from cachecraft_rag.bench.quality.data import Question, load_questions
from cachecraft_rag.bench.quality.forced_engine import ForcedEngine, start_forced_engine
from cachecraft_rag.bench.quality.kept_logits import KeptLogits
from cachecraft_rag.bench.quality.measure import Measurer
from cachecraft_rag.bench.quality.prompts import ask
from cachecraft_rag.bench.quality.records import Records
from cachecraft_rag.bench.quality.result import QualityResult
from cachecraft_rag.bench.quality.room import context_length
from cachecraft_rag.bench.quality.summary import share_full_fails, summarise
from cachecraft_rag.bench.quality.variants import FULL, Variant, make_variants
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.config import EngineConfig
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.errors import CachecraftError, InvalidInput
from cachecraft_rag.reuse import get_policy
from cachecraft_rag.tokenise import PromptTokenizer

_FORMAT = 2  # of records; raise it when what they hold changes its meaning


def bench_quality(
    model: str,
    data: Path,
    *,
    policies: Sequence[str],
    ratios: Sequence[float],
    limit: int | None = None,
    max_tokens: int = 16,
    min_run: int = 1,
    seed: int = 0,
    dtype: str = "auto",
    together: int = 1,
    timed: int = 0,
    records: Path | None = None,
    logits: Path | None = None,
    minutes: float | None = None,
    progress: bool = True,
    **options: Any,
) -> QualityResult:
    """Answer the questions of `data` by full prefill, by its rivals, and by each policy at each ratio.

    `records`: file that every measured answer is added to and that a later run goes on from; `logits`: folder that
    keeps full prefill's logits for such a run, which then need not compute them again. `minutes`: begin no further
    question after that time; the result covers those that are complete. `options`: further ones of `EngineConfig`.

    `together`: ways of a question in flight at once; above 1 they have no TTFT. `timed`: of the first so many questions
    each way that has no TTFT is sent once more, alone. Timings apart, the result depends neither on these nor on
    interruptions.

    Raises `InvalidInput`, before an engine is started, for a prompt or passage that does not fit into the context.
    """
    for name, value, least in (("max_tokens", max_tokens, 1), ("together", together, 1), ("timed", timed, 0)):
        if value < least:
            raise InvalidInput(f"{name}={value} must be at least {least}")
    variants = make_variants(policies, ratios)
    questions = load_questions(data, limit=limit, seed=seed)
    given: dict[str, Any] = {
        "dtype": dtype,
        "kv_cache_gb": 2.0,
        "keep_variants": int(any(get_policy(policy).uses_variants for policy in policies)),
        **options,
    }
    given["max_model_len"] = _context_length(EngineConfig(model, **given), questions, max_tokens)
    with start_forced_engine(model, **given) as forced:
        engine = forced.engine
        run, reusing_run = run_digests(engine, max_tokens=max_tokens, min_run=min_run)
        lengths = {"max_tokens": max_tokens, "min_run": min_run}
        kept = KeptLogits(logits, run)
        measurer = Measurer(forced, questions, Records(records, run, reusing_run), kept, together=together, **lengths)
        _measure_all(measurer, len(questions), variants, timed, minutes, progress)
        return _result(forced, measurer, questions, variants, name=data.stem, seed=seed, **lengths)


def run_digests(engine: ChunkEngine, *, max_tokens: int, min_run: int) -> tuple[str, str]:
    """sha256 (hex) of all but question and variant that a record depends on: of a plain request's, of a reusing one's.

    They are the same where chunks are stored as computed behind the head alone.
    """
    from cachecraft_rag.vllm.launch import make_settings
    from cachecraft_rag.vllm.versions import check_version

    settings = make_settings(engine.config, engine.tokenizer)
    wording = engine.tokenizer.encode(ask([Chunk("passage")], "question")).token_ids
    content = [
        *(_FORMAT, settings.weights_fingerprint, settings.tokenizer_fingerprint, wording),
        *(engine.dtype, check_version(), max_tokens, min_run),
        *(settings.compress, settings.min_chunk_tokens, settings.recompute_bucket),
    ]
    stand_in = [list(settings.stand_in_token_ids)] if settings.stand_in_token_ids else []
    return _sha256(content), _sha256(content + stand_in)


def _sha256(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _context_length(config: EngineConfig, questions: Sequence[Question], max_tokens: int) -> int:
    tokenizer = PromptTokenizer.of_engine(config)
    # The order of its passages changes nothing in the length of a prompt.
    prompt = max(len(tokenizer.encode(ask(q.chunks, q.question)).token_ids) for q in questions)
    chunks = [chunk for question in questions for chunk in question.chunks]
    way_out = "leave out the longest questions, or give fewer or shorter passages"
    return context_length(config, tokenizer, prompt + max_tokens, chunks, way_out=way_out)


def _measure_all(
    measurer: Measurer, count: int, variants: Sequence[Variant], timed: int, minutes: float | None, progress: bool
) -> None:
    started = time.monotonic()
    with counting_bar(progress) as bar:
        for number in bar.track(range(count), description=f"questions, {len(variants) + 1} ways each"):
            if minutes is not None and time.monotonic() - started > 60.0 * minutes:
                return
            measurer.measure(number, variants, timed=number < timed)


def _result(
    forced: ForcedEngine,
    measurer: Measurer,
    questions: Sequence[Question],
    variants: Sequence[Variant],
    *,
    name: str,
    max_tokens: int,
    min_run: int,
    seed: int,
) -> QualityResult:
    answered: list[Question] = []
    answers = []
    for number, question in enumerate(questions):
        found = {variant: measurer.record(number, variant) for variant in (FULL, *variants)}
        known = {variant: record for variant, record in found.items() if record is not None}
        if len(known) == len(found):
            answered.append(question)
            answers.append(known)
    if not answers:
        raise CachecraftError(f"of {len(questions)} questions none was answered in all ways yet; give it more minutes")
    engine = forced.engine
    lengths = [engine.tokenizer.encode(ask(q.chunks, q.question)).chunks[-1].stop for q in answered]
    return QualityResult(
        model=Path(engine.model_name).name,
        dtype=engine.dtype,
        data=name,
        questions=len(answered),
        asked=len(questions),
        max_tokens=max_tokens,
        min_run=min_run,
        seed=seed,
        context_tokens=fmean(lengths),
        full_fails=share_full_fails(answered, answers),
        variants=summarise(answered, answers),
        machine=describe_machine(),
        compress=engine.config.compression,
        alone=not engine.config.stand_in,
        question_ids=tuple(question.digest for question in answered),
    )
