"""The cpu target's weight gradients, straight from instructions: sizes at which passes, panels and registers end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels import compile_quickly
from vpps.kernel import host_compiler
from vpps.kernel.host_compiler import tile_of_machine
from vpps.kernel.render import TILES
from vpps.model.optim import HYPER
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import direct, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC, NO_FLAGS, Flag
from vpps.values import float_word

G, W, TRANSPOSED, X, DY, SIZE = 64, 1 << 15, 3 << 14, 1 << 16, 1 << 18, 1 << 20  # offsets in the pool

# Rows of the matrix (few, half a panel, more), widths of the two segments of its columns, vectors (passes of 128).
CASES = [(1, 64, 1, 5), (5, 70, 130, 129), (16, 130, 64, 300), (17, 64, 9, 128), (24, 129, 3, 7), (70, 40, 100, 257)]


@pytest.mark.cpu
@pytest.mark.parametrize("isa", [tile_of_machine().isa, "neon"])
def test_outer_products_of_any_size(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    """Covers the usual tile, and NEON's tile on this processor: a gradient, an addition to it, and another addition
    with an SGD step."""
    tile = replace(TILES[isa], isa=tile_of_machine().isa)
    monkeypatch.setattr(host_compiler, "tile_of_machine", lambda: tile)
    if tile != tile_of_machine():
        compile_quickly(monkeypatch)
    rng = np.random.default_rng(0)
    machine = CpuMachine(1)
    machine.reserve(SIZE, 0)
    for rows, first, second, n in CASES:
        columns, panels = first + second, -(-rows // machine.panel)
        machine.pool[:] = rng.normal(size=SIZE)
        machine.pool[W:X] = 0
        dy = machine.pool[DY : DY + n * rows].reshape(n, rows).astype(np.float64)
        x = machine.pool[X : X + n * columns].reshape(n, columns).astype(np.float64)
        segments = [(direct(X, columns), first), (direct(X + first, columns), second)]
        fields = {"gradient": G, "columns": columns, "dy": direct(DY, rows), "x": segments}
        places = {"weights": W, "transposed": TRANSPOSED, "moment0": 0, "moment1": 0, "average": 0, "complement": 0.0}
        hyper = [float_word(v) for v in (1.0, *[0.0] * (len(HYPER) - 1))]  # the rate is 1
        words = [MAGIC, 1, 1, 0, HEADER_WORDS + 1 + len(hyper), *hyper]
        for flags in (NO_FLAGS, Flag.ACCUMULATE):  # the second instruction adds the same again
            words += encode("outer", n, rows, 1, flags, **fields)
        words += encode("outer_update.sgd", n, rows, 1, Flag.ACCUMULATE, **fields, **places, hyper=HEADER_WORDS + 1)
        script = plain([*words, *encode("end", 0, 0)])
        script[3] = len(script)
        machine.launch(script)
        assert machine.wait() is None
        packed = machine.pool[W : W + panels * columns * machine.panel]
        found = packed.reshape(panels, columns, machine.panel).transpose(0, 2, 1).reshape(-1, columns)
        expected = -3 * dy.T @ x
        assert np.linalg.norm(found[:rows] - expected) / np.linalg.norm(expected) < 1e-6, (rows, first, second, n)
        assert not found[rows:].any()  # the rows that pad the last panel
    machine.close()
