"""Constant folding: removes operations that change nothing, and merges pairs of operations.

A rewrite must give the same bits for every operand, including infinities and zeros of either sign, and pass on the same
gradients. (A NaN may become another NaN.) The rewrites are:

    x * 1, x + (-0), x - 0      x. But x + 0 is kept: it turns -0 into +0.
    -(-x), -(x * c), (-x) * c   x, x * -c: IEEE arithmetic rounds alike on both sides of zero.
    a + (-b), (-a) + b, a - (-b)    a - b, b - a, a + b, by the definition of subtraction.
    (-a) * (-b), x * x          a * b, square(x): its gradient 2 x dy equals x dy + x dy.
    |-x|, ||x||, (-x)^2, |x|^2, relu(relu(x))   the same without the inner operation.
    copies, reshapes to the same shape, double transposes   their operand.
    double reshapes             the outer reshape.
    stop_gradient               its operand, if that has no gradient anyway.
    slices of slices or of concatenations    slices of the source, or the source itself.
    concatenations of neighbouring slices in order    the joined slice, or the source.

These are kept, because results differ: x * a * b, x + a + b, sums with zeros, 0 * x (not 0 for infinite x), x - x.
No operation of a cell has only constants as operands: its constants are attributes of operations on expressions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from vpps.ops import OPS, Form
from vpps.ops.operand import shown
from vpps.record.trace import Constant, Node, TracedCell
from vpps.values import float_word

ONE, MINUS_ZERO = float_word(1.0), float_word(-0.0)
# (outer, inner) operations for which the inner one does not change the result.
ABSORBED = frozenset((("abs", "neg"), ("square", "neg"), ("square", "abs")))
# Operations that change nothing the second time.
IDEMPOTENT = frozenset(("abs", "relu"))


def fold_constants(cell: TracedCell) -> tuple[TracedCell, str]:
    """Return the folded cell, and a sentence about the changes."""
    folding = _Folding(cell)
    same: list[int] = []
    gone: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for i, node in enumerate(cell.nodes):
        node = replace(node, inputs=tuple(same[j] for j in node.inputs))
        found = folding.simpler(node)
        while isinstance(found, Node):
            node, found = found, folding.simpler(found)
        folding.add(node)
        before = shown(cell.nodes[i].op.name)
        if found is not None:
            gone[before] += 1
        elif (node.op, node.attrs) != (cell.nodes[i].op, cell.nodes[i].attrs):
            after = shown(node.op.name)
            changed[before if before == after else f"{before} is {after}"] += 1
        same.append(i if found is None else found)
    outputs = tuple(same[o] for o in cell.outputs)
    if outputs == cell.outputs and all(a.inputs == b.inputs for a, b in zip(folding.nodes, cell.nodes, strict=True)):
        return cell, "nothing to fold"
    said = [
        f"{what}: {', '.join(f'{n} {name}' for name, n in counted.items())}"
        for what, counted in (("left out", gone), ("simplified", changed))
        if counted
    ]
    return cell.with_nodes(folding.nodes, outputs), "; ".join(said)


class _Folding:
    """Nodes simplified so far."""

    def __init__(self, cell: TracedCell) -> None:
        self.nodes: list[Node] = []
        self._has_gradient: list[bool] = []

    def add(self, node: Node) -> None:
        """Append the next node."""
        self.nodes.append(node)
        form = node.op.form
        own = form is Form.ARGUMENT or (node.parameter is not None and node.parameter.trainable)
        through = any(self._has_gradient[j] for j in node.inputs)
        self._has_gradient.append(
            node.op.differentiable and (own or through or (form is Form.INPUT and bool(node.attrs["grad"])))
        )

    def simpler(self, node: Node) -> Node | int | None:
        """Return a simpler node, or the number of a node, with the same result; None if there is none."""
        found = self._special(node)
        if found is not None or not node.inputs:
            return found
        inner = self.nodes[node.inputs[0]]
        if node.op.name in IDEMPOTENT and inner.op is node.op:
            return node.inputs[0]
        if (node.op.name, inner.op.name) in ABSORBED:
            return replace(node, inputs=inner.inputs)
        return None

    def _made(self, node: Node, op: str, *inputs: int, **attrs: object) -> Node:
        """Make a node that replaces another one, with the same shape and domain."""
        return Node(OPS[op], inputs, dict(attrs), node.shape, node.domain)

    def _negated(self, i: int) -> int | None:
        """Return the operand of node i if it is a negation, else None."""
        return self.nodes[i].inputs[0] if self.nodes[i].op.name == "neg" else None

    def _special(self, node: Node) -> Node | int | None:
        """Return the result of `simpler` by the rules for single operations."""
        x, y = (*node.inputs, -1, -1)[:2]
        match node.op.name:
            case "copy":
                return x
            case "scale":
                value = node.attrs["value"]
                if not isinstance(value, Constant) and float_word(value) == ONE:
                    return x
                negated = self._negated(x)
                return None if negated is None else self._made(node, "scale", negated, value=-value)
            case "shift":
                value = node.attrs["value"]  # a Constant is neither 1 nor 0
                return x if not isinstance(value, Constant) and float_word(value) == MINUS_ZERO else None
            case "neg":
                inner = self.nodes[x]
                if inner.op.name == "scale":
                    return self._made(node, "scale", inner.inputs[0], value=-inner.attrs["value"])
                return self._negated(x)
            case "add":
                for left, right in ((x, self._negated(y)), (y, self._negated(x))):
                    if right is not None:
                        return self._made(node, "sub", left, right)
            case "sub":
                negated = self._negated(y)
                return None if negated is None else self._made(node, "add", x, negated)
            case "mul" if x == y:
                return self._made(node, "square", x)
            case "mul":
                a, b = self._negated(x), self._negated(y)
                return None if a is None or b is None else self._made(node, "mul", a, b)
            case "stop_gradient":
                return None if self._has_gradient[x] else x
            case "reshape":
                inner = self.nodes[x]
                if inner.shape == node.shape:
                    return x
                return replace(node, inputs=inner.inputs) if inner.op.name == "reshape" else None
            case "transpose":
                inner = self.nodes[x]
                return inner.inputs[0] if inner.op.name == "transpose" else None
            case "slice":
                return self._slice(node)
            case "concat":
                return self._concat(node)
        return None

    def _slice(self, node: Node) -> Node | int | None:
        source = self.nodes[node.inputs[0]]
        start, stop, scalar = (node.attrs[name] for name in ("start", "stop", "scalar"))
        if source.shape == node.shape:
            return node.inputs[0]  # a slice of everything
        if source.op.name == "slice" and not source.attrs["scalar"]:
            before = source.attrs["start"]
            return self._made(node, "slice", *source.inputs, start=start + before, stop=stop + before, scalar=scalar)
        if source.op.name != "concat":
            return None
        before = 0
        for part in source.inputs:
            shape = self.nodes[part].shape
            rows = shape[0] if shape else 1
            if before <= start and stop <= before + rows:
                if self.nodes[part].domain != node.domain:
                    return None  # the part is a value of the vertex, but the slice has a row per list element
                if shape == node.shape:
                    return part
                if not shape:
                    return None  # one element, but a vector
                return self._made(node, "slice", part, start=start - before, stop=stop - before, scalar=scalar)
            before += rows
        return None

    def _concat(self, node: Node) -> Node | int | None:
        """If neighbouring slices together cover their source, replace them with the source."""
        ranges = [self._range(i, len(node.shape)) for i in node.inputs]
        joined: list[int] = []
        k = 0
        while k < len(ranges):
            source, start, end = ranges[k]
            stop = k + 1
            while stop < len(ranges) and ranges[stop][:2] == (source, end):
                end = ranges[stop][2]
                stop += 1
            if stop - k == len(ranges) and self.nodes[source].shape != node.shape and stop - k > 1:
                return self._made(node, "slice", source, start=start, stop=end, scalar=False)
            whole = stop - k > 1 and start == 0 and end == self.nodes[source].shape[0]
            joined.extend([source] if whole else node.inputs[k:stop])
            k = stop
        if len(joined) == 1 and self.nodes[joined[0]].shape == node.shape:
            return joined[0]
        return replace(node, inputs=tuple(joined)) if len(joined) < len(node.inputs) else None

    def _range(self, i: int, rank: int) -> tuple[int, int, int]:
        """Return the source of slice i and its range of rows; for any other node, the node itself and all rows."""
        node = self.nodes[i]
        sliced = node.op.name == "slice" and len(self.nodes[node.inputs[0]].shape) == rank
        if sliced and (len(node.shape) == rank or rank == 1):
            return node.inputs[0], node.attrs["start"], node.attrs["stop"]
        return i, 0, node.shape[0] if node.shape else 1
