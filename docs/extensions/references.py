"""The directive `{generated} NAME`: Sphinx makes this part of a page from vpps's own tables."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import groupby
from typing import Any

import typer
from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.cli import get_docs_for_click

import vpps
from vpps import config
from vpps.compiler.arrangement import matrices_of
from vpps.data import graphs_of_trees, synthetic_treebank
from vpps.graph import functions, primitives
from vpps.model import optim
from vpps.ops import OPS, Form, Op
from vpps.ops.precision import PRECISIONS
from vpps.placement.onchip import DEVICES, capacity
from vpps.placement.onchip.device import TENSOR_CORES
from vpps.script.instructions import FORMS, HEAD_WORDS, TABLE, Flag, Role
from vpps.zoo import TreeLSTMSentiment


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table and an empty line. Empty cells become dashes."""
    lines = [head, ["---"] * len(head), *rows]
    rows = (" | ".join(cell.replace("|", r"\|") or "–" for cell in line) for line in lines)
    return "".join(f"| {row} |\n" for row in rows) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def escaped(text: str) -> str:
    """Escape Markdown characters outside inline code."""
    return re.sub(r"`[^`]*`|[*_\[<]", lambda found: found[0] if found[0][0] == "`" else "\\" + found[0], text)


def comments(kind: type[Enum]) -> dict[str, str]:
    """Return the comments beside the members of an Enum, from its source."""
    return dict(re.findall(r"^ +(\w+) = [^#\n]*# (.*)", inspect.getsource(kind), re.MULTILINE))


def documented(kind: str, names: Iterable[str]) -> str:
    lines = "".join(f".. auto{kind}:: {name}\n" for name in names)
    return f"```{{eval-rst}}\n.. currentmodule:: vpps\n\n{lines}```\n\n"


def public_functions() -> str:
    return documented("function", sorted((*primitives.__all__, *functions.__all__), key=str.lower))


def optimizers() -> str:
    return documented("class", optim.__all__)


def environment() -> str:
    rows = ((code(v.name), code(v.default), escaped(v.doc)) for v in config.VARIABLES)
    return table(("variable", "default", "meaning"), rows)


def commands(program: str) -> str:
    """Return the `--help` texts of all commands of a program. Shared options come first, once."""
    command: Any = typer.main.get_command(importlib.import_module(f"vpps.cli.{program.removeprefix('vpps-')}").app)
    context = typer.Context(command, info_name=program)
    text = get_docs_for_click(obj=command, ctx=context, name=program, indent=1)
    text = re.sub(r"\[/?bold\]", "**", text).replace("* `--help`: Show this message and exit.\n", "")
    text = re.sub(r"(?<=\n\n)(?=vpps-)", "    ", text)  # examples are code
    text = re.sub(r"`[^`\n]*`|<", lambda found: "\\<" if found[0] == "<" else found[0], text)
    head, *parts = re.split(r"^(?=### )", text, flags=re.MULTILINE)
    if len(parts) > 4:
        options = [re.findall(r"^\* `--.*\n", part, re.MULTILINE) for part in parts]
        shared = [option for option in options[0] if all(option in others for others in options)]
        parts = ["".join(line for line in part.splitlines(keepends=True) if line not in shared) for part in parts]
        head += f"**Options of all commands**:\n\n{''.join(shared)}\n"
    return head + "".join(parts)


# Notation of ops that have no plain signature.
WRITTEN = {
    "neg": "-x", "add": "a + b", "sub": "a - b", "mul": "a * b", "div": "a / b", "scale": "x * 0.5", "shift": "x + 0.5",
    "over": "0.5 / x", "at_least": "clamp(x, low)", "at_most": "clamp(x, high=high)", "affine": "W @ x + b",
    "affine_columns": "W @ M", "affine_transposed": "W.T @ x", "greater": "a > b", "greater_equal": "a >= b",
    "equal": "eq(a, b)", "above": "x > 0.5", "below": "x < 0.5", "not_below": "x >= 0.5", "not_above": "x <= 0.5",
    "equals": "eq(x, 0.5)", "keep": "where(c, x, 0)", "drop": "where(c, 0, x)", "given": "where(c, 0.5, 0)",
    "unless": "where(c, 0, 0.5)", "matmul": "A @ B", "slice": "x[1:3]", "list_sum": "sum(xs)", "list_mean": "mean(xs)",
    "list_max": "max(xs)", "list_min": "min(xs)", "list_softmax": "softmax(xs)", "list_log_softmax": "log_softmax(xs)",
    "transpose": "A.T", "concat": "concat([a, b])", "reshape": "reshape(x, shape)",
    "lookup": "lookup(table, i)", "input": "graph.input(array)", "zeros": "graph.zeros(n)",
}  # fmt: skip


