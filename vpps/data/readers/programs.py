"""Functions of Python programs as directed acyclic graphs.

A vertex is a node of the syntax tree, and what it reads are its parts, in the order of Python's `ast` - but all places
where a function names the same variable, or has the same constant, are one vertex, so that the graph is no tree:

    def area(r):            Return       reads  BinOp.Mult
        return r * r        BinOp.Mult   reads  Name r, Name r

The last vertex of a graph is the function. Its name, decorators and docstring are left out; where it names itself, the
name is unknown. Functions within functions are graphs of their own besides.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vpps.data.graphset import GraphSet
from vpps.data.readers.names import GraphLists, Source, class_names, words_of
from vpps.data.vocabulary import UNK
from vpps.errors import DataError
from vpps.values import as_path

KINDS = ("leaf", "inner")
OTHER = "<other>"
"""The class of names whose first word is none of the frequent ones."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_FIRST_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[^A-Za-z_]+")
_TOP_LEVEL = re.compile(rb"(?!(elif|else|except|finally)\b)[\w@(\[{\"'+~-]")
_LONGEST_CONSTANT = 20  # characters; of longer ones only the type is kept


class UnreadableProgramWarning(UserWarning):
    """A file is no program that this Python can parse, and was left out."""


def read_programs(
    *paths: Source, min_count: int = 2, n_classes: int = 20, skip_unreadable: bool = False, like: GraphSet | None = None
) -> GraphSet:
    """The functions of Python programs, to be told by their bodies what the first word of their names is: `get`, `is`.

    Kinds leaf and inner; columns `type` (what of the syntax it is: `Call`, `BinOp.Add`) and `name` (of a variable,
    attribute, keyword, or a constant; "" where there is none) per vertex; `label` per graph.

    Args:
        paths: files, or folders with `*.py` anywhere below.
        min_count: types and names that occur less often become unknown.
        n_classes: the most frequent first words are classes, but for one of these, `OTHER`, which is class 0.
        skip_unreadable: leave out files that this Python cannot parse, with an `UnreadableProgramWarning` for each.
        like: take vocabularies and classes from this set.

    Raises:
        DataError: a file cannot be read or is no Python; no function was found; `like` has no such names.
    """
    found = _Functions()
    for path in (as_path(path, "read_programs", DataError) for path in paths):
        for file in programs_below(path) if os.path.isdir(path) else [path]:
            try:
                found.read(file)
            except DataError as error:
                if not skip_unreadable:
                    raise
                warnings.warn(f"left out: {error}", UnreadableProgramWarning, stacklevel=2)
    if not found.sizes:
        raise DataError(f"{', '.join(map(str, paths)) or 'no file given'}: expected Python functions, found none")
    vocabularies = {name: words_of([column], name, min_count, like) for name, column in found.columns.items()}
    labels = [first_word(name) for name in found.functions]
    classes = _frequent(labels, n_classes) if like is None else class_names(like, "label")
    numbers = {word: number for number, word in enumerate(classes)}
    return GraphSet(
        found.sizes, (found.offsets, found.children), kind=np.diff(found.offsets) > 0, kinds=KINDS,
        columns={name: [vocabularies[name][x] for x in column] for name, column in found.columns.items()},
        graph_columns={"label": [numbers.get(word, 0) for word in labels]},
        vocabularies=vocabularies, classes={"label": classes}, sources=found.sources,
    )  # fmt: skip


def programs_below(folder: Path) -> list[Path]:
    """The `*.py` files of a folder and of those in it, in order."""
    return sorted(path for path in folder.rglob("*.py") if path.is_file())


def first_word(name: str) -> str:
    """In small letters: `get` of `get_name`, `_getName` and `__get__`."""
    found = _FIRST_WORD.search(name)
    return found[0].lower() if found else name


def _frequent(words: Iterable[str], n: int) -> tuple[str, ...]:
    counts = Counter(words)
    return OTHER, *sorted(counts, key=lambda word: (-counts[word], word))[: n - 1]


