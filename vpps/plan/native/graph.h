// A graph as flat arrays, and which cells form recurrences (vpps/plan/topology.py, vpps/plan/recurrence.py).
#pragma once

#include <algorithm>
#include "recipe.h"

// A number for each vertex, in the caller's memory, `step` apart; or vertex * step where there is none. Plus `plus`.
struct Column {
    const i64* at;
    i64 step, plus;
    i64 operator[](i64 vertex) const { return (at ? at[vertex * step] : vertex * step) + plus; }
};

struct List {
    const i64 *ends, *elements;
};

// Vertices of one cell, or of a part of one.
struct Vertices {
    i64 n = 0;
    Column calls{}, levels{};
    std::vector<Column> values;  // ids of each output
    std::vector<Column> args, ints;
    std::vector<List> lists;
    const u32* data = nullptr;
};

// Calls act(value) for every value that a vertex reads.
template <class Do> inline void for_values(const Vertices& b, i64 vertex, Do&& act)
{
    for (const Column& arg : b.args)
        act(arg[vertex]);
    for (const List& xs : b.lists)
        for (i64 e = xs.ends[vertex]; e < xs.ends[vertex + 1]; e++)
            act(xs.elements[e]);
}

// The vertices of a cell as the user has it.
struct Whole : Vertices {
    const WholeCell* cell = nullptr;
    i64 first_vertex = 0, first_kind = 0, first_operand = 0;  // those of all blocks are numbered through
    i64 n_needed = 0;
    std::vector<u8> unread;  // by output: whether no needed vertex reads it, and others of the block are read

    i64 rank = 0;            // the stage of a vertex is rank + local
    std::vector<i32> local;
    i64 top = 0;             // the largest local stage
    i64 last = 0;            // the last stage of its recurrence
    bool recurrent = false;
    std::vector<u8> crossed; // of a recurrent one: whether each operand is gathered, whether each output is scattered
    std::vector<std::vector<i64>> made_ends;

    // Where the elements of each vertex end in a list argument, given its lengths; with a zero before.
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

class Graph {
public:
    std::vector<Whole> blocks;  // more than there are: scratch memory of those that a graph had before
    i64 n_blocks = 0, n_values = 0, n_vertices = 0;

    // Numbers what there is. False where an id is out of range: then nothing may be done with the graph.
    bool number()
    {
        n_vertices = n_kinds_ = n_operands_ = 0;
        of_value_.assign(n_values, {-1, -1});
        block_of_kind_.clear();
        for (i64 k = 0; k < n_blocks; k++) {
            Whole& b = blocks[k];
            b.first_vertex = n_vertices;
            b.first_kind = n_kinds_;
            b.first_operand = n_operands_;
            for (const Column& ids : b.values) {
                Producer made{static_cast<i32>(n_vertices), static_cast<i32>(n_kinds_++)};
                for (i64 v = 0; v < b.n; v++, made.vertex++) {
                    const i64 value = ids[v];
                    if (static_cast<u64>(value) >= static_cast<u64>(n_values))
                        return false;
                    of_value_[value] = made;
                }
                block_of_kind_.push_back(static_cast<i32>(k));
            }
            n_vertices += b.n;
            n_operands_ += static_cast<i64>(b.args.size() + b.lists.size());
        }
        return true;
    }

    bool is_value(i64 value) const { return value >= 0 && value < n_values && of_value_[value].kind >= 0; }

    // What is read by which operands, and which vertices have a reader. False for ids out of range.
    bool read()
    {
        passed_.assign(n_operands_ * n_kinds_, 0);
        used_.assign(n_vertices, 0);
        in_order_ = true;
        for (i64 k = 0; k < n_blocks; k++) {
            const Whole& b = blocks[k];
            u8* passed = passed_.data() + b.first_operand * n_kinds_;
            for (const Column& arg : b.args) {
                Reader reader(*this, passed);
                const Column own = b.values[0], values = arg;
                for (i64 v = 0, n = b.n; v < n; v++)
                    reader.take(values[v], own[v]);
                if (!reader.good)
                    return false;
                in_order_ &= reader.in_order;
                passed += n_kinds_;
            }
            for (const List& list : b.lists) {
                Reader reader(*this, passed);
                const Column own = b.values[0];
                const List xs = list;
                for (i64 v = 0, n = b.n; v < n; v++)
                    for (i64 e = xs.ends[v]; e < xs.ends[v + 1]; e++)
                        reader.take(xs.elements[e], own[v]);
                if (!reader.good)
                    return false;
                in_order_ &= reader.in_order;
                passed += n_kinds_;
            }
        }
        return true;
    }

