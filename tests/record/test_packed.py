"""Maps recorded in one call of compiled code give the same arrays and errors as maps recorded with NumPy, for random
maps in many forms, some with damaged arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

import vpps
from tests.comparison import contents_of
from vpps.data import GraphBatch, GraphSet
from vpps.record.packed import PackedChunk

pytestmark = pytest.mark.host

WORDS, CLASSES, H = 50, 5, 4
C = H + 1  # of the second result


def forest(seed: int) -> GraphSet:
    """Return random binary trees in post-order, with a treebank's features."""
    random = np.random.default_rng(seed)
    sizes: list[int] = []
    children: list[tuple[int, int]] = []
    for _ in range(20):
        roots: list[int] = []
        n, leaves = 0, int(random.integers(1, 12))
        while leaves or len(roots) > 1:
            joins = len(roots) > 1 and (not leaves or random.random() < 0.5)
            children.append((roots[-2], roots[-1]) if joins else (-1, -1))
            roots = [*roots[:-2], n] if joins else [*roots, n]
            leaves -= not joins
            n += 1
        sizes.append(n)
    table = np.array(children, np.int32)
    n = len(table)
    return GraphSet(
        sizes, table, kind=table[:, 0] >= 0, kinds=("leaf", "inner"),
        columns={"word": random.integers(0, WORDS, n), "label": random.integers(0, CLASSES, n)},
    )  # fmt: skip


def with_missing(trees: GraphSet, missing: float, seed: int) -> GraphSet:
    """Return the trees, with one or both children missing at some inner vertices."""
    whole = trees[:]
    children = np.array(whole.children)
    lacks = np.random.default_rng(seed).random(len(children))
    children[lacks < missing, 1] = -1
    children[lacks < missing / 3, 0] = -1
    begins = np.repeat(whole.offsets[:-1], np.diff(whole.offsets))
    return GraphSet(
        np.diff(whole.offsets), np.where(children < 0, -1, children - begins[:, None]), kind=whole.kind,
        kinds=("leaf", "inner"), columns={"word": whole["word"], "label": whole["label"]},
    )  # fmt: skip


