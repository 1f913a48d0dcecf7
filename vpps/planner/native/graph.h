// A graph as flat arrays, with its dependencies (vpps/record/topology.py).
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include "components.h"
#include "cell_descriptor.h"

// A number for each vertex: from the caller's memory with stride `step`, or vertex * step if `at` is null; plus `plus`.
struct Column {
    const i64* at;
    i64 step, plus;
    i64 operator[](i64 vertex) const { return (at ? at[vertex * step] : vertex * step) + plus; }
};

struct List {
    const i64 *ends, *elements;
};

// The vertices of a cell, or of one part of it.
struct Vertices {
    i64 n = 0;
    Column calls{}, levels{};
    std::vector<Column> values;  // ids of each output
    std::vector<Column> args, ints;
    std::vector<List> lists;
    const u32 *data = nullptr, *constants = nullptr;

    i64 operands() const { return static_cast<i64>(args.size() + lists.size()); }
};

// Calls act(value, vertex) for every value of an operand. Operands are the vector arguments, then the lists.
template <class Do> inline void for_operand(const Vertices& b, i64 operand, Do&& act)
{
    const auto n_args = static_cast<i64>(b.args.size());
    if (operand < n_args) {
        const Column arg = b.args[operand];
        for (i64 v = 0, n = b.n; v < n; v++)
            act(arg[v], v);
        return;
    }
    const List xs = b.lists[operand - n_args];
    for (i64 v = 0, n = b.n; v < n; v++)
        for (i64 e = xs.ends[v]; e < xs.ends[v + 1]; e++)
            act(xs.elements[e], v);
}

// Calls act(value) for every value that one vertex reads through an operand.
template <class Do> inline void for_operand_of(const Vertices& b, i64 operand, i64 vertex, Do&& act)
{
    const auto n_args = static_cast<i64>(b.args.size());
    if (operand < n_args)
        return act(b.args[operand][vertex]);
    const List xs = b.lists[operand - n_args];
    for (i64 e = xs.ends[vertex]; e < xs.ends[vertex + 1]; e++)
        act(xs.elements[e]);
}

// Calls act(value) for every value that a vertex reads.
template <class Do> inline void for_values(const Vertices& b, i64 vertex, Do&& act)
{
    for (i64 i = 0; i < b.operands(); i++)
        for_operand_of(b, i, vertex, act);
}

// The vertices of a cell as recorded, before it is split into parts.
struct RecordedBlock : Vertices {
    const RecordedCell* cell = nullptr;
    i64 first_vertex = 0, first_kind = 0, first_operand = 0;  // numbered through all blocks
    i64 n_needed = 0;
    std::vector<u8> unread;  // by output: 1 if no needed vertex reads it, but another output of the block is read

    i64 rank = 0;            // the stage of a vertex is rank + local
    std::vector<i32> local;
    i64 top = 0;             // the largest local stage
    i64 last = 0;            // the last stage of its recurrence
    bool recurrent = false;
    std::vector<u8> crossed; // if recurrent: flags for gathered operands, then for scattered outputs
    std::vector<std::vector<i64>> made_ends;

    // Returns the ends of a list argument's lists, given their lengths: the prefix sum, starting with 0.
    const i64* ends_of(size_t list, const i64* lengths)
    {
        made_ends.resize(std::max(made_ends.size(), list + 1));
        std::vector<i64>& ends = made_ends[list];
        ends.resize(n + 1);
        ends[0] = 0;
        for (i64 v = 0; v < n; v++)
            ends[v + 1] = ends[v] + lengths[v];
        return ends.data();
    }
};

class Graph : public Blocks<RecordedBlock> {
public:
    i64 n_calls = 0, n_values = 0, n_vertices = 0;

    Components components;

