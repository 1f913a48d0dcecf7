"""What the compiled planner and Python share. Its header `interface.h` is made of this when the library is built."""

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
    """What `plan` is called with, and what it finds.

    Attributes:
        training, splits, key_on, updates, keeps, clips, averages, seeded, stays: 0 or 1.
        outside: the number of the example that stands for all vertices that belong to none (`vpps.ops.philox`).
        examples: a ExamplesInput for each.
        account: 0 or 1, whether `vpps_account` and `vpps_map` are to tell who made which word, and what lies where.
        blocks: a BlockInput for each, and behind it a ListInput for each of its lists.
        hyper_of: by parameter the number of its set of hyper-parameters; last, the size of a set.
        held: by parameter whether the pool holds a gradient of it, bytes; 0 for none.
        held_rows: (parameter, number of rows, address of their numbers) of each table.
        given_rows: likewise, of tables whose gradients the caller writes before the launch.
        seeded: whether the caller writes the gradients of what is wanted, `seeds`, between two launches, forward and
            what follows; else a loss is wanted. Where nothing is: the end of a launch alone.
        seeds, seeds_at: where each of them is among n_seed_floats, which lie there in the pool.
        stays: whether all values that are computed stay in the pool, in inference.
        present, n_present, present_stop: addresses of the first values of the graph, u32s, NOWHERE of those that are to
            be computed; behind them the pool is free. Blocks may leave out vertices whose values are there.
        script, addresses, touched, tables, cells: memory for results; of `tables` a UsedTable each, of `cells` the id
            of each, ~id where it runs late.
        grouping: memory for a GroupingResult, where there are groups of virtual processors, and for what is behind it.
        torn: whether the loss depends on some, and not on all, of the parameters of a stack.
        entries: position of the entry points of the launches after the first, one after the other.
        input_gradients: address of a IntPair for each value of an input that wants its gradient: value and address,
            ZERO where none flows into it; until something else is planned.
        new_block, key, n_key, new_pair: what it asks about, see Status; `new_pair` is the address of a Pair.
    """


class Status(IntEnum):
    """How `plan` has ended."""

    DONE = 0
    MORE_MEMORY = auto()  # for `words`, or `n_all_values`
    NO_GRADIENT = auto()  # nothing can be learned
    NO_VALUE = auto()  # `new_block`, or if that is -1 the caller, has a value that no vertex makes
    NO_MEMORY = auto()  # on the host
    TORN = auto()  # calls or values are missing, or there twice: threads were recording at the same time
    NEW_BLOCK = auto()  # `new_block` has a cell whose parts, by `key`, have not been told yet
    NEW_PAIR = auto()  # nor what of a cell may begin while others execute some of another


class Following(IntEnum):
    """What follows a step, with no barrier between if that may be."""

    FORWARD = 0  # another step of forward
    BACKWARD = auto()  # another step of backward
    TURN = auto()  # the first step of backward, behind forward


@fields(ints="after before group following")
class Pair(Structure):
    """Whether a step of the cell `after` may begin while others execute `group` of the cell `before`; a Following."""


@fields(ints="n_args n_ints n_lists n_outputs linear", words="digest")
class CellInput(Structure):
    """A cell: numbers of its vector, int and list arguments and of its outputs; its kind as a Linear, or -1; what a
    learned policy knows it by."""


@fields(
    ints="""
    cell constants n calls calls_step first first_step levels levels_step
    args args_step ints ints_step data
    """
)
class BlockInput(Structure):
    """A block: its cell, the words of its constants, its vertices, and for every column where it begins and how many
    numbers lie between those of two vertices. The columns of arguments lie side by side."""


@fields(ints="ends lengths elements")
class ListInput(Structure):
    """Lists of a block's vertices: addresses of their ends, or 0 and that of their lengths, and of their elements."""


@fields(ints="first n number numbers")
class ExamplesInput(Structure):
    """The examples that vertices belong to: recording index of the first of n, and the number of the example, -1 for
    none, UNNUMBERED for a constant; or the address of one for each."""


@fields(ints="parameter rows gradient offsets numbers idle")
class UsedTable(Structure):
    """The used rows of a lookup table: their number, and where what belongs to them is (update.UsedRows)."""


@fields(ints="first_own first_joining n_components")
class GroupingResult(Structure):
    """How vertices were dealt to groups of virtual processors (planner/grouping.py). Behind it is each group's load."""


# ---- the account of a plan (vpps/planner/native/account.py)


# The phases of a launch, by their names in capital letters.
LaunchPhase = IntEnum("LaunchPhase", "FORWARD BACKWARD GRADIENTS UPDATE", start=0)


