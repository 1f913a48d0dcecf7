"""`vpps-data`: converts data set files to input graphs, and shows statistics of such graphs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vpps.cli.console import Version, app_named, exit_codes, plain_console
from vpps.cli.streams import run_program
from vpps.data import (
    GraphSet,
    GraphStatistics,
    read_columns,
    read_conllu,
    read_constituents,
    read_jsonl,
    read_lattices,
    read_parallel,
    read_tagged,
    read_text,
    read_treebank,
)
from vpps.data.statistics import Spread
from vpps.errors import DataError
from vpps.text import counted, in_bytes

app = app_named("vpps-data")


READERS: dict[str, Callable[..., GraphSet | tuple[GraphSet, GraphSet]]] = {
    "trees": read_treebank,
    "constituents": read_constituents,
    "tagged": read_tagged,
    "columns": read_columns,
    "conllu": read_conllu,
    "text": read_text,
    "parallel": read_parallel,
    "lattice": read_lattices,
    "jsonl": read_jsonl,
}
"""Readers by format name. The keywords of a reader are the options of its format."""

Format = StrEnum("Format", {name.upper(): name for name in READERS})  # type: ignore[misc]

_EXAMPLES = """
[bold]Formats[/bold]

trees: Penn trees, `(3 (2 The) (4 ...))`, one per line\n
constituents: Penn trees with names, `(S (NP ...) ...)`, over several lines\n
tagged: sentences of `word|TAG`, one per line\n
columns: one word per line, its tag in the last column, such as BIO or BMES\n
conllu: dependency trees in CoNLL-U\n
text: sentences, one per line, to predict the next word\n
parallel: two texts, source and target, whose lines translate each other\n
lattice: character-word lattices, as in ED-Batch's Weibo files\n
jsonl: any directed acyclic graphs, one JSON object per line: `{"children": [[], [], [0, 1]], "columns": {"word":
["good", "film", null]}}`; see `python -c "help('vpps.data.readers.jsonlines')"`

[bold]Examples[/bold]

