"""Liveness of registers over machine code: by hand on small pieces, against nvdisasm's own count on real kernels."""

from __future__ import annotations

import re

import pytest

from tests.kernel.sass import LINE, ControlFlow, MachineCode, MachineInstruction, listing_of, live_registers, parse
from tests.nvrtc import interpreter, needs_nvrtc
from vpps.kernel.nvrtc import compile_cubin


def code(text: str) -> MachineCode:
    """Instructions, one a line: `label: @guard OPCODE operands ; registers written < registers read`."""
    instructions: list[MachineInstruction] = []
    labels: dict[str, int] = {}
    for line in text.strip().splitlines():
        label, colon, rest = line.strip().rpartition(": ")
        if colon:
            labels[label] = len(instructions)
        body, _, registers = rest.partition(";")
        written, _, read = registers.partition("<")
        guard = body.split()[0] if body.startswith("@") else ""
        opcode, _, operands = body.removeprefix(guard).strip().partition(" ")
        targets = tuple(word.strip("`(),") for word in operands.split() if word.startswith("`"))
        bits = [sum(1 << int(r) for r in names.split()) for names in (read, written)]
        instructions.append(MachineInstruction(body.strip(), guard, opcode, operands, *bits, targets))
    return MachineCode(instructions, labels)


@pytest.mark.host
class TestLiveRegisters:
    @pytest.mark.parametrize(
        "live, text",
        [
            (3, """
            kernel: LDG R0 ; 0
            LDG R1 ; 1
            MOV R2 ; 2
            .L_1: LDG R3 ; 3 < 2
            IADD R2 ; 2 < 2
            @P0 BRA `(.L_2) ;
            FFMA ; 3 < 0 3
            STG ; < 3
            BRA `(.L_1) ;
            .L_2: STG ; < 1
            EXIT ;
            """),  # 0 and 1 are weights, 2 is the script pointer, 3 comes and goes.
            (1, """
            kernel: MOV ; 0 1 2 3
            .L_1: FADD ; < 0 1 2 3
            @P0 BRA `(.L_1) ;
            MOV ; 4
            .L_2: FADD ; 5 < 4
            NOP ;
            @P0 BRA `(.L_2) ;
            EXIT ;
            """),
            (3, """
            kernel: MOV ; 0 1 2
            .L_1: BRX `(.L_2) `(.L_3) `(.L_4) ;
            .L_2: FADD ; < 0
            BRA `(.L_1) ;
            .L_3: FADD ; < 1
            BRA `(.L_1) ;
            .L_4: FADD ; < 2
            EXIT ;
            """),
            (1, """
            kernel: MOV ; 0
            .L_1: CALL.REL.NOINC `(function) ;
            @P0 BRA `(.L_1) ;
            EXIT ;
            function: FADD ; < 0
            CALL.REL.NOINC `(function) ;
            RET.REL.NODEC `(kernel) ;
            """),
        ],
        ids=["survive an iteration", "of the largest loop", "jump table", "recursion"],
    )  # fmt: skip
    def test_at_the_entry_of_the_loop(self, live: int, text: str) -> None:
        assert live_registers(code(text), "kernel") == live

    def test_include_what_a_guarded_write_may_leave(self) -> None:
        text = """
            kernel: MOV ; 0
            .L_1: {} MOV ; 0
            FADD ; < 0
            @P1 BRA `(.L_1) ;
            EXIT ;
        """
        assert live_registers(code(text.format("@P0")), "kernel") == 1
        assert live_registers(code(text.format("")), "kernel") == 0

    def test_are_kept_apart_between_calls_of_a_function(self) -> None:
        """The first call is outside the loop; control does not return from the second call to there."""
        flow = code(
            """
            kernel: MOV ; 0 1
            CALL.REL.NOINC `(function) ;
            FADD ; < 0
            .L_1: FADD ; < 1
            CALL.REL.NOINC `(function) ;
            @P0 BRA `(.L_1) ;
            EXIT ;
            function: MOV ; 5
            RET.REL.NODEC `(kernel) ;
            """
        )
        assert live_registers(flow, "kernel") == 1
        assert len(ControlFlow(flow, "kernel").instructions) == 7 + 2 * 2

    @pytest.mark.parametrize("jump", ["@P0 BRA `(.L_2)", "@P0 CALL.REL.NOINC `(.L_2)", "BRA.U UP0, `(.L_2)"])
    def test_reach_the_code_after_the_loop_by_any_jump(self, jump: str) -> None:
        text = f"""
            kernel: MOV ; 0 1
            .L_1: FADD ; < 0
            {jump} ;
            BRA `(.L_1) ;
            .L_2: FADD ; < 1
            EXIT ;
        """
        assert live_registers(code(text), "kernel") == 2

    @pytest.mark.parametrize("jump", ["BRA.DIV `(.L_2)", "WARPSYNC.COLLECTIVE R9, `(.L_2)", "BRA.DIV ~URZ, `(.L_2)"])
    def test_follow_warps_that_diverge(self, jump: str) -> None:
        text = f"""
            kernel: MOV ; 0 1
            .L_1: {jump} ;
            FADD ; < 0
            @P0 BRA `(.L_1) ;
            EXIT ;
            .L_2: FADD ; < 1
            BRA `(.L_1) ;
        """
        assert live_registers(code(text), "kernel") == 2


@pytest.mark.nvrtc
@needs_nvrtc
def test_without_calls_nvdisasm_counts_the_same_at_every_instruction() -> None:
    """Or one more: R1, the stack pointer, which it takes to be alive always."""
    source = re.sub(r"case [678]:.*\n", "", interpreter(96))  # whose special values are dealt with in functions
    listing = listing_of(compile_cubin(source, "sm_90"))
    kernel = parse(listing)
    assert not any(instruction.family == "CALL" for instruction in kernel.instructions)
    counts = [int("0" + match["registers"][:5].strip()) for match in map(LINE.match, listing.splitlines()) if match]
    flow = ControlFlow(kernel, "vpps_kernel")
    place = {id(instruction): i for i, instruction in enumerate(kernel.instructions)}
    assert len(counts) == len(kernel.instructions)
    for instruction, live in zip(flow.instructions, flow.live(), strict=True):
        assert counts[place[id(instruction)]] - (live | instruction.writes).bit_count() in (0, 1), instruction.text
