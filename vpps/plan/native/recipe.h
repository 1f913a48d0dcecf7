// What is static of a model's cells: read once from the numbers that vpps/plan/native/recipe.py writes.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

using i32 = std::int32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;
using u8 = std::uint8_t;

#define EXPORT extern "C" __attribute__((visibility("default")))

// Addresses of arrays come as numbers.
template <class T> T* pointer(i64 address) { return reinterpret_cast<T*>(static_cast<std::intptr_t>(address)); }

// Takes numbers one after the other. Whoever writes them is in the same package: the count is checked at the end.
class Numbers {
public:
    Numbers(const i64* numbers, i64 n) : next_(numbers), end_(numbers + n) {}
    i64 take() { return next_ < end_ ? *next_++ : (overrun_ = true, 0); }
    bool complete() const { return next_ == end_ && !overrun_; }
    template <class T> void take(std::vector<T>& into, i64 n)
    {
        for (i64 i = 0; i < n && !overrun_; i++)
            into.push_back(static_cast<T>(take()));
    }

private:
    const i64 *next_, *end_;
    bool overrun_ = false;
};

// A word that a plan decides: constant + base + per_row * first row + per_count * rows (vpps/script/encode.py, Word).
struct Hole {
    i32 word, base, domain;  // base -1: none
    i64 per_row, per_count;
};

struct Template {
    std::vector<u32> words;
    std::vector<Hole> holes;

    explicit Template(Numbers& from)
    {
        from.take(words, from.take());
        for (i64 n = from.take(); n-- > 0;) {
            Hole h{};
            h.word = static_cast<i32>(from.take());
            h.base = static_cast<i32>(from.take());
            h.domain = static_cast<i32>(from.take());
            h.per_row = from.take();
            h.per_count = from.take();
            holes.push_back(h);
        }
    }

    // base(i) is the i-th base; first and count are by domain.
    template <class Base> void fill(u32* out, Base base, const i64* first, const i64* count) const
    {
        std::memcpy(out, words.data(), words.size() * sizeof(u32));
        for (const Hole& h : holes) {
            i64 value = h.per_row * first[h.domain] + h.per_count * count[h.domain];
            if (h.base >= 0)
                value += base(h.base);
            out[h.word] += static_cast<u32>(value);
        }
    }
    i64 size() const { return static_cast<i64>(words.size()); }
};

// Where the words of a list come from (the list keys of vpps/plan/instr.py).
enum class From : i64 {
    Args, Elements, Rows, TableRows, Ints, Constant, Expand, Offsets, Ends, Uses, Data, Calls, Positions, RandomKey,
    Beside
};

// What `a` and `b` are: Args: argument; Elements: list; Rows: slab; TableRows: address of the table, floats of a row;
// Ints: argument; Constant: the value; Uses: output; Data: floats of a row; Beside: which. `of` is another source.
struct Source {
    From from;
    i64 a, b;
    i32 of, domain;
};

// Addresses of rows: those of a source, or one that all rows share, plus an offset.
struct Rows {
    i32 source;  // -1: shared
    i64 offset;
    explicit Rows(Numbers& from) : source(static_cast<i32>(from.take())), offset(from.take()) {}
};

// How long slabs live (vpps/plan/memory.py, Life).
enum class Life : i64 { Kept, Across, Late, Scratch, Forward, PassedOn, HandedBack };

struct SlabGroup {
    Life life;
    i32 domain;
    i64 width;
    i64 stagger;  // floats between its slabs
    i64 floats(i64 rows) const { return rows ? rows * width + stagger : 0; }
};

struct SlabGroups {
    std::vector<SlabGroup> groups;
    std::vector<i32> group_of;  // by slab
    std::vector<i64> before;    // floats per row of the slabs that precede it in its group
    std::vector<i64> stagger;   // floats between it and the beginning of its group that belong to no slab

    explicit SlabGroups(Numbers& from)
    {
        for (i64 n = from.take(); n-- > 0;) {
            const auto life = static_cast<Life>(from.take());
            const auto domain = static_cast<i32>(from.take());
            const i64 width = from.take();
            groups.push_back({life, domain, width, from.take()});
        }
        for (i64 n = from.take(); n-- > 0;) {
            group_of.push_back(static_cast<i32>(from.take()));
            before.push_back(from.take());
            stagger.push_back(from.take());
        }
    }
};

struct Slab {
    i64 width;
    i32 domain;
};

struct Argument {
    i32 values;  // source of the values that are read: arguments or elements
    Rows gradient;
    i32 group;  // of slabs, where those are given back step by step; else -1
    explicit Argument(Numbers& from)
        : values(static_cast<i32>(from.take())), gradient(from), group(static_cast<i32>(from.take()))
    {
    }
};

struct TableGradient {
    i32 table, ids;
    Rows gradient;
    explicit TableGradient(Numbers& from)
        : table(static_cast<i32>(from.take())), ids(static_cast<i32>(from.take())), gradient(from)
    {
    }
};