    // Sets the values that are in the pool before the launch. `addresses`: those of the first n values, or NOWHERE. One
    // vertex of an empty cell stands for all their producers.
    void take_present(const RecordedCell& cell, const u32* addresses, i64 n)
    {
        const u32* first = std::find_if(addresses, addresses + n, is_there);
        present_ = addresses;
        n_present_ = first < addresses + n ? n : 0;
        if (!n_present_)
            return;
        resize(n_blocks + 1);
        RecordedBlock& made = blocks[n_blocks - 1] = {};
        made.cell = &cell;
        made.n = 1;
        made.values.push_back({nullptr, 0, first - addresses});
    }

    bool has_present() const { return n_present_ > 0; }

    // Numbers vertices and outputs. Returns false if values or calls are missing or duplicate: the graph is unusable.
    bool number()
    {
        i64 calls = 0;  // their sum; wrong if a call is duplicated, because the missing call is larger
        n_vertices = n_kinds_ = n_operands_ = 0;
        of_value_.assign(n_values, {-1, -1});
        block_of_kind_.clear();
        for (i64 k = 0; k < n_blocks; k++) {
            RecordedBlock& b = blocks[k];
            b.first_vertex = n_vertices;
            b.first_kind = n_kinds_;
            b.first_operand = n_operands_;
            const bool recorded = k < n_blocks - has_present();
            for (const Column& ids : b.values) {
                Producer made{static_cast<i32>(n_vertices), static_cast<i32>(n_kinds_++)};
                for (i64 v = 0; v < b.n; v++, made.vertex++) {
                    const i64 value = ids[v];
                    if (static_cast<u64>(value) >= static_cast<u64>(n_values) || (recorded && of_value_[value].kind >= 0))
                        return false;
                    of_value_[value] = made;
                }
                block_of_kind_.push_back(static_cast<i32>(k));
            }
            for (i64 v = 0; v < b.n; v++)
                calls += b.calls[v];
            n_vertices += b.n;
            n_operands_ += b.operands();
        }
        for (i64 value = 0; value < n_present_; value++)
            if (is_there(present_[value]))
                of_value_[value] = {static_cast<i32>(n_vertices - 1), static_cast<i32>(n_kinds_ - 1)};
        const i64 n = n_vertices - has_present();  // these are the graph's last calls
        return calls == n * (2 * n_calls - n - 1) / 2;
    }

    bool is_value(i64 value) const { return value >= 0 && value < n_values && of_value_[value].kind >= 0; }

    // Finds the output kinds that each operand reads, and the vertices with a reader. Returns -1, or the number of a
    // block that reads a value without a producer.
    i64 read()
    {
        passed_.assign(n_kinds_, 0);
        kinds_.clear();
        used_.assign(n_vertices, 0);
        in_order_ = true;
        for (i64 k = 0; k < n_blocks; k++) {
            const RecordedBlock& b = blocks[k];
            const Column own = b.values[0];
            for (i64 i = 0; i < b.operands(); i++) {
                GraphReader reader(*this);
                for_operand(b, i, [&, own](i64 value, i64 v) { reader.take(value, own[v]); });
                if (!take_in(reader))
                    return k;
            }
        }
        return -1;
    }

    // Marks the vertices that any of the given values depends on.
    void reach(const i64* values, i64 n)
    {
        if (!all_reach(values, n))
            search(values, n);
        count_needed();
    }

    // Returns true if every vertex without a reader produces one of the values; then all vertices lead to the values.
    bool all_reach(const i64* values, i64 n)
    {
        for (i64 i = 0; i < n; i++)
            used_[of_value_[values[i]].vertex] = 1;
        return std::find(used_.begin(), used_.end(), 0) == used_.end();
    }

    // Marks the vertices that the loss depends on, except the loss chain. The chain depends on all of chain.values.
    template <class Chain> void reach(i64 loss, const Chain& chain)
    {
        if (all_reach(&loss, 1)) {
            for (i64 k = 0; k < n_blocks; k++)
                if (chain.has(k))
                    std::fill_n(used_.begin() + blocks[k].first_vertex, blocks[k].n, u8{0});
        } else {
            search(chain.values.data(), static_cast<i64>(chain.values.size()));
        }
        count_needed();
    }

    void count_needed()
    {
        for (RecordedBlock& b : *this) {
            const u8* begin = needed(b);
            b.n_needed = std::count(begin, begin + b.n, u8{1});
        }
    }

