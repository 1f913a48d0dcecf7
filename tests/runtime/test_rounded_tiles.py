"""The cpu target's rounding instructions are bit-identical to `product`, for any processor, tile and number of virtual
processors; at sizes around the ends of pairs, panels, passes and registers, with numbers at the ends of their range."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.classifier import Classifier, new
from tests.classifier import same_bits as same_bits_of_all
from tests.kernels import compile_quickly
from vpps.kernel import host_compiler
from vpps.kernel.cache import Label
from vpps.kernel.host_compiler import FLAGS, ISA_FLAGS, ISA_NEEDS, cpu_features, isas_of, tile_of_machine
from vpps.kernel.prebuilt import HostLibrary
from vpps.kernel.render import TILES, header_text
from vpps.model.optim import HYPER
from vpps.ops.precision import PRECISIONS
from vpps.placement.distribution import pairs
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import direct, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC, Flag
from vpps.values import float_word

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")]

Floats = NDArray[np.float32]
BF16 = PRECISIONS["bf16"]
SMALLEST = 2.0**-126  # of normal numbers

# Rows of the matrix, widths of the two segments of its columns, vectors (passes of 128).
CASES = [(1, 1, 1, 1), (1, 64, 1, 5), (5, 3, 130, 129), (16, 130, 63, 4), (33, 7, 9, 17), (70, 41, 100, 257)]
OTHER = isas_of()[1] if tile_of_machine().isa == "avx512" else "portable"  # instruction set
KINDS = ("ordinary", "tiny", "huge", "special")


def numbers(rng: np.random.Generator, kind: str, *shape: int) -> Floats:
    """Return random signs and significands. "tiny": products are near the smallest normal numbers, and some factors
    below them. "huge": products overflow, or nearly. "special": a few are NaN or infinite."""
    low, high = {"tiny": (-70, -56), "huge": (61, 64)}.get(kind, (-4, 4))
    x = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(low, high, shape)).astype(np.float32)
    if kind == "tiny":
        x[rng.random(shape) < 0.1] *= np.float32(2.0**-75)
    if kind == "special":
        chosen = rng.random(shape) < 0.002
        x[chosen] = rng.choice(np.array([np.inf, -np.inf, np.nan, 3.4e38, -0.0], np.float32), chosen.sum())
    return x


def flushed(x: NDArray[Any]) -> Floats:
    """Return the nearest float32; zero instead of a denormal number, rounded as if there were smaller ones."""
    return np.where(np.abs(x) < SMALLEST - 2.0**-151, np.copysign(0, x), x).astype(np.float32)


def rounded(x: Floats) -> Floats:
    return BF16.round(flushed(x))


def product(a: Floats, b: Floats) -> Floats:
    """Return (m, k) times (n, k), (m, n): pair by pair, the second product first, each added and rounded once. float64
    products are exact, and their sums are correct after another rounding."""
    x, y = (np.pad(rounded(m), ((0, 0), (0, m.shape[1] % 2))).astype(np.float64) for m in (a, b))
    total = np.zeros((len(a), len(b)), np.float32)
    for c in range(0, x.shape[1], 2):
        for k in (c + 1, c):
            total = flushed(x[:, k, None] * y[None, :, k] + total)
    return total


def plus(a: Floats, b: Floats) -> Floats:
    return flushed(flushed(a).astype(np.float64) + flushed(b))


def same_bits(a: Floats, b: Floats) -> bool:
    """Return True for equal bits; all NaNs count as equal."""
    x, y = (np.where(np.isnan(m), np.float32("nan"), m).view(np.uint32) for m in (a, b))
    return np.array_equal(x, y)


class Machine(CpuMachine):
    """Runs instructions one at a time, on numbers anywhere in the pool."""

    def __init__(self, vps: int) -> None:
        super().__init__(vps, rounds=True)
        self.reserve(1 << 20, 0)
        self.clear()

    def clear(self) -> None:
        self.pool[:] = np.nan  # memory that is not written must not be read
        self.pool[0] = 0
        self._end = 64

    def put(self, x: Floats) -> int:
        """Store numbers and return their address."""
        at, self._end = self._end, self._end + (x.size + 63) // 64 * 64
        self.pool[at : at + x.size] = x.ravel()
        return at

    def at(self, address: int, *shape: int) -> Floats:
        return self.pool[address:][: int(np.prod(shape))].reshape(shape).copy()

    def packed(self, matrix: Floats) -> Floats:
        """Return the matrix, panel after panel, [panel][column][row]."""
        rows, columns = matrix.shape
        padded = np.pad(matrix, ((0, -rows % self.panel), (0, 0)))
        return padded.reshape(-1, self.panel, columns).transpose(0, 2, 1)

    def unpacked(self, address: int, rows: int, columns: int) -> Floats:
        panels = self.at(address, -(-rows // self.panel), columns, self.panel)
        return panels.transpose(0, 2, 1).reshape(-1, columns)[:rows]

    def put_pairs(self, matrix: Floats) -> int:
        return self.put(self.packed(pairs(matrix, BF16)))

    def execute(self, name: str, n: int, width: int, flags: Flag, **fields: Any) -> None:
        """Run an instruction. `hyper`: settings of the optimizer, if there is one."""
        hyper = [float_word(v) for v in fields.get("hyper", [])]
        if hyper:
            fields["hyper"] = HEADER_WORDS + self.vps
        entry = HEADER_WORDS + self.vps + len(hyper)
        words = [MAGIC, self.vps, 1, 0, *[entry] * self.vps, *hyper]
        script = plain([*words, *encode(name, n, width, 1, flags, **fields), *encode("end", 0, 0)])
        script[3] = len(script)
        self.launch(script)
        assert self.wait() is None


def use_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_quickly(monkeypatch)
    monkeypatch.setenv("VPPS_ISA", OTHER)


@pytest.fixture(scope="module", params=["own", "other"])
def machines(request: pytest.FixtureRequest) -> Iterator[list[Machine]]:
    """Yield machines with several numbers of virtual processors: the usual machine, and one with a different tile, with
    arithmetic for processors without pair products."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "other":
            use_the_other(patch)
        made = [Machine(vps) for vps in (1, 3)]
    yield made
    for machine in made:
        machine.close()


