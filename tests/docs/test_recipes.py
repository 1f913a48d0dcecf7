"""Every program in docs/recipes runs and prints its page's output, and the page's statements are true."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vpps
from tests.docs.blocks import Block
from tests.processes import ROOT

DOCS = ROOT / "docs"
PROGRAMS = {path.stem: path for path in sorted((DOCS / "recipes").glob("*.py"))}
PAGES = {
    page: page.read_text(encoding="utf-8") for part in ("recipes", "guides") for page in (DOCS / part).glob("*.md")
}


def check_pretrained_vectors(recipe: ModuleType, found: Any) -> None:
    with_vectors, without = found
    assert with_vectors > without + 0.05


def check_freezing(recipe: ModuleType, found: Any) -> None:
    network = {"tree_lstm/W", "tree_lstm/b_leaf", "tree_lstm/U", "tree_lstm/b"}
    output = {"output/W", "output/b"}
    assert [set(changed) for changed in found.values()] == [network | output, output, network | output | {"words"}]


def check_rates(recipe: ModuleType, found: Any) -> None:
    rates, moved = zip(*found, strict=True)
    assert rates.index(max(rates)) == 3  # the fourth update is the last of the warm-up
    assert rates[-1] == 0
    assert moved[0] == pytest.approx(rates[0], rel=1e-3)  # the size of Adam's first step
    assert moved[-1] == 0


def check_early_stopping(recipe: ModuleType, found: Any) -> None:
    losses, kept = found
    assert kept == min(losses)
    assert len(losses) == losses.index(kept) + 1 + recipe.PATIENCE < recipe.MOST_EPOCHS


def check_tensorboard(recipe: ModuleType, found: Any) -> None:
    losses, steps = found
    assert losses[-1] < 0.8 * losses[0]
    rows = [line.split(",") for line in Path("runs/trees/scalars.csv").read_text().splitlines()]
    assert [float(value) for tag, _, value in rows if tag == "epoch/loss"] == losses
    assert [int(step) for tag, step, _ in rows if tag == "rate"] == list(range(1, steps + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=lambda folder: folder))
        assert recipe.curves("that of the package").writer == "that of the package"


def check_saving(recipe: ModuleType, found: Any) -> None:
    assert found > 0.3  # guessing would be right for one sentence in five
    assert {path.name for path in Path("ensemble").iterdir()} == {"config.json", "model.safetensors", "names.json"}


def check_weight_tying(recipe: ModuleType, found: Any) -> None:
    (fewer, tied), (more, apart) = found["tied"], found["apart"]
    assert more - fewer == 80 * recipe.WIDTH  # a row per word
    assert tied[-1] < 0.7 * tied[0]
    assert apart[-1] < 0.7 * apart[0]


def check_bilstm_crf(recipe: ModuleType, found: Any) -> None:
    losses, best, greedy = found
    assert losses[-1] < 0.5 * losses[0]
    assert best > greedy


def check_stack_lstm_parser(recipe: ModuleType, found: Any) -> None:
    losses, right = found
    assert losses[-1] < 0.1 * losses[0]
    assert right > 0.95


def check_pointers(recipe: ModuleType, found: Any) -> None:
    losses, right = found
    assert losses[-1] < 0.5 * losses[0]
    assert right > 0.8  # guessing is right once in three to five times
    # A step's loss is the cross entropy of its scores.
    model = vpps.Model(seed=2)
    network = recipe.Pointer(model)
    graph, numbers = vpps.Graph(), np.random.default_rng(1).uniform(size=(2, 3))
    order = numbers.argsort(axis=1)
    with vpps.Handle(model, train=False) as handle:
        wanted = [network.loss(graph, numbers, order), network.scores(graph, numbers, order)[0]]
        loss, scores = handle.forward(graph, wanted)
    scores = scores.reshape(6, 3).astype(np.float64)
    of_steps = np.log(np.exp(scores).sum(axis=1)) - scores[range(6), order.reshape(-1)]
    assert loss == pytest.approx(of_steps.mean(), rel=1e-5)


def check_typed_edges(recipe: ModuleType, found: Any) -> None:
    typed, untyped = found
    assert typed > 0.9 > 0.8 > untyped


def check_latency(recipe: ModuleType, found: Any) -> None:
    assert list(found) == recipe.choices()
    assert all(0 < median <= slow for median, slow, _ in found.values())


def check_precision(recipe: ModuleType, found: Any) -> None:
    (exact, none), *reduced = found.values()
    assert none == 0
    for losses, rounding in reduced:
        assert 0 < rounding < 1e-3
        assert losses == pytest.approx(exact, rel=0.01)


def check_from_dgl(recipe: ModuleType, found: Any) -> None:
    losses, accuracy = found
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy > 0.7  # 0.4 belong to the most common class


def check_recurrent_ppo(recipe: ModuleType, found: Any) -> None:
    for means, rates in found.values():
        assert means[0] < 2  # a policy without memory
        assert max(means) > 6
        assert min(rates) > 0


CHECKS: dict[str, Callable[[ModuleType, Any], None]] = {
    name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")
}
OF_TORCH = {"recurrent_ppo"}
SMALLER = {"latency": {"hidden": 32, "n_trees": 32, "at_once": 8}}


def page_of(name: str) -> Block:
    """Return the block with a program's output from its page."""
    (page,) = [page for page, text in PAGES.items() if re.search(rf"\{{literalinclude\}} (\S*/)?{name}\.py\n", text)]
    printed = re.findall(r"```text\n(.*?)```", PAGES[page], re.DOTALL)[-1]
    return Block(page, 0, "python", "", printed, marks={"numbers": "vary"})


@pytest.mark.cpu
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.frameworks("torch")) if n in OF_TORCH else n for n in PROGRAMS]
)
def test_a_recipe_does_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VPPS_VERIFY", "0")  # verifying takes ten times as long as the programs, which run as for users
    monkeypatch.setenv("VPPS_TARGET", "cpu")
    for package in ("tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    spec = importlib.util.spec_from_file_location(name, PROGRAMS[name])
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, recipe)
    spec.loader.exec_module(recipe)
    assert capsys.readouterr().out == ""  # importing it runs nothing
    found = recipe.main(**SMALLER.get(name, {}))
    CHECKS[name](recipe, found)
    page = page_of(name)
    printed = capsys.readouterr().out
    assert page.output is not None
    page.compare(page.output, printed, printed)
