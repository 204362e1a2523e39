"""The work behind `cachecraft calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cachecraft_rag.bench.progress import counting_bar
from cachecraft_rag.bench.quality.bootstrap import paired_bootstrap
from cachecraft_rag.bench.quality.forced_engine import ForcedEngine, start_forced_engine
from cachecraft_rag.bench.quality.variants import check_ratios
from cachecraft_rag.calibration.choose import EXACT, choose
from cachecraft_rag.calibration.measure import Measured, measure
from cachecraft_rag.calibration.questions import ask_of_each, write_questions
from cachecraft_rag.calibration.result import CalibrationNotKept, CalibrationResult, RatioResult
from cachecraft_rag.calibration.room import context_for
from cachecraft_rag.calibration.samples import LEAST, Sample, draw_samples
from cachecraft_rag.calibration.setting import Calibration, save_calibration
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.config import DEFAULT_POLICY, EngineConfig
from cachecraft_rag.errors import InvalidInput, StoreError
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.reuse import get_policy
from cachecraft_rag.reuse.policies import follows_no_ratio
from cachecraft_rag.store.directory import StoreDirectory

RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
_TIMED = 5  # samples


def calibrate(
    model: str,
    chunks: Sequence[Chunk],
    *,
    questions: Sequence[str] = (),
    target: float = 0.98,
    policy: str = DEFAULT_POLICY,
    ratios: Sequence[float] = RATIOS,
    samples: int = 32,
    chunks_each: int = 8,
    max_tokens: int = 32,
    seed: int = 0,
    store_dir: Path | None = None,
    progress: bool = True,
    **options: Any,
) -> CalibrationResult:
    """Find the least ratio whose answers over `chunks` agree with full prefill's at `target`.

    `questions`: what to ask; without any the model writes one for each drawn chunk. `store_dir`: the caches of chunks
    are read and kept there, and the choice is written there, for all tenants; raises `CalibrationNotKept`, which holds
    the result, where it cannot be. `options`: further ones of `EngineConfig`.
    """
    grid = _checked(policy, ratios, target, samples=samples, chunks_each=chunks_each, max_tokens=max_tokens)
    given: dict[str, Any] = {"policy": policy, "recompute_ratio": EXACT, "store_dir": store_dir, **options}
    config = EngineConfig(model, **given)
    if config.read_only:
        raise InvalidInput("read_only=True: an engine that writes nothing cannot prewarm the chunks; leave it out")
    drawn = draw_samples(chunks, questions, count=samples, chunks_each=chunks_each, seed=seed)
    given["max_model_len"] = context_for(config, drawn.samples, max_tokens)
    with start_forced_engine(model, **given) as forced:
        asked = _ask(forced, drawn.samples, progress)
        measured = _measure_all(forced, asked, policy, grid, max_tokens, progress)
        dtype, folder = forced.engine.dtype, forced.engine.model_store_dir
    rows = _summarise(grid, measured)
    result = CalibrationResult(
        model=Path(model).name,
        dtype=dtype,
        policy=policy,
        target=target,
        samples=len(measured),
        chunks_each=max(len(sample.chunks) for sample in asked),
        context_tokens=float(np.mean([one.context_tokens for one in measured])),
        answer_tokens=sum(one.answer_tokens for one in measured),
        ratios=rows,
        choice=choose(rows, target),
        questions=tuple(sample.question for sample in asked if sample.question is not None),
        written_to=None,
        skipped_questions=drawn.skipped,
    )
    return result if folder is None else _kept(result, folder)


def _kept(result: CalibrationResult, folder: Path) -> CalibrationResult:
    choice = result.choice
    calibration = Calibration(result.policy, choice.ratio, result.target, choice.agreement, result.samples)
    try:
        path = save_calibration(StoreDirectory(folder.parent), folder.name, calibration)
    except (OSError, StoreError) as error:
        raise CalibrationNotKept(result, folder, error) from error
    return replace(result, written_to=str(path))


def _checked(policy: str, ratios: Sequence[float], target: float, **counts: int) -> list[float]:
    """The ratios to measure, rising. 1.0 is not among them: it is known to be exact."""
    known = get_policy(policy)
    if follows_no_ratio(known):
        raise InvalidInput(f"policy {policy!r} does the same at every ratio: there is nothing to calibrate")
    if known.uses_variants:
        raise InvalidInput(
            f"policy {policy!r} reuses what earlier prompts left, which no sample can stand for: calibrate one that "
            f"reuses chunks as they are stored, such as {DEFAULT_POLICY!r}"
        )
    if not 0.0 < target <= 1.0:
        raise InvalidInput(f"target={target!r} is not a share above 0: give the least agreement, such as 0.98")
    for name, least in (("samples", LEAST), ("chunks_each", 2), ("max_tokens", 1)):
        if counts[name] < least:
            raise InvalidInput(f"{name}={counts[name]} is not enough: give at least {least}")
    grid = sorted({ratio for ratio in check_ratios(ratios) if ratio < EXACT})
    if not grid:
        raise InvalidInput(f"ratios={list(ratios)!r} hold none below 1, which is exact: there is nothing to measure")
    return grid


def _ask(forced: ForcedEngine, drawn: Sequence[Sample], progress: bool) -> list[Sample]:
    """The samples with their questions."""
    silent = list({sample.own.id: sample.own for sample in drawn if sample.question is None}.values())
    with counting_bar(progress) as bar:
        found = write_questions(forced.engine, silent)
        written = dict(bar.track(found, total=len(silent), description="writing questions"))
    questions = ask_of_each(silent, written)
    return [replace(s, question=s.question or questions[s.own.id]) for s in drawn]


def _measure_all(
    forced: ForcedEngine, asked: Sequence[Sample], policy: str, grid: Sequence[float], max_tokens: int, progress: bool
) -> list[Measured]:
    measured = []
    with counting_bar(progress) as bar:
        for number, sample in enumerate(bar.track(asked, description=f"samples, {len(grid)} ratios each")):
            assert sample.question is not None
            prompt = ChunkPrompt.chat(sample.chunks, sample.question)
            timed = number < _TIMED
            measured.append(measure(forced, prompt, policy, grid, max_tokens=max_tokens, timed=timed))
    return measured


def _summarise(grid: Sequence[float], measured: Sequence[Measured]) -> tuple[RatioResult, ...]:
    agreements = np.array([one.agreements for one in measured], dtype=np.float64)
    kls = np.mean([one.kls for one in measured], axis=0)
    shares = np.mean([one.shares for one in measured], axis=0)
    times = np.median([one.first_token_ratios for one in measured if one.first_token_ratios], axis=0)
    rows = []
    for number, ratio in enumerate(grid):
        own = agreements[:, [number]]
        interval = paired_bootstrap(own, lambda means: means[:, 0])
        assert interval is not None
        value = float(own.mean())
        numbers = (float(kls[number]), float(shares[number]), float(times[number]))
        rows.append(RatioResult(ratio, value, *interval, *numbers))
    return tuple(rows)
