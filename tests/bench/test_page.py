import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cachecraft_rag.bench.quality.page import write_page
from cachecraft_rag.bench.quality.plot import draw, kl_front
from cachecraft_rag.bench.quality.result import Estimate, QualityResult, VariantResult, cells
from cachecraft_rag.errors import CachecraftError, InvalidInput


def variant(name, ratio, kl, share, ttft, f1=0.5):
    return VariantResult(
        name=name,
        ratio=ratio,
        f1=Estimate(f1, f1 - 0.1, f1 + 0.1),
        exact_match=Estimate(0.4),
        of_full=Estimate(1.0, 0.9, 1.1),
        gap_recovered=None,
        same_answer=Estimate(0.5),
        agreement=Estimate(0.9),
        kl=Estimate(kl, kl / 2, kl * 2),
        kl_of_naive=Estimate(kl / 0.3),
        share=share,
        first_token_ratio=ttft,
        timed=4,
    )


RESULT = QualityResult(
    model="a<b",
    dtype="float32",
    data="set",
    questions=4,
    asked=4,
    max_tokens=16,
    min_run=1,
    seed=0,
    context_tokens=1234.0,
    full_fails=0.25,
    variants=(
        variant("full prefill", None, 0.0, 1.0, 1.0),
        variant("none", 0.0, 0.3, 0.0, 0.05),
        variant("first", 0.05, 0.2, 0.05, 0.08),
        variant("first", 0.3, 0.1, 0.3, 0.35),
        variant("random", 0.3, 0.25, 0.3, 0.4),
    ),
    machine={},
)


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        path.write_text(json.dumps(replace(RESULT, data=path.stem).to_dict()))
    return paths


def test_the_front_leaves_out_what_is_beaten():
    assert kl_front(RESULT.variants) == {"none 0", "first 0.05", "first 0.3", "full prefill"}


def test_one_page_that_needs_nothing_beside_it(files, tmp_path):
    pytest.importorskip("matplotlib")
    written = write_page(files, tmp_path / "page.html")
    assert written == [tmp_path / "page.html", tmp_path / "one.png", tmp_path / "two.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[1:])
    html = written[0].read_text()
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    parser.feed(html)
    images = [attributes["src"] for tag, attributes in tags if tag == "img"]
    assert len(images) == 2
    assert all(source.startswith("data:image/png;base64,") for source in images)
    assert not any(tag in ("script", "link") for tag, _ in tags)
    assert sum(attributes.get("class") == "front" for _, attributes in tags) == 8
    assert "a&lt;b" in html
    assert "a<b" not in html


@pytest.mark.parametrize("timed", [0, 1])
def test_what_was_not_timed_is_left_out_of_its_panels(timed):
    pytest.importorskip("matplotlib")
    variants = tuple(replace(v, first_token_ratio=None, timed=0) for v in RESULT.variants[timed:])
    found = replace(RESULT, variants=RESULT.variants[:timed] + variants)
    assert draw(found).startswith(b"\x89PNG")
    assert cells(found.variants[-1])[-1] == "-"


def test_a_picture_is_the_same_each_time():
    pytest.importorskip("matplotlib")
    assert draw(RESULT) == draw(RESULT)


def test_two_files_of_one_name_are_refused(files, tmp_path):
    pytest.importorskip("matplotlib")
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.json").write_text(files[0].read_text())
    with pytest.raises(InvalidInput, match="rename one"):
        write_page([files[0], other / "one.json"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("content", ["{}", "no json"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"x\.json: "):
        write_page([tmp_path / "x.json"], tmp_path / "page.html")
    with pytest.raises(InvalidInput, match="cannot be read"):
        write_page([tmp_path / "nowhere.json"], tmp_path / "page.html")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(CachecraftError, match=r"cachecraft-rag\[bench\]"):
        draw(RESULT)


@pytest.mark.parametrize("name", ["one.json", "one.png", "link.html", "sub/../two.json"])
def test_what_is_read_or_drawn_is_not_written_over(files, tmp_path, name):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.html").symlink_to(files[0])
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(InvalidInput, match=f"the page .*{name} would be written over a (result|picture): give another"):
        write_page(files, tmp_path / name)
    assert {path: path.read_bytes() for path in files} == before
    assert not list(tmp_path.glob("*.png"))


def test_a_picture_is_not_written_over_a_result(files, tmp_path):
    (tmp_path / "one.png").symlink_to(files[1])
    before = files[1].read_bytes()
    with pytest.raises(InvalidInput, match=r"picture of .*one\.json would be written over the result .*one\.png"):
        write_page(files, tmp_path / "page.html")
    assert files[1].read_bytes() == before
