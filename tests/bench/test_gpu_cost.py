"""Machine code executed without a GPU: whole launches with results, and the counts of instructions."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.kernel.programs import tree_lstm
from tests.nvrtc import COMPILE_ALL, needs_nvrtc
from vpps.engine.options import Example
from vpps.kernel.render import header_text
from vpps.model.precisions import Precisions
from vpps.ops.precision import EXACT, PRECISIONS
from vpps.placement.distribution import ONE
from vpps.placement.onchip import Device
from vpps.reference import Reference, weights_of
from vpps.script.disassemble import entry_points, instructions
from vpps.script.instructions import COUNTERS

BLOCKS, HIDDEN = 2, 8
SMALL = {"a window for two": 51, "a window for all": 47}  # KiB of shared memory
KINDS = ["float32", "bf16", *SMALL, "round-robin", *(["3xtf32"] if COMPILE_ALL else [])]
Program = tuple[vpps.Model, Example, Any]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Program]:
    """Return a factory of `gpu_cost.cases.Case` with its model and batch, by precision and location of the weights."""
    from gpu_cost.cases import planned

    @cache
    def made(kind: str) -> Program:
        hidden = HIDDEN if kind in PRECISIONS else 24
        model, example = tree_lstm(hidden, embedding=hidden, seed=152)  # a seed without near ties in bf16
        folder = tmp_path_factory.mktemp("gpu_cost")
        options: dict[str, Any] = {"precision": kind} if kind in PRECISIONS else {}
        with pytest.MonkeyPatch.context() as patch:
            if kind in SMALL:
                patch.setattr(Device, "shared", SMALL[kind] << 10)
            if kind == "round-robin":
                options["ownership"] = kind
            case = planned("small", 3, model, example, folder, BLOCKS, **options)
        assert case.kernel.spec.chip.changes_windows == (kind in SMALL)
        assert bool(case.kernel.spec.chip.homes) == (kind == "a window for all")
        return model, example, case

    return made


@pytest.mark.nvrtc
@needs_nvrtc
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_step_in_machine_code_follows_the_reference(program: Callable[[str], Program], kind: str) -> None:
    """Runs all blocks, from loads to update: no matrix in registers may be overwritten, no instruction misread."""
    from gpu_cost.cases import LINE_WORDS, memory_of
    from gpu_cost.machine import BASE, Machine

    model, example, case = program(kind)
    precision = kind if kind in PRECISIONS else EXACT.name
    plan, parameters = case.plan, case.kernel.parameters
    memory, parameter = memory_of(plan)
    addresses = (parameter.view(np.uint64)[:3].astype(np.int64) - BASE) // 4
    pool, counters = memory[addresses[0] :].view(np.float32), memory[addresses[2] :]
    pool[:] = 0
    pool[ONE] = 1
    counters[: COUNTERS * LINE_WORDS] = 0  # start at zero signals: blocks take turns at waits
    for p in model:
        parameters.store_weights(pool, p, model.numpy()[p.name])
    polls = {
        pc
        for pc, i in enumerate(case.code.instructions)
        if i.family in ("LD", "LDG") and {"load_relaxed", "wait"} <= set(case.code.places(pc))
    }
    assert polls
    shared = case.kernel.spec.chip.shared_bytes
    runs = [Machine(case.code, memory, parameter, block, shared).run(polls) for block in range(BLOCKS)]
    waiting, executed = deque(range(BLOCKS)), set()
    with np.errstate(all="ignore"):
        while waiting:
            block = waiting.popleft()
            at, trace = next(runs[block])
            executed |= {pc for pc, _, _ in trace}
            if at >= 0:  # it is about to check the other blocks' signals
                waiting.append(block)

    assert memory[0] == 0  # the launch was not stopped
    on_tensor_cores = [pc for pc in executed if case.code.instructions[pc].family == "HMMA"]
    assert bool(on_tensor_cores) == (precision != "float32")
    reference = Reference(example[0], weights_of(model), precisions=Precisions.given(precision))
    gradients = reference.backward(example[1])
    assert reference.nearest_tie > 1  # sums have 16 terms
    np.testing.assert_allclose(pool[plan.loss_slot], reference.value(example[1]), rtol=FORWARD_TOLERANCE)
    for p in model:
        weights, none = model.numpy()[p.name].astype(np.float64), np.zeros(p.shape)
        stepped, (m, _) = vpps.Adam(lr=1e-3).reference(weights, gradients[p.name], [none, none], 1)
        places = parameters.places[p]
        assert np.abs(m).max() > 0
        found = parameters.fetch(pool, p, places.moments[0])
        assert relative_error(found, m) < GRADIENT_TOLERANCE, p.name
        sure = np.abs(m) > 1e-3 * np.abs(m).max()  # the first step of Adam is the gradient's sign
        found = parameters.fetch(pool, p, places.weights)
        np.testing.assert_allclose(found[sure], stepped[sure], atol=2e-6, err_msg=p.name)


@pytest.mark.nvrtc
@needs_nvrtc
def test_counts_follow_from_code_and_script(
    program: Callable[[str], Program], capsys: pytest.CaptureFixture[str]
) -> None:
    """The barriers match the plan's; every cycle is assigned to an instruction."""
    from gpu_cost.executing import executed, slowest
    from gpu_cost.reporting import report, sums
    from gpu_cost.timing import Constants

    constants = Constants()
    case = program("bf16")[-1]
    done = slowest([executed(case, 0, constants)])
    names = Counter(d.instruction.name for d in instructions(case.plan.script, entry_points(case.plan.script)[0]))
    barriers = sum(s.barriers for s in sums(done, constants, lambda e: e.phase).values())
    assert barriers == names["wait"] + names["barrier"] > 0
    for e in done:
        assert sum(e.spent.by.values()) == pytest.approx(e.spent.cycles)
    report(case, done, constants, top=3)
    printed = capsys.readouterr()
    assert '"case": "small bf16 step"' in printed.out
    assert "| forward: product and tail |" in printed.err
    assert "| 40 x 16, n = 2 |" in printed.err
    assert '"raw_us": ' in printed.out
    assert '"remark": "not measured"' in printed.out  # of a form that is not in the committed calibration


