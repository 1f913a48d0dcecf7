"""Faults in the kernel or in a script: each fault injected here is found, and reported in the user's words."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import vpps
from tests.simt import models
from tests.simt.models import E, Network
from vpps.kernel import simt_compiler
from vpps.kernel.chip import SCRIPT_WORDS
from vpps.kernel.render import CUDA_HEADERS, CUDA_ROUTINES, CUDA_SYNC, header_text
from vpps.kernel.spec import KernelSpec
from vpps.placement.onchip import ChipOptions, OnChip, known_device, windows
from vpps.planner.plan import Plan
from vpps.runtime import simt
from vpps.runtime.simt import SimtMachine
from vpps.script.disassemble import Decoded, Words, entry_points, instructions
from vpps.script.instructions import BY_NAME, HEAD_WORDS
from vpps.script.verify import verify

pytestmark = pytest.mark.simt

BARRIER = re.compile(r"__sync(?:threads|warp)\(\);")
FUNCTION = re.compile(r"^\s*(?:template <.*>\s*)?VP_(?:DEVICE|ROUTINE) .*?(\w+)\(")


def barriers_of_blocks(source: str) -> Iterator[tuple[str, int]]:
    """Yield (site, offset) for every __syncthreads and every warp barrier; a site is a function and a number in it."""
    function, count, at = "", 0, 0
    for line in source.splitlines(keepends=True):
        if found := FUNCTION.match(line):
            function, count = found[1], 0
        if barrier := BARRIER.search(line):
            count += 1
            yield f"{function} {count}", at + barrier.start()
        at += len(line)


def published() -> None:
    """Rows in turns, clipping, long sums of few and of many columns, a script that fills several buffers. With one row
    per warp, many slots hold W."""
    model = vpps.Model(seed=3)
    W, b, V = model.parameter("W", (40, 33)), model.parameter("b", (40,)), model.parameter("V", (8, 200))
    p, table = model.parameter("p", (200,), init="normal"), model.lookup("x", (9, 200), init="normal")

    @vpps.cell
    def layer(x: E) -> E:
        return vpps.sum(vpps.tanh(W @ x[:33] + b)) + vpps.dot(x, vpps.tanh(x * p)) + vpps.sum(V @ x)

    @vpps.cell
    def further(y: E) -> E:
        return vpps.tanh(y) * 0.9

    graph = vpps.Graph()
    ys = [layer(graph.lookup(table, i % 9)) for i in range(70)]
    for _ in range(200):  # with so many buffers, at least one ends within an instruction
        ys[0] = further(ys[0])
    ys.append(vpps.sum(vpps.sum([graph.input([1.0] * 4)] * 40)))
    options = ChipOptions(ownership="round-robin", rpw=1)
    with vpps.Handle(model, vpps.SGD(lr=0.01), target="simt", vps=2, clip_norm=0.1, onchip=options) as handle:
        handle.fb(graph, vpps.sum(ys))
        handle.sync_get_latest_loss()
        assert handle._engine.plan is not None
        assert len(handle._engine.plan.script) > 4 * SCRIPT_WORDS


def chained() -> None:
    """Tails read the results of products on the chip."""
    network = models.tree_lstm()
    with vpps.Handle(network.model, vpps.SGD(lr=0.1), target="simt", vps=3, passes=vpps.Passes()) as handle:
        handle.fb(*network.batch(0))
        handle.sync_get_latest_loss()


def several_tiles() -> None:
    """A virtual processor computes several partial tiles of a gradient, one after the other."""
    network = models.layers((40, 200), n=11)
    with vpps.Handle(network.model, vpps.SGD(lr=0.1), target="simt", vps=1) as handle:
        handle.fb(*network.batch(0))
        handle.sync_get_latest_loss()


def with_shared_memory(kib: int, network: Network, vps: int) -> OnChip:
    """Run a step on a GPU with this much shared memory; returns the places of the weights."""
    with pytest.MonkeyPatch.context() as patch:
        small = replace(known_device("RTX 3090"), shared_per_block=kib << 10)
        patch.setattr(SimtMachine, "device", property(lambda self: replace(small, sms=self.vps)))
        with vpps.Handle(network.model, vpps.SGD(lr=0.1), target="simt", vps=vps) as handle:
            handle.fb(*network.batch(0))
            handle.sync_get_latest_loss()
            onchip = handle._engine.arrangement.onchip
            assert onchip is not None
            return onchip


def in_windows() -> None:
    """Some products have few vectors and some have several passes. Transposes reuse the windows of their matrices."""
    onchip = with_shared_memory(62, models.tree_lstm(hidden=40, embedding=40, leaves=(60, 2)), 6)
    assert onchip.chip.changes_windows


def in_one_window(registers: int = 0) -> None:
    """The first product needs a matrix other than the one loaded into the window."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "MOST_HOMES", registers)
        onchip = with_shared_memory(34, models.tagger(hidden=40, embedding=40), 6)
    assert len({m.window for m in onchip.chip.dense}) < 3


