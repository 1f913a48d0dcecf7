"""Types and functions shared by the compiled planner and Python. The build generates `interface.h` from this module."""

from __future__ import annotations

from ctypes import Structure
from enum import IntEnum, auto

from vpps.compiler.linear import Linear
from vpps.compiler.passes.lazy_batching import STAGES, Batching
from vpps.compiler.records import RECORDS, Frame, From
from vpps.compiler.slabs import Life
from vpps.kernel import shared_types
from vpps.kernel.shared_types import fields
from vpps.model.learned_policy import EncodingKind
from vpps.ops.philox import EXAMPLE_STEP
from vpps.placement.distribution import ALIGN, ONE, ZERO
from vpps.record.examples import UNNUMBERED

NOWHERE = 0xFFFFFFFF  # address of a value that is not computed


# ---- a plan


@fields(
    ints="""
    training splits chunk_rows account
    n_blocks blocks n_calls n_values wanted n_wanted loss_slot key_on key_low key_high outside n_examples examples
    updates keeps clips max_norm averages n_hyper hyper hyper_of
    held n_held_rows held_rows n_given_rows given_rows seeded seeds n_seed_floats seeds_at
    stays present n_present present_stop
    script capacity addresses room_for_values touched tables cells grouping
    words pool_floats n_barriers encoding names n_tables n_all_values n_cells torn
    new_block key n_key new_pair
    entries n_launches input_gradients n_input_gradients
    """
)
class Call(Structure):
    """Arguments and results of `plan`.

    Attributes:
        training, splits, key_on, updates, keeps, clips, averages, seeded, stays: flags, 0 or 1.
        outside: number of the example that stands for all vertices without an example (`vpps.ops.philox`).
        examples: address of ExamplesInputs.
        account: 1 if `vpps_account` and `vpps_map` will be called for this plan, else 0.
        blocks: address of a BlockInput for each block, followed by a ListInput for each of its lists.
        hyper_of: the number of each parameter's set of hyper-parameters; then the size of a set.
        held: address of a byte per parameter, 1 if the pool holds its gradient; address 0 if none is held.
        held_rows: for each table with held gradients: parameter, number of rows, address of the row numbers.
        given_rows: the same three numbers for each table whose gradients the caller writes before the launch.
        seeded: 1 if the caller writes the gradients of the wanted values (`seeds`) between two launches, forward and
            the rest; 0 if a loss is wanted. With seeds but no wanted values, only the end of a launch is planned.
        seeds, seeds_at: offsets of the seeds, and the pool address of all their n_seed_floats floats.
        stays: 1 to keep all computed values in the pool after inference.
        present, n_present, present_stop: addresses (u32) of the graph's first values, NOWHERE for those still to
            compute, and the pool's first free address. Blocks may leave out vertices whose values are present.
        script, addresses, touched, tables, cells: buffers for results; `tables` for UsedTables, `cells` for each cell's
            id, or ~id if the cell runs late.
        grouping: buffer for a GroupingResult and the loads, if there are groups of virtual processors.
        torn: 1 if the loss depends on some, but not all, parameters of a stack.
        entries: position of the entry points of all launches after the first.
        input_gradients: address of an IntPair for each input value whose gradient is requested: value and address, or
            ZERO if no gradient flows into it. Valid until the next plan.
        new_block, key, n_key, new_pair: subject of a request (see Status); `new_pair` is the address of a Pair.
    """


class Status(IntEnum):
    """Result of `plan`: success, an error, or a request for missing facts."""

    DONE = 0
    MORE_MEMORY = auto()  # a buffer is too small: `words` or `n_all_values` is the required size
    NO_GRADIENT = auto()  # the loss depends on nothing trainable
    NO_VALUE = auto()  # `new_block`, or the caller if that is -1, reads a value that no vertex computes
    NO_MEMORY = auto()  # out of host memory
    TORN = auto()  # calls or values are missing or duplicate: threads recorded at the same time
    NEW_BLOCK = auto()  # request: for `key`, the parts of `new_block`'s cell
    NEW_PAIR = auto()  # request: the answer for the Pair at `new_pair`


class Following(IntEnum):
    """Kind of step that may follow another step without a barrier."""

    FORWARD = 0  # another step of forward
    BACKWARD = auto()  # another step of backward
    TURN = auto()  # the first step of backward, after forward


@fields(ints="after before group following")
class Pair(Structure):
    """Question: may a step of cell `after` begin while others execute `group` of cell `before`? See `Following`."""