def operators() -> str:
    """Return a section per form of ops."""
    said = comments(Form)
    parts = []
    for form, ops in groupby(sorted(OPS.values(), key=lambda op: [*Form].index(op.form)), lambda op: op.form):
        rows = [(code(op.name) + written(op), escaped(op.doc), gradient_reads(op)) for op in ops]
        columns = 3 if any(reads for *_, reads in rows) else 2
        parts.append(f"## {form.value}\n\nHow they run: {said[form.name]}.\n\n")
        parts.append(table(("op", "meaning", "gradient reads")[:columns], (row[:columns] for row in rows)))
    return "".join(parts)


def written(op: Op) -> str:
    signature = op.signature or (hasattr(vpps, op.name) and "x")
    text = WRITTEN.get(op.name) or (f"{op.name}({signature})" if signature else "")  # only the cell compiler uses it
    return text and f"<br>{code(text)}"


def gradient_reads(op: Op) -> str:
    """Return the operands and results that the backward of a map reads, per operand."""
    if not op.differentiable:
        return "no gradient"
    names = {"a": "x" if op.arity == 1 else "a", "b": "b", "y": "the result"}
    found = []
    for k, reads in enumerate(op.reads):
        what = " and ".join(names[r] for r in reads) or "nothing" + ": passed on" * (k in op.passes)
        found.append(what if op.arity == 1 else f"{'ab'[k]}: {what}")
    return "<br>".join(found)


def instructions() -> str:
    flags, roles = comments(Flag), comments(Role)
    rows = [(str(15 + flag.bit_length()), code((flag.name or "").lower()), flags[flag.name or ""]) for flag in Flag]
    parts = [
        "## Flags\n\nBits 16 and up of the first word. In disassembly they follow the name: `matvec.rows`.\n\n",
        table(("bit", "flag", "meaning"), rows),
        f"## Forms\n\nThere are {len(TABLE)} instructions of {len({i.form for i in TABLE})} forms. Each opcode stands "
        "behind its name.\n\n",
    ]
    place = {form: at for at, form in reversed(list(enumerate(i.form for i in TABLE)))}  # the first opcode of a form
    for form, group in groupby(sorted(TABLE, key=lambda i: (place[i.form], i.opcode)), key=lambda i: i.form):
        members = list(group)
        words = "".join(f" + {f.kind.words} per {f.name}" for f in members[0].fields if f.kind.repeated)
        chip = " Only for weights on the chip (`cuda`, `simt`)." * members[0].on_chip
        parts.append(
            f"### {form}\n\n{members[0].fixed_words}{words} words, including {HEAD_WORDS} of the head.{chip}\n\n"
        )
        fields = []
        for f in FORMS[form]:
            wide = f"width is `{f.width}`" if f.width else ""
            what = [roles.get(f.role.name, ""), wide, "rows of list elements" * f.elements, "rounded" * f.rounded]
            fields.append((code(f.name), f.kind.name.lower(), str(f.kind.words), ", ".join(filter(None, what))))
        if fields:
            parts.append(table(("field", "kind", "words", "access"), fields))
        rows_ = ((f"{code(i.name)} {i.opcode}", escaped(i.doc), i.slices.value) for i in members)
        parts.append(table(("instruction", "meaning", "divided into"), rows_))
    return "".join(parts)


def precisions() -> str:
    head = ("precision", "bits", "bytes", "targets", "meaning")
    rows = (
        (
            code(p.name), str(24 - p.dropped), str(p.element.bytes), "cpu, " * p.on_host + "cuda, simt", escaped(p.doc),
        )
        for p in PRECISIONS.values()
    )  # fmt: skip
    return table(head, rows)


def units() -> str:
    """Return the largest number of units, per GPU and precision, with which a launch reads all weights once."""
    trees = graphs_of_trees(synthetic_treebank(n_train=1, n_dev=0).train, min_count=1)
    model, graph = vpps.Model(seed=1), vpps.Graph()
    TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=256, hidden=256).loss(graph, trees[:])
    matrices = matrices_of(graph.blocks).values()
    rows = []
    for device in DEVICES.values():
        if device.sm >= TENSOR_CORES:
            sizes = (
                capacity([replace(m, element=p.element) for m in matrices], device, 256) for p in PRECISIONS.values()
            )
            rows.append([device.name, *map(str, sizes)])
    return table(["GPU", *PRECISIONS], rows)


PARTS: dict[str, Callable[..., str]] = {
    "functions": public_functions, "optimizers": optimizers, "environment": environment, "commands": commands,
    "operators": operators, "instructions": instructions, "precisions": precisions,
    "capacity": units,
}  # fmt: skip


class Generated(SphinxDirective):
    """Insert the Markdown of a part into the page, headings included."""

    required_arguments = 1
    optional_arguments = 1  # argument of the part, such as the name of a program

    def run(self) -> list[Node]:
        name, *rest = self.arguments
        self.env.note_reread()  # the part changes with vpps, not with the page
        return self.parse_text_to_nodes(PARTS[name](*rest), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
