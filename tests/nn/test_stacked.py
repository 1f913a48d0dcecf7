"""LSTM and GRU over a batch of chains: several layers, given states, and the states after every chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from tests.nn.test_bilstm import chains
from vpps.nn import GRU, LSTM
from vpps.reference import Reference, weights_of

X, H = 3, 4
pytestmark = pytest.mark.cpu
by_layer = pytest.mark.parametrize("kind, num_layers", [(LSTM, 1), (LSTM, 3), (GRU, 1), (GRU, 2)])


def normal(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=shape)


def loss_of(outputs: Any, state: Any) -> vpps.Expression:
    parts = [vpps.square(outputs), *map(vpps.tanh, state if isinstance(state, tuple) else [state])]
    return vpps.sum([vpps.sum(vpps.sum(rows)) for rows in parts])


@by_layer
def test_chains_continue_from_the_states_after_their_beginnings(kind: Any, num_layers: int) -> None:
    model, graph = vpps.Model(seed=1), vpps.Graph()
    layer, x = kind(model, X, H, num_layers=num_layers), graph.rows(normal(12, X))
    begun, rest = [0, 1, 5, 8, 9, 10], [2, 3, 4, 6, 7, 11]
    outputs, end = layer(graph, chains(5, 3, 4)[:], x)
    _, state = layer(graph, chains(2, 1, 3)[:], x[begun])
    continued, final = layer(graph, chains(3, 2, 1)[:], x[rest], state)
    in_order = layer.sequence(graph, x[5:8]) if kind is LSTM else outputs[5:8]
    loss, expected = loss_of(continued, final), loss_of(outputs[rest], end)
    assert_agrees_with_reference(model, graph, loss, list(continued))
    reference = Reference(graph, weights_of(model))
    np.testing.assert_allclose(reference.value(continued), reference.value(outputs[rest]), rtol=1e-12)
    np.testing.assert_allclose(reference.value(loss), reference.value(expected), rtol=1e-12)
    gradients = reference.backward(loss)
    for name, gradient in Reference(graph, weights_of(model)).backward(expected).items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-9)
    np.testing.assert_allclose([reference.value(h) for h in in_order], reference.value(outputs)[5:8], rtol=1e-12)


@pytest.mark.frameworks("torch")
@by_layer
@pytest.mark.parametrize("given", [False, True])
def test_ragged_chains_equal_packed_sequences_of_pytorch(kind: Any, num_layers: int, given: bool) -> None:
    import torch

    torch.manual_seed(1)
    theirs = getattr(torch.nn, kind.__name__)(X, H, num_layers)
    model, graph = vpps.Model(seed=1), vpps.Graph()
    layer = kind(model, X, H, num_layers=num_layers, **({"reset_after": True} if kind is GRU else {}))
    layer.load(theirs.state_dict())
    shapes = [(9, X), *[(num_layers * 3, H)] * (1 + (kind is LSTM)) * given]
    read = [graph.rows(normal(*shape), grad=True) for shape in shapes]
    outputs, state = layer(graph, chains(3, 1, 5)[:], read[0], tuple(read[1:]) or None)
    with vpps.Handle(model) as handle:
        handle.gradients(graph, loss_of(outputs, state))
        found = [handle.value(rows) for rows in (outputs, *(state if kind is LSTM else [state]))]
        found += [handle.input_gradient(rows) for rows in read]
    leaves = [torch.tensor(normal(*shape), dtype=torch.float32, requires_grad=True) for shape in shapes]
    packed = torch.nn.utils.rnn.pack_sequence(leaves[0].split([3, 1, 5]), enforce_sorted=False)
    before: Any = [leaf.view(num_layers, 3, H) for leaf in leaves[1:]]
    sequences, last = theirs(packed, tuple(before) if len(before) > 1 else before[0] if given else None)
    expected = [torch.cat(torch.nn.utils.rnn.unpack_sequence(sequences)), *(last if kind is LSTM else [last])]
    (expected[0].square().sum() + sum(part.tanh().sum() for part in expected[1:])).backward()
    for value, tensor in zip(found, expected + [leaf.grad for leaf in leaves], strict=True):
        np.testing.assert_allclose(value, tensor.detach().reshape(value.shape), atol=1e-5)


def test_layers_have_their_own_parameters_and_dropout_between_them_while_training() -> None:
    found = []
    for rate in (0.0, 0.5):
        model, graph = vpps.Model(seed=1), vpps.Graph()
        lstm, deep = LSTM(model, X, H, dropout=rate), LSTM(model, X, H, num_layers=2, dropout=rate, name="deep")
        assert [p.name for p in model] == [f"{layer}/{p}" for layer in ("lstm", "deep/l0", "deep/l1") for p in "WUb"]
        x, batch = graph.rows(normal(9, X)), chains(3, 1, 5)[:]
        losses = [loss_of(*layer(graph, batch, x)) for layer in (lstm, deep)]
        with vpps.Handle(model) as handle:
            found.append([handle.gradients(graph, loss, train=train)[0] for train in (False, True) for loss in losses])
        assert [len(rows) for rows in deep(graph, chains(2)[[]], x[:0])[1]] == [0, 0]  # a batch without chains
        with pytest.raises(AttributeError, match=r"each of 2 layers has its own: deep\.layers\[0\]\.W"):
            deep.begin(x[0])
    assert found[0] == [*found[1][:3], found[0][1]]
    assert found[0][3] != found[1][3]