class Origin(IntEnum):
    """What made a section of a script; what `a` and `b` of it say."""

    FORWARD = 0  # a cell's group: between which barriers, and which there
    BACKWARD = auto()  # likewise
    WATCH = auto()  # -, which of the cell's
    TILES = auto()  # likewise
    GRADIENT = auto()  # likewise
    STEPPED = auto()  # likewise; it makes the matrix's step as well
    BARRIER = auto()  # a Reason, a stage
    END = auto()
    # Instructions that no cell makes; `a` is the parameter that some of them work on.
    LOSS = auto()
    CONSTANTS = auto()
    LOAD = auto()
    GUARD = auto()
    CLIP = auto()
    SUM = auto()
    SQUARE = auto()
    STEP = auto()


class Reason(IntEnum):
    """What a barrier is for."""

    NONE = 0
    FORWARD = auto()  # a stage is over
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
        origin: an Origin; what a and b are it says.
        block: -1 where no cell made it.
        first: first row of the step; of a barrier, its number.
        run, n_rows: where rows are executed one by one, the number of the group that was executed so, and how many of
            its rows are in this section; else 0.
        during: a LaunchPhase.
    """


@fields(
    ints="""
    n_streams streams n_sections sections n_rows rows
    n_lists lists n_periods periods n_allocated allocated
    """
)
class AccountResult(Structure):
    """Where the account of a plan lies.

    Attributes:
        streams: of each where it begins in the script, and the number of its sections; NotedPairs.
        sections: of all streams, one after the other; NotedSections.
        rows: of all sections, likewise.
        lists, allocated: spans of the script, and of the pool, that were taken for the whole launch; NotedPairs.
        periods: where each begins, and its number; NotedPairs.
    """


# ---- what lies where (vpps/planner/native/memory_map.py)


@fields(ints="n_blocks blocks n_arrays arrays stop end")
class MemoryResult(Structure):
    """Where everything lies in the pool.

    Attributes:
        blocks: a BlockResult for each.
        arrays: of each start, stop, first and last period and group, but of those that last.
        stop: no slab lies beyond.
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
    """The rows of a cell, see PlannedBlock.

    Attributes:
        cell: number of the encoded cell.
        calls, values: by vertex, and of each output one after the other.
        order: by row.
        stage, group, first, count: by step, the last two by step and domain.
        bases: by step: of the slabs; of what other parts have; and, from `operands` on, the two words of each operand.
        lists: positions in the script, in the order of EncodedCell.keys.
    """


# ---- policies


@fields(ints="n n_types n_edges types levels producers readers")
class GraphInput(Structure):
    """A typed graph: types and levels of the vertices, and the two ends of every edge."""


@fields(
    ints="encoding phases horizon trials check_every",
    words="seed",
    floats="alpha rate epsilon least_epsilon decay",
)
class SettingsInput(Structure):
    """vpps.planner.native.typed_graphs.LearningSettings."""


@fields(ints="n_batches n_stages n_steps unseen")
class BatchesResult(Structure):
    """How many batches a graph has; in how many steps the automaton did not know its state."""


@fields(ints="trials n_steps n_stages bound n_numbers")
class AutomatonResult(Structure):
    """How an automaton was learned, that runs a graph in so many steps; `bound`: of its batches at least."""


# ---- functions

FUNCTIONS = (
    # Plans graphs by a policy, of a learned one with its automata (LearnedPolicy.numbers), else with none, for
    # parameters in their places (ModelDescriptor); null for an unknown name or if numbers are not what is expected.
    "void* vpps_planner(const char* policy, const i64* automata, i64 n_automata, const i64* model, i64 n_model)",
    "void vpps_planner_free(void* planner)",
    # The number of a new cell.
    "i64 vpps_planner_cell(void* planner, const CellInput* cell)",
    # Tells the parts of a cell, by what they depend on. 0 where the numbers are not what is expected.
    "i64 vpps_planner_parts(void* planner, i64 cell, const u8* key, i64 n_key, const i64* numbers, i64 n)",
    # Tells whether what `plan` has asked about may begin.
    "void vpps_planner_pair(void* planner, const Pair* pair, i64 answer)",
    "Status vpps_plan(void* planner, Call* call)",
    # Tells where the account of the latest plan lies, which was asked for one; until the next one is made.
    "void vpps_account(void* planner, AccountResult* noted)",
    # Likewise, what lies where.
    "void vpps_map(void* planner, MemoryResult* found)",
    # Batches of a graph. Room for n each: type of each batch; stage of each vertex. 0 if the numbers of the automaton
    # are not what is expected.
    "i64 vpps_batches(const GraphInput* given, const char* policy, const i64* automaton, i64 n_automaton, "
    "i64* sequence, i64* stages, BatchesResult* found)",
    # No sequence of batches of a graph is shorter.
    "i64 vpps_lower_bound(const GraphInput* given)",
    # Learns an automaton; vpps_learned takes it.
    "void* vpps_learn(const GraphInput* given, const SettingsInput* settings, AutomatonResult* found)",
    "void vpps_learned(void* learned, i64* numbers)",
)


def header() -> str:
    """`interface.h`."""
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