    // Marks what any of the given values depends on.
    void reach(const i64* values, i64 n)
    {
        if (n != 1 || !all_reach(values[0]))
            search(values, n);
        count_needed();
    }

    // Where no vertex but one is without a reader, all lead to it.
    bool all_reach(i64 value)
    {
        used_[of_value_[value].vertex] = 1;
        return std::find(used_.begin(), used_.end(), 0) == used_.end();
    }

    // Marks what the loss depends on but for the chain that makes it, which depends on all these values.
    template <class Chain> void reach(i64 loss, const Chain& chain)
    {
        if (all_reach(loss)) {
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
        for (i64 k = 0; k < n_blocks; k++) {
            Whole& b = blocks[k];
            const u8* begin = needed(b);
            b.n_needed = std::count(begin, begin + b.n, u8{1});
        }
    }

    // Finds the outputs that no needed vertex reads (vpps/plan/passes/dead_outputs.py).
    void find_unread(const i64* asked, i64 n)
    {
        read_.assign(n_kinds_, 0);
        for (i64 i = 0; i < n; i++)
            read_[of_value_[asked[i]].kind] = 1;
        for (i64 k = 0; k < n_blocks; k++) {
            const Whole& b = blocks[k];
            const u8 *runs = needed(b), *passed = passed_.data() + b.first_operand * n_kinds_;
            for (i64 i = 0; i < operands(b) * n_kinds_ && b.n_needed == b.n; i++)
                read_[i % n_kinds_] |= passed[i];
            for (i64 v = 0; v < b.n && 0 < b.n_needed && b.n_needed < b.n; v++)
                if (runs[v])
                    for_values(b, v, [&](i64 value) { read_[of_value_[value].kind] = 1; });
        }
        for (i64 k = 0; k < n_blocks; k++) {
            Whole& b = blocks[k];
            const u8* read = read_.data() + b.first_kind;
            const auto outputs = static_cast<i64>(b.values.size());
            const bool any = std::find(read, read + outputs, 1) != read + outputs;
            b.unread.assign(outputs, 0);
            for (i64 o = 0; o < outputs && any; o++)
                b.unread[o] = !read[o];
        }
    }

    // Lets blocks go without the values of unread outputs.
    void leave_out()
    {
        for (i64 k = 0; k < n_blocks; k++) {
            Whole& b = blocks[k];
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

    const u8* needed(const Whole& b) const { return used_.data() + b.first_vertex; }

    i64 producer(i64 value) const { return of_value_[value].vertex; }  // numbered through all blocks
    bool passes(const Whole& b, i64 operand, i64 kind) const { return passed_[(b.first_operand + operand) * n_kinds_ + kind]; }
    bool reads(i64 block, i64 source) const { return reads_[block * n_blocks + source]; }

    // Which cells form recurrences, and what crosses from one vertex of one to another.
    void recurrences()
    {
        reads_.assign(n_blocks * n_blocks, 0);
        for (i64 k = 0; k < n_blocks; k++) {
            const Whole& b = blocks[k];
            for (i64 i = 0; i < operands(b) * n_kinds_; i++)
                if (passed_[b.first_operand * n_kinds_ + i])
                    reads_[k * n_blocks + block_of_kind_[i % n_kinds_]] = 1;
        }
        components();
        for (i64 k = 0; k < n_blocks; k++) {
            Whole& b = blocks[k];
            b.recurrent = recurrent_[component_[k]];
            if (b.recurrent)
                find_crossed(b, component_[k]);
        }
    }

    // Of a value: the vertex that produces it, and as which kind of output.
    struct Producer {
        i32 vertex, kind;
    };
    Producer made_by(i64 value) const { return of_value_[value]; }
    i64 block_of_kind(i64 kind) const { return block_of_kind_[kind]; }
    i64 n_kinds() const { return n_kinds_; }

    // Components of cells that read each other come after those that they read; their ranks rise likewise.
    i64 n_components() const { return n_components_; }
    i64 component(i64 block) const { return component_[block]; }
    bool is_recurrent(i64 component) const { return recurrent_[component]; }
    i64 rank(i64 component) const { return rank_[component]; }
    bool in_order() const { return in_order_; }  // whether every vertex was recorded after what it reads

    i64 block_of(i64 vertex) const
    {
        const auto after = std::upper_bound(blocks.begin(), blocks.begin() + n_blocks, vertex,
                                            [](i64 v, const Whole& b) { return v < b.first_vertex; });
        return after - blocks.begin() - 1;
    }

private:
    // Notes what is read. It lives in registers: stores of bytes would let the compiler load everything else anew.
    struct Reader {
        const Producer* of_value;
        u64 n_values;
        u8 *used, *passed;
        bool good = true, in_order = true;
        Reader(Graph& graph, u8* passed_as)
            : of_value(graph.of_value_.data()), n_values(graph.n_values), used(graph.used_.data()), passed(passed_as)
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
    std::vector<i32> stack_, component_, low_, index_;
    std::vector<i64> rank_;
    std::vector<u8> passed_;  // by operand and kind of value: whether such values are passed as it
    std::vector<u8> read_, reads_, used_, recurrent_, on_stack_;
    i64 n_components_ = 0, n_kinds_ = 0, n_operands_ = 0;
    bool in_order_ = true;

    static i64 operands(const Whole& b) { return static_cast<i64>(b.args.size() + b.lists.size()); }

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
        while (!stack_.empty()) {
            const i32 vertex = stack_.back();
            stack_.pop_back();
            const Whole& b = blocks[block_of(vertex)];
            for_values(b, vertex - b.first_vertex, visit);
        }
    }

    // Strongly connected components of "reads from", producers first (Tarjan 1972), and their ranks.
    void components()
    {
        component_.assign(n_blocks, -1);
        index_.assign(n_blocks, -1);
        low_.assign(n_blocks, 0);
        on_stack_.assign(n_blocks, 0);
        rank_.clear();
        recurrent_.clear();
        stack_.clear();
        n_components_ = 0;
        i32 visited = 0;
        for (i64 root = 0; root < n_blocks; root++)
            if (index_[root] < 0)
                connect(static_cast<i32>(root), visited);
    }

    void connect(i32 node, i32& visited)
    {
        index_[node] = low_[node] = visited++;
        stack_.push_back(node);
        on_stack_[node] = 1;
        const u8* sources = reads_.data() + node * n_blocks;
        for (i32 s = 0; s < n_blocks; s++) {
            if (!sources[s])
                continue;
            if (index_[s] < 0) {
                connect(s, visited);
                low_[node] = std::min(low_[node], low_[s]);
            } else if (on_stack_[s]) {
                low_[node] = std::min(low_[node], index_[s]);
            }
        }
        if (low_[node] != index_[node])
            return;
        const auto c = static_cast<i32>(n_components_++);
        const size_t mark = std::find(stack_.begin(), stack_.end(), node) - stack_.begin();
        for (size_t i = mark; i < stack_.size(); i++) {
            component_[stack_[i]] = c;
            on_stack_[stack_[i]] = 0;
        }
        i64 rank = 0;
        u8 recurrent = 0;
        for (size_t i = mark; i < stack_.size(); i++)
            for (i64 s = 0; s < n_blocks; s++)
                if (reads_[stack_[i] * n_blocks + s]) {
                    if (component_[s] == c)
                        recurrent = 1;
                    else
                        rank = std::max(rank, rank_[component_[s]] + 1);
                }
        rank_.push_back(rank);
        recurrent_.push_back(recurrent);
        stack_.resize(mark);
    }

    void find_crossed(Whole& b, i32 component)
    {
        const i64 n = operands(b);
        b.crossed.assign(n + b.values.size(), 0);
        for (i64 i = 0; i < n; i++)
            for (i64 kind = 0; kind < n_kinds_; kind++)
                if (passed_[(b.first_operand + i) * n_kinds_ + kind] && component_[block_of_kind_[kind]] == component)
                    b.crossed[i] = 1;
        for (i64 k = 0; k < n_blocks; k++) {
            if (component_[k] != component)
                continue;
            const Whole& reader = blocks[k];
            for (i64 i = 0; i < operands(reader); i++)
                for (size_t o = 0; o < b.values.size(); o++)
                    b.crossed[n + o] |= passed_[(reader.first_operand + i) * n_kinds_ + b.first_kind + o];
        }
    }
};
