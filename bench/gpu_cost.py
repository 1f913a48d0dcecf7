"""What a training step costs on a GPU that is not there: a model, which ranks wastes and shows what a change brings.

    python bench/gpu_cost.py [--models tree-lstm,bilstm-tagger,lattice-lstm] [--batch-sizes 1,16,64] [--trees DIR]
    python bench/gpu_cost.py --combs 1,2,8,64      (trees whose levels all have so many inner nodes: costs of a level)

The kernel is compiled as for an H200, the batch is planned as for training, and some thread blocks of the launch are
executed instruction by instruction, as the machine code says (gpu_cost_machine.py). How often what runs is therefore
counted, not estimated. When it runs is a model (gpu_cost_timing.py), with constants that no GPU here could confirm.
Between two barriers the slowest of the blocks that were executed counts. Lines go to standard output, tables to
standard error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
from gpu_cost_code import Code, code_of
from gpu_cost_machine import BASE, WARPS, Machine
from gpu_cost_timing import Clock, Constants, Spent, issue_bound
from table import markdown, three_digits

import vpps
from vpps.ahead import Example, Specialized
from vpps.cli.workload import load_workload
from vpps.data import graphs_of_trees
from vpps.data.treebank import Tree, parse_tree
from vpps.plan.build import Plan
from vpps.plan.planner import Planner
from vpps.plan.update import Update
from vpps.script.disassemble import Decoded, entry_points, instructions
from vpps.script.instructions import COUNTERS, Flag
from vpps.script.slices import share
from vpps.zoo.tree_lstm import TreeLSTMSentiment

BENCH = "gpu_cost"
MODELS = ("tree-lstm", "bilstm-tagger", "lattice-lstm")
ARCH, BLOCKS = "sm_90", 132
UNITS = 256  # of a layer
INTERPRETER = "fetch"  # of the templates: an instruction of the script begins at its first barrier of the block
PADDING = "stage", "for_places"  # function, and what its line says that fills vectors with zeros
COMB_LEVELS = 7
# What time is said to go to: the first of these whose function an instruction is in, by way of a line that says so. The
# rest is called by the routine that the kernel calls; nothing is left out.
REGIONS = (
    ("zeros behind staged vectors", *PADDING),
    ("staging: indices, segments, copies", "stage", ""),
    ("staging: waiting for a tile", "for_staged", "copy_async_wait"),
    ("adding up over lanes", "sum_over_lanes", ""),
    ("weights times vectors", "slot_product", ""),
    ("owned rows: divisions", "Owned::Owned", ""),
    ("product: adding up over warps, bias, store", "product_of_slots", "for_places"),
    ("gradients: product", "add_outer", ""),
    ("gradients: their vectors", "for_outer", "for_places"),
    ("update: a weight's step", "step_of_matrix", ""),
    ("tail: sums of lists", "list_sum", ""),
    ("tail: where rows lie, loads, stores", "Unit::row", ""),
    ("tail: its program", "compute", ""),
    ("signal: fence", "add_release", ""),
    ("wait: polls", "load_acquire", ""),
    ("dispatch: fetch", "fetch", ""),
    ("dispatch: slices", "slices_of", ""),
)
REPORT_WORDS, LINE_WORDS = 4096, 32
MANY_SIGNALS = 1 << 28  # as if all others had always signalled: below the mark of a stopped launch


@dataclass(frozen=True)
class Case:
    """A kernel and a batch.

    Attributes:
        name: such as "tree-lstm batch=1".
        examples: in the batch.
        blocks: of a launch.
    """

    name: str
    examples: int
    blocks: int
    kernel: Specialized
    plan: Plan
    code: Code


@dataclass(frozen=True)
class Executed:
    """An instruction of the script, by the block that the launch waits for there.

    Attributes:
        phase: "load", "forward", ...
        kind: "product", "tail", ...
        decoded: None before the first instruction.
        block: who executed it.
    """

    phase: str
    kind: str
    decoded: Decoded | None
    block: int
    spent: Spent


def case_of(name: str, batch: int, trees: Path | None, folder: Path) -> Case:
    """A task of vpps-train with a batch of its data."""
    data = ["--data", str(trees)] if trees is not None and name == "tree-lstm" else []
    work = load_workload(name, batch, data)
    return planned(f"{name} batch={batch}", batch, work.model, work.first(1)[0], folder)


def comb_case(batch: int, folder: Path, levels: int = COMB_LEVELS, hidden: int = 256, blocks: int = BLOCKS) -> Case:
    """Trees that are combs: every level has an inner node of each, one child of which is a leaf."""
    rng = np.random.default_rng(1)
    trees = [_comb([f"w{k}" for k in rng.integers(0, 2000, levels + 1)]) for _ in range(batch)]
    graphs = graphs_of_trees(trees, min_count=1)
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, 2000, embedding=hidden, hidden=hidden)
    graph = vpps.Graph()
    loss = network.loss(graph, graphs[:]) * (1 / batch)
    return planned(f"tree-lstm comb={levels} batch={batch}", batch, model, (graph, loss), folder, blocks)


def _comb(words: Sequence[str]) -> Tree:
    text = f"(1 {words[0]})"
    for word in words[1:]:
        text = f"(2 {text} (3 {word}))"
    return parse_tree(text)


def planned(name: str, batch: int, model: vpps.Model, example: Example, folder: Path, blocks: int = BLOCKS) -> Case:
    """A case of any model: its kernel, compiled twice, and a plan to train on a graph."""
    rule, passes = vpps.Adam(lr=1e-3), vpps.Passes()
    kernel = vpps.specialize(model, example, arch=ARCH, sms=blocks, optimizer=rule, passes=passes)
    assert kernel.resources is not None
    code = code_of(kernel.source, ARCH, folder, kernel.resources.registers)
    planner = Planner(kernel.parameters, "sinks-last", "vector", passes)
    plan = planner.plan_training(*example, Update(rule, 1, 1, None), 0)
    return Case(name, batch, blocks, kernel, plan, code)


# ---- executing


def memory_of(plan: Plan) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Global memory of a launch, and the kernel's parameter. Weights and all else are numbers between 0.05 and 0.1."""
    sizes = {
        "report": REPORT_WORDS, "stopped": 32, "losses": 256,
        "counters": COUNTERS * LINE_WORDS, "cleared": COUNTERS * LINE_WORDS,
        "script": -(-len(plan.script) // 32) * 32, "pool": plan.pool_floats + 1024,
    }  # fmt: skip
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    memory = np.zeros(sum(sizes.values()), np.uint32)
    pool = memory[starts["pool"] :].view(np.float32)
    pool[64:] = np.random.default_rng(1).uniform(0.05, 0.1, len(pool) - 64)
    memory[starts["counters"] : starts["cleared"]] = MANY_SIGNALS
    memory[starts["script"] : starts["script"] + len(plan.script)] = plan.script
    order = ("pool", "script", "counters", "cleared", "report")
    at = {name: BASE + 4 * start for name, start in starts.items()}
    parameter = [*(at[name] for name in order), 0, at["stopped"], at["losses"]]  # no patience: nobody is late
    return memory, np.array(parameter, np.uint64).view(np.uint32)


def blocks_of(case: Case, asked: Sequence[int] | None) -> list[int]:
    """Blocks to execute: the first, the last (where few rows go), and one that owns most units."""
    if asked:
        return list(asked)
    ends = [share(UNITS, block, case.blocks) for block in range(case.blocks)]
    units = [last - first for first, last in ends]
    return sorted({0, units.index(max(units)), case.blocks - 1})


def interpreter(code: Code) -> set[int]:
    """Where an instruction of the script begins, in each loop that executes some.

    Exits where the templates have no such function.
    """
    barriers = [pc for pc, i in enumerate(code.instructions) if i.family == "BAR" and INTERPRETER in code.places(pc)]
    if not barriers:
        sys.exit(
            f"the kernel has no barrier of the block in a function {INTERPRETER}: bench/gpu_cost.py has to be told "
            "in which one an instruction of the script begins"
        )
    first = min(code.instructions[pc].lines[0] for pc in barriers)
    return {pc for pc in barriers if code.instructions[pc].lines[0] == first}


def executed(case: Case, block: int, constants: Constants) -> list[Executed]:
    """What a block executes, in order."""
    plan = case.plan
    memory, parameter = memory_of(plan)
    machine = Machine(case.code, memory, parameter, block, case.kernel.spec.chip.shared_bytes)
    clock = Clock(case.code, constants, case.blocks)
    placed: list[tuple[str, Decoded | None]] = [("load", None), *_placed(plan, block)]
    found = []
    with np.errstate(all="ignore"):
        for (phase, d), (_, trace) in zip(placed, machine.run(interpreter(case.code)), strict=True):
            phase = "load" if d is not None and d.instruction.name == "load" else phase
            found.append(Executed(phase, kind_of(d), d, block, clock.spend(trace)))
    if memory[:2].any():
        sys.exit(f"{case.name}: block {block} stopped the launch at word {memory[0] - 1}")
    return found


def _placed(plan: Plan, block: int) -> Iterator[tuple[str, Decoded]]:
    """Phases and instructions of a block's stream."""
    entry = entry_points(plan.script)[block]
    start, stream = next(s for s in plan.streams if s[0] == entry)
    number = 0
    chained = False
    load: Decoded | None = None
    for d in instructions(plan.script, entry):
        if load is not None and d.instruction.name != "load":
            yield "load", load  # what comes behind the loads waits for their copies
        load = d if d.instruction.name == "load" else None
        behind, chained = chained, bool(d.flags & Flag.CHAINED)
        if behind:
            continue  # executed with the product before it
        sections = stream.sections
        while number + 1 < len(sections) and sections[number + 1].start <= d.position - start:
            number += 1
        yield sections[number].during.value, d


def kind_of(d: Decoded | None) -> str:
    """What an instruction is to the tables."""
    if d is None:
        return "enter"
    name = d.instruction.name
    if d.flags & Flag.CHAINED:
        return "product and tail"
    if name == "matvec":
        return "product" if d.fields["matrix"] else "product in memory"
    if name in ("signal", "wait", "barrier"):
        return "signal, wait"
    return name


def ends_with_wait(e: Executed) -> bool:
    """Whether it waits for others."""
    return e.decoded is not None and e.decoded.instruction.name in ("wait", "barrier")


def slowest(runs: Sequence[Sequence[Executed]]) -> list[Executed]:
    """Between two waits, what the slowest block did."""
    parts = [_intervals(run) for run in runs]
    return [
        e
        for interval in zip(*parts, strict=True)
        for e in max(interval, key=lambda part: sum(each.spent.cycles for each in part))
    ]


def _intervals(run: Sequence[Executed]) -> list[list[Executed]]:
    parts: list[list[Executed]] = [[]]
    for e in run:
        parts[-1].append(e)
        if ends_with_wait(e):
            parts.append([])
    return parts


# ---- reporting


@dataclass
class Sum:
    """Of some instructions of the script."""

    us: float = 0.0
    bound: float = 0.0
    warp_instructions: float = 0.0
    scripted: int = 0
    barriers: int = 0
    block_barriers: int = 0
    trips: int = 0

    def add(self, e: Executed, c: Constants) -> None:
        """One more."""
        self.us += e.spent.cycles / c.clock_ghz / 1e3
        self.bound += issue_bound(e.spent, c) / c.clock_ghz / 1e3
        self.warp_instructions += sum(e.spent.issued.values()) / WARPS
        self.scripted += e.decoded is not None
        self.barriers += ends_with_wait(e)
        self.block_barriers += e.spent.block_barriers
        self.trips += e.spent.trips

    def line(self) -> dict[str, object]:
        """For JSON."""
        return {
            "bound_us": round(self.bound, 2), "instructions_per_warp": round(self.warp_instructions),
            "script_instructions": self.scripted, "barriers": self.barriers, "block_barriers": self.block_barriers,
            "l2_trips": self.trips,
        }  # fmt: skip


def sums(done: Sequence[Executed], c: Constants, key: Any) -> dict[Any, Sum]:
    """By some key, in order of first appearance."""
    found: dict[Any, Sum] = {}
    for e in done:
        found.setdefault(key(e), Sum()).add(e, c)
    return found


def report(case: Case, done: Sequence[Executed], c: Constants, top: int) -> None:
    """Lines and tables of a case."""
    resources = case.kernel.resources
    assert resources is not None
    total = sums(done, c, lambda e: "step")["step"]
    phases = sums(done, c, lambda e: e.phase)
    touched = len({pc * 16 // 128 for e in done for pc in e.spent.by_pc}) * 128
    extra = {
        "code_bytes": resources.code_bytes, "executed_code_bytes": touched, "registers": resources.registers,
        "examples_per_s": round(case.examples / total.us * 1e6), "model": "estimate",
    }  # fmt: skip
    harness.report(BENCH, f"{case.name} step", [total.us], "us", **total.line(), **extra)
    for phase, s in phases.items():
        harness.report(BENCH, f"{case.name} {phase}", [s.us], "us", **s.line())
    kinds = sums(done, c, lambda e: (e.phase, e.kind))
    for (phase, kind), s in kinds.items():
        harness.report(BENCH, f"{case.name} {phase}: {kind}", [s.us], "us", **s.line())
    say(f"\n## {case.name}: {total.us:.0f} us, {case.examples / total.us * 1e6:,.0f} examples/s (a model's estimate)\n")
    say(
        f"{total.barriers} barriers, {resources.code_bytes / 1024:.0f} KiB of code, of which {touched / 1024:.0f} KiB "
        f"are executed, {resources.registers} registers\n"
    )
    head = ["", "us", "bound", "instructions/warp", "of the script", "barriers", "block's", "L2 trips"]
    rows = [[name, *_cells(s)] for name, s in [("step", total), *phases.items()]]
    say(markdown([head, *rows]) + "\n")
    ranked = sorted(kinds.items(), key=lambda item: -item[1].us)[:top]
    say(markdown([head, *([f"{phase}: {kind}", *_cells(s)] for (phase, kind), s in ranked)]) + "\n")
    _report_levels(case, done, c)
    _report_products(case, done, c)
    _report_regions(case, done, c, top)
    _report_lines(case, done, c, top)


def _cells(s: Sum) -> list[str]:
    return [
        f"{s.us:.2f}", f"{s.bound:.2f}", three_digits(s.warp_instructions), str(s.scripted), str(s.barriers),
        str(s.block_barriers), str(s.trips),
    ]  # fmt: skip


def _report_levels(case: Case, done: Sequence[Executed], c: Constants) -> None:
    """Products, tails and barriers of forward and backward by number of vertices: the mean of those that are alike."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    n = 0
    for e in done:
        if (
            e.phase in ("forward", "backward")
            and e.kind in ("product", "product and tail", "tail", "signal, wait")
            and e.decoded is not None
        ):
            n = e.decoded.n if e.kind.startswith("product") or (e.kind == "tail" and e.phase == "backward") else n
            kind = e.decoded.instruction.name if e.kind == "signal, wait" else e.kind
            found.setdefault((e.phase, n), {}).setdefault(kind, []).append(e.spent.cycles / c.clock_ghz / 1e3)
    head = ["level", "product", "product and tail", "tail", "barrier", "sum"]
    rows = []
    for (phase, count), kinds in sorted(found.items()):
        means = [float(np.mean(kinds[k])) if k in kinds else 0.0 for k in head[1:-1]]
        rows.append([f"{phase}, n = {count}", *(f"{m:.2f}" for m in means), f"{sum(means):.2f}"])
        values = dict(zip(head[1:-1], (round(m, 3) for m in means), strict=True))
        harness.report(BENCH, f"{case.name} {phase} level n={count}", [sum(means)], "us", **values)
    say(markdown([head, *rows]) + "\n")


def _report_products(case: Case, done: Sequence[Executed], c: Constants) -> None:
    """What a warp executes for a product: of what kinds instructions are."""
    padding = padding_of(case.code)
    rows, seen = [], set()
    for e in done:
        d = e.decoded
        if e.kind != "product" or d is None or (d.fields["matrix"], d.n) in seen or d.n not in (1, 2, 3, 4, 8, 16, 64):
            continue
        seen.add((d.fields["matrix"], d.n))
        counts = {name: e.spent.issued[name] / WARPS for name in ("FFMA", "LDS", "SHFL", "FSEL", "FADD")}
        counts["padding"] = sum(n for pc, n in e.spent.by_pc.items() if pc in padding) / WARPS
        whole = sum(e.spent.issued.values()) / WARPS
        counts["rest"] = whole - sum(counts.values())
        name = f"matrix {d.fields['matrix']}, {d.width} rows, n = {d.n}"
        rows.append([name, three_digits(whole), *(three_digits(v) for v in counts.values())])
        harness.report(
            BENCH,
            f"{case.name} product {name}",
            [whole],
            "instructions/warp",
            **{k: round(v, 1) for k, v in counts.items()},
        )
    head = ["product", "instructions/warp", "FFMA", "LDS", "SHFL", "FSEL", "FADD", "padding", "rest"]
    if not padding:
        say(f"no line of {PADDING[0]}() calls {PADDING[1]}: padding is not told apart")
    say(markdown([head, *rows]) + "\n")


def padding_of(code: Code) -> set[int]:
    """Instructions that fill staged vectors with zeros."""
    function, call = PADDING
    lines = {
        n
        for n, text in enumerate(code.source, 1)
        if code.functions[n] == function and call in text and "template" not in text
    }
    return {pc for pc, i in enumerate(code.instructions) if lines & set(i.lines)}


def region_of(code: Code, pc: int) -> str:
    """What time that is spent in an instruction goes to."""
    if pc < 0:
        return "end of the launch"
    lines = code.instructions[pc].lines
    functions = [code.functions[line] for line in lines]
    for what, function, says in REGIONS:
        if any(f == function and says in code.source[line - 1] for line, f in zip(lines, functions, strict=True)):
            return what
    outside = [f for f in functions if f != "vpps_kernel"]
    if not outside or outside[-1].endswith("::decode") or outside[-1].startswith(("Reader", "opcode_of", "size_of")):
        return "dispatch: decoding, switch"
    return f"{outside[-1]}: rest"


def _report_regions(case: Case, done: Sequence[Executed], c: Constants, top: int) -> None:
    """Where time goes, every cycle once."""
    total: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    phases: dict[str, Counter[str]] = {}
    known: dict[int, str] = {}
    for e in done:
        for (pc, reason), cycles in e.spent.by.items():
            what = known.setdefault(pc, region_of(case.code, pc))
            total[what] += cycles
            reasons.setdefault(what, Counter())[reason] += cycles
            phases.setdefault(what, Counter())[e.phase] += cycles
    rows = []
    for what, cycles in total.most_common(2 * top):
        us = cycles / c.clock_ghz / 1e3
        why = ", ".join(f"{reason} {v / cycles:.0%}" for reason, v in reasons[what].most_common(3))
        where = {phase: round(v / c.clock_ghz / 1e3, 2) for phase, v in phases[what].items()}
        rows.append([f"{us:.2f}", what, why, ", ".join(f"{phase} {v:.1f}" for phase, v in where.items())])
        harness.report(BENCH, f"{case.name} region {what}", [us], "us", why=why, **where)
    say(markdown([["us", "where time goes", "as", "phases"], *rows]) + "\n")


def _report_lines(case: Case, done: Sequence[Executed], c: Constants, top: int) -> None:
    """Lines of the templates by the time that is spent in them and in what they call, along the critical warps."""
    inclusive: Counter[int] = Counter()
    reasons: dict[int, Counter[str]] = {}
    for e in done:
        for (pc, reason), cycles in e.spent.by.items():
            for line in case.code.instructions[pc].lines if pc >= 0 else ():
                inclusive[line] += cycles
                reasons.setdefault(line, Counter())[reason] += cycles
    kernel = case.code.functions.index("vpps_kernel")
    rows = []
    for line, cycles in inclusive.most_common():
        function = case.code.functions[line]
        if len(rows) == 2 * top:
            break
        if line >= kernel or not function:
            continue
        why = ", ".join(f"{reason} {v / cycles:.0%}" for reason, v in reasons[line].most_common(3))
        us = cycles / c.clock_ghz / 1e3
        text = case.code.source[line - 1].strip()[:70].replace("|", "\\|")
        rows.append([f"{us:.2f}", function, f"`{text}`", why])
        harness.report(BENCH, f"{case.name} line {function}: {text}", [us], "us", why=why)
    say(markdown([["us", "function", "line, and what it calls", "goes to"], *rows]) + "\n")


def say(text: str) -> None:
    """A table."""
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME,...")
    parser.add_argument("--batch-sizes", type=_ints, default=[1, 16, 64], metavar="N,...")
    parser.add_argument(
        "--combs", type=_ints, metavar="N,...", help="combs of 7 levels in batches of N, and nothing else"
    )
    parser.add_argument("--trees", type=Path, metavar="DIR", help="real trees for tree-lstm (default: synthetic ones)")
    parser.add_argument("--blocks", type=_ints, metavar="N,...", help="thread blocks to execute")
    parser.add_argument("--l2", type=int, help="latency of L2 in cycles")
    parser.add_argument("--top", type=int, default=12, help="rows of rankings")
    return parser.parse_args()


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """All cases that are asked for."""
    options = parse_options()
    constants = Constants() if options.l2 is None else replace(Constants(), l2=options.l2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in _cases(options, folder):
            runs = [executed(case, block, constants) for block in blocks_of(case, options.blocks)]
            report(case, slowest(runs), constants, options.top)


def _cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    if options.combs:
        yield from (comb_case(batch, folder) for batch in options.combs)
        return
    for model in harness.choose(options.models, MODELS, "models"):
        yield from (case_of(model, batch, options.trees, folder) for batch in options.batch_sizes)


if __name__ == "__main__":
    main()