    // Finds the outputs that no needed vertex reads (vpps/compiler/passes/dead_outputs.py).
    void find_unread(const i64* asked, i64 n)
    {
        read_.assign(n_kinds_, 0);
        for (i64 i = 0; i < n; i++)
            read_[of_value_[asked[i]].kind] = 1;
        for (const RecordedBlock& b : *this) {
            const u8* runs = needed(b);
            for (i64 i = 0; i < b.operands() && b.n_needed == b.n; i++)
                for (const i32 kind : kinds(b, i))
                    read_[kind] = 1;
            for (i64 v = 0; v < b.n && 0 < b.n_needed && b.n_needed < b.n; v++)
                if (runs[v])
                    for_values(b, v, [&](i64 value) { read_[of_value_[value].kind] = 1; });
        }
        for (RecordedBlock& b : *this) {
            const u8* read = read_.data() + b.first_kind;
            const auto outputs = static_cast<i64>(b.values.size());
            const bool any = std::find(read, read + outputs, 1) != read + outputs;
            b.unread.assign(outputs, 0);
            for (i64 o = 0; o < outputs && any; o++)
                b.unread[o] = !read[o];
        }
    }

    // Removes the values of unread outputs from the blocks.
    void leave_out()
    {
        for (RecordedBlock& b : *this) {
            size_t kept = 0;
            const size_t crossed = b.crossed.size() - (b.recurrent ? b.values.size() : 0);
            for (size_t o = 0; o < b.values.size(); o++)
                if (!b.unread[o]) {
                    if (b.recurrent)
                        b.crossed[crossed + kept] = b.crossed[crossed + o];
                    b.values[kept++] = b.values[o];
                }
            b.values.resize(kept);
            if (b.recurrent)
                b.crossed.resize(crossed + kept);
        }
    }

    const u8* needed(const RecordedBlock& b) const { return used_.data() + b.first_vertex; }

    i64 producer(i64 value) const { return of_value_[value].vertex; }  // numbered through all blocks

    // The kinds of values that a block's operand reads, and the blocks that a block reads, in ascending order.
    Ragged::Span kinds(const RecordedBlock& b, i64 operand) const { return kinds_[b.first_operand + operand]; }
    Ragged::Span sources(i64 block) const { return sources_[block]; }

    // Finds the recurrences of cells, and the operands and outputs that cross between vertices of a recurrence.
    void recurrences()
    {
        sources_.clear();
        reader_of_.assign(n_blocks, -1);
        for (i64 k = 0; k < n_blocks; k++) {
            for (i64 i = 0; i < blocks[k].operands(); i++)
                for (const i32 kind : kinds(blocks[k], i))
                    if (std::exchange(reader_of_[block_of_kind_[kind]], static_cast<i32>(k)) != k)
                        sources_.add(block_of_kind_[kind]);
            // Without a comparison, libc++ calls a function that only its library has (vpps/kernel/ziglang.py).
            std::sort(sources_.unfinished(), sources_.end(), [](i32 a, i32 b) { return a < b; });
            sources_.end_list();
        }
        components.find(sources_, n_blocks);
        for (i64 k = 0; k < n_blocks; k++) {
            RecordedBlock& b = blocks[k];
            b.recurrent = components.is_recurrent(components.of_block(k));
            if (b.recurrent)
                b.crossed.assign(b.operands() + b.values.size(), 0);
        }
        for (i64 k = 0; k < n_blocks; k++)
            if (blocks[k].recurrent)
                find_crossed(k);
    }

    // Keeps recurrent cells in their previous parts. The new end of a growing graph may have fewer or different cycles.
    void keep_crossed()
    {
        for (RecordedBlock& b : *this) {
            std::vector<u8>& kept = b.cell->crossed;
            if (b.recurrent && kept.empty())
                kept = b.crossed;
            else if (b.recurrent)
                std::transform(kept.begin(), kept.end(), b.crossed.begin(), kept.begin(), std::bit_or<u8>());
            else if (kept.empty())
                continue;
            b.crossed = kept;
            b.recurrent = true;
        }
    }