@fields(ints="n_args n_ints n_lists n_outputs linear", words="digest")
class CellInput(Structure):
    """A cell: how many vector, int and list arguments and outputs it has; its kind as a Linear, or -1; its digest for
    learned policies."""


@fields(
    ints="""
    cell constants n calls calls_step first first_step levels levels_step
    args args_step ints ints_step data
    """
)
class BlockInput(Structure):
    """A block: its cell, its constants' words, its number of vertices, and the address and stride of each column.
    Argument columns are adjacent."""


@fields(ints="ends lengths elements")
class ListInput(Structure):
    """A block's list argument: addresses of the lists' ends (or 0), their lengths, and their elements."""


@fields(ints="first n number numbers")
class ExamplesInput(Structure):
    """The examples for n vertices from recording index `first` on. `numbers` is the address of one number per vertex,
    or 0 if `number` applies to all: -1 for no example, UNNUMBERED for a constant."""


@fields(ints="parameter rows gradient offsets numbers idle")
class UsedTable(Structure):
    """A lookup table's used rows: how many there are, and the addresses of their data (update.UsedRows)."""


@fields(ints="first_own first_joining n_components")
class GroupingResult(Structure):
    """Assignment of vertices to groups of virtual processors (planner/grouping.py), followed by each group's load."""


# ---- the account of a plan (vpps/planner/native/account.py)


LaunchPhase = IntEnum("LaunchPhase", "FORWARD BACKWARD GRADIENTS UPDATE", start=0)
PHASES = tuple(phase.name.lower() for phase in LaunchPhase)  # of a launch; "gradients" are those of the weights


class Origin(IntEnum):
    """Origin of a script section, with the meaning of its fields `a` and `b`."""

    FORWARD = 0  # a cell's instruction group: a = level between barriers, b = index in the level
    BACKWARD = auto()  # a, b as for FORWARD
    WATCH = auto()  # b = index among the cell's watches
    TILES = auto()  # b = index among the cell's gradients
    GRADIENT = auto()  # b = index among the cell's gradients
    STEPPED = auto()  # b = index among the cell's gradients; the optimizer's step is fused in
    BARRIER = auto()  # a = Reason, b = stage
    END = auto()
    # Instructions that belong to no cell; for some of them, `a` is a parameter.
    LOSS = auto()
    CONSTANTS = auto()
    LOAD = auto()
    GUARD = auto()
    CLIP = auto()
    SUM = auto()
    SQUARE = auto()
    STEP = auto()


class Reason(IntEnum):
    """Purpose of a barrier."""

    NONE = 0
    FORWARD = auto()  # end of a stage
    BACKWARD = auto()
    GROUPS = auto()
    LOSS = auto()
    GRADIENTS = auto()
    UPDATE = auto()
    CLIPPING = auto()


@fields(ints="first second")
class IntPair(Structure):
    """Two positions, or a position and a number."""


@fields(ints="start origin block a b first n_rows run during")
class SectionResult(Structure):
    """A section of a stream (vpps/planner/sections.py).

    Attributes:
        origin: an Origin, which defines the meaning of a and b.
        block: number of the block, or -1 if the section belongs to no cell.
        first: first row of the step; for a barrier, its number.
        run, n_rows: if rows are executed one by one, the number of the executed group and how many of its rows are in
            this section; else 0.
        during: a LaunchPhase.
    """


@fields(
    ints="""
    n_streams streams n_sections sections n_rows rows
    n_lists lists n_periods periods n_allocated allocated
    """
)
class AccountResult(Structure):
    """Addresses and lengths of the arrays in a plan's account.

    Attributes:
        streams: IntPairs: position of each stream in the script, and the number of its sections.
        sections: SectionResults of all streams, in order.
        rows: rows of all sections, in order.
        lists, allocated: IntPairs: spans of the script with lists, and pool spans allocated for the whole launch.
        periods: IntPairs: position and number of each period.
    """


# ---- memory map (vpps/planner/native/memory_map.py)


@fields(ints="n_blocks blocks n_arrays arrays stop end")
class MemoryResult(Structure):
    """Memory map of the pool.

    Attributes:
        blocks: address of a BlockResult for each block.
        arrays: start, stop, first and last period, and group of each array with a lifetime.
        stop: end of the slabs' memory.
        end: the last period.
    """


