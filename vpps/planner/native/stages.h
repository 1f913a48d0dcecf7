// Assigns stages to the vertices of a graph.
//
// Components of cells that read each other (execution.h) are ranked by the longest path in the "reads from" graph with
// cycles contracted. The vertices of a cell on no cycle form one stage; a recurrence has several stages. Recurrences of
// the same rank share stages, because they do not read each other.
#pragma once

#include <limits>
#include "graph.h"
#include "policies.h"

class Stages {
public:
    const PolicyRow& row;

    // automata, for a learned policy: the digests of each recurrence's cells in ascending order, then its automaton.
    Stages(const PolicyRow& of, Numbers& automata) : row(of), policy_(of.make())
    {
        for (i64 n = automata.take(); n-- > 0 && !automata.overrun();) {
            const auto digests = taken<std::vector<u64>>(automata);
            automata_.emplace(digests, Automaton(automata));
        }
    }

    // Finds the stage of every vertex.
    void find(Graph& graph)
    {
        for (RecordedBlock& b : graph) {
            b.rank = b.top = 0;
            b.local.resize(b.n);
        }
        if (row.whole && policy_->by_level()) {
            by_level(graph);
        } else if (row.whole) {
            members_.resize(graph.n_blocks);
            std::iota(members_.begin(), members_.end(), 0);
            run(graph, none_);
        } else {
            for (i64 c = 0; c < graph.components.size(); c++)
                within(graph, c);
            rank(graph);
        }
    }

private:
    const std::unique_ptr<Policy> policy_;
    std::map<std::vector<u64>, Automaton> automata_;
    TypedGraph typed_;
    const Automaton none_;
    std::vector<u64> digests_;
    std::vector<i64> members_;  // blocks of a component, in the order of the automaton's types
    std::vector<i64> starts_;
    std::vector<i32> sorted_, level_of_value_;
    std::vector<i32> shift_, shift_of_block_;  // by kind of value: offset from vertex numbers to those in `typed_`

    static constexpr i32 OUTSIDE = std::numeric_limits<i32>::min();

    static void by_level(Graph& graph)
    {
        for (RecordedBlock& b : graph) {
            for (i64 v = 0; v < b.n; v++) {
                b.local[v] = static_cast<i32>(b.levels[v]);
                b.top = std::max<i64>(b.top, b.local[v]);
            }
        }
    }

    // Sets the first stage of each rank: all stages of a rank precede the next rank.
    static void rank(Graph& graph)
    {
        i64 depth = 1;
        for (const RecordedBlock& b : graph)
            depth = std::max(depth, b.top + 1);
        for (i64 k = 0; k < graph.n_blocks; k++) {
            RecordedBlock& b = graph.blocks[k];
            const i64 component = graph.components.of_block(k);
            b.rank = b.last = graph.components.rank(component) * depth;
            for (const i32 other : graph.components.members(component))
                b.last = std::max(b.last, b.rank + graph.blocks[other].top);
        }
    }

    // Sets the stages within a component, from 0.
    void within(Graph& graph, i64 component)
    {
        const Ragged::Span members = graph.components.members(component);
        members_.assign(members.begin(), members.end());
        RecordedBlock& first = graph.blocks[members_[0]];
        if (!graph.components.is_recurrent(component))
            std::fill(first.local.begin(), first.local.end(), 0);
        else if (members_.size() == 1 || policy_->by_level())
            levels(graph);
        else
            run(graph, row.learned ? learned(graph) : none_);
    }

    // Sorts the members by their automaton's types. Returns the automaton; if there is none, one without states.
    const Automaton& learned(const Graph& graph)
    {
        const auto digest = [&](i64 block) { return graph.blocks[block].cell->digest; };
        std::stable_sort(members_.begin(), members_.end(), [&](i64 a, i64 b) { return digest(a) < digest(b); });
        digests_.clear();
        for (const i64 k : members_)
            digests_.push_back(digest(k));
        const auto found = automata_.find(digests_);
        return found == automata_.end() ? none_ : found->second;
    }

