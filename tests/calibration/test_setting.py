import json
import logging
import stat
from dataclasses import replace

import pytest

from cachecraft_rag.calibration.setting import FILE, Calibration, load_calibration, reuse_defaults, save_calibration
from cachecraft_rag.config import DEFAULT_POLICY, EngineConfig
from cachecraft_rag.store.audit import audit
from cachecraft_rag.store.catalogue import collect_garbage, items
from cachecraft_rag.store.directory import StoreDirectory

MODEL = "a" * 64
CHOICE = Calibration("question", 0.3, 0.98, 0.985, 32)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("CACHECRAFT_RECOMPUTE_RATIO", raising=False)


@pytest.fixture
def directory(tmp_path):
    return StoreDirectory(tmp_path / "store")


@pytest.fixture
def folder(directory):
    save_calibration(directory, MODEL, CHOICE)
    return directory.root / MODEL


def test_it_is_kept_and_found_for_one_model(directory, folder):
    assert load_calibration(folder) == CHOICE
    assert load_calibration(directory.root / ("b" * 64)) is None
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    save_calibration(directory, MODEL, replace(CHOICE, recompute_ratio=0.5))
    assert load_calibration(folder).recompute_ratio == 0.5


def test_the_store_counts_it_and_leaves_it_alone(directory, folder):
    assert directory.used_bytes() == directory.counted_bytes() > 0
    found = audit(directory)
    assert (found.entries, found.faults) == (0, ())
    assert list(items(directory)) == []
    removed = collect_garbage(directory, max_bytes=0, older_than_days=0)
    assert (removed.entries, removed.other_files) == (0, 0)
    assert load_calibration(folder) == CHOICE


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: {**fields, "format": 2},
        lambda fields: {**fields, "model": "b" * 64},
        lambda fields: {**fields, "policy": "best"},
        lambda fields: {**fields, "recompute_ratio": 1.5},
        lambda fields: {**fields, "recompute_ratio": "much"},
        lambda fields: {**fields, "agreement": None},
        lambda fields: {**fields, "samples": "many"},
        lambda fields: {**fields, "more": 1},
        lambda fields: {name: value for name, value in fields.items() if name != "policy"},
        lambda fields: [fields],
    ],
)
def test_one_that_cannot_be_used_is_one_warning_and_the_default(folder, caplog, change):
    fields = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps(change(fields)))
    assert reuse_defaults(EngineConfig("m"), folder) == (DEFAULT_POLICY, 0.15)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert FILE in record.message
    assert "run cachecraft calibrate again" in record.message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_passed_over(folder, caplog, content):
    (folder / FILE).write_bytes(content)
    assert load_calibration(folder) is None
    assert len(caplog.records) == 1


def test_it_counts_where_the_caller_named_neither(folder, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    assert reuse_defaults(EngineConfig("m"), folder) == ("question", 0.3)
    (record,) = caplog.records
    assert "policy question at ratio 0.3, as calibrated: 98.5%" in record.message
    assert reuse_defaults(EngineConfig("m", policy="random"), folder) == ("random", 0.15)
    assert reuse_defaults(EngineConfig("m", recompute_ratio=0.0), folder) == (DEFAULT_POLICY, 0.0)
    assert reuse_defaults(EngineConfig("m", policy="none", recompute_ratio=0.7), folder) == ("none", 0.7)
    assert reuse_defaults(EngineConfig("m"), None) == (DEFAULT_POLICY, 0.15)
    monkeypatch.setenv("CACHECRAFT_RECOMPUTE_RATIO", "0.4")
    assert reuse_defaults(EngineConfig("m"), folder) == ("question", 0.3)
    assert reuse_defaults(EngineConfig("m"), folder.parent / ("b" * 64)) == (DEFAULT_POLICY, 0.4)
    assert len(caplog.records) == 2
