"""What a cell computes, in a few letters that are the same in all processes."""

from __future__ import annotations

import hashlib

from vpps.model.model import Parameter
from vpps.record.trace import TracedCell


def digest_of(cell: TracedCell) -> str:
    """Digest of a cell's program: operations, wiring, shapes, attributes, parameters. The same in all processes."""
    digest = hashlib.sha256(repr((cell.kinds, cell.outputs, cell.single)).encode())
    for node in cell.nodes:
        attributes = sorted(node.attrs.items())
        parameter = node.parameter.name if isinstance(node.parameter, Parameter) else None
        digest.update(repr((node.op.name, node.inputs, attributes, node.shape, node.domain, parameter)).encode())
    return digest.hexdigest()[:16]