def lists(most: int, missing: float, seed: int) -> GraphSet:
    """Return random graphs with lists of up to `most` children, some of them missing."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, 20)
    own = [rng.integers(0, v, rng.integers(0, most + 1)) if v else [] for n in sizes for v in range(n)]
    indices = np.concatenate(own).astype(np.int32)
    indices[rng.random(len(indices)) < missing] = -1
    n = len(own)
    return GraphSet(
        sizes, (np.cumsum([0, *map(len, own)]), indices), kind=[len(c) > 0 for c in own], kinds=("leaf", "inner"),
        columns={"word": rng.integers(0, WORDS, n), "label": rng.integers(0, CLASSES, n)},
    )  # fmt: skip


class Form(NamedTuple):
    """Cells of one or more kinds, their inputs besides words, and their children: lists (up to a length) or not."""

    cells: list[Any]
    inputs: str = ""
    most: int | None = None


def forms() -> dict[str, Form]:
    """Return cells that read children, ints and rows in each way."""
    model = vpps.Model(seed=1)
    words, unread = model.lookup("words", (WORDS, H)), model.lookup("unread", (CLASSES, H))
    w, u, v = model.parameter("W", (H, H)), model.parameter("U", (C, H)), model.parameter("V", (H, C))
    o = model.parameter("Wo", (CLASSES, H))
    gather, pull, scatter = vpps.gather, vpps.pull, vpps.scatter

    def leaf(word: Any) -> Any:
        h = w @ vpps.lookup(words, word)
        return h, vpps.tanh(u @ h)

    def leaf_of_row(word: Any, x: Any) -> Any:
        h, c = leaf(word)
        return h + x, c

    def inner(left: Any, left_c: Any, right: Any, right_c: Any) -> Any:
        return vpps.tanh(w @ left + v @ right_c), left_c + u @ right

    def inner_of_rows(left: Any, left_c: Any, right: Any, right_c: Any, x: Any, y: Any) -> Any:
        return vpps.tanh(w @ left + w @ right + x), left_c + u @ (right * y)

    def without_matrices(left: Any, left_c: Any, right: Any, right_c: Any) -> Any:
        return left + right, left_c * right_c

    def leaf_with_loss() -> None:
        h, c = leaf(pull("word"))
        scatter(h, c)
        vpps.push(vpps.cross_entropy(o @ h, pull("label")))

    def inner_with_loss() -> None:
        (left, _), (_, right_c) = gather()
        h = vpps.tanh(w @ left + v @ right_c)
        scatter(h, right_c)
        vpps.push(vpps.cross_entropy(o @ h, pull("label")))

    def leaf_with_unread(word: Any, label: Any) -> Any:
        vpps.lookup(unread, label)
        return leaf(word)

    def whole_lists() -> None:
        hs, cs = gather()
        scatter(vpps.sum(hs), vpps.sum(vpps.each(lambda h, c: (u @ h) * c, hs, cs)))

    def second_results(word: Any) -> None:
        _, cs = gather()
        scatter(vpps.sum(vpps.each(lambda c: v @ c, cs)), u @ vpps.lookup(words, word))

    def first_and_others(word: Any) -> None:
        h, _ = gather(0)
        hs, cs = gather(start=1)
        scatter(vpps.sum(hs) + w @ vpps.lookup(words, word) + h, vpps.sum(cs))

    def two_and_others(word: Any) -> None:
        (h, _), (_, c), (hs, cs) = gather(0), gather(1), gather(start=2)
        scatter(vpps.sum(hs) + v @ c + vpps.lookup(words, word), vpps.sum(cs) + u @ h)

    def two_of_list() -> None:
        (h, _), (_, c) = gather(0), gather(1)
        scatter(h + v @ c, c)

    def list_and_row() -> None:
        hs, cs = gather()
        scatter(vpps.sum(hs) + pull("x"), vpps.sum(cs))

    def alone(word: Any) -> None:
        hs, cs = gather()
        scatter(vpps.sum(hs) + vpps.lookup(words, word), vpps.sum(cs))

    def unequal_lists(word: Any) -> None:
        hs, cs = gather()
        longer = vpps.sum(vpps.each(lambda a, b: a * b, hs, gather(start=1)[0]))
        scatter(longer + vpps.lookup(words, word), vpps.sum(cs))

    found = {
        "table": Form([leaf, inner]), "table, losses": Form([leaf_with_loss, inner_with_loss], "label"),
        "table, an int that nothing reads": Form([leaf_with_unread, inner], "label"),
        "table, rows of leaves": Form([leaf_of_row, inner], "x"),
        "table, rows of inner": Form([leaf, inner_of_rows], "xy"),
        "table, rows of both": Form([leaf_of_row, inner_of_rows], "xy"),
        "table, three kinds": Form([leaf, inner, without_matrices]), "leaves": Form([leaf_of_row], "x"),
        "lists": Form([leaf, whole_lists], most=4), "lists of one result": Form([leaf, second_results], most=4),
        "one and lists": Form([leaf, first_and_others], most=4), "two and lists": Form([leaf, two_and_others], most=4),
        "two of a list": Form([leaf, two_of_list], most=2), "lists, rows": Form([leaf, list_and_row], "x", most=4),
        "lists, one kind": Form([alone], most=4), "lists, unequal ones together": Form([unequal_lists], most=4),
    }  # fmt: skip
    return {name: form._replace(cells=[*map(vpps.cell, form.cells)]) for name, form in found.items()}


FORMS = forms()
BATCHES: list[Any] = [
    [3], 3, -1, [7, 2, 2, 19], slice(2, 9), slice(0, 9, 2), slice(0, 20), np.arange(19, -1, -1),
    np.array([4, 5], np.int32),
]  # fmt: skip

step = vpps.cell(lambda before, x: vpps.tanh(before + x))


def of_a_chain(graph: vpps.Graph, x: vpps.Rows) -> Any:
    """Return that many rows, each in a separate level, in no particular order."""
    places = np.arange(len(x), dtype=np.int32)
    found = graph.map(step, children=(places - 1)[:, None], inputs={"x": x}, levels=places)
    return found[np.random.default_rng(8).permutation(len(x))]


VECTORS: list[Callable[[vpps.Graph, vpps.Rows], Any]] = [
    lambda graph, x: x,
    lambda graph, x: x[np.arange(len(x)) // 3],
    lambda graph, x: vpps.tanh(x),
    of_a_chain,
]


def in_pieces(graph: vpps.Graph, x: vpps.Rows) -> Any:
    """Return rows whose numbers have a stride; they are left to NumPy."""
    return x[::-1]


NUMBERS = (-7, -2, -1, 0, 1, 3, CLASSES, WORDS, 2**31 - 1, -(2**31))
STATES: list[Any] = [None, [H, C], ((H,), C), (np.int64(H), C), [[H], C], (C, H), H, "H", ((H, 1), C)]


def damaged(value: Any, random: Random) -> Any:
    """Change an array's elements, type, length or layout; change rows; or return None."""
    if isinstance(value, tuple) and type(value[0]) is int:
        return random.choice(STATES)
    if isinstance(value, tuple):
        place = random.randrange(2)
        if not random.randrange(8):
            return random.choice(([*value], value[:1], (*value, value[0])))
        return tuple(damaged(x, random) if k == place else x for k, x in enumerate(value))
    if isinstance(value, vpps.Rows):
        n = len(value)
        return random.choice((value[:-1], vpps.Graph().rows(np.ones((n, H))), value[:, 1:], np.zeros(n, np.int32)))
    if value is None or not random.randrange(16):
        return None
    array = np.array(value)
    if array.size and random.randrange(3):  # mostly values that could be right
        place = random.randrange(array.size)
        others = [k for k in NUMBERS if np.iinfo(array.dtype).min <= k <= np.iinfo(array.dtype).max]
        array.flat[place] = random.choice([*others, len(array), len(array) - 1, min(array.flat[place] + 1, 127)])
        return array
    changed: list[Any] = [
        array[:-1], array[:0], np.append(array, array[:1], axis=0), array + array.dtype.type(1),
        array - array.dtype.type(1), array * array.dtype.type(0), array.astype(np.float32), array.astype(np.int64),
        array.astype(np.int16), array.astype(np.uint32), array.repeat(2, axis=0)[::2], array.tolist(), array[:, None],
        np.asfortranarray(array),
    ]  # fmt: skip
    if array.ndim == 2:
        changed += [np.column_stack([array, np.full(len(array), k, np.int32)]) for k in (-1, 0)]
    return random.choice(changed)