@pytest.mark.host
def test_factors_follow_from_measurements() -> None:
    """A form's factor is the geometric mean; waits have a surplus. Deviations above 15 % are reported."""
    from gpu_cost.calibration import Calibration, Comparison, calibration

    found = [
        *(Comparison(n, "Matvec", 2.0, us) for n, us in ((1, 3.0), (16, 3.0))),
        *(Comparison(n, "Tail", 2.0, us) for n, us in ((1, 2.0), (16, 4.5))),
        *(Comparison(n, "Wait", 1.0, us) for n, us in ((1, 1.7), (16, 1.9))),
    ]
    fitted = Calibration(found)
    assert [fitted.us(form, 4.0) for form in ("Matvec", "Tail", "Wait", "Guard")] == pytest.approx([6, 6, 4.8, 4])
    assert [fitted.remark(form) for form in ("Matvec", "Wait")] == ["", ""]
    assert fitted.remark("Tail") == "measured: 0.67 to 1.50 times this"
    assert fitted.remark("Guard") == "not measured"
    assert calibration().skew > 0  # in the committed table
    assert calibration().factors["Matvec"] > 1


@pytest.mark.nvrtc
@needs_nvrtc
def test_the_model_stands_beside_timelines(
    program: Callable[[str], Program], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compares the model with lines by form (the former format) and with a table of instructions."""
    from gpu_cost.calibration import compare, measurements
    from gpu_cost.executing import executed
    from gpu_cost.timing import Constants

    run, path = executed(program("bf16")[-1], 0, Constants()), tmp_path / "lines.jsonl"
    table = {"columns": ["name", "median"], "table": [["held_matvec", 9.0], ["held_matvec", 3.0], ["wait", 1.5]]}
    once = [
        {"case": f"{form}, first of a launch, batch=3", "value": first, "later": later}
        for form, first, later in (("Matvec", 9.0, 3.0), ("Wait", 1.5, None), ("Guard", 0.4, None))
    ]
    for lines in ([{"case": "batch=3", "value": 100.0, **table}], [*once, {"case": "launch, batch=3", "value": 100.0}]):
        path.write_text("".join(json.dumps({"bench": "gpu_timelines", **line}) + "\n" for line in lines))
        shown = compare({3: [run]}, {3: run}, measurements(path))
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {line["form"]: line["measured"] for line in printed} == {"Matvec": 3.0, "Wait": 1.5, "launch": 100.0}
        assert printed[-1]["calibrated"] > printed[-1]["value"] > 0
        assert "| Matvec | 3 |" in shown


@pytest.mark.host
def test_the_batch_of_the_bench_is_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case consists of the first trees in a file, trained by SGD."""
    from gpu_cost import cases

    trees = tmp_path / "trees.txt"
    trees.write_text("(1 (2 a) (3 (2 b) (1 a)))\n(2 b)\n(1 c)\n")
    monkeypatch.setattr(cases, "planned", lambda *given: given)
    name, batch, model, example, *_, rule = cases.bench_case(2, trees, tmp_path)
    assert (name, batch, type(rule)) == ("bench batch=2", 2, vpps.SGD)
    assert next(p.shape for p in model if p.name == "words") == (2, 256)
    assert np.isfinite(Reference(example[0], weights_of(model)).value(example[1]))


@pytest.mark.nvrtc
@needs_nvrtc
def test_a_warp_multiplies_eight_vectors_with_a_third_of_the_instructions_of_float32(tmp_path: Path) -> None:
    """The widest product of a Tree-LSTM, on tensor cores."""
    from gpu_cost.cases import comb_case
    from gpu_cost.executing import executed, slowest
    from gpu_cost.reporting import products
    from gpu_cost.timing import Constants

    counts = {}
    for precision in ("float32", "bf16"):
        case = comb_case(8, tmp_path, precision=precision, levels=1)
        found = products(case, slowest([executed(case, 0, Constants())]))
        counts[precision] = found["1280 x 512, n = 8"]["multiplying"]
    print(counts)
    assert 0 < 3 * counts["bf16"] <= counts["float32"]


# PTX ISA, matrix fragments of mma: position of element i of the lane with `group` = lane / 4 and `t` = lane % 4.
MMA = {
    "m16n8k16 bf16": (
        lambda i, group, t: (group + 8 * (i in (2, 3, 6, 7)), 2 * t + (i & 1) + 8 * (i >= 4)),
        lambda i, group, t: (2 * t + (i & 1) + 8 * (i >= 2), group),
    ),
    "m16n8k8 bf16": (
        lambda i, group, t: (group + 8 * (i >= 2), 2 * t + (i & 1)),
        lambda i, group, t: (2 * t + i, group),
    ),
    "m16n8k8 tf32": (
        lambda i, group, t: (group + 8 * (i in (1, 3)), t + 4 * (i >= 2)),
        lambda i, group, t: (t + 4 * i, group),
    ),
    "m16n8k4 tf32": (lambda i, group, t: (group + 8 * i, t), lambda i, group, t: (t, group)),
}  # fmt: skip


def of_threads(code: str, words: np.ndarray[Any, Any], folder: Path) -> np.ndarray[Any, Any]:
    """Run the machine code of a few lines; returns the words `p[0]`, `p[1]` ... of each thread: (256, count)."""
    from gpu_cost.machine import BASE, Machine
    from gpu_cost.machine_code import code_of

    kernel = f"""extern "C" __global__ void vpps_kernel(unsigned* m) {{
        unsigned* p = m + threadIdx.x * {words.shape[1]};
        {code}
    }}"""
    memory = np.append(words.astype(np.uint32).ravel(), np.zeros(4, np.uint32))
    parameter = np.array([BASE], np.uint64).view(np.uint32)
    with np.errstate(all="ignore"):
        for _ in Machine(code_of(kernel, "sm_90", folder, 64), memory, parameter, 0, 8192).run(set()):
            pass
    return memory[: words.size].reshape(words.shape)


@pytest.mark.nvrtc
@needs_nvrtc
@pytest.mark.parametrize("shape", MMA)
def test_fragments_lie_as_the_ptx_isa_says(shape: str, tmp_path: Path) -> None:
    """D = A B + C, every element, with whole numbers that BF16 represents; each warp has its own matrices."""
    size, kind = shape.split()
    depth, packed = int(size.split("k")[1]), 2 if kind == "bf16" else 1
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-9, 9, (8, *s)).astype(np.float32) for s in ((16, depth), (depth, 8), (16, 8)))
    place_a, place_b = MMA[shape]
    counts = depth // (2 * packed), depth // (4 * packed), 4  # registers
    at_c = [[(lane // 4 + 8 * (i >= 2), 2 * (lane % 4) + (i & 1)) for i in range(4)] for lane in range(32)]
    words = np.zeros((256, sum(counts)), np.uint32)
    for thread in range(256):
        warp, lane = divmod(thread, 32)
        found = [
            matrix[warp][place(i, *divmod(lane, 4))]
            for matrix, place, count in zip((a, b), (place_a, place_b), counts, strict=False)
            for i in range(packed * count)
        ]
        for k, value in enumerate(np.array(found, np.float32).view(np.uint32)):
            words[thread, k // packed] |= value >> (16 * (packed - 1 - k % packed))
        words[thread, -4:] = np.array([c[warp][at] for at in at_c[lane]], np.float32).view(np.uint32)
    operands = [f'"r"(p[{k}])' for k in range(sum(counts[:2]))]
    names = [f"%{k}" for k in range(4, 4 + len(operands))]
    sums = ", ".join(f'"+r"(p[{len(operands) + k}])' for k in range(4))
    code = f"""asm volatile("mma.sync.aligned.{size}.row.col.f32.{kind}.{kind}.f32 {{%0,%1,%2,%3}},"
        "{{{",".join(names[: counts[0]])}}},{{{",".join(names[counts[0] :])}}},{{%0,%1,%2,%3}};"
        : {sums} : {", ".join(operands)});"""
    found_c = of_threads(code, words, tmp_path)[:, -4:].copy().view(np.float32).reshape(8, 32, 4)
    expected = a @ b + c
    for lane in range(32):
        for i in range(4):
            np.testing.assert_array_equal(found_c[:, lane, i], [e[at_c[lane][i]] for e in expected])


@pytest.mark.nvrtc
@needs_nvrtc
def test_a_wait_for_copies_leaves_the_newest_groups_under_way(tmp_path: Path) -> None:
    """The first wait covers only the first group; the second wait still has to wait for the second group."""
    from gpu_cost.machine import BASE, Machine
    from gpu_cost.machine_code import code_of
    from gpu_cost.timing import L2, Clock, Constants

    kernel = """
    extern "C" __global__ void vpps_kernel(float* m) {
        float* mine = shared_memory() + 4 * threadIdx.x;
        copy_async16(mine, m + 4 * threadIdx.x);
        copy_async_commit();
        for (int k = 1; k < 6; k++) copy_async16(mine + 1024 * k, m + 4 * threadIdx.x + 1024 * k);
        copy_async_commit();
        copy_async_wait<1>();
        const float x = mine[1];
        copy_async_wait<0>();
        m[threadIdx.x] = x + mine[5 * 1024];
    }"""
    source = f"#define VP_CACHED 0\n{header_text('cuda/ptx.cuh')}{kernel}"
    code = code_of(source, "sm_90", tmp_path, 64)
    words = np.arange(8192, dtype=np.float32)
    parameter = np.array([BASE], np.uint64).view(np.uint32)
    ((_, trace),) = Machine(code, words.view(np.uint32), parameter, 0, 6 * 4096).run(set())
    np.testing.assert_array_equal(words[:256], 4 * np.arange(256) * 2 + 1 + 5 * 1024)
    spent = Clock(code, Constants(), 1).spend(trace)
    first, second = (pc for pc, i in enumerate(code.instructions) if i.family == "DEPBAR")
    assert spent.by[first, L2] > 0
    assert spent.by[second, L2] > 0


@pytest.mark.host
@pytest.mark.parametrize(
    "opcode, operands", [("HMMA.16816.F16", ("R0", "R4", "R8", "R0")), ("IADD3.WRAP", ("R0", "R1", "R2", "RZ"))]
)
def test_what_is_not_known_is_named(opcode: str, operands: tuple[str, ...]) -> None:
    """The program stops at unknown code; it never continues with a guess."""
    from gpu_cost.machine import Machine, UnknownInstruction
    from gpu_cost.machine_code import Code, Instruction

    one = Instruction(0, "", opcode, operands, 1, 7, 7, 0, ())
    machine = Machine(Code([one], {}, [""], [], 8), np.zeros(8, np.uint32), np.zeros(2, np.uint32), 0, 64)
    with pytest.raises(UnknownInstruction, match=opcode):
        next(machine.run(set()))
