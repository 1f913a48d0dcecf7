"""ONNX files of stacks of layers, made of ONNX's own operators: LSTM, GRU, MatMul, Gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps._version import __version__
from vpps.errors import ModelError, ShapeError
from vpps.model import checkpoint
from vpps.nn.embedding import Embedding
from vpps.nn.layer import reordered
from vpps.nn.linear import MLP, Linear
from vpps.nn.recurrent import GRU, LSTM, BiLSTM
from vpps.record.cell import Cell
from vpps.text import in_bytes
from vpps.values import as_path

OPSET, IR_VERSION = 17, 8  # of 2022: ONNX 1.12
MOST_BYTES = 2**31 - 2**20  # of a protobuf message, less the graph's description

ACTIVATIONS: dict[Callable[..., Any], str] = {
    vpps.relu: "Relu",
    vpps.sigmoid: "Sigmoid",
    vpps.softmax: "Softmax",
    vpps.tanh: "Tanh",
}
RECURRENT = (LSTM, GRU, BiLSTM)
IN_ONNX: dict[type, tuple[int, ...]] = {LSTM: (0, 2, 1, 3), GRU: (1, 0, 2)}
"""Gates in ONNX's order, i o f c and z r h, by their numbers in the order of vpps: i f o u and r z n."""


def export_onnx(network: Any, path: str | Path) -> None:
    """Write an ONNX file (opset 17) that computes a stack of layers, for ONNX Runtime and others.

    Inputs of the file are `input` and, if a layer is recurrent, `lengths`, (batch,) int32: the lengths of the
    sequences. `input` is (batch, length, input_size) float32; or (batch, length) int64 if the first layer is an
    embedding. Its output `output` is (batch, length, output_size) float32; what stands behind the end of a sequence has
    no meaning. Without a recurrent layer, there is no `length`. States begin with zeros.

    Args:
        network: a layer of `vpps.nn`, or a list of layers, each of which takes what the one before makes: `Embedding`
            or a table of `Model.lookup` (first), `LSTM`, `GRU`, `BiLSTM` (both directions, one behind the other),
            `Linear`, `MLP`; and the functions `vpps.tanh`, `sigmoid`, `relu` and `softmax`. Or an object that has such
            a list as `stack`: `vpps.zoo.LSTMLanguageModel` and `BiLSTMTagger`.

    Raises:
        ModelError: a layer is of another kind, such as a cell of yours; or the weights need more than 2 GiB.
        ShapeError: a layer does not take what the one before makes.
        CheckpointError: the file cannot be written.
        ModuleNotFoundError: the package onnx is not installed.

    Example:
        >>> model = vpps.Model(seed=1)
        >>> layers = [vpps.nn.LSTM(model, 8, 16), vpps.nn.Linear(model, 16, 4), vpps.softmax]
        >>> vpps.export_onnx(layers, "tagger.onnx")  # doctest: +SKIP
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("export_onnx needs the package onnx: pip install 'vpps[onnx]'") from error

    where = as_path(path, "export_onnx", ModelError)
    given = getattr(network, "stack", network)
    layers = [*chain(*map(_parts, given if isinstance(given, list | tuple) else [given]))]
    size = _checked_sizes(layers)
    time = ["length"] if any(isinstance(layer, RECURRENT) for layer in layers) else []
    starts_with_numbers = isinstance(layers[0], vpps.Lookup)

    nodes, weights = list[Any](), list[Any]()

    def weight(array: NDArray[Any]) -> str:
        weights.append(numpy_helper.from_array(np.ascontiguousarray(array), f"weight_{len(weights)}"))
        return str(weights[-1].name)

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"x{len(nodes)}"], **attributes))
        return f"x{len(nodes) - 1}"

    x = "input"
    if time:  # ONNX Runtime's LSTM takes (length, batch, size)
        x = node("Transpose", x, perm=[1, 0] if starts_with_numbers else [1, 0, 2])
    for layer in layers:
        if isinstance(layer, vpps.Lookup):
            x = node("Gather", weight(layer.numpy()), x)
        elif isinstance(layer, Linear):
            x = node("MatMul", x, weight(layer.W.numpy().T))
            x = x if layer.b is None else node("Add", x, weight(layer.b.numpy()))
        elif isinstance(layer, RECURRENT):
            x = _recurrence(layer, x, weight, node)
        else:
            x = node(ACTIVATIONS[layer], x)
    x = node("Transpose", x, perm=[1, 0, 2]) if time else x
    nodes[-1].output[0] = "output"

    kind = TensorProto.INT64 if starts_with_numbers else TensorProto.FLOAT
    taken = [] if starts_with_numbers else [size[0]]
    inputs = [helper.make_tensor_value_info("input", kind, ["batch", *time, *taken])]
    if time:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]))
    made = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", *time, size[1]])
    graph = helper.make_graph(nodes, "vpps", inputs, [made], weights)
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
        producer_name="vpps", producer_version=__version__,
    )  # fmt: skip
    if proto.ByteSize() > MOST_BYTES:
        raise ModelError(f"export_onnx: the network has {in_bytes(proto.ByteSize())}; an ONNX file holds at most 2 GiB")
    checker.check_model(proto, full_check=True)
    checkpoint.write(where, proto.SerializeToString())


def _parts(layer: Any) -> Iterator[Any]:
    """Yield the tables, layers and activations that a layer consists of. Raises ModelError if it cannot be exported."""
    if type(layer) is Embedding:
        yield layer.table
    elif type(layer) is MLP:
        for hidden in layer.layers:
            yield from (hidden, vpps.tanh)
        yield layer.output
    elif type(layer) is BiLSTM and layer.table is not None:
        yield from (layer.table, layer)
    elif type(layer) in (LSTM, GRU):
        yield from layer.layers
    elif isinstance(layer, vpps.Lookup) or type(layer) in (Linear, BiLSTM) or any(layer is f for f in ACTIVATIONS):
        yield layer
    else:
        what = "a cell of yours" if isinstance(layer, Cell) else "no layer that ONNX has an operator for"
        raise ModelError(
            f"export_onnx: {layer!r} is {what}; Embedding, LSTM, GRU, BiLSTM, Linear, MLP, vpps.tanh, sigmoid, relu "
            "and softmax can be exported. Build the network as a list of these, or serve it with vpps: "
            "vpps.Handle(model, train=False)"
        )


def _checked_sizes(layers: Sequence[Any]) -> tuple[int, int]:
    """Return the length of the vectors that the first layer takes and of those that the last one makes.

    Raises:
        ModelError: there is no layer, or a table that is not the first one.
        ShapeError: a layer does not take what the one before makes.
    """
    sizes: list[tuple[int, int]] = []
    for k, layer in enumerate(layers):
        if isinstance(layer, vpps.Lookup):
            if k or len(layer.shape) != 2:
                raise ModelError(f"export_onnx: {layer!r}: an embedding has to be the first layer, and rows be vectors")
            sizes.append((layer.shape[0], layer.shape[1]))
        elif type(layer) in (Linear, *RECURRENT):
            taken, made = layer._sizes()
            if sizes and sizes[-1][1] != taken:
                raise ShapeError(
                    f"export_onnx: {layer!r} takes vectors of {taken}; the layers before it make {sizes[-1][1]}"
                )
            sizes.append((taken, 2 * made if type(layer) is BiLSTM else made))
    if not sizes:
        raise ModelError("export_onnx: expected a layer of vpps.nn, or a list with at least one")
    return sizes[0][0], sizes[-1][1]


def _recurrence(
    layer: LSTM | GRU | BiLSTM, x: str, weight: Callable[[NDArray[Any]], str], node: Callable[..., str]
) -> str:
    """Add a recurrent layer; return the name of its states, (length, batch, states of both directions)."""
    cells = [layer.forward, layer.backward] if isinstance(layer, BiLSTM) else [layer]
    W, R, B = (weight(np.stack(arrays)) for arrays in zip(*map(_matrices, cells), strict=True))
    options: dict[str, Any] = {"direction": "bidirectional"} if len(cells) > 1 else {}
    if isinstance(layer, GRU):
        options["linear_before_reset"] = int(layer.a is not None)
    kind = "GRU" if isinstance(layer, GRU) else "LSTM"
    y = node(kind, x, W, R, B, "lengths", hidden_size=cells[0].hidden_size, **options)
    y = node("Transpose", y, perm=[0, 2, 1, 3])  # it is (length, directions, batch, hidden)
    return node("Reshape", y, weight(np.array([0, 0, -1])))


def _matrices(cell: LSTM | GRU) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return W, R and both biases, one behind the other, as ONNX has them. The second one is zero but for a GRU's a."""
    order = IN_ONNX[type(cell)]
    W, b = (reordered(p.numpy(), order) for p in (cell.W, cell.b))
    U, second = cell.U.numpy(), np.zeros_like(b)
    if isinstance(cell, GRU) and cell.V is not None:
        U = np.concatenate([U, cell.V.numpy()])
    if isinstance(cell, GRU) and cell.a is not None:
        second[-cell.hidden_size :] = cell.a.numpy()
    return W, reordered(U, order), np.concatenate([b, second])