class Case(NamedTuple):
    """A random map of a form.

    Attributes:
        which: numbers of the graphs.
        vectors: form of the rows.
        zeros: zeros that the graph already has.
        state: form of the children's results, or None.
        cells: form in which cells are given.
        damage: place of the damage, or None.
        seed: seed of the damage.
    """

    form: Form
    graphs: GraphSet
    which: Any
    vectors: Callable[[vpps.Graph, vpps.Rows], Any]
    zeros: tuple[int, ...]
    distinct: bool
    state: Any
    cells: str
    damage: tuple[str, ...] | None
    seed: int

    def arguments(self, graph: vpps.Graph) -> dict[str, Any]:
        batch: GraphBatch = self.graphs[self.which]
        structure: dict[str, Any] = dict(batch.structure)
        n_kinds = len(self.form.cells)
        if n_kinds != 2 or self.cells not in ("by name", "by number"):
            structure["kinds"] = None
        assert batch.kind is not None
        kinds = {1: None, 2: batch.kind, 3: batch.kind * (1 + batch["word"] % 2).astype(np.int8)}
        structure["kind"] = kinds[n_kinds]
        if n_kinds == 1 and self.form.most is None:
            structure |= {"children": None, "levels": np.zeros(batch.n_vertices, np.int32)}
        inputs = {"word": batch["word"] % (9 if self.seed % 2 else WORDS)}
        if self.form.inputs == "label":
            inputs["label"] = batch["label"]
        else:
            data = np.random.default_rng(1).normal(size=(batch.n_vertices, H))
            inputs |= {name: self.vectors(graph, graph.rows(data, grad=True)) for name in self.form.inputs}
        return {**structure, "inputs": inputs, "distinct": self.distinct, "state": self.state}

    def given(self) -> Any:
        cells = self.form.cells
        if len(cells) != 2 or self.cells == "list":
            return cells
        return {
            "by name": {"inner": cells[1], "leaf": cells[0]}, "by number": {0: cells[0], 1: cells[1]},
            "tuple": tuple(cells),
        }[self.cells]  # fmt: skip

    def outcome(self) -> tuple[list[Any], bool]:
        """Record twice; returns the recordings or the error, and True if compiled code recorded it."""
        first = vpps.Graph()
        with suppress(vpps.ShapeError):
            first.map(self.given(), **self.arguments(first))  # NumPy records the first map of these cells
        graph = vpps.Graph()
        for shape in self.zeros:
            graph.zeros(shape)
        right = self.arguments(graph)
        arguments = {**right, "inputs": {**right["inputs"]}}
        if self.damage is not None:
            random, within, (*path, name) = Random(self.seed), arguments, self.damage
            for key in path:
                within = within[key]
            within[name] = damaged(within[name], random)
        before, said, n = contents_of(graph), [], n_packed(graph)
        try:
            for _ in range(2):
                found = graph.map(self.given(), **arguments)
                rows = found if isinstance(found, tuple) else (found,)
                said += [(r.ids.tolist(), r.levels.tolist(), r.shape, r.highest_level()) for r in rows]
        except Exception as error:
            assert contents_of(graph) == before
            return [type(error), re.sub(r"graph \d+", "graph", str(error))], False
        if self.damage == ("levels",) and not np.array_equal(arguments["levels"], right["levels"]):
            return [ids for ids, *_ in said], False  # any levels above the children's are right
        return [*said, contents_of(graph)], n_packed(graph) > n