def each(machines: list[Machine]) -> Iterator[tuple[Machine, np.random.Generator, str, tuple[int, int, int, int]]]:
    for machine in machines:
        rng = np.random.default_rng(0)
        for case in CASES:
            for kind in KINDS:
                machine.clear()
                yield machine, rng, kind, case


def segments(machine: Machine, x: Floats, first: int) -> list[tuple[Any, int]]:
    """Store rows in two adjacent arrays."""
    parts = x[:, :first], x[:, first:]
    return [(direct(machine.put(part), part.shape[1]), part.shape[1]) for part in parts]


def test_matrices_times_vectors(machines: list[Machine]) -> None:
    for machine, rng, kind, (rows, first, second, n) in each(machines):
        W, x = numbers(rng, kind, rows, first + second), numbers(rng, kind, n, first + second)
        bias, before = numbers(rng, kind, rows), numbers(rng, kind, n, rows)
        fields = {"weights": machine.put_pairs(W), "columns": first + second, "matrix": 0}
        expected, xs = product(x, W), segments(machine, x, first)
        for flags, view, wanted in (
            (Flag.BF16, direct(0, 0, True), expected),
            (Flag.BF16 | Flag.ACCUMULATE, direct(machine.put(bias), 0), plus(plus(expected, bias), before)),
        ):
            y = machine.put(before)
            machine.execute("matvec", n, rows, flags | Flag.PAIRS, **fields, dst=direct(y, rows), bias=view, x=xs)
            assert same_bits(machine.at(y, n, rows), wanted), (kind, rows, first, second, n)


def test_outer_products(machines: list[Machine]) -> None:
    """A gradient, and an addition to a gradient."""
    for machine, rng, kind, (rows, first, second, n) in each(machines):
        columns = first + second
        dy, x = numbers(rng, kind, n, rows), numbers(rng, kind, n, columns)
        expected = np.zeros((rows, columns), np.float32)
        passes = [product(dy[k : k + 128].T, x[k : k + 128].T) for k in range(0, n, 128)]
        g = machine.put(machine.packed(numbers(rng, kind, rows, columns)))
        fields = {"gradient": g, "columns": columns, "dy": direct(machine.put(dy), rows)}
        fields["x"] = segments(machine, x, first)
        expected = passes[0]
        for flags in (Flag.BF16, Flag.BF16 | Flag.ACCUMULATE):
            machine.execute("outer", n, rows, flags, **fields)
            for of_pass in passes if flags & Flag.ACCUMULATE else passes[1:]:
                expected = plus(expected, of_pass)
            assert same_bits(machine.unpacked(g, rows, columns), expected), (kind, rows, first, second, n)
        machine.execute("outer", 0, rows, Flag.BF16, **fields)  # without any vectors
        assert not machine.unpacked(g, rows, columns).any()


