"""Micro programs (gpu_micro/) that decide how a GPU computes products and gradients and synchronizes blocks.

    python bench/gpu_products.py [--only products,gradients,meetings,levels] >> results/gpu/DATE-products.jsonl
    python bench/gpu_products.py --compile-only [--arch sm_90]      compiles into the cache of kernels; needs no GPU

Every line has microseconds (slowest block, medians over rounds), `floor` (the least time possible on the machine), the
error against float64, and a verdict. The verdict is "go" if the time is a small enough share of the compared case's:

    products   lanes own results, warps divide K; compared with the frozen routine of today's kernel in the same call:
               at most half. Rows for four groups of blocks are compared with a quarter of the rows and four times the
               vectors, the shape in that kernel. Unroll 8 versus 2 shows the cost of fetching instructions. bf16, tf32
               and 3xtf32 compared with float32 (unroll 8): at most half
    gradients  64x64 tiles over 1 to 8 segments, added in order; compared with cuBLAS: at most equal
    meetings   a level in which blocks exchange 2 KB; compared with one counter for all blocks: at most three quarters
    levels     20 levels of product, tail and meeting; compared with one counter for all blocks: at most three quarters

A waiting loop ends after a second and is reported as "timed out". Any failing case is named, and the next case runs.
Exit status: 1 if anything failed or a result is wrong.
"""

from __future__ import annotations

import ctypes
import datetime
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
from numpy.typing import NDArray
from on_gpu import describe
from roofline import GPUS

from vpps.errors import KernelError
from vpps.kernel import nvrtc
from vpps.kernel.render import header_text
from vpps.runtime.driver import Driver
from vpps.runtime.results import LaunchParameters
from vpps.script.instructions import COUNTERS

BENCH = "gpu_products"
SOURCES = Path(__file__).resolve().parent / "gpu_micro"
THREADS, HEAD, LINE = 256, 8, 32  # common.cuh
COUNTED = (2 * COUNTERS + 2) * LINE  # zero words at the beginning: counters, `stopped`, `losses`
PATIENCE, TARGET = 10**9, 300e3  # nanoseconds: limit of a waiting loop; aimed duration of a launch
# KIND in product.cuh, and the largest relative error, by norms.
KINDS = {"float32": (0, 1e-5), "bf16": (1, 1e-2), "tf32": (2, 1e-3), "3xtf32": (3, 1e-5)}
# Rows and columns of a block's weights: R, C, W of today.cu, as vpps's kernel had them.
SHAPES = {
    (10, 512): (5, 4, 4), (40, 512): (5, 4, 4), (4, 1280): (4, 5, 8), (16, 1280): (4, 5, 8), (24, 256): (3, 2, 4),
    (8, 768): (2, 3, 8),
}  # fmt: skip
COUNTER, CLUSTER, POLLED, ROUND_TRIP = range(4)  # meeting.cu
NONE = np.zeros(0, np.uint32)
Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
Beside = tuple[str, list[float], float]


@dataclass(frozen=True)
class Program:
    """A file of gpu_micro with values for its macros, and the shared memory of a block in bytes."""

    file: str
    macros: dict[str, int]
    shared: int = 0

    @property
    def source(self) -> str:
        """Return the complete source to compile."""
        read = partial(Path.read_text, encoding="utf-8")
        files = [SOURCES / "product.cuh"] * (self.file in ("product.cu", "levels.cu")) + [SOURCES / self.file]
        macros = [f"#define {name} {value}\n" for name, value in self.macros.items()]
        before = [header_text("cuda/ptx.cuh"), read(SOURCES / "common.cuh")]
        return "".join(["#define VP_CACHED 0\n", *before, *macros, *map(read, files)])