class _Functions(GraphLists):
    """Functions while files are read: their syntax as graphs, and their names."""

    def __init__(self) -> None:
        super().__init__("type", "name")
        self.functions: list[str] = []

    def read(self, path: Path) -> None:
        """A file. Raises DataError."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # of the program, not of ours
                module = ast.parse(text, str(path))
        except (SyntaxError, ValueError) as error:  # null bytes raise one or the other, without a line
            line = getattr(error, "lineno", None) or (1 + text.partition(b"\0")[0].count(b"\n") if b"\0" in text else 1)
            raise DataError(f"{path}:{line}: expected a Python program: {getattr(error, 'msg', error)}") from error
        except (RecursionError, MemoryError) as error:
            raise DataError(
                f"{path}:{_too_deep(text)}: expected a Python program, found a statement nested too deeply for Python: "
                f"leave the file out ({error or type(error).__name__})"
            ) from error
        for node in ast.walk(module):
            if isinstance(node, Function):
                self._add(node, f"{path}:{node.lineno}")

    def _add(self, function: Function, source: str) -> None:
        """A function. Nodes come in reverse order of a walk from the top, so that parts precede what they are of."""
        nodes: list[ast.AST] = []
        stack: list[ast.AST] = [function]
        while stack:
            node = stack.pop()
            nodes.append(node)
            stack += reversed(_parts(node, top=node is function))
        number: dict[object, int] = {}  # of the vertex for a node, or for what several nodes share
        for node in reversed(nodes):
            key = _shared(node)
            if key in number:
                continue
            name = "" if node is function else _name_of(node)
            number[key] = self.vertex(
                (number[_shared(part)] for part in _parts(node, top=node is function)),
                type=_type_of(node), name=UNK if name == function.name else name,
            )  # fmt: skip
        self.functions.append(function.name)
        self.end(source)


def _too_deep(text: bytes) -> int:
    """The line where the statement begins that Python cannot parse for its depth; it tells none itself."""
    lines = text.splitlines(keepends=True)
    begins = [k for k, line in enumerate(lines) if _TOP_LEVEL.match(line)]
    ends = [*begins[1:], len(lines)]

    def fails(statements: int) -> bool:
        try:
            ast.parse(b"".join(lines[: ends[statements]]))
        except (RecursionError, MemoryError):
            return True
        except SyntaxError:  # a string of several lines was cut
            pass
        return False

    first = bisect_left(range(len(begins)), True, key=fails)
    return begins[first] + 1 if first < len(begins) else 1


def _parts(node: ast.AST, top: bool) -> list[ast.AST]:
    """What a vertex reads: its parts but for those that its type tells (operators, whether a name is stored)."""
    if isinstance(node, ast.arg) and node.annotation is None:
        return []
    parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, _IN_TYPE)]
    if isinstance(node, ast.arg):
        return [ast.Name(node.arg), *parts]
    if top and isinstance(node, Function):
        dropped: set[ast.AST] = set(node.decorator_list)
        if ast.get_docstring(node, clean=False) is not None:
            dropped.add(node.body[0])
        return [part for part in parts if part not in dropped]
    return parts


_IN_TYPE = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def _shared(node: ast.AST) -> object:
    """Nodes with equal keys are one vertex."""
    if isinstance(node, ast.Name):
        return "variable", node.id
    if isinstance(node, ast.arg) and node.annotation is None:
        return "variable", node.arg
    if isinstance(node, ast.Constant):
        return "constant", type(node.value), _text_of(node.value)
    return node


def _text_of(constant: object) -> str:
    """As it is written; Python refuses to write integers of thousands of digits in decimal."""
    return hex(constant) if isinstance(constant, int) and constant.bit_length() > 1000 else repr(constant)


def _type_of(node: ast.AST) -> str:
    """Its class in `ast`, operators included."""
    if isinstance(node, ast.arg) and node.annotation is None:
        return "Name"
    if isinstance(node, ast.Constant):
        return f"Constant.{type(node.value).__name__}"
    operators = [type(part).__name__ for part in ast.iter_child_nodes(node) if isinstance(part, _IN_TYPE[1:])]
    return ".".join([type(node).__name__, *operators])


def _name_of(node: ast.AST) -> str:
    """What a vertex is called, "" where it is not."""
    if isinstance(node, ast.Constant):
        text = _text_of(node.value)
        return text if len(text) <= _LONGEST_CONSTANT else ""
    for field in ("id", "arg", "attr", "name", "module"):
        name = getattr(node, field, None)
        if isinstance(name, str):
            return name
    names = getattr(node, "names", None)  # of global and nonlocal
    return " ".join(names) if isinstance(names, list) and all(isinstance(x, str) for x in names) else ""
