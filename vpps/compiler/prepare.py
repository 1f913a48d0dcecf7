"""Prepares a traced cell for lowering: fuses biases into products, gives outputs memory, divides stacked units."""

from __future__ import annotations

from collections.abc import Sequence

from vpps.ops import OPS, Form, size
from vpps.record.trace import Node, TracedCell

VIEWS = (Form.SLICE, Form.RESHAPE)  # nodes that are part of their operand

# Nodes that compute nothing: their values come from outside the cell. Rows of tables are read in place.
OUTSIDE = (Form.ARGUMENT, Form.INDEX, Form.PARAMETER, Form.LOOKUP)


def offset_of(nodes: Sequence[Node], i: int) -> int:
    """Return the number of floats between the beginning of an operand and node i, which is a view of it."""
    node = nodes[i]
    if node.op.form is Form.RESHAPE:
        return 0
    return int(node.attrs["start"]) * size(nodes[node.inputs[0]].shape[1:])


def root(nodes: Sequence[Node], i: int) -> int:
    """Return the node that a view is part of; for any other node, the node itself."""
    while nodes[i].op.form in VIEWS:
        i = nodes[i].inputs[0]
    return i


def offset_in_root(nodes: Sequence[Node], i: int) -> int:
    """Return the number of floats before a view in the node that it is part of."""
    if nodes[i].op.form not in VIEWS:
        return 0
    return offset_of(nodes, i) + offset_in_root(nodes, nodes[i].inputs[0])


def prepare(cell: TracedCell) -> tuple[list[Node], tuple[int, ...]]:
    """Return the nodes with biases fused into products, and the outputs, each with its own memory."""
    nodes = _fuse_biases(list(cell.nodes), cell.outputs)
    outputs = []
    for o in cell.outputs:
        # Copy an argument, table row or parameter that is an output itself: its value must outlive the update.
        if nodes[root(nodes, o)].op.form in (Form.ARGUMENT, Form.LOOKUP, Form.PARAMETER):
            nodes.append(Node(OPS["copy"], (o,), {}, nodes[o].shape))
            o = len(nodes) - 1
        outputs.append(o)
    return nodes, tuple(outputs)


def _fuse_biases(nodes: list[Node], outputs: tuple[int, ...]) -> list[Node]:
    """Fuse `W @ x + b` into one product if nothing else reads `W @ x`. Node numbers do not change."""
    uses = [0] * len(nodes)
    for n, used in zip(nodes, live_nodes(nodes, outputs), strict=True):
        for j in n.inputs if used else ():
            uses[j] += 1
    for o in outputs:
        uses[o] += 1
    for i, n in enumerate(nodes):
        if n.op.name != "add":
            continue
        for product, bias in (n.inputs, n.inputs[::-1]):
            p = nodes[product]
            fits = p.op.form is Form.MATVEC and len(p.inputs) == 1 and uses[product] == 1 and p.domain == n.domain
            if fits and nodes[bias].shape == p.shape and bias != product:
                nodes[i] = Node(p.op, (p.inputs[0], bias), p.attrs, n.shape, n.domain, p.parameter)
                break
    return nodes


def live_nodes(nodes: Sequence[Node], outputs: Sequence[int]) -> list[bool]:
    """Return a mask of the nodes that the outputs depend on."""
    live = [False] * len(nodes)
    found = list(outputs)
    while found:
        i = found.pop()
        if not live[i]:
            live[i] = True
            found.extend(nodes[i].inputs)
    return live


def execution_order(nodes: Sequence[Node]) -> list[int]:
    """Return the node numbers in topological order: the order of the user's program, except for nodes that passes have
    appended."""
    order: list[int] = []
    placed = [False] * len(nodes)
    for first in range(len(nodes)):
        waiting = [first]
        while waiting:
            i = waiting[-1]
            missing = [j for j in nodes[i].inputs if not placed[j]]
            waiting.extend(missing)
            if not missing:
                waiting.pop()
                if not placed[i]:
                    placed[i] = True
                    order.append(i)
    return order


def parts_of_units(nodes: list[Node], live: list[bool], granule: int) -> list[int]:
    """Return the number of equal parts into which each node's units are divided among virtual processors.

    Stacked gates that are split again have one part per gate, so that one VP owns the same hidden units of every gate.
    A slice that covers several gates is treated as those gates if it is split exactly as they are. Nodes joined by
    elementwise ops, or added to a product, must agree. If slices differ, the parts are the largest that no slice cuts
    through. Parts narrower than a granule are ignored: no VP could own a block of one, and loops would be short.
    """
    parent = list(range(len(nodes)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, node in enumerate(nodes):
        if live[i] and node.op.form in (Form.MAP, Form.DROPOUT):
            for j in node.inputs:
                if nodes[j].shape == node.shape:
                    parent[find(j)] = find(i)
        elif live[i] and node.op.form is Form.MATVEC and len(node.inputs) > 1:  # the bias is read unit by unit
            if nodes[node.inputs[1]].op.form is not Form.PARAMETER:
                parent[find(node.inputs[1])] = find(i)
        elif live[i] and node.op.form is Form.RESHAPE:
            parent[find(node.inputs[0])] = find(i)
    widths = {find(i): size(node.shape) for i, node in enumerate(nodes) if live[i]}
    split: dict[int, list[int]] = {k: [] for k in widths}  # joined nodes -> their slices and concatenations
    for i, node in enumerate(nodes):
        if live[i] and node.op.form in (Form.SLICE, Form.CONCAT):
            split[find(node.inputs[0] if node.op.form is Form.SLICE else i)].append(i)
    units: dict[int, int] = {}  # floats of a part
    for joined in sorted(widths, key=widths.__getitem__):  # a slice is no wider than its source
        by_units, by_widths, cuts = set(), set(), {widths[joined]}
        for i in split[joined]:
            node, width = nodes[i], size(nodes[i].shape)
            if node.op.form is Form.CONCAT:
                pieces = {size(nodes[j].shape) for j in node.inputs}
                width = pieces.pop() if len(pieces) == 1 and min(pieces) >= granule else width
                by_units.add(width)
                by_widths.add(width)
            elif width >= granule:
                by_units.add(units.get(find(i), width))
                by_widths.add(width)
                cuts |= {width, offset_of(nodes, i)}
        wishes = by_units if len(by_units) == 1 else by_units | by_widths
        fit = [unit for unit in wishes if not any(cut % unit for cut in cuts)]
        units[joined] = max(fit, default=widths[joined])
    return [size(node.shape) // units[find(i)] if live[i] else 1 for i, node in enumerate(nodes)]
