"""Counts the work that planner and recorder do on fixed graphs; `python -m tests.performance` records the counts.

Both libraries are compiled again, without optimisation: g++ calls a counter in every basic block, and the linker
redirects `operator new` and the functions that copy and fill memory. All runs on all processors give the same counts.
The counts show extra loops, look-ups and copies, but not slower instructions or cache misses: bench/ measures times.
"""

from __future__ import annotations

import ctypes
import gc
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import vpps
from tests import recorders
from tests.planner.launches import RULES, Example, distribution_of, parse
from tests.zoo.cases import CASES
from vpps.compiler.passes import Passes
from vpps.graph import recorder
from vpps.kernel.cache import Label, load_library
from vpps.kernel.host_compiler import build_library, compiler, compiler_version
from vpps.kernel.prebuilt import HostLibrary
from vpps.kernel.shared_types import bind
from vpps.placement.update import Update
from vpps.planner.native import interface, library
from vpps.planner.planner import Planner
from vpps.record import arrays

COMMAND = "python -m tests.performance"
FILE = Path(__file__).with_suffix(".json")
TOLERANCE = 0.03  # counts with g++ 11, 13 and 14 are within 2.2 % of those in the file, which g++ 12 gave
EXAMPLES = 32
CONFIGURATIONS = [parse(f"{c} sinks-last") for c in ("cpu vector", "cuda vector", "cuda paper")]
CONFIGURATIONS.append(CONFIGURATIONS[1]._replace(groups=2))
COUNTER = """
#include <cstring>
#include <new>

extern "C" {
std::size_t n_blocks, n_bytes;
void __sanitizer_cov_trace_pc() { n_blocks++; }
void* __wrap__Znwm(std::size_t n) { return n_bytes += n, operator new(n); }
void* __wrap_memcpy(void* to, const void* from, std::size_t n) { return n_bytes += n, std::memcpy(to, from, n); }
void* __wrap_memmove(void* to, const void* from, std::size_t n) { return n_bytes += n, std::memmove(to, from, n); }
void* __wrap_memset(void* to, int byte, std::size_t n) { return n_bytes += n, std::memset(to, byte, n); }
}
"""
COUNTED = ("-O0", "-fsanitize-coverage=trace-pc", *(f"-Wl,--wrap={f}" for f in "_Znwm memcpy memmove memset".split()))

Work = list[int]
"""Number of basic blocks that were executed; number of bytes that were allocated, copied or filled."""


def recordings() -> Iterator[tuple[str, vpps.Model, Callable[[], tuple[vpps.Graph, vpps.Expression]]]]:
    """Yield each graph's name and model, and the function that records it and returns it with its loss."""
    for name in ("tree-lstm", "bilstm-tagger", "lattice-lstm"):
        task = CASES[name].make()
        given = task.network, task.train[:EXAMPLES]
        yield name, task.model, partial(_in_bulk, *given)
        if name == "tree-lstm":
            yield f"{name} node by node", task.model, partial(_node_by_node, *given)


def _in_bulk(net: Any, batch: Any) -> tuple[vpps.Graph, vpps.Expression]:
    graph = vpps.Graph()
    return graph, net.loss(graph, batch)


def _node_by_node(net: Any, batch: Any) -> tuple[vpps.Graph, vpps.Expression]:
    graph, layer = vpps.Graph(), net.tree_lstm
    states: list[Any] = []
    losses = []
    columns = batch.children, batch["word"], batch["label"]
    for (left, right), word, label in zip(*(column.tolist() for column in columns), strict=True):
        inner = word < 0
        state = layer.inner(*states[left], *states[right]) if inner else layer.leaf(graph.lookup(net.words, word))
        states.append(state)
        losses.append(net.node_loss(state[0], label))
    return graph, vpps.sum(losses)


def key(described: HostLibrary) -> str:
    """Return a library's name in the file."""
    return f"{described.name} on {platform.machine()}"


def reason_to_skip() -> str:
    """Return why this machine's counts cannot be compared with the recorded counts; "" if they can."""
    if "Free Software Foundation" not in compiler_version(tuple(compiler())):
        return "the counts are those of g++: other compilers count other basic blocks"
    return "" if recorders.compiled_recorder() else "the compiled recorder needs Python's headers"


def _counting(described: HostLibrary) -> Path:
    label = Label(f"counting {described.label.kind}")
    return build_library(replace(described, flags=(*described.flags, *COUNTED), label=label))


@cache
def counted() -> dict[str, dict[str, Work]]:
    """Return the work on this machine by library and graph. The first call compiles the libraries in ten seconds."""
    flags = ("-O1", "-shared", "-fPIC")
    counter = build_library(HostLibrary("counter", "the counter", COUNTER, flags, Label("counter")))
    counts = ctypes.CDLL(str(counter), ctypes.RTLD_GLOBAL)  # so that the libraries find its functions
    n_blocks, n_bytes = (ctypes.c_size_t.in_dll(counts, name) for name in ("n_blocks", "n_bytes"))
    planner = load_library(_counting(library.described()))
    bind(planner, interface.FUNCTIONS)

    def work(of: Callable[[], Any]) -> Work:
        of()  # allocates buffers and encodes cells
        gc.collect()
        before = n_blocks.value, n_bytes.value
        of()
        return [n_blocks.value - before[0], n_bytes.value - before[1]]

    with pytest.MonkeyPatch.context() as patch:
        recorders.use("python", patch)
        patch.setattr(arrays, "addresses", arrays.addresses)
        recorder.use(recorder._module_of(_counting(recorder.described())))
        patch.setattr(library, "library", lambda: planner)
        gc.disable()  # a collection would free graphs of another measurement
        try:
            return _counted(work)
        finally:
            gc.enable()


def _counted(work: Callable[[Callable[[], Any]], Work]) -> dict[str, dict[str, Work]]:
    recording, planning = {}, {}
    passes, rule = Passes(), RULES["sgd"]
    for name, model, record in recordings():
        recording[name] = work(record)
        graph, loss = record()
        for c in CONFIGURATIONS:
            distribution = distribution_of(Example(model, graph, loss, []), c, rule, False, passes, "float32")
            planner = Planner(distribution, c.policy, c.schedule, passes)
            plan = partial(planner.plan_training, graph, loss, Update(rule, 1, 1, None), 1)
            planning[f"{name}, {c}"] = work(plan)
    return {key(recorder.described()): recording, key(library.described()): planning}


def recorded() -> dict[str, dict[str, Work]]:
    """Return the work in the file by library and graph."""
    found: dict[str, dict[str, Work]] = json.loads(FILE.read_text())
    return found


def changes(before: Mapping[str, Work], now: Mapping[str, Work], tolerance: float) -> Iterator[str]:
    """Yield a line for each graph whose work differs by more than the tolerance."""
    for name in dict.fromkeys((*before, *now)):
        pairs = list(zip(("blocks", "bytes"), before.get(name, (0, 0)), now.get(name, (0, 0)), strict=True))
        if any(abs(n - b) > tolerance * b for _, b, n in pairs):
            each = (f"{b:,} -> {n:,} {of} ({100 * (n - b) / (b or n or 1):+.1f} %)" for of, b, n in pairs)
            yield f"{name}: {', '.join(each)}"


def main() -> None:
    """Record the work on this machine, and print it before and after."""
    if reason := reason_to_skip():
        raise SystemExit(reason)
    before = recorded()
    for name, now in counted().items():
        print(name, *changes(before.get(name, {}), now, tolerance=-1), sep="\n  ")
    FILE.write_text(json.dumps(before | counted(), indent=0) + "\n")


if __name__ == "__main__":
    main()
