"""`cachecraft store`: looking after a folder of caches, without an engine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecraft_rag.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from cachecraft_rag.store.catalogue import Selection
    from cachecraft_rag.store.directory import StoreDirectory

FAULTY = 1
_GIB = 1 << 30

store_app = typer.Typer(no_args_is_help=True, help="Look after a folder of caches (store_dir).")

Root = Annotated[Path, typer.Argument(help="The folder: store_dir of an engine.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Namespace = Annotated[str | None, typer.Option(help="Only of this tenant.")]
Document = Annotated[str | None, typer.Option(help="Only of this document.")]
Chunks = Annotated[list[str] | None, typer.Option("--chunk", help="Only this chunk id; may be given several times.")]
ModelPrefix = Annotated[str | None, typer.Option("--model", help="Only of the model whose fingerprint begins so.")]


@store_app.command("ls")
def list_entries(
    root: Root, namespace: Namespace = None, document: Document = None, model: ModelPrefix = None, as_json: Json = False
) -> None:
    """The chunks in a store, the one used longest ago first. Behind: pieces in front of a variant."""
    from cachecraft_rag.store.catalogue import items

    found = [item for item in items(_open(root), _selection(namespace, document, None, model)) if item.header.chunk_id]
    if as_json:
        _print_json([item.to_dict() for item in found])
        return
    table = _table("chunk", "behind", "documents", "namespace", "model", "tokens", "MiB", "last use", "pinned")
    for item in found:
        header = item.header
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.last_use))
        behind = str(len(header.seen.keys)) if header.seen is not None else ""
        row = [header.chunk_id or "", behind, ", ".join(sorted(item.documents)), header.namespace, header.model[:8]]
        table.add_row(*row, f"{header.token_ids.size:,}", _mib(item.nbytes), used, "yes" if item.owners.pinned else "")
    _print(table)


@store_app.command()
def stats(root: Root, as_json: Json = False) -> None:
    """Chunks, tokens and bytes by model and namespace."""
    from cachecraft_rag.store.catalogue import summary

    directory = _open(root)
    totals = summary(directory)
    used = directory.recount()
    if as_json:
        lines = [{"model": model, "namespace": name, **total.to_dict()} for (model, name), total in totals.items()]
        _print_json({"bytes": used, "contents": lines})
        return
    table = _table("model", "namespace", "chunks", "variants", "documents", "tokens", "MiB", "pinned")
    for (model, name), total in totals.items():
        counts = total.to_dict()
        row = [f"{counts[column]:,}" for column in ("chunks", "variants", "documents", "tokens")]
        table.add_row(model[:8], name, *row, _mib(total.nbytes), str(total.pinned))
    _print(table)
    typer.echo(f"{_mib(used)} MiB in all")


@store_app.command()
def check(
    root: Root,
    repair: Annotated[bool, typer.Option("--repair", help="Remove what is damaged; it is computed again.")] = False,
    as_json: Json = False,
) -> None:
    """Read every byte of every entry; exit code 1 where something is wrong and was not repaired."""
    from cachecraft_rag.store import audit

    directory = _open(root, writable=True)
    found = audit.audit(directory)
    if repair:
        audit.repair(directory, found)
    faults = [str(fault) for fault in found.faults]
    if as_json:
        _print_json({"entries": found.entries, "faults": faults, "repaired": repair})
    else:
        typer.echo("\n".join([*faults, f"{found.entries} entries read, {len(faults)} faults" + repair * ", repaired"]))
    if faults and not repair:
        raise typer.Exit(FAULTY)


@store_app.command()
def gc(
    root: Root,
    max_gb: Annotated[float | None, typer.Option(min=0.0, help="Remove the oldest until so many GiB are left.")] = None,
    older_than_days: Annotated[float | None, typer.Option(min=0.0, help="Remove what was unused for so long.")] = None,
    as_json: Json = False,
) -> None:
    """Remove what dead processes left behind, and what is old or too much. Pinned chunks stay."""
    from cachecraft_rag.store.catalogue import collect_garbage

    limit = None if max_gb is None else int(max_gb * _GIB)
    _done(collect_garbage(_open(root, writable=True), max_bytes=limit, older_than_days=older_than_days), as_json)


@store_app.command("rm")
def remove_entries(
    root: Root,
    chunk: Chunks = None,
    document: Document = None,
    namespace: Namespace = None,
    model: ModelPrefix = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything, of all models.")] = False,
    as_json: Json = False,
) -> None:
    """Remove chunks, a document's chunks that no other shares, a tenant, a model, or all. A running engine that has
    them in memory keeps them: delete there."""
    from cachecraft_rag.store.catalogue import remove

    selection = _selection(namespace, document, chunk, model)
    _done(remove(_open(root, writable=True), selection, everything=everything), as_json)


@store_app.command("export")
def export_store(
    root: Root,
    target: Annotated[Path, typer.Argument(help="The tar file to write.")],
    namespace: Namespace = None,
    document: Document = None,
    model: ModelPrefix = None,
) -> None:
    """Write caches to one file, for another machine that runs the same model."""
    from cachecraft_rag.store.archive import export_entries

    count = export_entries(_open(root), target, _selection(namespace, document, None, model))
    typer.echo(f"{count} entries written to {target}, {_mib(target.stat().st_size)} MiB")


@store_app.command("import")
def import_store(
    root: Annotated[Path, typer.Argument(help="The folder; made where there is none.")],
    source: Annotated[Path, typer.Argument(help="A file that `store export` wrote, from a source you trust.")],
    as_json: Json = False,
) -> None:
    """Take caches from a file, each after its checksum was verified; exit code 1 where some were refused."""
    from cachecraft_rag.store.archive import import_entries
    from cachecraft_rag.store.directory import StoreDirectory

    result = import_entries(StoreDirectory(root), source)
    if as_json:
        counts = {"entries": result.entries, "present": result.present, "bytes": result.nbytes}
        _print_json({**counts, "refused": result.refused})
    else:
        lines = [f"{name} refused: {reason}" for name, reason in result.refused.items()]
        summary = f"{result.entries} entries taken, {result.present} were there, {len(result.refused)} refused"
        typer.echo("\n".join([*lines, summary]))
    if result.refused:
        raise typer.Exit(FAULTY)


def _open(root: Path, *, writable: bool = False) -> StoreDirectory:
    from cachecraft_rag.store.directory import StoreDirectory

    if not root.is_dir():
        raise InvalidInput(f"{root} is no folder: give the store_dir of an engine")
    return StoreDirectory(root, read_only=not writable)


def _selection(namespace: str | None, document: str | None, chunks: list[str] | None, model: str | None) -> Selection:
    from cachecraft_rag.store.catalogue import Selection

    return Selection(namespace, document, frozenset(chunks or ()), model)


def _done(result: Any, as_json: bool) -> None:
    if as_json:
        _print_json(result.to_dict())
    else:
        typer.echo(str(result))


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, indent=2))


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in ("chunks", "tokens", "MiB") else "left")
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table)


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f}"