    // Pops vertices off a stack and calls visit(value) for all values that they read. visit may push vertices.
    template <class Visit> void visit_all(std::vector<i32>& stack, Visit&& visit) const
    {
        while (!stack.empty()) {
            const i32 vertex = stack.back();
            stack.pop_back();
            const RecordedBlock& b = blocks[block_of(vertex)];
            for_values(b, vertex - b.first_vertex, visit);
        }
    }

    // The producer of a value: the vertex, and the kind of output.
    struct Producer {
        i32 vertex, kind;
    };
    Producer made_by(i64 value) const { return of_value_[value]; }
    i64 block_of_kind(i64 kind) const { return block_of_kind_[kind]; }
    i64 n_kinds() const { return n_kinds_; }

    bool in_order() const { return in_order_; }  // true if every vertex was recorded after its operands

    i64 block_of(i64 vertex) const
    {
        const auto after = std::upper_bound(blocks.begin(), blocks.begin() + n_blocks, vertex,
                                            [](i64 v, const RecordedBlock& b) { return v < b.first_vertex; });
        return after - blocks.begin() - 1;
    }

private:
    // Records the values that are read. Local pointers are kept in registers; byte stores could alias members.
    struct GraphReader {
        const Producer* of_value;
        u64 n_values;
        u8 *used, *passed;
        bool good = true, in_order = true;
        explicit GraphReader(Graph& graph)
            : of_value(graph.of_value_.data()), n_values(graph.n_values), used(graph.used_.data()),
              passed(graph.passed_.data())
        {
        }
        void take(i64 value, i64 own)
        {
            if (static_cast<u64>(value) >= n_values || of_value[value].kind < 0) {
                good = false;
                return;
            }
            const Producer producer = of_value[value];
            used[producer.vertex] = 1;
            passed[producer.kind] = 1;
            in_order &= value < own;
        }
    };
    std::vector<Producer> of_value_;
    std::vector<i32> block_of_kind_;
    std::vector<i32> stack_, reader_of_;
    Ragged kinds_;            // by operand
    Ragged sources_;          // by block
    std::vector<u8> passed_;  // by kind of value: 1 if the current operand reads such values
    std::vector<u8> read_, used_;
    i64 n_kinds_ = 0, n_operands_ = 0;
    bool in_order_ = true;
    const u32* present_ = nullptr;
    i64 n_present_ = 0;

    static bool is_there(u32 address) { return address != NOWHERE; }

    // Adds the kinds that one operand reads. Returns false if it read a missing value.
    bool take_in(const GraphReader& reader)
    {
        u8* const end = passed_.data() + n_kinds_;
        for (u8* at = passed_.data(); (at = static_cast<u8*>(std::memchr(at, 1, end - at))); at++) {
            *at = 0;
            kinds_.add(static_cast<i32>(at - passed_.data()));
        }
        kinds_.end_list();
        in_order_ &= reader.in_order;
        return reader.good;
    }

    void search(const i64* values, i64 n)
    {
        used_.assign(n_vertices, 0);
        stack_.clear();
        auto visit = [&](i64 value) {
            const i32 vertex = of_value_[value].vertex;
            if (!used_[vertex]) {
                used_[vertex] = 1;
                stack_.push_back(vertex);
            }
        };
        for (i64 i = 0; i < n; i++)
            visit(values[i]);
        visit_all(stack_, visit);
    }

    // Marks the operands of a block that read from its own recurrence, and the outputs that they read.
    void find_crossed(i64 block)
    {
        RecordedBlock& reader = blocks[block];
        for (i64 i = 0; i < reader.operands(); i++)
            for (const i32 kind : kinds(reader, i)) {
                RecordedBlock& source = blocks[block_of_kind_[kind]];
                if (components.of_block(block_of_kind_[kind]) != components.of_block(block))
                    continue;
                reader.crossed[i] = 1;
                source.crossed[source.operands() + kind - source.first_kind] = 1;
            }
    }
};