def in_chunks() -> None:
    """A matrix that is split into three chunks multiplies few vectors."""
    onchip = with_shared_memory(38, models.layers((24, 300), n=5), 2)
    assert onchip.chip.has_chunks


# Necessary barriers of a block or a warp, and the program that needs each.
MISSED = {
    **dict.fromkeys(
        [
            *("sum_of_all 1", "sum_columns 1", "sum_columns 2", "sum_by_block 1", "sum_by_block 2"),
            *("enter 1", "fetch 1", "fetch 2", "fetch 3", "wait 1"),
            *("slot_matvec 1", "slot_matvec 2", "matvec_transposed 1", "matvec_transposed 2"),
        ],
        published,
    ),
    **dict.fromkeys(["partial_tile 1", "partial_tile 2", "partial_tile 3", "held_matvec 4"], chained),
    "partial_tile 4": several_tiles,
    **dict.fromkeys(["show 1", "begin 1", "multiply_many 1", "held_matvec 2", "held_matvec 3"], in_windows),
    "held_matvec 1": in_chunks,
}
# Unnecessary barriers: the next instruction's first barrier precedes the reuse of the memory.
HARMLESS = {"sum_of_all 2": published}


def with_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Compile kernels with all faults (a barrier's site or a name in WEAKENED), and activate the named fault.

    Few launches run, so kernels are not optimised, which compiles in two thirds of the time.
    """
    render, load, numbers = simt.render_cuda, simt.Emulator, dict[str, int]()

    def changed(spec: KernelSpec) -> str:
        source = render(spec)
        for name, (text, instead, _) in WEAKENED.items():
            if text in source:
                numbers[name] = len(numbers) + 1
                source = source.replace(text, instead.replace("FAULT", f"(fault == {numbers[name]})"))
        for site, at in reversed([*barriers_of_blocks(source)]):
            numbers[site] = len(numbers) + 1
            source = f"{source[:at]}if (fault != {numbers[site]}) {source[at:]}"
        return f'extern "C" __attribute__((visibility("default"))) int fault;\nint fault;\n{source}'

    def faulty(library: Path) -> simt.Emulator:
        emulator = load(library)
        ctypes.c_int.in_dll(emulator._library.lib, "fault").value = numbers[fault]
        return emulator

    monkeypatch.setattr(simt, "render_cuda", changed)
    monkeypatch.setattr(simt, "Emulator", faulty)
    monkeypatch.setattr(simt_compiler, "KERNEL_FLAGS", ("-O0", *simt_compiler.KERNEL_FLAGS[1:]))


def test_every_barrier_of_a_block_is_removed_once() -> None:
    names = (*CUDA_HEADERS, *CUDA_SYNC, *CUDA_ROUTINES)
    sites = {site for name in names for site, _ in barriers_of_blocks(header_text(name))}
    assert sites == {*MISSED, *HARMLESS}


@pytest.mark.parametrize("site", MISSED)
def test_without_a_barrier_of_the_block_there_is_a_race(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fault(monkeypatch, site)
    missing = "no (barrier of the block|__syncthreads) lies between|nobody has waited"
    early = "out of bounds: .* reads 4 bytes"  # at an address that is not there yet, so anywhere
    with pytest.raises(vpps.KernelError, match=f"race: .*, and ({missing})" + f"|{early}" * (site == "begin 1")):
        MISSED[site]()


@pytest.mark.parametrize("site", HARMLESS)
def test_a_barrier_that_another_one_makes_superfluous(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fault(monkeypatch, site)
    HARMLESS[site]()


# For each fault: the kernel's text, its replacement if FAULT is true, and the consequence.
WEAKENED = {
    "a signal that releases nothing": (
        "add_release(vp.counters + i.counter",
        "(FAULT ? add_relaxed : add_release)(vp.counters + i.counter",
        "unwritten fence: .* releases nothing",
    ),
    "a wait that acquires nothing": (
        "load_acquire(counter) >= STOPPED",
        "(FAULT ? load_relaxed : load_acquire)(counter) >= STOPPED",
        "unwritten fence: .* acquires nothing",
    ),
    "vectors that nobody waits for": (
        "copy_async_wait();\n        __syncthreads();\n        for_slots(slots",
        "if (!FAULT) copy_async_wait();\n        __syncthreads();\n        for_slots(slots",
        "race: .* nobody has waited for the copy yet",
    ),
    "weights that nobody waits for": (
        "copy_async_wait();  // for all loads",
        "if (!FAULT) copy_async_wait();",
        "race: .* nobody has waited for the copy yet",
    ),
    "words of the script that nobody waits for": (
        "vp.fetched = vp.position;\n        copy_async_wait();",
        "vp.fetched = vp.position;\n        if (!FAULT) copy_async_wait();",
        "race: .* nobody has waited for the copy yet",
    ),
    "weights through the cache that is not coherent": (
        "return *(const float4*)(row + at);",
        "return FAULT ? float4{as_float(load_script((const Word*)row + at))} : *(const float4*)(row + at);",
        "non-coherent read: .* writes pool",
    ),
    "a signal that is given twice": (
        "(vp.counters + i.counter * COUNTER_WORDS, 1)",
        "(vp.counters + i.counter * COUNTER_WORDS, FAULT ? 2 : 1)",
        "race: .* no signal and wait lie between",
    ),
}


PROGRAMS = {
    "weights that nobody waits for": in_one_window,
    "weights through the cache that is not coherent": partial(in_one_window, 80),
}


@pytest.mark.parametrize("fault", WEAKENED)
def test_a_weaker_order_of_memory_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fault(monkeypatch, fault)
    with pytest.raises(vpps.KernelError, match=WEAKENED[fault][2]):
        PROGRAMS.get(fault, published)()


# ---- scripts


def trained(network: Network, schedule: str) -> tuple[vpps.Handle, Plan]:
    """Return a handle after a step with clipping, and the step's plan."""
    handle = vpps.Handle(
        network.model, vpps.SGD(lr=0.1), target="simt", vps=3, schedule=schedule, clip_norm=0.1, verify=True
    )
    handle.fb(*network.batch(0))
    handle.sync_get_latest_loss()
    assert handle._engine.plan is not None
    return handle, handle._engine.plan


def found_by(handle: vpps.Handle, plan: Plan, script: Words, seeds: Iterable[int] = (0,)) -> str:
    """Return the emulator's message on a script for the first seed with findings; "" if no seed has any."""
    assert isinstance(handle._engine.machine, SimtMachine)
    for handle._engine.machine.seed in seeds:
        handle._engine.machine.launch(script)
        failure = handle._engine.machine.wait()
        if failure is not None:
            return failure.message.format(*map(plan.whereabouts, failure.positions))
    return ""


def all_of(script: Words, name: str) -> list[Decoded]:
    """Return every instruction with this name, stream by stream."""
    streams = [instructions(script, entry) for entry in sorted(set(entry_points(script)))]
    return [d for stream in streams for d in stream if d.instruction.name == name]


def without_wait(script: Words, wait: Decoded) -> Words:
    """Replace a barrier with its signal; replace any other wait with a signal without waiters."""
    changed = script.copy()
    changed[wait.position] = BY_NAME["signal"].opcode
    if wait.instruction.name == "wait":
        changed[wait.position + HEAD_WORDS] = 3
    return changed


def with_target(script: Words, wait: Decoded, target: int) -> Words:
    changed = script.copy()
    changed[wait.position + HEAD_WORDS + 1] = target
    return changed


def without_signal(script: Words, signal: Decoded) -> Words:
    """Send the signal to another counter; replace a barrier with its wait."""
    changed = script.copy()
    if signal.instruction.name == "barrier":
        changed[signal.position] = BY_NAME["wait"].opcode
    else:
        changed[signal.position + HEAD_WORDS] = 3
    return changed


def refused(plan: Plan, script: Words) -> bool:
    try:
        verify(script, plan.layout, plan.origin)
    except vpps.ScriptError:
        return True
    return False


@pytest.mark.parametrize("make", [models.tree_lstm, models.attention])
def test_without_a_barrier_there_is_a_race_exactly_where_the_verifier_says_so(make: Callable[[], Network]) -> None:
    handle, plan = trained(make(), "vector")
    with handle:
        outcomes = []
        for wait in all_of(plan.script, "barrier"):
            # The fault has no effect if a processor reaches the previous barrier after all signals for this barrier.
            said = found_by(handle, plan, without_wait(plan.script, wait), range(8))
            outcomes.append(bool(said))
            assert outcomes[-1] == refused(plan, with_target(plan.script, wait, 0)), plan.origin(wait.position)
            assert not said or "race: VP" in said
            if "before" in plan.origin(wait.position):  # the update, or clipping
                assert said
        assert sum(outcomes) > len(outcomes) / 2
        assert found_by(handle, plan, plan.script) == ""


@pytest.mark.parametrize("schedule", ["vector", "paper"])
def test_without_a_signal_there_is_a_deadlock(schedule: str) -> None:
    handle, plan = trained(models.attention(), schedule)
    with handle:
        signals = all_of(plan.script, "barrier" if schedule == "vector" else "signal")
        for signal in signals[:: len(signals) // 6]:
            said = found_by(handle, plan, without_signal(plan.script, signal))
            assert "deadlock: no virtual processor can go on" in said
            for vp in range(3):  # the position of each, and the instructions before it
                assert re.search(
                    rf"VP {vp} waits for counter 0, which is \d+, in barrier \d+, [^;]* from call \d+", said
                )
        assert found_by(handle, plan, plan.script) == ""


def test_a_virtual_processor_that_does_not_wait_for_the_others_is_found() -> None:
    """Exclusive scripts: one virtual processor skips a barrier. With some seeds nothing is wrong: the others were
    early, and the previous wait has already seen their signals."""
    handle, plan = trained(models.attention(), "paper")
    with handle:
        waits = [w for w in all_of(plan.script, "wait") if "before" in plan.origin(w.position)]
        assert len(waits) == 9  # before gradients, clipping and the update, for three virtual processors
        for wait in waits:
            assert "race: VP" in found_by(handle, plan, without_wait(plan.script, wait), range(8))


def test_a_short_tail_reads_no_sums_in_the_instruction_behind_it() -> None:
    """The next instruction has three rows, and 3 as the use of a view means the mean. Another tail has five sums."""
    model = vpps.Model()
    v = model.parameter("v", (4,), init=1.0)

    @vpps.cell
    def short() -> E:
        return vpps.sum(v) * 0.1 + vpps.sum(v * v)

    @vpps.cell
    def long(*xs: E) -> tuple[E, ...]:
        a, b, c, d, e = xs
        h = vpps.tanh(a * b * c * d * e * v)
        return h, h * a, h * b, h * c, h * d

    graph = vpps.Graph()
    terms = [graph.call(short)]
    for _ in range(3):  # their instruction follows
        terms += [vpps.sum(long(*long(*long(*[graph.input([0.5] * 4)] * 5)))[0])]
    loss = vpps.sum(terms)
    with vpps.Handle(model, vps=1, passes=vpps.Passes()) as handle:
        assert handle.gradients(graph, loss)[0] == pytest.approx(4.4)
