"""What the compiled planner and Python share. Its header `interface.h` is made of this when the library is built."""

from __future__ import annotations

from ctypes import Structure
from enum import IntEnum, auto

from vpps.kernel import shared_types
from vpps.kernel.shared_types import fields
from vpps.plan.distribution import ALIGN, ONE
from vpps.plan.loss_chain import Linear
from vpps.plan.memory import Life
from vpps.plan.native.policy_table import EncodingKind
from vpps.plan.native.records import RECORDS, Frame, From
from vpps.plan.passes.lazy_batching import STAGES, Batching

NOWHERE = 0xFFFFFFFF  # address of a value that is not computed


# ---- a plan


@fields(
    ints="""
    training by_readers splits dead_outputs chunk_rows
    n_blocks blocks n_values wanted n_wanted loss_slot key_on key_low key_high
    updates keeps clips max_norm averages n_hyper hyper hyper_of
    held n_held_rows held_rows
    script capacity addresses room_for_values touched tables cells grouping
    words pool_floats n_barriers encoding names n_tables n_all_values n_cells unseen
    new_block key n_key new_pair
    products n_products entries
    """
)
class Call(Structure):
    """What `plan` is called with, and what it finds.

    Attributes:
        training, by_readers, splits, dead_outputs, key_on, updates, keeps, clips, averages: 0 or 1.
        blocks: a GivenBlock for each, and behind it a GivenList for each of its lists.
        hyper_of: by parameter the number of its set of hyper-parameters; last, the size of a set.
        held: by parameter whether the pool holds a gradient of it, bytes; 0 for none.
        held_rows: (parameter, number of rows, address of their numbers) of each table.
        script, addresses, touched, tables, cells: memory for results; of `tables` a UsedTable each, of `cells` the id
            of each, ~id where it runs late.
        products: memory for a GivenProduct each.
        grouping: memory for a FoundGrouping, where there are groups of virtual processors, and for what is behind it.
        entries: position of the entry points of the second launch.
        new_block, key, n_key, new_pair: what it asks about, see Status; `new_pair` is the address of a Pair.
    """


class Status(IntEnum):
    """How `plan` has ended."""

    DONE = 0
    MORE_MEMORY = auto()  # for `words`, or `n_all_values`
    NO_GRADIENT = auto()  # nothing can be learned
    NOT_MINE = auto()  # NumPy says what is wrong
    NEW_BLOCK = auto()  # `new_block` has a cell whose parts, by `key`, have not been told yet
    NEW_PAIR = auto()  # nor what of a cell may begin while others execute some of another
    NEW_RECURRENCE = auto()  # nor how that of `new_block` is to run


class Following(IntEnum):
    """What follows a step, with no barrier between if that may be."""

    FORWARD = 0  # another step of forward
    BACKWARD = auto()  # another step of backward
    TURN = auto()  # the first step of backward, behind forward


@fields(ints="after before group following")
class Pair(Structure):
    """Whether a step of the cell `after` may begin while others execute `group` of the cell `before`; a Following."""


@fields(ints="n_args n_ints n_lists n_outputs linear")
class GivenCell(Structure):
    """A cell: numbers of its vector, int and list arguments and of its outputs; its kind as a Linear, or -1."""


@fields(
    ints="""
    cell n calls calls_step first first_step levels levels_step
    args args_step ints ints_step data
    """
)
class GivenBlock(Structure):
    """A block: its cell, its vertices, and for every column where it begins and how many numbers lie between those of
    two vertices. The columns of arguments lie side by side."""


@fields(ints="ends lengths elements")
class GivenList(Structure):
    """Lists of a block's vertices: addresses of their ends, or 0 and that of their lengths, and of their elements."""


@fields(ints="parameter rows gradient offsets numbers idle")
class UsedTable(Structure):
    """The used rows of a lookup table: their number, and where what belongs to them is (update.UsedRows)."""


@fields(ints="parameter n dy dy_stride x x_stride")
class GivenProduct(Structure):
    """A product of matrices that makes a gradient: of how many vectors, and where both factors lie."""