@fields(
    ints="""
    cell late pause n_needed n_needed_steps
    n_vertices calls n_outputs values n_rows order
    n_steps n_domains stage group first count
    n_bases operands bases n_lists lists
    """
)
class BlockResult(Structure):
    """The rows of a cell; see PlannedBlock.

    Attributes:
        cell: number of the encoded cell.
        calls, values: by vertex; `values` has one array per output.
        order: by row.
        stage, group, first, count: by step; `first` and `count` by step and domain.
        bases: by step: bases of the slabs, then of other parts' slabs, then, from index `operands`, each operand's two
            words.
        lists: positions in the script, in the same order as EncodedCell.keys.
    """


# ---- policies


@fields(ints="n n_types n_edges types levels producers readers")
class GraphInput(Structure):
    """A typed graph: the vertices' types and levels, and the two ends of every edge."""


@fields(
    ints="encoding phases horizon trials check_every",
    words="seed",
    floats="alpha rate epsilon least_epsilon decay",
)
class SettingsInput(Structure):
    """Settings for learning; see vpps.planner.native.typed_graphs.LearningSettings."""


@fields(ints="n_batches n_stages n_steps unseen")
class BatchesResult(Structure):
    """Numbers of batches, stages, steps, and of batches that began in a state unknown to the automaton."""


@fields(ints="trials n_steps n_stages bound n_numbers")
class AutomatonResult(Structure):
    """Result of learning: trials, steps and stages with the best automaton, lower bound on batches, automaton size."""


# ---- functions

FUNCTIONS = (
    # Creates a planner for a policy and placed parameters (ModelDescriptor). `automata`: see LearnedPolicy.numbers.
    # Returns null if the name is unknown or the numbers are malformed.
    "void* vpps_planner(const char* policy, const i64* automata, i64 n_automata, const i64* model, i64 n_model)",
    "void vpps_planner_free(void* planner)",
    # Adds a cell and returns its number.
    "i64 vpps_planner_cell(void* planner, const CellInput* cell)",
    # Sets a cell's parts for a key. Returns 0 if the numbers are malformed.
    "i64 vpps_planner_parts(void* planner, i64 cell, const u8* key, i64 n_key, const i64* numbers, i64 n)",
    # Answers a Pair's question.
    "void vpps_planner_pair(void* planner, const Pair* pair, i64 answer)",
    "Status vpps_plan(void* planner, Call* call)",
    # Returns the account of the latest plan, if its call set `account`. Valid until the next plan.
    "void vpps_account(void* planner, AccountResult* noted)",
    # Returns the memory map of the latest plan, if its call set `account`. Valid until the next plan.
    "void vpps_map(void* planner, MemoryResult* found)",
    # Batches a graph. `sequence` (type of each batch) and `stages` (of each vertex) have room for n numbers. Returns 0
    # if the policy is unknown or the automaton is malformed.
    "i64 vpps_batches(const GraphInput* given, const char* policy, const i64* automaton, i64 n_automaton, "
    "i64* sequence, i64* stages, BatchesResult* found)",
    # Learns an automaton and returns a handle; vpps_learned copies the automaton and frees the handle.
    "void* vpps_learn(const GraphInput* given, const SettingsInput* settings, AutomatonResult* found)",
    "void vpps_learned(void* learned, i64* numbers)",
)


def header() -> str:
    """Return the text of `interface.h`."""
    enums = (Status, Following, From, Frame, Life, Batching, Linear, EncodingKind, LaunchPhase, Origin, Reason)
    structs = (
        *(Call, Pair, CellInput, BlockInput, ListInput, ExamplesInput, UsedTable, GroupingResult),
        *(IntPair, SectionResult, AccountResult, MemoryResult, BlockResult),
        *(GraphInput, SettingsInput, BatchesResult, AutomatonResult),
    )
    numbers = {
        "ALIGN": ALIGN, "ZERO": ZERO, "ONE": ONE, "STAGES": STAGES, "NOWHERE": NOWHERE, "FRAME": len(Frame),
        "EXAMPLE_STEP": EXAMPLE_STEP, "UNNUMBERED": UNNUMBERED,
    }  # fmt: skip
    return "".join(
        (
            '#include "numbers.h"\n',
            shared_types.constants(numbers),
            *map(shared_types.enum, enums),
            *map(shared_types.struct, structs),
            *map(shared_types.record, RECORDS),
            shared_types.declarations(FUNCTIONS),
        )
    )
