"""The commands' work with an engine and an embedding model that only pretend."""

import json

import numpy as np
import pytest

from cachecraft_rag.answer import Answer, PrewarmReport
from cachecraft_rag.calibration.setting import reuse_defaults
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.config import EngineConfig
from cachecraft_rag.demo import retrieval, run
from cachecraft_rag.demo.defaults import fitting_dtype
from cachecraft_rag.demo.measure import compare, summarise
from cachecraft_rag.demo.questions import Question
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.report import ChunkReport, Outcome, RequestReport

pytest.importorskip("qdrant_client")


class FakeEngine:
    """Answers with the first words of the last chunk; our first token comes four times sooner than plain vLLM's."""

    dtype = "float32"

    def __init__(self, model="m", **options):
        self.config = EngineConfig(model, **options)
        self.policy, self.recompute_ratio = reuse_defaults(self.config, None)
        self.prewarmed = []
        self.kinds = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def prewarm(self, chunks, progress=True):
        self.prewarmed = [chunk.id for chunk in chunks]
        return PrewarmReport(tuple(self.prewarmed), (), {}, 10 * len(self.prewarmed), 0.5)

    def stats(self):
        return {"used_bytes": 1 << 20, "capacity_bytes": 1 << 30, "evicted": 0}

    def generate(self, prompt, *, max_tokens, reuse=True, fresh=False):
        self.kinds.append("ours" if reuse else "plain" if fresh else "cached")
        text = prompt.chunks[-1].text.split("\n")[-1]
        if not reuse:
            return Answer(text, (1,), 100, "stop", 0.4 if fresh else 0.3)
        lines, offset = [], 5
        for chunk in prompt.chunks:
            hit = chunk.id in self.prewarmed
            outcome = Outcome.HIT if hit else Outcome.MISS
            lines.append(ChunkReport(chunk.id, outcome, "", offset, 10, 1 if hit else 10, not hit, chunk.document_id))
            offset += 10
        report = RequestReport("r", "first", 0.15, 100, 0, 20, tuple(lines))
        return Answer(text, (1,), 100, "stop", 0.1, report.with_first_token(0.1))


