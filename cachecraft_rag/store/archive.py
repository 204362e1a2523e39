"""Moving caches between machines: entries of a store to one tar file, and back into another store."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachecraft_rag.errors import InvalidInput, StoreError
from cachecraft_rag.store.catalogue import Selection, items
from cachecraft_rag.store.container import Damaged, read_head, read_into
from cachecraft_rag.store.directory import ENTRY_SUFFIX, MODEL_FILE, StoreDirectory
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.header import EntryHeader, data_checksum
from cachecraft_rag.store.owners import OWNERS_SUFFIX, Owners, owners_path, parse_owners

_NAME = re.compile(
    rf"([0-9a-f]{{64}})/(?:([0-9a-f]{{64}})({re.escape(ENTRY_SUFFIX)}|{re.escape(OWNERS_SUFFIX)})|{re.escape(MODEL_FILE)})"
)

_MAX_DESCRIPTION = 1 << 16


@dataclass
class Imported:
    """`present`: entries that were there already; `refused`: name in the archive to reason."""

    entries: int
    present: int
    nbytes: int
    refused: dict[str, str]


def export_entries(directory: StoreDirectory, target: Path, selection: Selection) -> int:
    """Write the selected entries to a tar file, uncompressed since KV hardly compresses; returns how many.

    Raises `InvalidInput` where there is nothing to write or the file exists.
    """
    found = list(items(directory, selection))
    if not found:
        raise InvalidInput(f"{directory.root} holds nothing of what was selected")
    try:
        with target.open("xb") as file, tarfile.open(fileobj=file, mode="w") as archive:
            target.chmod(0o600)
            models = sorted({item.path.parent / MODEL_FILE for item in found})
            for path in (*models, *(path for item in found for path in (item.path, owners_path(item.path)))):
                if path.exists():
                    archive.add(path, f"{path.parent.name}/{path.name}", filter=_anonymous)
    except FileExistsError:
        raise InvalidInput(f"{target} is there already; name another file") from None
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    return len(found)


def import_entries(directory: StoreDirectory, source: Path) -> Imported:
    """Take the entries of a tar file into a store, each after its bytes were checked, and nothing else.

    Raises `InvalidInput` where it is no tar file; OSError subclasses where there is no room.
    """
    result = Imported(0, 0, 0, {})
    try:
        with tarfile.open(source, mode="r|") as archive:
            for member, name in _members(archive, result):
                try:
                    _take(directory, archive, member, name, result)
                except Damaged as error:
                    result.refused[member.name] = str(error)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidInput(f"{source} is no whole tar file ({error}); export it again") from error
    except OSError as error:
        raise StoreError(f"importing {source} into {directory.root} failed: {error.strerror or error}") from error
    return result


def _members(archive: tarfile.TarFile, result: Imported) -> Iterator[tuple[tarfile.TarInfo, re.Match[str]]]:
    for member in archive:
        name = _NAME.fullmatch(member.name)
        if name is None or not member.isfile():
            result.refused[member.name] = "it is not an entry of a store"
        else:
            yield member, name


def _take(
    directory: StoreDirectory, archive: tarfile.TarFile, member: tarfile.TarInfo, name: re.Match[str], result: Imported
) -> None:
    model, key, suffix = name.groups()
    file = archive.extractfile(member)
    assert file is not None
    if key is None:
        directory.add_model(model, file.read(_MAX_DESCRIPTION).decode(errors="replace"))
        return
    store = DiskStore(directory, model)
    if suffix == OWNERS_SUFFIX:
        try:
            owners = parse_owners(file.read())
        except ValueError as error:
            raise Damaged(str(error)) from error
        if owners != Owners():
            store.change_owners(key, add=owners.documents or (), pinned=owners.pinned)
        return
    if store.path(key).exists():
        result.present += 1
        return
    container = read_head(file)  # type: ignore[arg-type]
    header = EntryHeader.from_container(container)
    if (header.key, header.model) != (key, model):
        raise Damaged("it is another entry's")
    buffers = [memoryview(bytearray(tensor.nbytes)) for tensor in header.tensors]
    for buffer in buffers:
        read_into(file, buffer)  # type: ignore[arg-type]
    if data_checksum(*buffers) != header.data_checksum:
        raise Damaged("its bytes do not fit their checksum")
    store.write(header, buffers)
    result.entries += 1
    result.nbytes += member.size


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member
