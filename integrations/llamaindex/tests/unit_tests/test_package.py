"""What the distribution promises to those who import it."""

from __future__ import annotations

from pathlib import Path

import llama_index.llms.cachecraft as package


def test_few_public_names():
    assert len(package.__all__) <= 10
    assert all(hasattr(package, name) for name in package.__all__)


def test_it_is_a_namespace_package_with_types():
    folder = Path(package.__file__).parent
    assert (folder / "py.typed").is_file()
    assert not (folder.parent / "__init__.py").exists()
    assert not (folder.parent.parent / "__init__.py").exists()