    // Sets the level of each vertex in the members: the longest path that ends there, through members only.
    void levels(Graph& graph)
    {
        level_of_value_.assign(graph.n_values, -1);
        auto settle = [&](RecordedBlock& b, i64 v) {
            i32 level = -1;
            for_values(b, v, [&](i64 value) { level = std::max(level, level_of_value_[value]); });
            b.local[v] = ++level;
            b.top = std::max<i64>(b.top, level);
            for (const Column& ids : b.values)
                level_of_value_[ids[v]] = level;
        };
        if (members_.size() == 1 && graph.in_order()) {
            RecordedBlock& only = graph.blocks[members_[0]];
            for (i64 v = 0; v < only.n; v++)
                settle(only, v);
            return;
        }
        // In the order of the whole graph's levels: a reader's level exceeds those of its operands.
        i64 deepest = 0;
        for (const i64 k : members_)
            for (i64 v = 0; v < graph.blocks[k].n; v++)
                deepest = std::max(deepest, graph.blocks[k].levels[v]);
        starts_.assign(deepest + 2, 0);
        for (const i64 k : members_)
            for (i64 v = 0; v < graph.blocks[k].n; v++)
                starts_[graph.blocks[k].levels[v] + 1]++;
        for (i64 level = 0; level <= deepest; level++)
            starts_[level + 1] += starts_[level];
        sorted_.resize(starts_[deepest + 1]);
        for (const i64 k : members_)
            for (i64 v = 0; v < graph.blocks[k].n; v++)
                sorted_[starts_[graph.blocks[k].levels[v]]++] = static_cast<i32>(graph.blocks[k].first_vertex + v);
        for (const i32 vertex : sorted_) {
            RecordedBlock& b = graph.blocks[graph.block_of(vertex)];
            settle(b, vertex - b.first_vertex);
        }
    }

    // Runs the policy batch by batch.
    void run(Graph& graph, const Automaton& automaton)
    {
        take(graph);
        policy_->batch(typed_, automaton);
        i64 first = 0;
        for (const i64 k : members_) {
            RecordedBlock& b = graph.blocks[k];
            for (i64 v = 0; v < b.n; v++) {
                b.local[v] = policy_->run.stage(first + v);
                b.top = std::max<i64>(b.top, b.local[v]);
            }
            first += b.n;
        }
    }

    // Makes a typed graph from the members, with vertices in block order.
    void take(const Graph& graph)
    {
        shift_of_block_.assign(graph.n_blocks, OUTSIDE);
        i64 n = 0, most_edges = 0;
        for (const i64 k : members_) {
            const RecordedBlock& b = graph.blocks[k];
            shift_of_block_[k] = static_cast<i32>(n - b.first_vertex);
            n += b.n;
            most_edges += static_cast<i64>(b.args.size()) * b.n;
            for (const List& xs : b.lists)
                most_edges += xs.ends[b.n] - xs.ends[0];
        }
        shift_.resize(graph.n_kinds());
        for (i64 kind = 0; kind < graph.n_kinds(); kind++)
            shift_[kind] = shift_of_block_[graph.block_of_kind(kind)];
        typed_.reset(n, static_cast<i64>(members_.size()));
        typed_.expect(most_edges);
        i32 first = 0, type = 0;
        for (const i64 k : members_) {
            const RecordedBlock& b = graph.blocks[k];
            const Column levels = b.levels;
            for (i64 v = 0; v < b.n; v++) {
                typed_.type[first + v] = type;
                typed_.level[first + v] = static_cast<i32>(levels[v]);
            }
            // Operands that take no value from the recurrence have no edges.
            const bool all = members_.size() == static_cast<size_t>(graph.n_blocks);
            for (i64 i = 0; i < b.operands(); i++)
                if (all || b.crossed[i])
                    for_operand(b, i, [&](i64 value, i64 v) { connect(graph, value, static_cast<i32>(first + v)); });
            first += static_cast<i32>(b.n);
            type++;
        }
    }

    void connect(const Graph& graph, i64 value, i32 reader)
    {
        const Graph::Producer made = graph.made_by(value);
        const i32 shift = shift_[made.kind];
        if (shift != OUTSIDE)
            typed_.add(made.vertex + shift, reader);
    }
};