// A lookup whose rows count as used though no gradient comes back to it (vpps/plan/used_rows.py).
struct UsedLookup {
    i32 table, ids;
    explicit UsedLookup(Numbers& from) : table(static_cast<i32>(from.take())), ids(static_cast<i32>(from.take())) {}
};

// An instruction that not every launch of a kind has; where no cell makes it, its holes are those of `Frame`.
struct Instruction {
    i64 name;  // its bit
    Template words;
    explicit Instruction(Numbers& from) : name(from.take()), words(from) {}
};

// A contribution to a dense gradient; `stepped` also makes the matrix's step, where there is such an instruction.
struct Gradient {
    i32 parameter;
    Instruction plain, stepped;
    explicit Gradient(Numbers& from) : parameter(static_cast<i32>(from.take())), plain(from), stepped(from) {}
};

// A copy of vectors to where a product of matrices finds them; the plan fills in its first operand, where that is.
struct VectorCopy {
    i64 column;  // of the product's factor
    Instruction copy;
    explicit VectorCopy(Numbers& from) : column(from.take()), copy(from) {}
};

// A factor of such a product, as one cell contributes to it: `slab`, that has all of its vectors side by side, or -1.
struct Factor {
    i64 width;
    i32 slab;
    i64 offset;
    std::vector<VectorCopy> copies;
    explicit Factor(Numbers& from) : width(from.take()), slab(static_cast<i32>(from.take())), offset(from.take())
    {
        for (i64 n = from.take(); n-- > 0;)
            copies.emplace_back(from);
    }
};

// A contribution to a dense gradient that a product makes, dy^T x.
struct Gathered {
    i32 parameter, domain;
    Factor factors[2];
    explicit Gathered(Numbers& from)
        : parameter(static_cast<i32>(from.take())),
          domain(static_cast<i32>(from.take())),
          factors{Factor(from), Factor(from)}
    {
    }
};

// Instructions of a step between one barrier and the next. In an exclusive script it is one, executed for each row by
// itself: by all owners of rows of its matrix, or by one virtual processor whose load it adds to.
struct Group : Template {
    i32 domain;  // whose rows it counts
    i64 load;    // floats that it reads
    std::vector<i32> owners;
    explicit Group(Numbers& from) : Template(from), domain(static_cast<i32>(from.take())), load(from.take())
    {
        from.take(owners, from.take());
    }
};

using Groups = std::vector<std::vector<Group>>;  // by barrier

// What another part of a cell has for each row: part, slab, offset.
struct Beside {
    i32 part, slab;
    i64 offset;
    explicit Beside(Numbers& from)
        : part(static_cast<i32>(from.take())), slab(static_cast<i32>(from.take())), offset(from.take())
    {
    }
};

// An operand whose rows lie at an even stride or are found through a list: which list, and the offset in each row.
// `whole`: its instruction works on all rows of the cell at once.
struct RowOperand {
    i32 list;
    bool whole;
    i64 offset;
    explicit RowOperand(Numbers& from)
        : list(static_cast<i32>(from.take())), whole(from.take() != 0), offset(from.take())
    {
    }
};

struct Cell {
    i64 id;
    i64 n_domains;
    std::vector<i32> list_of_domain;
    std::vector<Slab> slabs;
    std::vector<Source> sources;
    std::vector<Beside> beside;
    std::vector<i32> keys;  // the lists that are placed: their sources
    i64 n_forward_keys;
    std::vector<i32> row_lists;  // those that operands may need: their sources
    std::vector<RowOperand> operands;
    i64 n_forward_operands;
    std::vector<Rows> outputs;
    std::vector<i32> passed_on;  // by output: its group of slabs
    std::vector<Argument> arguments;
    std::vector<TableGradient> tables;
    std::vector<UsedLookup> without_gradient;
    SlabGroups memory;
    Groups forward, backward;
    std::vector<Instruction> watches;
    std::vector<Gradient> gradients;
    std::vector<Gathered> gathered;
    std::vector<i32> numbers[2];  // of matrices on the chip that are needed without and with backward

    explicit Cell(Numbers& from)
        : id(from.take()),
          n_domains(from.take()),
          list_of_domain(taken<i32>(from)),
          slabs(taken_slabs(from)),
          sources(taken_sources(from)),
          beside(made<Beside>(from)),
          keys(taken<i32>(from)),
          n_forward_keys(from.take()),
          row_lists(taken<i32>(from)),
          operands(made<RowOperand>(from)),
          n_forward_operands(from.take()),
          outputs(made<Rows>(from)),
          passed_on(taken<i32>(from)),
          arguments(made<Argument>(from)),
          tables(made<TableGradient>(from)),
          without_gradient(made<UsedLookup>(from)),
          memory(from),
          forward(taken_groups(from)),
          backward(taken_groups(from)),
          watches(made<Instruction>(from)),
          gradients(made<Gradient>(from)),
          gathered(made<Gathered>(from)),
          numbers{taken<i32>(from), taken<i32>(from)}
    {
    }

    template <class T> static std::vector<T> made(Numbers& from)
    {
        std::vector<T> found;
        for (i64 n = from.take(); n-- > 0;)
            found.emplace_back(from);
        return found;
    }

