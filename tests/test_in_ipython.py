"""IPython and notebooks: display of graphs, traces and reports, and completion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import vpps

PROGRAM = """
import vpps
model = vpps.Model(seed=1)
words, W = model.lookup("words", (9, 4)), model.parameter("W", (4, 4))
@vpps.cell
def node(left, right):
    '''A state from two.'''
    return vpps.tanh(W @ (left + right))
graph = vpps.Graph()
rows = graph.lookup(words, graph_rows)
x = node(graph.lookup(words, 1), graph.lookup(words, 2))
loss = vpps.sum(x) + vpps.sum(vpps.sum(rows))
handle = vpps.Handle(model, vps=1)
with handle.trace() as trace:
    handle.fb(graph, loss)
optimizer, parameter, lstm = vpps.Adam(), W, vpps.nn.LSTM(model, 4, 4)
"""


@pytest.fixture(scope="module")
def shell() -> Any:
    """Return a session in which a small network was trained for a step."""
    shell = InteractiveShell()
    shell.push({"graph_rows": np.arange(200) % 9})
    shell.run_cell(PROGRAM, silent=True).raise_error()
    yield shell
    shell.run_cell("handle.close()").raise_error()


@pytest.mark.cpu
@pytest.mark.parametrize(
    "expression, html, text",
    [
        ("graph", "</svg>", "<graph"),
        ("graph", "and 107 later vertices", "<graph"),
        ("vpps.Graph()", "of 0 vertices", "<graph"),
        ("graph.draw(3)", "</svg>", "lookup(words)"),
        ("model", '<pre style="font-family: monospace', "parameter"),  # works with any page style
        ("trace", "critical path", "<vpps.Trace of 1 launch on cpu>"),
        ("trace.summary()", "<pre ", "critical path"),
        ("handle.explain()", "<pre ", "\nW "),
        ("handle.disassemble(graph, loss)", "<pre ", "\n"),
        ("handle.inspect(graph, loss).plan", "<pre ", "\n"),
    ],
)
def test_a_notebook_shows(expression: str, html: str, text: str, shell: Any) -> None:
    result = shell.run_cell(expression)
    result.raise_error()
    shown, _ = shell.display_formatter.format(result.result)
    assert html in shown["text/html"]
    assert text in shown["text/plain"]


PUBLIC = {
    "vpps": {*vpps.__all__, "callbacks", "data", "distributed", "errors", "nn", "reference", "report", "torch", "zoo"},
    "vpps.nn": set(vpps.nn.__all__),
    "vpps.data": set(vpps.data.__all__),
    "vpps.init": set(vpps.init.__all__),
    "graph": set("call draw example input lookup map n_calls n_values rows zeros describe".split()),
    "model": set(
        "averaged learned_policy load lookup metadata n_weights numpy parameter restore save scope seed step".split()
    ),
    "parameter": set("T assign average name numpy shape trainable".split()),
    "x": {"T", "shape"},
    "rows": {"T", "examples", "of", "shape"},
    "node": {"elements", "name", "signature"},
    "optimizer": set("beta1 beta2 eps groups lr name weight_decay".split()),
    "lstm": set("U W b begin dropout hidden_size layers load name sequence state_dict step".split()),
    "handle": set(
        "accumulated apply backward clip_norm close compare_weights device_value disassemble discard_accumulated ema "
        "explain fb forward gradients input_gradient inspect kept memory model optimizer policy precision "
        "schedule skipped source sync_get_latest_loss target timeline trace tuning value vps".split()
    ),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", PUBLIC)
def test_completion_offers_what_users_call(name: str, shell: Any) -> None:
    for with_jedi in (True, False):
        shell.Completer.use_jedi = with_jedi
        with provisionalcompleter():
            found = {match.text for match in shell.Completer.completions(f"{name}.", len(name) + 1)}
        found = {text.removeprefix(name).removeprefix(".") for text in found}
        assert {one for one in found if not one.startswith("_")} == PUBLIC[name], with_jedi


@pytest.mark.cpu
@pytest.mark.parametrize("name, signature", [("node", "(left, right)"), ("lstm.step", "(x: ")])
def test_a_cell_is_shown_with_the_arguments_of_a_call(name: str, signature: str, shell: Any) -> None:
    found = shell.inspector.info(shell.ev(name))
    assert found["definition"].startswith(signature)
    assert found["docstring"]
