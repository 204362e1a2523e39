"""Every option of the engine, in one frozen object that is either valid or was never made."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, get_args

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.stand_in import STAND_IN

DType = Literal["auto", "float32", "bfloat16", "float16"]
Eviction = Literal["lru", "score"]
Compression = Literal["int8", "fp8"]

RECOMPUTE_RATIO_VARIABLE = "CACHECRAFT_RECOMPUTE_RATIO"
CPU_STORE_GB_VARIABLE = "CACHECRAFT_CPU_STORE_GB"
STORE_DIR_VARIABLE = "CACHECRAFT_STORE_DIR"
DISK_STORE_GB_VARIABLE = "CACHECRAFT_DISK_STORE_GB"
MAX_NAMESPACE_CHARS = 128
DEFAULT_POLICY = "blend"


def _share(name: str, value: object, scale: str = "from 0 (reuse all) to 1 (recompute all)") -> float:
    number = _real(name, value)
    if not 0.0 <= number <= 1.0:
        raise InvalidInput(f"{name}={value!r} is not a share: give a number {scale}")
    return number


def _gib(name: str, value: object) -> float:
    number = _real(name, value)
    if number <= 0.0:
        raise InvalidInput(f"{name}={value!r} is no memory size: give a number of GiB above 0, such as 2.0")
    return number


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInput(f"{name}={value!r} is not a number: give a finite int or float")
    return float(value)


def _from_environment(variable: str, default: float, check: Callable[[str, object], float]) -> Callable[[], float]:
    """A default that the environment may override. It is read each time a config is made, not at import."""

    def read() -> float:
        text = os.environ.get(variable)
        if text is None or not text.strip():
            return default
        try:
            value = float(text)
        except ValueError:
            raise InvalidInput(
                f"environment variable {variable}={text!r} is not a number: set it to one like {default}, or unset it"
            ) from None
        return check(f"environment variable {variable}", value)

    return read


def _store_dir() -> str | None:
    return os.environ.get(STORE_DIR_VARIABLE, "").strip() or None


default_recompute_ratio = _from_environment(RECOMPUTE_RATIO_VARIABLE, 0.15, _share)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of a `ChunkEngine`. Explicit arguments win over the environment, the environment over the defaults."""

    model: str = field(kw_only=False)  # Hugging Face name or folder
    dtype: DType = "auto"
    # Which tokens of reused chunks are recomputed, and how large a share of them. 0: none, 1: all, which is exact.
    # Where both are None: what `cachecraft calibrate` chose for the model in `store_dir`. Where there is no such
    # choice, or only one is None: DEFAULT_POLICY, and the ratio of the environment, or else 0.15.
    policy: str | None = None
    recompute_ratio: float | None = None
    min_run: int = 1  # neighbouring tokens that a policy's choice is rounded up to
    min_chunk_tokens: int = 16  # smaller chunks are never cached, and reported as refused
    # GiB of host memory for the KV of chunks.
    cpu_store_gb: float = field(default_factory=_from_environment(CPU_STORE_GB_VARIABLE, 2.0, _gib))
    # GiB of each device's own memory for copies of the chunks used most, None for none. vLLM's paged cache gets as much
    # less, or kv_cache_gb is lowered by hand. On a CPU it is a second copy in the same memory, and gains nothing.
    device_store_gb: float | None = None
    # Folder that keeps the KV of chunks beyond this process, None for none; any number of processes may share it.
    store_dir: str | os.PathLike[str] | None = field(
        default_factory=lambda: os.environ.get(STORE_DIR_VARIABLE, "").strip() or None
    )
    # GiB of that folder, of all models together.
    disk_store_gb: float = field(default_factory=_from_environment(DISK_STORE_GB_VARIABLE, 20.0, _gib))
    # Keep KV in 8 bits, in memory and on disk: a quarter of float32, half of bfloat16, and reuse is never exact.
    # "int8" (or True) keeps more of it than "fp8" (e4m3), both with a scale for each channel.
    compress: Compression | bool | None = None
    read_only: bool = False  # use what is stored, store nothing, in memory or on disk
    eviction: Eviction = "score"  # what leaves first: what saved least lately, or what was used longest ago
    namespace: str = "default"  # tenant: nothing is shared between two of them
    namespace_share: float = 1.0  # of each tier, how much one tenant may take; a full one evicts its own
    # Computed tokens are rounded up to a multiple of this, so that their time tells less (see docs/security.md).
    recompute_bucket: int = 1
    # How many copies of a chunk's KV, computed behind other chunks, are kept beside its canonical one. Only prompts
    # that are computed in full leave such; "cachecraft" and "blend-variants" reuse them (risks: docs/security.md).
    keep_variants: int = 0
    # What each chunk is computed behind when it is stored, in place of the neighbours it will have: as many of these
    # passages as fit into a quarter of max_model_len, where that is set. It brings reused KV much nearer to that of
    # full prefill (docs/benchmarks/quality.md). (): nothing but the prompt's head; a chunk that directly follows it is
    # reused exactly then. What is stored serves engines with the same passages.
    stand_in: Sequence[str] = STAND_IN
    default_system: str | None = None  # system text of prompts that bring none of their own
    # Arguments of the chat template, such as {"enable_thinking": False}.
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    max_model_len: int | None = None  # tokens of the longest prompt and its answer; None here and below: vLLM decides
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_cache_gb: float | None = None  # GiB of vLLM's own paged cache; None: 4 on a CPU, elsewhere vLLM decides
    enable_prefix_caching: bool = True
    enforce_eager: bool = True
    threads: int | None = None  # CPU cores of the engine; None: all that this process may use
    # Of greedy chunk requests that leave policy and ratio to the engine, this share is compared with full prefill, in
    # the background, which costs one each (docs/calibration.md). Where fewer than drift_target of the answers' tokens
    # are full prefill's most likely ones, the default ratio rises.
    drift_guard: float = 0.0
    drift_target: float = 0.95
    store_misses: bool = True  # compute the canonical KV of missed chunks in the background, after the answer
    seed: int = 0
    # Further AsyncEngineArgs of vLLM; whatever has a field above is refused here.
    vllm_args: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            self._set("model", os.fspath(self.model))
        self._check_text("model", "give the name or the folder of a Hugging Face model")
        if self.dtype not in get_args(DType):
            raise InvalidInput(f"dtype={self.dtype!r} is not supported: give one of {', '.join(get_args(DType))}")
        if self.policy is not None:
            self._check_text("policy", 'give the name of a selection policy, such as "blend"')
        if self.recompute_ratio is None:
            default_recompute_ratio()  # a malformed variable is named here, and not when the engine has started
        else:
            self._set("recompute_ratio", _share("recompute_ratio", self.recompute_ratio))
        self._check_int("min_run", 1)
        self._check_int("recompute_bucket", 1)
        self._check_int("keep_variants", 0)
        self._set("namespace_share", _share("namespace_share", self.namespace_share))
        if self.namespace_share == 0.0:
            raise InvalidInput("namespace_share=0.0 leaves no room for anybody: give a share above 0, up to 1")
        self._check_int("min_chunk_tokens", 1)
        self._set("cpu_store_gb", _gib("cpu_store_gb", self.cpu_store_gb))
        if isinstance(self.store_dir, os.PathLike):
            self._set("store_dir", os.fspath(self.store_dir))
        if self.store_dir is not None:
            self._check_text("store_dir", "give a folder, or None for none")
        self._set("disk_store_gb", _gib("disk_store_gb", self.disk_store_gb))
        if self.eviction not in get_args(Eviction):
            raise InvalidInput(f"eviction={self.eviction!r} is not known: give one of {', '.join(get_args(Eviction))}")
        self._check_text("namespace", 'give a tenant\'s name, such as "default"')
        if len(self.namespace) > MAX_NAMESPACE_CHARS or not self.namespace.isprintable():
            raise InvalidInput(
                f"namespace={self.namespace!r} is not allowed: give at most {MAX_NAMESPACE_CHARS} printable characters"
            )
        for name in ("drift_guard", "drift_target"):
            self._set(name, _share(name, getattr(self, name), "from 0 to 1"))
        self._check_stand_in()
        if self.default_system is not None and not isinstance(self.default_system, str):
            raise InvalidInput(f"default_system={self.default_system!r} is not text: give a str, or None for none")
        for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "threads"):
            if getattr(self, name) is not None:
                self._check_int(name, 1)
        for name in ("kv_cache_gb", "device_store_gb"):
            if getattr(self, name) is not None:
                self._set(name, _gib(name, getattr(self, name)))
        for name in ("enable_prefix_caching", "enforce_eager", "store_misses", "read_only"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name}={getattr(self, name)!r} is not a switch: give True or False")
        if self.compression not in (None, *get_args(Compression)):
            kinds = ", ".join(map(repr, get_args(Compression)))
            raise InvalidInput(f"compress={self.compress!r} is not known: give one of {kinds}, or None for none")
        self._check_int("seed", 0, 2**32 - 1)
        self._check_mapping("chat_template_kwargs", '{"enable_thinking": False}')
        self._check_vllm_args()

    @property
    def compression(self) -> Compression | None:
        """`compress` by its name."""
        return "int8" if self.compress is True else self.compress or None

    def _check_stand_in(self) -> None:
        passages = self.stand_in
        if isinstance(passages, str) or not isinstance(passages, Sequence):
            raise InvalidInput(f"stand_in={passages!r:.80} is no list of texts: give several passages, or () for none")
        self._set("stand_in", tuple(passages))
        for passage in passages:
            if not isinstance(passage, str) or not passage.strip():
                raise InvalidInput(f"stand_in holds {passage!r:.80}, which is no text: give passages, or () for none")

    def _check_text(self, name: str, way_out: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(f"{name}={value!r} is not a name: {way_out}")

    def _check_int(self, name: str, least: int, most: int | None = None) -> None:
        value = getattr(self, name)
        valid = isinstance(value, Integral) and not isinstance(value, bool)
        if not valid or int(value) < least or (most is not None and int(value) > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise InvalidInput(f"{name}={value!r} is not allowed: give an int {bounds}")
        self._set(name, int(value))

    def _check_vllm_args(self) -> None:
        self._check_mapping("vllm_args", '{"block_size": 64}')
        own = {option.name for option in fields(self)}
        for key in self.vllm_args:
            if not isinstance(key, str) or not key.isidentifier():
                raise InvalidInput(f"vllm_args: key {key!r} is not an argument's name: give names of AsyncEngineArgs")
            if key in own:
                raise InvalidInput(
                    f"vllm_args: {key}={self.vllm_args[key]!r} would override an option of ours: "
                    f"set EngineConfig({key}=...) instead"
                )

    def _check_mapping(self, name: str, example: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, Mapping):
            raise InvalidInput(f"{name}={value!r} is not a mapping: give a dict such as {example}")
        self._set(name, dict(value))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