    template <class T> static std::vector<T> taken(Numbers& from)
    {
        std::vector<T> found;
        const i64 n = from.take();
        from.take(found, n);
        return found;
    }

private:
    static std::vector<Slab> taken_slabs(Numbers& from)
    {
        std::vector<Slab> found;
        for (i64 n = from.take(); n-- > 0;) {
            const i64 width = from.take();
            found.push_back({width, static_cast<i32>(from.take())});
        }
        return found;
    }
    static std::vector<Source> taken_sources(Numbers& from)
    {
        std::vector<Source> found;
        for (i64 n = from.take(); n-- > 0;) {
            Source s{};
            s.from = static_cast<From>(from.take());
            s.a = from.take();
            s.b = from.take();
            s.of = static_cast<i32>(from.take());
            s.domain = static_cast<i32>(from.take());
            found.push_back(s);
        }
        return found;
    }
    static Groups taken_groups(Numbers& from)
    {
        Groups found;
        for (i64 n = from.take(); n-- > 0;)
            found.push_back(made<Group>(from));
        return found;
    }
};

struct Crossing {
    i32 part, output;
    explicit Crossing(Numbers& from) : part(static_cast<i32>(from.take())), output(static_cast<i32>(from.take())) {}
};

// A part of a cell (vpps/plan/passes/lazy_batching.py, Part): which of the whole's it takes, and gives; -1: it crosses.
struct Part {
    i64 batching;  // 0 eager, 1 by level, 2 lazy
    bool streams;  // its steps may run while virtual processors wait for each other
    std::vector<i32> vectors, ints, lists, outputs;
    std::vector<Crossing> crossings;
    Cell cell;
    explicit Part(Numbers& from)
        : batching(from.take()),
          streams(from.take() != 0),
          vectors(Cell::taken<i32>(from)),
          ints(Cell::taken<i32>(from)),
          lists(Cell::taken<i32>(from)),
          outputs(Cell::taken<i32>(from)),
          crossings(Cell::made<Crossing>(from)),
          cell(from)
    {
    }
};

using Parts = std::vector<Part>;

// A cell as the user has it, and its parts by what they depend on (RowsOfBlocks::make_key); one that is all of a piece
// has one.
struct WholeCell {
    i64 n_args, n_ints, n_lists, n_outputs;
    i64 kind;  // in a chain that makes the loss (loss_chain.h), or -1
    std::map<std::vector<u8>, Parts> by_key;

    const Parts* parts(const std::vector<u8>& key) const
    {
        const auto found = by_key.find(key);
        return found == by_key.end() ? nullptr : &found->second;
    }
};

// What the end of a launch does with a parameter (vpps/plan/update.py).
struct Parameter {
    bool trainable, is_table, keeps_gradient;
    i64 gradient, width, squares;  // width: of a table's row; squares: partial sums of squares of a dense gradient
    i64 floats;
    Instruction load_gradient, store_gradient, square, step, sum, sum_held;
    explicit Parameter(Numbers& from)
        : trainable(from.take() != 0),
          is_table(from.take() != 0),
          keeps_gradient(from.take() != 0),
          gradient(from.take()),
          width(from.take()),
          squares(from.take()),
          floats(from.take()),
          load_gradient(from),
          store_gradient(from),
          square(from),
          step(from),
          sum(from),
          sum_held(from)
    {
    }
};

// A matrix that is loaded into the chip where something uses its number.
struct Load {
    i32 number;
    Template words;
    explicit Load(Numbers& from) : number(static_cast<i32>(from.take())), words(from) {}
};

struct Model {
    i64 n_vps, end, load_name;
    bool exclusive;  // every virtual processor has instructions of its own
    u32 accumulate, no_gradient;  // flags, shifted to their place
    i64 head_words;
    i64 indexed, offset_mask;     // of an operand's second word
    std::vector<u32> header;  // of a script; entry points follow, all of them
    std::vector<u32> barrier, signal, wait, stop; // the last word of a barrier and of a wait is the number of signals
    Instruction loss, constants, clip, guard, guard_again;  // the last: in a second launch, by what the first has found
    std::vector<Load> loads;
    std::vector<Parameter> parameters;

    explicit Model(Numbers& from)
        : n_vps(from.take()),
          end(from.take()),
          load_name(from.take()),
          exclusive(from.take() != 0),
          accumulate(static_cast<u32>(from.take())),
          no_gradient(static_cast<u32>(from.take())),
          head_words(from.take()),
          indexed(from.take()),
          offset_mask(from.take()),
          header(words(from)),
          barrier(words(from)),
          signal(words(from)),
          wait(words(from)),
          stop(words(from)),
          loss(from),
          constants(from),
          clip(from),
          guard(from),
          guard_again(from),
          loads(Cell::made<Load>(from)),
          parameters(Cell::made<Parameter>(from))
    {
    }

private:
    static std::vector<u32> words(Numbers& from)
    {
        std::vector<u32> found;
        const i64 n = from.take();
        from.take(found, n);
        return found;
    }
};
