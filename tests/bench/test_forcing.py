from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm.v1.sample.logits_processor import BatchUpdate  # noqa: E402

from cachecraft_rag.bench.quality.forced_engine import EXTRA_ARG, FOLDER  # noqa: E402
from cachecraft_rag.bench.quality.forcing import ForcedTokens  # noqa: E402

VOCABULARY = 8


@pytest.fixture
def processor(tmp_path):
    config = SimpleNamespace(additional_config={FOLDER: str(tmp_path)})
    return ForcedTokens(config, torch.device("cpu"), False)


def params(**forcing):
    return SimpleNamespace(extra_args={EXTRA_ARG: forcing} if forcing else None)


def add(processor, row, sampling, output_ids):
    processor.update_state(BatchUpdate(4, removed=[], added=[(row, sampling, [1], output_ids)], moved=[]))


def test_tokens_are_forced_and_logits_written_before(processor, tmp_path):
    said = []
    add(processor, 1, params(name="a", token_ids=[3, 5]), said)
    steps = torch.randn(3, 2, VOCABULARY)
    for logits in steps:
        free = logits[0].clone()
        out = processor.apply(logits.clone())
        assert torch.equal(out[0], free)
        said.append(int(out[1].argmax()))
    assert said == [3, 5, int(steps[2, 1].argmax())]  # behind the last one it goes on freely
    written = np.fromfile(tmp_path / "a", np.float32).reshape(-1, VOCABULARY)
    assert np.array_equal(written, steps[:, 1].numpy())


def test_a_step_that_did_not_count_is_written_over(processor, tmp_path):
    add(processor, 0, params(name="a", token_ids=[]), [])
    first, second = torch.randn(2, 1, VOCABULARY)
    processor.apply(first.clone())
    processor.apply(second.clone())
    assert np.array_equal(np.fromfile(tmp_path / "a", np.float32), second[0].numpy())


def test_it_follows_its_request_through_the_batch(processor):
    add(processor, 0, params(name="a", token_ids=[3]), [])
    add(processor, 1, params(), [])
    processor.update_state(BatchUpdate(1, removed=[0], added=[], moved=[]))
    logits = torch.randn(2, VOCABULARY)
    assert torch.equal(processor.apply(logits.clone()), logits)


def test_half_precision_is_written_as_float32(processor, tmp_path):
    add(processor, 0, params(name="a", token_ids=[]), [])
    logits = torch.randn(1, VOCABULARY).to(torch.bfloat16)
    processor.apply(logits.clone())
    assert np.array_equal(np.fromfile(tmp_path / "a", np.float32), logits[0].float().numpy())


@pytest.mark.parametrize("name", ["../a", "a/b", "", "."])
def test_a_name_that_leaves_the_folder_is_refused(name):
    with pytest.raises(ValueError, match="plain file name"):
        ForcedTokens.validate_params(params(name=name, token_ids=[]))
    ForcedTokens.validate_params(params())