vpps-data convert trees train.txt train.graphs\n
vpps-data convert trees dev.txt dev.graphs --like train.graphs\n
vpps-data convert parallel train.en.gz train.vi.gz en.graphs --target-output vi.graphs\n
vpps-data convert jsonl molecules.jsonl molecules.graphs --classes toxicity\n
vpps-data stat train.graphs
"""

File = Annotated[Path, typer.Argument(help="A file that `vpps-data convert` or `GraphSet.save` wrote.")]
Inputs = Annotated[
    list[Path], typer.Argument(metavar="INPUT...", help="Text files, plain or .gz; several files make one set.")
]
Output = Annotated[Path, typer.Argument(help="The file to write; it may replace a file of graphs.")]
MinCount = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="2, for jsonl 1, for lattice the file's own numbers",
        help="Words that occur less often become unknown (number 0).",
    ),
]
Lists = Annotated[
    bool | None,
    typer.Option(
        "--lists/--fixed", show_default="lists for jsonl and constituents, else fixed",
        help="Store children as lists of any length, or in a table as wide as the largest number of children.",
    ),
]  # fmt: skip
Like = Annotated[
    Path | None,
    typer.Option(help="Take vocabularies, classes, kinds and arity from this converted file, for development data."),
]
Targets = Annotated[
    bool | None, typer.Option("--targets/--no-targets", show_default="targets", help="Add a column of the next words.")
]
Classes = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="A column of strings that are labels, not words; repeatable."),
]
TargetOutput = Annotated[Path | None, typer.Option(help="The file to write for the second of two parallel texts.")]
TargetLike = Annotated[Path | None, typer.Option(help="Like --like, for the second text.")]


@app.callback()
def about(version: Version = False) -> None:
    """Convert data sets to graphs that vpps maps into memory, and show statistics of such graphs."""


@app.command(epilog=_EXAMPLES)
def convert(
    format: Annotated[Format, typer.Argument(help="Format of the inputs; see below.", show_choices=True)],
    inputs: Inputs,
    output: Output,
    min_count: MinCount = None,
    lists: Lists = None,
    like: Like = None,
    targets: Targets = None,
    classes: Classes = None,
    target_output: TargetOutput = None,
    target_like: TargetLike = None,
) -> None:
    """Convert text files to one file of graphs; compute their levels."""
    given = {
        "min_count": min_count, "lists": lists, "like": like, "targets": targets, "classes": classes,
        "target_output": target_output, "target_like": target_like,
    }  # fmt: skip
    options: dict[str, Any] = {name: value for name, value in given.items() if value not in (None, [])}
    reader, is_parallel = READERS[format], format == "parallel"
    known = signature(reader).parameters.keys() | ({"target_output", "target_like"} if is_parallel else set())
    for name in options.keys() - known:
        raise typer.BadParameter(f"does not apply to {format}", param_hint=f"--{name.replace('_', '-')}")
    if is_parallel:
        if target_output is None:
            raise typer.BadParameter("parallel text needs a file for the second one", param_hint="--target-output")
        if len(inputs) != 2:
            raise typer.BadParameter("parallel text has two inputs, source and target", param_hint="INPUT...")
        if target_output == output:
            raise typer.BadParameter("is also OUTPUT", param_hint="--target-output")
        if (like is None) != (target_like is None):
            raise typer.BadParameter("parallel text needs both --like and --target-like", param_hint="--like")
    with exit_codes("vpps-data"):
        outputs = [output] if target_output is None else [output, target_output]
        for path in outputs:
            _check_output(path)
        if like is not None:
            options["like"] = GraphSet.load(like)
        if target_like is not None:
            options["like"] = (options["like"], GraphSet.load(target_like))
        start = time.perf_counter()
        arguments = {name: x for name, x in options.items() if name not in ("target_output", "target_like")}
        found = reader(*inputs, **arguments)
        for graphs, path in zip(found if isinstance(found, tuple) else (found,), outputs, strict=True):
            graphs.save(path)
            size, seconds = in_bytes(path.stat().st_size), time.perf_counter() - start
            print(
                f"{path}: {counted(len(graphs), 'graph')}, {counted(graphs.n_vertices, 'vertex', 'vertices')}, "
                f"{size}, {seconds:.1f} s"
            )


@app.command(epilog="[bold]Example[/bold]\n\nvpps-data stat train.graphs")
def stat(
    file: File,
    verify: Annotated[bool, typer.Option(help="First compare the checksums of the file and check its graphs.")] = True,
) -> None:
    """Show statistics of a file of graphs: sizes, levels, children, kinds, columns, vocabularies."""
    with exit_codes("vpps-data"):
        found = GraphSet.load(file, verify=verify).stat()
        table = Table(box=None, show_header=False, title=str(file), title_justify="left", title_style="bold")
        for name, value in _rows(found):
            table.add_row(name, value)
        plain_console().print(table)


def _rows(found: GraphStatistics) -> Iterator[tuple[str, str]]:
    yield "graphs", f"{found.graphs}"
    yield "vertices", f"{found.vertices}, {_spread(found.vertices_per_graph)} per graph"
    yield "edges", f"{found.edges}"
    yield "levels", f"{_spread(found.levels_per_graph)} per graph"
    room = "lists" if found.arity is None else f"room for {found.arity}"
    yield "children", f"{room}, {_spread(found.fan_in)} per vertex"
    yield "readers", f"at most {found.max_readers} per vertex"
    yield "kinds", _items(found.kinds)
    for name, column in found.columns.items():
        line = f"{column.type} per {column.per}, {column.min:.6g} to {column.max:.6g}"
        if name in found.vocabularies:
            line += f", {found.vocabularies[name]} words"
        if name in found.classes:
            line += f", {found.classes[name]} classes"
        yield f"column {name}", line
    yield "bytes", in_bytes(found.bytes)


def _spread(counts: Spread) -> str:
    return f"{counts.min} to {counts.max}, mean {counts.mean:.1f}"


def _items(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _check_output(path: Path) -> None:
    """Raise DataError if writing would fail or replace a file that is not a set, such as an INPUT taken for OUTPUT."""
    if not os.path.isdir(path.parent):
        raise DataError(f"{path}: there is no folder {path.parent}")
    if not os.path.exists(path):
        return
    try:
        GraphSet.load(path, verify=False)
    except DataError:
        raise DataError(
            f"{path}: exists and holds no graphs, so it is not replaced: is the last file of the command the output?"
        ) from None


def main() -> None:
    """Run the program. Exit code: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 if the reader is gone."""
    run_program("vpps-data", app)