def product(
    rows: int, k: int, n: int, unroll: int = 2, kind: str = "float32", file: str = "product.cu", more: int = 0,
    **macros: int,
) -> Program:  # fmt: skip
    """Return the program of product.cuh, with a tile that suits n vectors.

    Args:
        more: further floats of shared memory that the file uses.
    """
    chunk = macros.setdefault("KC", min(k, 256))
    buffers = k // chunk + 1 if n <= 8 else 2
    if kind == "float32":
        lv = 4 if n <= 4 else 8
        vt, rt = 1 if n <= 8 else 2 if n <= 16 else 4, -(-rows * lv // 32)
        height, v, stride, held = rt * 32 // lv, lv * vt, chunk + 4, rt * 32 // lv * (k + 4)
    else:
        lv, vt, rt = 8, 2, -(-rows // 16)
        height, v, stride, held = 16 * rt, 16, chunk + 16, 0
    macros |= {"R": rows, "K": k, "BUFFERS": buffers, "KIND": KINDS[kind][0], "LV": lv, "RT": rt, "VT": vt}
    macros["UNROLL"] = unroll
    return Program(file, macros, 4 * (held + buffers * v * stride + 8 * height * v + more))


def levels_program(how: int, blocks: int, n: int, width: int) -> Program:
    """Return the program for 20 levels of n vertices with `width` units, for groups of `blocks` blocks."""
    units = -(-width // blocks)
    own = {"KC": width, "HOW": how, "UNITS": units, "VERTICES": n}
    return product(5 * units, 2 * width, n, file="levels.cu", more=7 * units * n, **own)


class Scale(NamedTuple):
    """Sizes to measure: those for a GPU, or the smallest ones."""

    smallest: bool
    blocks: int
    has_clusters: bool

    @property
    def part(self) -> int:
        """Return the number of blocks in each of several groups."""
        return self.blocks // (2 if self.smallest else 4)

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Return the ways to synchronize, today's first: name, number, blocks per group."""
        clusters = [size for size in (8, 16) if self.has_clusters and size <= self.blocks]
        counters = [(f"counters of {size}", COUNTER, size) for size in (self.blocks, self.part)]
        return counters + [(f"clusters of {size}", CLUSTER, size) for size in clusters]

    @property
    def products(self) -> Iterator[tuple[int, int, int, tuple[int, int, int]]]:
        """Yield rows, columns, vectors, and the slot for today's routine."""
        for (rows, k), slot in {(10, 128): (5, 1, 4)}.items() if self.smallest else SHAPES.items():
            for n in (1, 17) if self.smallest else (1, 4, 16, 64, 256, 1024):
                yield rows, k, n, slot


class Gpu:
    """The device. base: times with which later cases are compared."""

    def __init__(self, smallest: bool) -> None:
        self.driver = Driver()
        self.api: Any = self.driver._api
        clusters = self.api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
        self.rounds, blocks = (1, 8) if smallest else (5, self.driver.gpu.sms)
        self.scale = Scale(smallest, blocks, bool(self.api.cuDeviceGetAttribute(clusters, 0)[1]))
        known = next((peaks for name, peaks in GPUS.items() if name in self.driver.gpu.name), GPUS["H100"])
        self.peaks = known._replace(flops=known.flops * blocks / 132)
        with self.driver:
            self.stream = self.driver.stream()
        self.base: dict[str, list[float]] = {}
        self.about = {"gpu": describe(["vpps"], "cuda"), "date": datetime.date.today().isoformat()}

    def finish(self, *calls: Callable[[], Any]) -> None:
        """Make some calls, and wait for them."""
        self.driver.finish(self.stream, *calls)

    def report(self, case: str, us: list[float], floor: float, beside: Beside | None = None, **extra: object) -> None:
        """Print a line. beside: name of the compared case, its time, and the share that suffices."""
        if beside is not None:
            share = harness.median_ratio(us, beside[1])
            extra["verdict"] = f"{'go' if share <= beside[2] else 'no'}: {share:.2f} of {beside[0]}'s time"
        extra |= {"floor": float(f"{floor:.4g}"), **self.about}
        harness.report(BENCH, case, us, "us", beside and beside[:2], higher_is_better=False, **extra)

    def floor(self, rows: int, k: int, n: int, exact: bool = True) -> float:
        """Return the least microseconds for a product: all blocks' reads of all vectors from L2, or multiply-adds."""
        flops = 2 * n * rows * k / self.peaks.flops if exact else 0
        return 1e6 * self.scale.blocks * max(flops, 4 * n * k / self.peaks.near)


def error_of(found: NDArray[Any], expected: NDArray[Any], most: float) -> float:
    """Return the relative error, by norms. Raises ValueError if it is larger than `most`."""
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    if not error <= most:
        raise ValueError(f"relative error {error:.3g}, at most {most:.3g}")
    return float(f"{error:.2g}")


class Launches:
    """Launches of a program, with its memory on the device.

    Args:
        lists: the script's lists, after its first words.
        words: the script's fifth word and those after it.
        cluster: blocks per cluster; 0: the launch is cooperative.
    """

    def __init__(
        self, gpu: Gpu, program: Program, blocks: int, pool: Floats, lists: Words = NONE, words: Sequence[int] = (),
        cluster: int = 0,
    ) -> None:  # fmt: skip
        self.gpu, self.blocks, self.cluster = gpu, blocks, cluster
        self.kernel = gpu.driver.load(nvrtc.compile_cubin(program.source, gpu.driver.gpu.arch).path, program.shared)
        self.script = np.concatenate([np.zeros(HEAD, np.uint32), lists])
        self.script[3], self.script[4 : 4 + len(words)] = len(self.script), words
        self.words = np.zeros(COUNTED + 2 + blocks, np.uint32)
        self.memory = [gpu.driver.allocate(a.nbytes, "a micro program") for a in (pool, self.script, self.words)]
        at, script, rest = (memory.address for memory in self.memory)
        half, stopped = 4 * COUNTERS * LINE, rest + 8 * COUNTERS * LINE
        self.parameters = LaunchParameters(
            at, script, rest, rest + half, rest + 4 * COUNTED, PATIENCE, stopped, stopped + 4 * LINE
        )  # fmt: skip
        self.list = (ctypes.c_void_p * 1)(ctypes.addressof(self.parameters))
        self.put(pool)

    def put(self, pool: Floats) -> None:
        """Overwrite the beginning of the pool."""
        gpu = self.gpu
        gpu.finish(gpu.driver.copying_in(self.memory[0].address, pool.ctypes.data, pool.nbytes, gpu.stream))

    def found(self, first: int, *shape: int) -> Floats:
        """Return part of the pool."""
        floats, gpu = np.empty(shape, np.float32), self.gpu
        at = self.memory[0].address + 4 * first
        gpu.finish(gpu.driver.copying_out(floats.ctypes.data, at, floats.nbytes, gpu.stream))
        return floats

    def enqueue(self, n: int, repeats: int, cooperative: bool = False) -> None:
        """Enqueue a launch. cooperative: make it cooperative even if it has clusters."""
        gpu, driver, at = self.gpu, self.gpu.driver, ctypes.addressof(self.list)
        self.script[1:3] = n, repeats
        begin = driver.launching(self.kernel, self.blocks, THREADS, gpu.stream, at)
        if self.cluster:
            begin = partial(gpu.api.cuLaunchKernelEx, self.clusters(cooperative), self.kernel.function, at, 0)
        driver.run(
            driver.copying_in(self.memory[1].address, self.script.ctypes.data, self.script.nbytes, gpu.stream),
            driver.filling(self.memory[2].address, 0, COUNTED, gpu.stream), begin,
        )  # fmt: skip

    def clusters(self, cooperative: bool = False) -> Any:
        """Return the configuration for a launch in clusters."""
        api, config = self.gpu.api, self.gpu.api.CUlaunchConfig()
        size, together = api.CUlaunchAttribute(), api.CUlaunchAttribute()
        size.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = self.cluster, 1, 1
        together.id, together.value.cooperative = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1
        config.gridDimX, config.gridDimY, config.gridDimZ = self.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
        config.sharedMemBytes, config.hStream = self.kernel.shared_bytes, self.gpu.stream
        config.attrs = [size, together] if cooperative else [size]
        config.numAttrs = len(config.attrs)
        larger = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        self.gpu.driver.run(partial(api.cuFuncSetAttribute, self.kernel.function, larger, 1))
        return config

    def us(self, n: int, repeats: int, cooperative: bool = False) -> float:
        """Return the microseconds of a launch's slowest block. Raises TimeoutError."""
        gpu, words = self.gpu, self.words
        self.enqueue(n, repeats, cooperative)
        gpu.finish(gpu.driver.copying_out(words.ctypes.data, self.memory[2].address, words.nbytes, gpu.stream))
        if words[2 * COUNTERS * LINE]:
            raise TimeoutError(f"timed out: a block waited longer than {PATIENCE / 1e9} s for others")
        return max(1.0, float(words[-self.blocks :].max())) / 1e3

    def timed(self, n: int) -> list[float]:
        """Return the microseconds per repetition, for each round."""
        first = 1e3 * self.us(n, 1)
        repeats = 1 if self.gpu.scale.smallest else int(min(200, max(2, TARGET / first)))
        return [self.us(n, repeats) / repeats for _ in range(self.gpu.rounds + 1)][1:]  # the first one warms up


def clusters_at_once(gpu: Gpu, program: Program, size: int) -> int:
    """Return the number of resident clusters."""
    launches = Launches(gpu, program, size, np.zeros(64, np.float32), cluster=size)
    status, count = gpu.api.cuOccupancyMaxActiveClusters(launches.kernel.function, launches.clusters())
    if int(status) or not count:
        raise ValueError(f"clusters of {size} do not start: {status.name}, {count} at once")
    return int(count)


# Cases of this program: a name, the programs to compile, and a function of the GPU and these programs.
Case = tuple[str, list[Program], Callable[..., None]]


def products(scale: Scale) -> Iterator[Case]:
    """Yield the successor compared with today's routine, and tensor cores compared with the successor."""
    for rows, k, n, (r, c, w) in scale.products:
        today = Program("today.cu", {"R": r, "C": c, "W": w}, 4 * (32 * 32 * c * w + 16 * 8 * r))
        others = {"unroll=2": product(rows, k, n), "unroll=8": product(rows, k, n, 8)}
        others |= {kind: product(rows, k, n, kind=kind) for kind in KINDS if n >= 16 and kind != "float32"}
        run = partial(_products, rows, k, n, 8 * r // w, list(others))
        yield f"{rows}x{k} n={n}", [today, *others.values()], run


def _products(
    rows: int, k: int, n: int, own: int, names: list[str], gpu: Gpu, today: Program, *programs: Program
) -> None:
    before, error = multiplied(gpu, today, own, k, n * rows // own)
    gpu.report(f"today {own}x{k} n={n * rows // own}", before, gpu.floor(own, k, n * rows // own), error=error)
    beside = "today", before, 0.5
    for name, program in zip(names, programs, strict=True):
        kind = name if name in KINDS else "float32"
        us, error = multiplied(gpu, program, rows, k, n, KINDS[kind][1])
        floor = gpu.floor(rows, k, n, kind == "float32")
        gpu.report(f"product {rows}x{k} n={n} {name}", us, floor, beside, error=error)
        if name == "unroll=8":
            beside = "float32", us, 0.5


def multiplied(gpu: Gpu, program: Program, rows: int, k: int, n: int, most: float = 1e-5) -> tuple[list[float], float]:
    """Return the microseconds of a product, for each round, and its error."""
    rng, first, end = np.random.default_rng(n), 64 + rows * k, 64 + rows * k + n * k
    pool = np.zeros(end + gpu.scale.blocks * n * rows, np.float32)
    pool[:end] = rng.uniform(-1, 1, end)
    order = rng.permutation(n)
    launches = Launches(gpu, program, gpu.scale.blocks, pool, (first + order * k).astype(np.uint32), (end,))
    us = launches.timed(n)
    w, x = pool[64:first].reshape(rows, k), pool[first:end].reshape(n, k)[order]
    found = launches.found(end + (gpu.scale.blocks - 1) * n * rows, n, rows)
    return us, error_of(found, x.astype(np.float64) @ w.T + pool[:rows], most)


def gradients(scale: Scale) -> Iterator[Case]:
    """Yield tiles, compared with cuBLAS."""
    for dy, dx in ((64, 128),) if scale.smallest else ((1280, 512), (768, 256)):
        for n in (35,) if scale.smallest else (35, 325, 1353, 2577):
            program = Program("gradient.cu", {"DY": dy, "DX": dx}, 4 * 3 * 32 * 128)
            yield f"{dy}x{dx} n={n}", [program], partial(_gradients, dy, dx, n)


def _gradients(dy: int, dx: int, n: int, gpu: Gpu, program: Program) -> None:
    rng = np.random.default_rng(n)
    begin, middle, end, sums = np.cumsum([64, n * dy, n * dx, dy * dx]).tolist()  # of dy, x, G; and two partial sums
    pool = np.zeros(sums + 16 * dy * dx, np.float32)
    pool[:end] = rng.uniform(-1, 1, end)
    orders = rng.permutation(n), rng.permutation(n)
    lists = np.concatenate([begin + orders[0] * dy, middle + orders[1] * dx]).astype(np.uint32)
    d = np.ascontiguousarray(pool[begin:middle].reshape(n, dy)[orders[0]])
    x = np.ascontiguousarray(pool[middle:end].reshape(n, dx)[orders[1]])
    expected, blas = d.T.astype(np.float64) @ x, []
    for segments in [s for s in (1, 2, 4, 8) if s == 1 or n >= 16 * s]:
        launches = Launches(gpu, program, gpu.scale.blocks, pool, lists, (end, segments, sums))
        us = launches.timed(n)
        error = error_of(launches.found(end, dy, dx), expected, 1e-5)
        blas = blas or [_cublas(gpu, launches, n, d, x) for _ in us]
        floor = 1e6 * max(2 * n * dy * dx / gpu.peaks.flops, 8 * segments * dy * dx / gpu.peaks.near)
        gpu.report(f"gradient {dy}x{dx} n={n} segments={segments}", us, floor, ("cuBLAS", blas, 1.0), error=error)


def _cublas(gpu: Gpu, busy: Launches, n: int, d: Floats, x: Floats) -> float:
    """Return the microseconds of cuBLAS's product, for contiguous vectors. An earlier launch keeps the GPU busy while
    the host enqueues all products."""
    import cupy

    times = 1 if gpu.scale.smallest else 20
    with gpu.driver.following(gpu.stream):
        rows, columns, begin, end = cupy.asarray(d), cupy.asarray(x), cupy.cuda.Event(), cupy.cuda.Event()
        rows.T @ columns
        busy.enqueue(n, 1 if times == 1 else 100)
        begin.record()
        for _ in range(times):
            rows.T @ columns
        end.record()
        end.synchronize()
    return 1e3 * float(cupy.cuda.get_elapsed_time(begin, end)) / times


def meetings(scale: Scale) -> Iterator[Case]:
    """Yield barriers that carry data; a round trip to L2 is their floor."""
    polled = [size for size in (scale.blocks, scale.part, 16) if size <= scale.blocks]
    every = [("none, a round trip to L2", ROUND_TRIP, 1), *scale.groups]
    for name, how, size in every + [(f"polled data, {size} blocks", POLLED, size) for size in polled]:
        number = 1 if how == ROUND_TRIP else scale.blocks // size
        yield name, [Program("meeting.cu", {"HOW": how})], partial(_meeting, name, how, size, number)
    large = Program("meeting.cu", {"HOW": CLUSTER}, 200 << 10)
    for size in (8, 16) if scale.has_clusters else ():
        yield f"resident clusters of {size}", [large], partial(_resident, size)


def _meeting(name: str, how: int, size: int, number: int, gpu: Gpu, program: Program) -> None:
    n = 3 if gpu.scale.smallest else 300
    pool = np.zeros(64 + number * 512 * (n if how == POLLED else 2), np.float32)
    pool.view(np.uint32)[64:] = 0xFFFFFFFF if how == POLLED else 0
    launches = Launches(gpu, program, size * number, pool, words=(size,), cluster=size * (how == CLUSTER))
    us = []
    for _ in range(gpu.rounds + 1):  # the first one warms up
        launches.put(pool)
        us.append(launches.us(n, 1) / n)
    if wrong := launches.found(0, 1)[0]:
        raise ValueError(f"{wrong:.0f} numbers were not what had been written")
    beside = ("one counter", gpu.base["counter"], 0.75) if "counter" in gpu.base else None
    gpu.base.setdefault("round trip" if how == ROUND_TRIP else "counter", us[1:])
    gpu.report(f"meeting: {name}", us[1:], harness.median(gpu.base["round trip"]), beside, groups=number)


def _resident(size: int, gpu: Gpu, program: Program) -> None:
    """Report how many clusters are resident at 200 KiB per block, and whether a cooperative launch of them starts."""
    count = clusters_at_once(gpu, program, size)
    pool, started = np.zeros(64 + count * 1024, np.float32), "starts"
    launches = Launches(gpu, program, count * size, pool, words=(size,), cluster=size)
    launches.us(3, 1)
    try:
        launches.us(3, 1, cooperative=True)
    except KernelError as error:
        started = str(error)
    name = f"clusters of {size} at 200 KiB"
    harness.report(BENCH, name, [float(count)], "clusters", cooperative=started, **gpu.about)


def levels(scale: Scale) -> Iterator[Case]:
    """Yield twenty levels for each way to synchronize."""
    width = 128 if scale.smallest else 256
    for n in (2,) if scale.smallest else (1, 2, 4, 8):
        for name, how, size in scale.groups:
            if how != CLUSTER or size == 16:
                program = levels_program(how, size, -(-n // (scale.blocks // size)), width)
                yield f"{name}, n={n}", [program], partial(_levels, f"{name}, n={n}", how, size, n, width)


def _levels(name: str, how: int, size: int, n: int, width: int, gpu: Gpu, program: Program) -> None:
    count, number = 2 if gpu.scale.smallest else 20, gpu.scale.blocks // size
    if how == CLUSTER:
        number = min(number, clusters_at_once(gpu, program, size))
        program = levels_program(how, size, -(-n // number), width)
    own, units = program.macros["VERTICES"], program.macros["UNITS"]
    rng = np.random.default_rng(size)
    weights = np.zeros((size * units, 5, 2 * width), np.float32)  # units and gates
    weights[:width] = rng.uniform(-0.1, 0.1, (width, 5, 2 * width))
    start = rng.uniform(-1, 1, (2, own, width)).astype(np.float32)
    by_block = weights.reshape(size, units, 5, 2 * width).swapaxes(1, 2)
    end = start.size + weights.size
    pool = np.concatenate([start.ravel(), by_block.ravel(), np.zeros(number * start.size, np.float32)])
    words = size, start.size, end
    launches = Launches(gpu, program, size * number, pool, words=words, cluster=size * (how == CLUSTER))
    launches.us(count, 1)
    (c, h), u = start.astype(np.float64), weights[:width].astype(np.float64)
    for _ in range(count):
        gates = np.einsum("ugk,vk->gvu", u, np.concatenate([h, np.roll(h, -1, 0)], 1))
        i, f, other, o = (1 / (1 + np.exp(-gates[k])) for k in (0, 2, 3, 4))
        c = i * np.tanh(gates[1]) + f * c + other * np.roll(c, -1, 0)
        h = o * np.tanh(c)
    found = launches.found(end, number, 2, own, width)[:, count % 2]
    error = error_of(found, np.broadcast_to(h, found.shape), 1e-4)
    turns = 1 if gpu.scale.smallest else 5
    us = [launches.us(turns * count, 1) / turns for _ in range(gpu.rounds)]
    beside = ("one counter", gpu.base[f"n={n}"], 0.75) if f"n={n}" in gpu.base else None
    gpu.base.setdefault(f"n={n}", us)
    floor = count * (gpu.floor(5 * units, 2 * width, own) + (how == COUNTER) * 1e6 * gpu.peaks.barrier)
    gpu.report(f"{count} levels: {name}", us, floor, beside, error=error, groups=number, of_group=own)


PARTS = {part.__name__: part for part in (products, gradients, meetings, levels)}


def main() -> int:
    """Compile and run the requested cases; returns the exit status."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", type=harness.words, default=list(PARTS), metavar="PART,...")
    parser.add_argument("--smallest", action="store_true", help="a dry run: figures mean nothing")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--arch", default="sm_90", help="target of --compile-only (default: %(default)s)")
    options = parser.parse_args()
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: expected some of {','.join(PARTS)}")
    gpu, arch = None, options.arch
    scale = Scale(options.smallest, 132, int(arch[3:].rstrip("af")) >= 90)
    if not options.compile_only:
        gpu = Gpu(options.smallest)
        scale, arch = gpu.scale, gpu.driver.gpu.arch
    cases = [(f"{part}: {name}", *of) for part in options.only for name, *of in PARTS[part](scale)]
    sources = dict.fromkeys(program.source for _, programs, _ in cases for program in programs)
    with ThreadPoolExecutor(harness.usable_cores()) as threads:
        made = [threads.submit(nvrtc.compile_cubin, source, arch) for source in sources]  # a failure fails its case
    if gpu is None:
        spills = sum(cubin.result().resources.spill_stores for cubin in made)
        print(f"{len(made)} programs, spills: {spills} bytes")
        return 0
    failed = False
    with gpu.driver:
        for name, programs, run in cases:
            try:
                run(gpu, *programs)
            except Exception:
                failed = True
                traceback.print_exc()
                print(f"{name}: failed, see above", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
