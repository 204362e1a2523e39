"""The safetensors container, written and read by plain file calls.

Reading maps nothing into memory: a mapped file that shrinks under its reader kills the process, a read one is an error.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 1 << 24
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "F8_E4M3": 1, "U8": 1}


class Damaged(Exception):  # noqa: N818
    """A file is not what it should be; the message says in which way."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """`dtype` in the spelling of safetensors, such as "BF16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Container:
    """The head of a file: what it holds, in the order of the bytes, and where the bytes begin."""

    metadata: Mapping[str, str]
    tensors: tuple[TensorSpec, ...]
    data_start: int


def head_bytes(metadata: Mapping[str, str], tensors: Sequence[TensorSpec]) -> bytes:
    """What stands in front of the tensors' bytes, padded so that they begin at a multiple of 8."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in tensors:
        stop = offset + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def read_head(file: BinaryIO) -> Container:
    """Parse the beginning of a file; `Damaged` where it is none, or where the tensors are not one after the other."""
    prefix = file.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        raise Damaged(f"it ends after {len(prefix)} bytes")
    (length,) = _LENGTH.unpack(prefix)
    if length > _MAX_HEADER_BYTES:
        raise Damaged(f"its header claims {length} bytes")
    text = file.read(length)
    if len(text) < length:
        raise Damaged("its header is cut off")
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__")
        tensors, offset = [], 0
        for name, fields in header.items():
            tensor = TensorSpec(name, fields["dtype"], tuple(int(size) for size in fields["shape"]))
            if fields["data_offsets"] != [offset, offset + tensor.nbytes]:
                raise Damaged(f"its tensor {name!r} is not where it should be")
            offset += tensor.nbytes
            tensors.append(tensor)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"its header is garbled ({type(error).__name__})") from error
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Damaged("its metadata is garbled")
    return Container(metadata, tuple(tensors), _LENGTH.size + length)


def read_into(file: BinaryIO, buffer: memoryview) -> None:
    """Fill `buffer` from where the file stands; `Damaged` where the file ends before."""
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])  # type: ignore[attr-defined]
        if not count:
            raise Damaged(f"it is cut off after {done} of {len(buffer)} bytes")
        done += count