class LetterEmbedder:
    def encode(self, texts):
        return np.asarray(
            [[text.lower().count(letter) + 0.01 for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts],
            np.float32,
        )


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# Zoo\n## Zebras\nzz zebra [bold] <b>\n## Quails\nqq quail\n## Yaks\nyy yak")
    (folder / "b.txt").write_text("xx ox")
    return folder


@pytest.fixture
def engines(monkeypatch):
    made = []

    def make(*args, **options):
        made.append(FakeEngine(*args, **options))
        return made[-1]

    monkeypatch.setattr("cachecraft_rag.engine.ChunkEngine", make)
    monkeypatch.setattr(retrieval, "SentenceEmbedder", LetterEmbedder)
    return made


def setup(docs, **options):
    return run.Setup(docs, "some/model", **{"dtype": "float32", "k": 2, **options})


def test_the_demonstration_from_documents_to_files(docs, engines, tmp_path, capsys):
    out = {"json_file": tmp_path / "out.json", "html_file": tmp_path / "out.html"}
    questions = [Question("zzz?", ("zebra",)), Question("qqq?", ("ostrich",))]
    summary = run.run_demo(setup(docs, policy="random", ratio=0.3, **out), questions)
    assert (summary.right, summary.plain_right, summary.judged, summary.same_text) == (1, 1, 2, 2)
    assert summary.speedup_vs_plain == pytest.approx(4)
    assert summary.speedup_vs_prefix_cache == pytest.approx(3)

    (engine,) = engines
    assert (engine.config.policy, engine.config.recompute_ratio, engine.config.model) == ("random", 0.3, "some/model")
    assert len(engine.prewarmed) == 4
    assert engine.kinds[-6:] == ["ours", "cached", "plain", "cached", "plain", "ours"]

    printed = capsys.readouterr().out
    for text in ("2 documents, 4 chunks", "4 chunks stored", "zz zebra [bold]", "right (expected: zebra)", "wrong"):
        assert text in printed
    assert "4.0 times sooner than from plain vLLM, 1 of 2 answers right (plain vLLM: 1)." in " ".join(printed.split())

    content = json.loads(out["json_file"].read_text())
    assert content["summary"]["right"] == 1
    assert [line["right"] for line in content["questions"]] == [True, False]
    assert content["questions"][0]["report"]["totals"]["hits"] == 2
    page = out["html_file"].read_text()
    assert "zz zebra [bold] &lt;b&gt;" in page
    assert page.count("<section>") == 2


def test_the_user_is_asked_until_the_line_is_empty(docs, engines, capsys):
    lines = iter(["zzz?", " "])
    summary = run.run_demo(setup(docs), [], lambda: next(lines))
    assert (summary.questions, summary.judged) == (1, 0)
    assert "zz zebra" in capsys.readouterr().out


def test_nothing_asked_is_no_error(docs, engines, capsys):
    assert run.run_demo(setup(docs), [], lambda: "") is None
    assert "nothing was asked" in capsys.readouterr().out


def test_the_handbook_and_its_questions_are_the_default(engines, capsys):
    summary = run.run_demo(run.Setup(dtype="float32", model="some/model"), [])
    assert summary.questions >= 5
    assert len(engines[0].prewarmed) > 100


@pytest.mark.parametrize(("prewarm", "outcome"), [(True, "HIT"), (False, "MISS")], ids=["stored", "not"])
def test_ask(docs, engines, tmp_path, capsys, prewarm, outcome):
    file = tmp_path / "out.json"
    run.ask_once(setup(docs, json_file=file), docs, "yyy?", prewarm=prewarm, max_tokens=9)
    printed = capsys.readouterr().out
    assert "yy yak" in printed
    assert printed.count(outcome) == 2
    assert json.loads(file.read_text())["answer"] == "yy yak"


def test_prewarm(docs, engines, tmp_path, capsys):
    file = tmp_path / "out.json"
    run.prewarm_documents(setup(docs, json_file=file))
    assert "40 tokens in 0.50 s" in capsys.readouterr().out
    content = json.loads(file.read_text())
    assert len(content["stored"]) == 4
    assert content["store"]["used_bytes"] == 1 << 20


def test_refused_and_evicted_chunks_are_named(docs, engines, capsys, monkeypatch):
    report = PrewarmReport(("a",), (), {"0123456789": "too few tokens"}, 10, 0.5)
    monkeypatch.setattr(FakeEngine, "prewarm", lambda *_, **__: report)
    monkeypatch.setattr(FakeEngine, "stats", lambda _: {"used_bytes": 1, "capacity_bytes": 1, "evicted": 3})
    run.prewarm_documents(setup(docs))
    printed = capsys.readouterr().out
    assert "01234567 refused: too few tokens" in printed
    assert "3 chunks had to leave again" in printed


def test_an_empty_question_starts_nothing(docs, engines):
    with pytest.raises(InvalidInput, match="is empty"):
        run.ask_once(setup(docs), docs, " ", prewarm=True, max_tokens=9)
    assert not engines


@pytest.mark.parametrize(("options", "message"), [({"policy": "best"}, "'best'"), ({"ratio": 7.0}, "7.0")])
def test_wrong_options_stop_before_the_work(docs, engines, capsys, options, message):
    with pytest.raises(InvalidInput, match=message):
        run.run_demo(setup(docs, **options), [Question("zzz?")])
    with pytest.raises(InvalidInput, match=message):
        run.ask_once(setup(docs, **options), docs, "zzz?", prewarm=True, max_tokens=9)
    assert not engines
    assert capsys.readouterr().out == ""


def test_a_missing_handbook_says_where_it_was_looked_for(engines, monkeypatch, tmp_path):
    monkeypatch.setattr("cachecraft_rag.demo.defaults.examples_folder", lambda: tmp_path)
    with pytest.raises(InvalidInput, match=f"not at {tmp_path}.*--docs"):
        run.run_demo(run.Setup(), [])
    assert not engines


def test_summary_counts_chunks_that_come_back_elsewhere():
    one, two, three = (Chunk(text) for text in ("one", "two", "three"))
    orders = [(one, two), (two, one), (three, one)]
    summary = summarise([compare(FakeEngine(), Question("Why?"), order) for order in orders])
    assert (summary.returned, summary.moved) == (2, 2)


@pytest.mark.parametrize(
    ("asked", "bf16", "dtype"), [("auto", True, "auto"), ("auto", False, "float32"), ("bfloat16", False, "bfloat16")]
)
def test_auto_is_float32_where_half_precision_is_slow(monkeypatch, asked, bf16, dtype):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert fitting_dtype(asked) == dtype