@fields(ints="first_own first_joining n_components n_blocks")
class FoundGrouping(Structure):
    """How vertices were dealt to groups of virtual processors (plan/grouping.py). Behind it are the load of each group,
    how many vertices each block has, then the stage of every vertex, block after block, and its group."""


# ---- policies


@fields(ints="n n_types n_edges types levels producers readers")
class GivenGraph(Structure):
    """A typed graph: types and levels of the vertices, and the two ends of every edge."""


@fields(
    ints="encoding phases by_time horizon trials check_every",
    words="seed",
    floats="alpha rate epsilon least_epsilon decay",
)
class GivenSettings(Structure):
    """vpps.plan.policies.learning.Settings."""


@fields(ints="flops barriers", floats="barrier speed fixed vps")
class GivenCosts(Structure):
    """vpps.plan.policies.cost.Costs; of the loads, arrays by type."""


@fields(ints="n_batches n_stages n_steps unseen", floats="seconds")
class FoundBatches(Structure):
    """How many batches a graph has; in how many steps the machine did not know its state; seconds by the costs."""


@fields(ints="trials n_steps n_stages bound n_numbers")
class FoundMachine(Structure):
    """How a machine was learned, that runs a graph in so many steps; `bound`: of its batches at least."""


# ---- functions

FUNCTIONS = (
    # Finds stages of graphs by a policy; null for an unknown name.
    "void* vpps_batcher(const char* policy)",
    # The same, which also plans, for parameters in their places (ModelRecipe); null where the numbers are not what is
    # expected.
    "void* vpps_planner(const char* policy, const i64* numbers, i64 n)",
    "void vpps_batcher_free(void* batcher)",
    # The number of a new cell.
    "i64 vpps_batcher_cell(void* batcher, const GivenCell* cell)",
    # Tells by which policy the recurrence runs that was asked about. Of one that learns: which of its cells, in the
    # order of their blocks, is each of the machine's types; then the machine. 0 where the numbers are not what is
    # expected.
    "i64 vpps_batcher_choice(void* batcher, const char* policy, const i64* numbers, i64 n)",
    # How many steps the machine of a choice did not know since this was asked last.
    "i64 vpps_batcher_unseen(void* batcher, i64 choice)",
    # The stages of all vertices, block after block.
    "Status vpps_stages(void* batcher, Call* call, i64* stages)",
    # Tells the parts of a cell, by what they depend on. 0 where the numbers are not what is expected.
    "i64 vpps_planner_parts(void* planner, i64 cell, const u8* key, i64 n_key, const i64* numbers, i64 n)",
    # Tells whether what `plan` has asked about may begin.
    "void vpps_planner_pair(void* planner, const Pair* pair, i64 answer)",
    "Status vpps_plan(void* planner, Call* call)",
    # Batches of a graph. Room for n each: type of each batch; stage of each vertex. `costs` may be null. 0 where the
    # numbers of the machine are not what is expected.
    "i64 vpps_batches(const GivenGraph* given, const char* policy, const i64* machine, i64 n_machine, "
    "const GivenCosts* costs, i64* sequence, i64* stages, FoundBatches* found)",
    # No sequence of batches of a graph is shorter.
    "i64 vpps_lower_bound(const GivenGraph* given)",
    # Learns a machine; vpps_learned takes it.
    "void* vpps_learn(const GivenGraph* given, const GivenSettings* settings, const GivenCosts* costs, "
    "FoundMachine* found)",
    "void vpps_learned(void* learned, i64* numbers)",
)


def header() -> str:
    """`interface.h`."""
    enums = (Status, Following, From, Frame, Life, Batching, Linear, EncodingKind)
    structs = (
        *(Call, Pair, GivenCell, GivenBlock, GivenList, UsedTable, GivenProduct, FoundGrouping),
        *(GivenGraph, GivenSettings, GivenCosts, FoundBatches, FoundMachine),
    )
    numbers = {"ALIGN": ALIGN, "ONE": ONE, "STAGES": STAGES, "NOWHERE": NOWHERE, "FRAME": len(Frame)}
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
