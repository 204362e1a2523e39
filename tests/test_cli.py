import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from cachecraft_rag import verify as verify_module
from cachecraft_rag.bench import speed as speed_module
from cachecraft_rag.bench.quality import run as quality_module
from cachecraft_rag.calibration import run as calibration_module
from cachecraft_rag.cli import app
from cachecraft_rag.demo import run as run_module
from cachecraft_rag.demo.questions import Question
from cachecraft_rag.errors import UnsupportedModel


@dataclass(frozen=True)
class Result:
    exact: bool = True

    def to_dict(self):
        return {"exact": self.exact, "word": "naïve"}

    def __str__(self):
        return "a readable result"


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def calls(monkeypatch):
    """What the functions behind the commands were called with."""
    found = {}
    result = Result()

    def recorder(name):
        def record(*args, **kwargs):
            found[name] = (args, kwargs)
            return result

        return record

    monkeypatch.setattr(verify_module, "verify_model", recorder("verify"))
    monkeypatch.setattr(speed_module, "bench_speed", recorder("speed"))
    monkeypatch.setattr(quality_module, "bench_quality", recorder("quality"))
    monkeypatch.setattr(run_module, "run_demo", recorder("demo"))
    monkeypatch.setattr(run_module, "ask_once", recorder("ask"))
    monkeypatch.setattr(run_module, "prewarm_documents", recorder("prewarm"))
    monkeypatch.setattr(calibration_module, "calibrate", recorder("calibrate"))
    return found


