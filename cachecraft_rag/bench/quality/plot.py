"""Quality against cost as a picture: divergence and F1, over the recomputed share and over the time to first token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from cachecraft_rag.bench.quality.pareto import pareto_front
from cachecraft_rag.bench.quality.result import Estimate, QualityResult, VariantResult
from cachecraft_rag.bench.quality.variants import ratio_text
from cachecraft_rag.errors import CachecraftError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by the colour-blind too (Okabe and Ito), and by their markers in black and white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "os^Dv<>P*X"
_LEAST_KL = 1e-7  # below it lies rounding, and full prefill itself: not on a logarithmic axis


@dataclass(frozen=True, slots=True)
class _Panel:
    """`cost`: None where it was not measured; `estimate`: what is drawn; `sign`: -1 where more of it is better."""

    cost: Callable[[VariantResult], float | None]
    cost_label: str
    estimate: Callable[[VariantResult], Estimate]
    label: str
    sign: int
    logarithmic: bool = False


_PANELS = (
    _Panel(lambda v: v.share, "recomputed share of the context", lambda v: v.kl, "KL to full prefill, nats", 1, True),
    _Panel(
        lambda v: v.first_token_ratio, "TTFT, full prefill = 1", lambda v: v.kl, "KL to full prefill, nats", 1, True
    ),
    _Panel(lambda v: v.share, "recomputed share of the context", lambda v: v.f1, "token F1", -1),
    _Panel(lambda v: v.first_token_ratio, "TTFT, full prefill = 1", lambda v: v.f1, "token F1", -1),
)


def draw(result: QualityResult) -> bytes:
    """A PNG of four panels. Bars are 95% intervals, the dashed line is the Pareto front.

    Raises `CachecraftError` where matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CachecraftError(
            f"drawing needs matplotlib ({error}): pip install 'cachecraft-rag[bench]' brings it"
        ) from error
    figure = Figure(figsize=(12, 9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    for panel, ax in zip(_PANELS, axes.flat, strict=True):
        _draw_panel(panel, ax, result.variants)
    figure.suptitle(result.heading)
    handles, labels = axes.flat[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7))
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110, metadata={"Software": None})
    return png.getvalue()


def kl_front(variants: Sequence[VariantResult]) -> set[str]:
    """Labels of the variants on the front of divergence over recomputed share."""
    front = pareto_front([v.share for v in variants], [v.kl.value for v in variants])
    return {variants[index].label for index in front}


def _draw_panel(panel: _Panel, ax: Axes, variants: Sequence[VariantResult]) -> None:
    costed = [(v, panel.cost(v)) for v in variants if not panel.logarithmic or v.kl.value > _LEAST_KL]
    shown = [(v, cost) for v, cost in costed if cost is not None]
    names = dict.fromkeys(v.name for v in variants)
    for number, name in enumerate(names):
        series = sorted(((v, cost) for v, cost in shown if v.name == name), key=lambda point: point[1])
        style = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
        _draw_series(panel, ax, series, name, style)
    front = pareto_front([cost for _, cost in shown], [panel.sign * panel.estimate(v).value for v, _ in shown])
    costs = [shown[index][1] for index in front]
    heights = [panel.estimate(shown[index][0]).value for index in front]
    ax.plot(costs, heights, color="0.4", linestyle="--", linewidth=1, zorder=0, label="Pareto front")
    ax.scatter(costs, heights, s=130, facecolors="none", edgecolors="0.4", zorder=1)
    if panel.logarithmic and shown:
        ax.set_yscale("log")
    ax.set(xlabel=panel.cost_label, ylabel=panel.label)
    ax.grid(alpha=0.3)


def _draw_series(
    panel: _Panel, ax: Axes, series: Sequence[tuple[VariantResult, float]], name: str, style: dict[str, Any]
) -> None:
    costs = [cost for _, cost in series]
    estimates = [panel.estimate(v) for v, _ in series]
    heights = [estimate.value for estimate in estimates]
    down = [max(0.0, e.value - e.low) if e.low is not None else 0.0 for e in estimates]
    up = [max(0.0, e.high - e.value) if e.high is not None else 0.0 for e in estimates]
    ax.errorbar(costs, heights, yerr=(down, up), label=name, capsize=2, elinewidth=0.6, linewidth=1.4, **style)
    for (variant, cost), height in zip(series, heights, strict=True):
        if variant.ratio is not None and len(series) > 1:
            ax.annotate(ratio_text(variant.ratio), (cost, height), (5, 5), textcoords="offset points", fontsize=8)