def n_packed(graph: vpps.Graph) -> int:
    return sum(type(chunk) is PackedChunk for block in graph.blocks.values() for _, chunk in block.bulk)


def draw(form: Form, random: Random, damage: bool) -> Case:
    missing, seed = random.choice((0, 0, 0.1, 0.5, 1)), random.randrange(4)
    graphs = with_missing(forest(seed), missing, seed) if form.most is None else lists(form.most, missing, seed)
    inputs = ["word", "label"] if form.inputs == "label" else ["word", *form.inputs]
    places = [("kind",), ("children",), ("children",), ("levels",), ("state",), *(("inputs", name) for name in inputs)]
    usual = damage or random.random() < 0.7
    return Case(
        form, graphs, BATCHES[4] if damage else random.choice(BATCHES), random.choice([in_pieces, *VECTORS]),
        random.choice(((), (C,), (C, H))), random.random() < 0.4, (H, C) if usual else ((H,), C),
        "list" if usual else random.choice(("tuple", "by name", "by number")),
        random.choice(places) if damage else None, random.randrange(10**6),
    )  # fmt: skip


@pytest.mark.parametrize("damage", [False, True], ids=["right", "damaged"])
@pytest.mark.parametrize("form", FORMS)
def test_both_recorders_record_the_same(form: str, damage: bool, use_recorder: Callable[[str], None]) -> None:
    for number in range(80 if damage else 40):
        case = draw(FORMS[form], Random(f"{form} {number}"), damage)
        outcomes = []
        for recorder in ("python", "compiled"):
            use_recorder(recorder)
            outcomes.append(case.outcome())
        (expected, by_numpy), (found, packed) = outcomes
        assert found == expected, case
        assert not by_numpy
        usual = form != "lists, unequal ones together" and not ("x" in case.form.inputs and case.vectors is in_pieces)
        assert damage or packed == usual, case


def test_zeros_that_are_numbered_otherwise_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a garbage collection can run recording code at that moment."""
    case = draw(FORMS["lists"], Random(5), damage=False)._replace(graphs=lists(4, 0.3, 1), which=slice(0, 20))
    recorded = []
    zeros_of = vpps.Graph.zeros_of

    def zeros_after_others(graph: vpps.Graph, shape: Any) -> vpps.Expression:
        zeros_of(graph, (99,))
        return zeros_of(graph, shape)

    for patched in (True, False):
        monkeypatch.setattr(vpps.Graph, "zeros_of", zeros_after_others if patched else zeros_of)
        recorded.append(case._replace(zeros=() if patched else (99,)).outcome()[0])
    assert recorded[0] == recorded[1]