@pytest.mark.parametrize("step", ["outer_update.sgd", "update_matrix.sgd"])
def test_a_step_writes_what_products_read(machines: list[Machine], step: str) -> None:
    """A step writes the new weights' pairs of columns, then the transpose's."""
    for machine, rng, kind, (rows, first, second, n) in each(machines):
        if kind != "ordinary":
            continue
        columns = first + second
        W, dy, x = numbers(rng, kind, rows, columns), numbers(rng, kind, n, rows), numbers(rng, kind, n, columns)
        places: dict[str, Any] = {
            "weights": machine.put(machine.packed(W)),
            "gradient": machine.put(machine.packed(W)),
            "moment0": 0,
        }
        places |= {"moment1": 0, "average": 0, "complement": 0.0, "columns": columns}
        own, transposed = machine.packed(pairs(W, BF16)), machine.packed(pairs(W.T.copy(), BF16))
        both = machine.put(np.concatenate([own.ravel() * 0, transposed.ravel() * 0]))
        if step.startswith("outer"):
            places |= {"dy": direct(machine.put(dy), rows), "x": segments(machine, x, first)}
        hyper = (1.0, *[0.0] * (len(HYPER) - 1))  # the rate is 1
        flags = Flag.BF16 | Flag.PAIRS if step.startswith("outer") else Flag.PAIRS
        machine.execute(step, n, rows, flags, **places, transposed=both + own.size, hyper=hyper)
        after = machine.unpacked(places["weights"], rows, columns)
        assert not np.array_equal(after, W)
        for at, matrix in ((both, after), (both + own.size, after.T.copy())):
            expected = pairs(matrix, BF16)
            assert same_bits(machine.unpacked(at, *expected.shape), expected), (rows, first, second, n)