@pytest.mark.parametrize(
    "command",
    [(), ("demo",), ("ask",), ("prewarm",), ("verify",), ("calibrate",), ("bench",)]
    + [("bench", name) for name in ("speed", "data", "quality", "plot")],
)
def test_every_command_has_help(invoke, command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_help_loads_nothing_heavy():
    script = (
        "import sys; from typer.testing import CliRunner; from cachecraft_rag.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print([name for name in ('torch', 'vllm', 'transformers', 'qdrant_client', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_verify_prints_and_writes_the_result(invoke, calls, tmp_path):
    result = invoke("verify", "some/model", "--dtype", "bfloat16", "--json", tmp_path / "out.json")
    assert result.exit_code == 0
    assert "a readable result" in result.output
    assert json.loads((tmp_path / "out.json").read_text()) == {"exact": True, "word": "naïve"}
    (model,), options = calls["verify"]
    assert (model, options["dtype"]) == ("some/model", "bfloat16")


def test_verify_fails_where_it_is_not_exact(invoke, monkeypatch, tmp_path):
    monkeypatch.setattr(verify_module, "verify_model", lambda *_, **__: Result(exact=False))
    result = invoke("verify", "some/model", "--json", tmp_path / "out.json")
    assert result.exit_code == 1
    assert "a readable result" in result.output
    assert json.loads((tmp_path / "out.json").read_text())["exact"] is False


def test_calibrate_passes_its_options_on(invoke, calls, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "doc.txt").write_text(f"text {name}")
    (tmp_path / "q.txt").write_text("Who?\n\n Where? \n")
    arguments = ["--docs", tmp_path / "one", "--docs", tmp_path / "two", "--questions", tmp_path / "q.txt"]
    arguments += ["--model", "m", "--dtype", "float32", "--target", 0.9, "--policy", "question", "--ratios", "0.2, 0.4"]
    arguments += ["--chunks", 3, "--samples", 9, "--store-dir", tmp_path / "s", "--namespace", "me"]
    result = invoke("calibrate", *arguments)
    assert result.exit_code == 0, result.output
    (model, chunks), options = calls["calibrate"]
    assert (model, [chunk.text for chunk in chunks]) == ("m", ["doc\ntext one", "doc\ntext two"])
    assert options["questions"] == ["Who?", "Where?"]
    assert (options["target"], options["policy"], options["ratios"]) == (0.9, "question", [0.2, 0.4])
    assert (options["chunks_each"], options["samples"], options["namespace"]) == (3, 9, "me")
    assert options["store_dir"] == tmp_path / "s"


def test_calibrate_wants_documents(invoke, calls):
    for arguments in ([], ["--docs", ".", "--jsonl", "x.jsonl"]):
        result = invoke("calibrate", *arguments)
        assert result.exit_code == 2
        assert "give --docs DIR or --jsonl FILE" in result.stderr
    assert not calls


def test_bench_speed_passes_its_options_on(invoke, calls, tmp_path):
    arguments = ["--model", "m", "--chunks", 3, "--chunk-tokens", 64, "--ratio", 0.5, "--policy", "random"]
    arguments += ["--repetitions", 2, "--dtype", "float32", "--json", tmp_path / "out.json"]
    result = invoke("bench", "speed", *arguments)
    assert result.exit_code == 0, result.output
    (model,), options = calls["speed"]
    del options["progress"]
    expected = {"chunks": 3, "chunk_tokens": 64, "ratio": 0.5, "policy": "random", "repetitions": 2, "dtype": "float32"}
    assert model == "m"
    assert options == expected
    assert json.loads((tmp_path / "out.json").read_text())["exact"] is True


def test_bench_quality_passes_its_options_on(invoke, calls, tmp_path):
    arguments = ["--data", tmp_path / "d.jsonl", "--model", "m", "--policies", "first, random", "--ratios", "0.1,0.2"]
    arguments += ["--limit", 7, "--minutes", 2.5, "--dtype", "float32", "--json", tmp_path / "out.json"]
    result = invoke("bench", "quality", *arguments)
    assert result.exit_code == 0, result.output
    (model, data), options = calls["quality"]
    assert (model, data) == ("m", tmp_path / "d.jsonl")
    assert (options["policies"], options["ratios"]) == (["first", "random"], [0.1, 0.2])
    assert (options["limit"], options["minutes"], options["max_tokens"]) == (7, 2.5, 16)
    assert options["records"] == tmp_path / "out.json.records.jsonl"
    assert options["logits"] == tmp_path / "out.json.logits"
    assert (options["together"], options["timed"], options["compress"]) == (1, 0, None)
    assert json.loads((tmp_path / "out.json").read_text())["exact"] is True


def test_bench_quality_passes_on_how_it_is_to_run(invoke, calls, tmp_path):
    arguments = ["--data", tmp_path / "d.jsonl", "--model", "m", "--dtype", "float32", "--json", tmp_path / "out.json"]
    arguments += ["--together", 16, "--timed", 3, "--compress", "int8", "--kv-cache-gb", 4, "--no-keep-logits"]
    assert invoke("bench", "quality", *arguments).exit_code == 0
    _, options = calls["quality"]
    assert (options["together"], options["timed"], options["compress"]) == (16, 3, "int8")
    assert (options["kv_cache_gb"], options["logits"]) == (4.0, None)


def test_bench_quality_names_a_ratio_that_is_no_number(invoke, calls):
    result = invoke("bench", "quality", "--data", "d.jsonl", "--model", "m", "--dtype", "float32", "--ratios", "0.1,x")
    assert result.exit_code == 2
    assert "ratio 'x' is not a number" in result.stderr
    assert not calls


def test_bench_data_writes_what_bench_quality_reads(invoke, tmp_path):
    passages = [{"title": f"T{number}", "text": f"text {number}"} for number in range(12)]
    row = {"question": "Who?", "answers": ["T7"], "passages": passages, "supporting": [7, 2]}
    (tmp_path / "musique_dev200.jsonl").write_text(json.dumps(row) + "\n")
    result = invoke("bench", "data", "musique", tmp_path, tmp_path / "out.jsonl")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("1 questions in ")
    written = json.loads((tmp_path / "out.jsonl").read_text())
    assert [passage["title"] for passage in written["passages"]] == [f"T{n}" for n in (7, 2, 0, 1, 3, 4, 5, 6, 8, 9)]


@pytest.mark.parametrize("command", ["plot", "tables", "compare"])
def test_bench_names_a_file_that_is_no_result(invoke, tmp_path, command):
    file = tmp_path / "x.json"
    file.write_text("{}")
    rest = {"plot": ["--out", tmp_path / "page.html"], "tables": [], "compare": [file]}[command]
    result = invoke("bench", command, file, *rest)
    assert result.exit_code == 2
    assert "not a result of the quality benchmark" in result.stderr


def test_bench_tables_and_compare_print_markdown(invoke, tmp_path):
    file = tmp_path / "x.json"
    estimate = {"value": 0.5, "low": 0.25, "high": 0.75}
    names = ("f1", "exact_match", "of_full", "gap_recovered", "same_answer", "agreement", "kl", "kl_of_naive")
    way = {"name": "blend", "ratio": 0.15, "share": 0.15, "first_token_ratio": None, "timed": 0}
    way |= dict.fromkeys(names, estimate) | {"f1_each": [1.0, 0.0], "kl_each": [0.25, 0.75]}
    fields = {"model": "m", "dtype": "float32", "data": "set", "questions": 2, "asked": 2, "max_tokens": 16}
    fields |= {"min_run": 1, "seed": 0, "context_tokens": 100.0, "full_fails": 0.5, "machine": {}}
    file.write_text(json.dumps({**fields, "variants": [way], "question_ids": ["a", "b"]}))
    result = invoke("bench", "tables", file, "--ratios", "0.15")
    assert result.exit_code == 0, result.output
    assert "| `blend` | 0.500 (15.0%) |" in result.stdout
    result = invoke("bench", "compare", file, file, "--ways", "blend 0.15")
    assert result.exit_code == 0, result.output
    assert "| `blend 0.15` | 0.500 | 0.500 | 1.00 | 0.50 | 0.50 | 1.00 |" in result.stdout
    for ratios, message in (
        ("15", "ratio 15.0 is not a share"),
        ("0.2", "ratio 0.2 is in no result"),
        ("", "no ratio"),
    ):
        result = invoke("bench", "tables", file, "--ratios", ratios)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {message}")
    other = tmp_path / "y.json"
    other.write_text(json.dumps({**fields, "variants": [{**way, "ratio": 0.3}], "question_ids": ["a", "b"]}))
    result = invoke("bench", "compare", file, other)
    assert result.exit_code == 2
    assert f"{file} has blend 0.15 and {other} has blend 0.3" in result.stderr


def test_bench_data_does_not_write_over_what_it_reads(invoke, tmp_path):
    (tmp_path / "musique_dev200.jsonl").write_text("kept")
    result = invoke("bench", "data", "musique", tmp_path, tmp_path / "musique_dev200.jsonl")
    assert result.exit_code == 2
    assert "give another name" in result.stderr
    assert (tmp_path / "musique_dev200.jsonl").read_text() == "kept"


def test_bench_data_names_a_source_that_is_empty_or_garbled(invoke, tmp_path):
    for content, message in (("", "holds no lines"), ("{", "line 1: this is not JSON")):
        (tmp_path / "musique_dev200.jsonl").write_text(content)
        result = invoke("bench", "data", "musique", tmp_path, tmp_path / "out.jsonl")
        assert result.exit_code == 2
        assert message in result.stderr
        assert not (tmp_path / "out.jsonl").exists()


def test_demo_without_options_leaves_all_to_the_demonstration(invoke, calls):
    assert invoke("demo").exit_code == 0
    (setup, questions), _ = calls["demo"]
    assert (setup.docs, setup.policy, setup.ratio, questions) == (None, None, None, [])
    assert setup.model == "smollm2-135m"


def test_demo_over_own_documents(invoke, calls, tmp_path):
    arguments = ["--docs", tmp_path, "-q", "Why?", "--question", "How?", "--ratio", 0.3, "--policy", "random", "-k", 4]
    assert invoke("demo", *arguments).exit_code == 0
    (setup, questions), _ = calls["demo"]
    assert (setup.docs, setup.ratio, setup.policy, setup.k) == (tmp_path, 0.3, "random", 4)
    assert questions == [Question("Why?"), Question("How?")]


def test_demo_over_own_documents_needs_something_to_ask(invoke, calls, tmp_path):
    result = invoke("demo", "--docs", tmp_path)  # not in a terminal
    assert result.exit_code == 2
    assert "give --question" in result.stderr
    assert not calls


def test_ask(invoke, calls, tmp_path):
    assert invoke("ask", "--docs", tmp_path, "--model", "m", "Why?", "--no-prewarm").exit_code == 0
    (setup, docs, question), options = calls["ask"]
    assert (setup.model, docs, question) == ("m", tmp_path, "Why?")
    assert options == {"prewarm": False, "max_tokens": 128}


def test_prewarm(invoke, calls, tmp_path):
    assert invoke("prewarm", "--docs", tmp_path, "--model", "m", "--dtype", "float32").exit_code == 0
    (setup, jsonl), _ = calls["prewarm"]
    assert (setup.model, setup.dtype, setup.docs, setup.store_dir, jsonl) == ("m", "float32", tmp_path, None, None)


def test_prewarm_of_lines_into_a_store(invoke, calls, tmp_path):
    store, lines, small = tmp_path / "store", tmp_path / "lines.jsonl", ("--compress", "fp8")
    assert invoke("prewarm", "--jsonl", lines, "--store-dir", store, "--namespace", "t", *small).exit_code == 0
    (setup, jsonl), _ = calls["prewarm"]
    assert (setup.docs, setup.store_dir, setup.namespace, setup.compress) == (None, store, "t", "fp8")
    assert jsonl == lines


def test_prewarm_takes_one_source(invoke, calls, tmp_path):
    for arguments in ((), ("--docs", tmp_path, "--jsonl", tmp_path)):
        result = invoke("prewarm", *arguments)
        assert result.exit_code == 2
        assert "--jsonl" in result.output
    assert "prewarm" not in calls


@pytest.mark.parametrize("command", [("verify", "m"), ("bench", "speed", "--model", "m")])
def test_an_error_on_purpose_is_one_line(invoke, monkeypatch, command):
    def refuse(*_, **__):
        raise UnsupportedModel("this model\nhas a sliding window")

    monkeypatch.setattr(verify_module, "verify_model", refuse)
    monkeypatch.setattr(speed_module, "bench_speed", refuse)
    result = invoke(*command, "--dtype", "float32")
    assert result.exit_code == 2
    assert result.stderr == "error: this model has a sliding window\n"
    assert result.stdout == ""


def test_a_folder_that_is_not_there(invoke, tmp_path):
    result = invoke("prewarm", "--docs", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "does not exist" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["no/such/folder/out.json", "."])
def test_a_result_that_could_not_be_written_stops_before_the_work(invoke, calls, tmp_path, name):
    result = invoke("verify", "m", "--json", tmp_path / name)
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert not calls


@pytest.mark.parametrize("option", [("--repetitions", 0), ("--chunks", 0), ("--ratio", "much")])
def test_a_wrong_option_is_named(invoke, calls, option):
    result = invoke("bench", "speed", *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr
    assert not calls