def test_matrices_times_matrices(machines: list[Machine]) -> None:
    """Covers products with multi-column matrices, whose rows are in two segments, and the gradient."""
    for machine, rng, kind, (rows, first, second, n) in each(machines):
        columns, count, inner = n % 40 + 1, 3, first + second
        W, M = numbers(rng, kind, rows, inner), numbers(rng, kind, count, inner, columns)
        dY, before = numbers(rng, kind, count, rows, columns), numbers(rng, kind, count, rows, columns)
        parts = M[:, :first], M[:, first:]
        x = [(direct(machine.put(p), p[0].size), p[0].size) for p in parts]
        y = machine.put(before)
        fields = {"weights": machine.put_pairs(W), "inner": inner, "columns": columns, "x": x}
        dst = direct(y, rows * columns)
        machine.execute("packed_matmul", count, rows * columns, Flag.BF16 | Flag.PAIRS, **fields, dst=dst)
        wanted = np.stack([product(W, m.T) for m in M])
        assert same_bits(machine.at(y, *wanted.shape), wanted), (kind, rows, first, second, columns)

        g = machine.put(machine.packed(W))
        gradient = {"gradient": g, "inner": inner, "columns": columns, "x": x}
        gradient["dy"] = direct(machine.put(dY), rows * columns)
        machine.execute("packed_matmul_gradient", count, rows, Flag.BF16, **gradient)
        at_once = max(1, 128 // columns)
        even = ((0, 0), (0, 0), (0, columns % 2))  # matrices do not share pairs
        A, B = np.pad(dY, even), np.pad(M, even)
        passes = [
            product(*(np.concatenate(list(m[r : r + at_once]), axis=1) for m in (A, B)))
            for r in range(0, count, at_once)
        ]
        expected = passes[0]
        for of_pass in passes[1:]:
            expected = plus(expected, of_pass)
        assert same_bits(machine.unpacked(g, rows, inner), expected), (kind, rows, first, second, columns)


@pytest.mark.parametrize(
    "options", [{}, {"clip_norm": 0.5, "ema": 0.9}, {"frozen": "U"}, {"accumulate": True}], ids=lambda o: "-".join(o)
)
def test_training_leaves_the_same_bits_whoever_computes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Covers any processor with fused multiply-add (portable code has none, so its updates may differ), number of
    virtual processors, schedule, and a run interrupted by a checkpoint."""
    options = dict(options)
    frozen, accumulate = options.pop("frozen", None), options.pop("accumulate", False)

    def train(model: vpps.Model, batches: range, **settings: Any) -> dict[str, Floats]:
        net = Classifier(model)
        if frozen:
            model[frozen].trainable = False
        with vpps.Handle(model, vpps.Adam(lr=0.01), precision="bf16", **options, **settings) as handle:
            for seed in batches:
                handle.fb(*net.batch(seed), accumulate=accumulate and seed % 2 == 0)
        return model.numpy()

    found = []
    for isa in ("auto", *(() if OTHER == "portable" else (OTHER,))):
        if isa == OTHER:
            use_the_other(monkeypatch)
        found += [
            train(new().model, range(4), vps=vps, schedule=s) for vps, s in ((1, "vector"), (3, "vector"), (2, "paper"))
        ]
        net = new()
        train(net.model, range(2), vps=2)
        net.model.save(tmp_path / isa)
        found.append(train(vpps.Model.load(tmp_path / isa), range(2, 4), vps=2))
    assert all(same_bits_of_all(weights, found[0]) for weights in found)


@pytest.mark.parametrize("isa", isas_of())
def test_pairs_multiply_alike_on_all_processors(isa: str) -> None:
    """All bits of all three operands, and of the rounded numbers, are random."""
    if not ISA_NEEDS[isa] <= cpu_features():
        pytest.skip(f"this processor has no {isa}")
    tile = TILES[isa]
    headers = "".join(header_text(f"host/{name}.h") for name in ("prelude", "lanes", "pairs"))
    source = f"""
        #define VP_PANEL {tile.panel}
        #define VP_LANES {tile.lanes}
        {headers}
        #pragma GCC visibility push(default)
        extern "C" void multiply(const Pair* a, const Pair* b, float* sum, int n)
        {{
            const Flushing flushing;
            for (int k = 0; k < n; k += VP_LANES)
                put_lanes(sum + k, fma_lanes(pairs_at(a + k), pairs_at(b + k), lanes_at(sum + k)));
        }}
        extern "C" void round_to_pairs(const float* a, const float* b, Pair* to, int n) {{ pair_rows(to, a, b, n); }}
        extern "C" void round_in_row(const float* a, uint16_t* to, int n) {{ round_row(to, a, n); }}
    """
    flags = (*FLAGS, *ISA_FLAGS[isa], "-Wno-unused-function")
    library = ctypes.CDLL(str(host_compiler.build_library(HostLibrary("pairs", "pairs", source, flags, Label("test")))))
    rng, n = np.random.default_rng(0), 1 << 17
    a, b, total = rng.integers(0, 1 << 32, (3, n), np.uint32)
    near = np.array([0x00800000, 0x80800001, 0x7F7FFFFF, 0x00000001, 0x807FFFFF], np.uint32)
    if isas_of()[0] == "neon":  # FZ also flushes numbers that only rounding would make the smallest normal number
        near = near[2:]
    total[::3] = rng.choice(near, len(total[::3]))
    halves = [[v.view(np.float32) for v in (x & np.uint32(0xFFFF0000), x << np.uint32(16))] for x in (a, b)]
    expected = flushed(total.view(np.float32))
    for x, y in zip(*halves, strict=True):
        expected = flushed(flushed(x).astype(np.float64) * flushed(y) + expected)
    found = total.view(np.float32).copy()
    pointer: Callable[[Any], ctypes.c_void_p] = lambda x: ctypes.c_void_p(x.ctypes.data)  # noqa: E731
    library.multiply(pointer(a), pointer(b), pointer(found), n)
    assert same_bits(found, expected)

    x, y = total.view(np.float32), a.view(np.float32)
    words, row = np.zeros(n - 5, np.uint32), np.zeros(n - 5, np.uint16)
    library.round_to_pairs(pointer(x), pointer(y), pointer(words), n - 5)
    library.round_in_row(pointer(x), pointer(row), n - 5)
    for found, exact in ((words << 16, x), (words & np.uint32(0xFFFF0000), y), (row.astype(np.uint32) << 16, x)):
        assert same_bits(found.view(np.float32), rounded(exact[: n - 5]))
