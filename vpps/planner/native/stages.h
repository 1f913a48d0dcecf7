// In which stage the vertices of a graph run.
//
// Components of cells that read each other (execution.h) are ranked by the longest path in the graph of "reads from",
// cycles contracted. The vertices of a cell that is on no cycle are one stage; those of a cycle have stages of their own.
// Recurrences of one rank share stages: they do not read each other.
#pragma once

#include <limits>
#include "graph.h"
#include "policies.h"

// How a recurrence of several cells runs, as the caller has told.
struct Choice {
    Policy* policy;
    Automaton automaton;         // of a policy that learns
    std::vector<i64> order;  // which member, in the order of the blocks, is each of the automaton's types
    i64 latest = 0, unseen = 0;  // steps in which it did not know its state: of the latest graph, of those counted
};

class Stages {
public:
    std::vector<Choice> choices;  // in the order in which they were told
    const PolicyRow& row;

    explicit Stages(const PolicyRow& of) : row(of), policy_(*policy(of)) {}

    // Finds the stage of every vertex. A block whose recurrence it must be told how to run before that, or -1.
    i64 find(Graph& graph)
    {
        for (Choice& choice : choices)
            choice.latest = 0;
        for (Whole& b : graph) {
            b.rank = b.top = 0;
            b.local.resize(b.n);
        }
        if (row.whole && policy_.by_level()) {
            by_level(graph);
        } else if (row.whole) {
            members_.resize(graph.n_blocks);
            std::iota(members_.begin(), members_.end(), 0);
            run(graph, policy_);
        } else {
            for (i64 c = 0; c < graph.components.size(); c++)
                if (!within(graph, c))
                    return members_[0];
            rank(graph);
        }
        return -1;
    }

    // Counts the states that automata did not know in the latest graph. Whether there are any.
    bool count_unseen()
    {
        bool any = false;
        for (Choice& choice : choices) {
            choice.unseen += choice.latest;
            any |= choice.latest > 0;
        }
        return any;
    }

    // How what was asked for last is to run; of a policy that learns the numbers are its order, then its automaton. False
    // where they are not what is expected.
    bool choose(const PolicyRow& of, Numbers& from)
    {
        Choice choice{policy(of), {}, {}};
        if (!from.complete()) {
            for (i64 k = n_asked(); k > 0; k--)
                choice.order.push_back(from.take());
            choice.automaton = Automaton(from);
        }
        if (from.complete()) {
            choice_of_[asked_] = choices.size();
            choices.push_back(std::move(choice));
        }
        return from.complete();
    }

private:
    std::map<const PolicyRow*, std::unique_ptr<Policy>> policies_;  // those in use
    Policy& policy_;
    TypedGraph typed_;
    const Automaton none_;
    // Cells of a recurrence, in the order of the blocks, and how many binary digits its size has where that counts.
    std::vector<i64> asked_;
    std::map<std::vector<i64>, size_t> choice_of_;
    std::vector<i64> members_;  // blocks of a component; in the order of the automaton's types
    std::vector<i64> rising_, starts_;
    std::vector<i32> sorted_, level_of_value_;
    std::vector<i32> shift_, shift_of_block_;  // by kind of value: what makes the number of a vertex that in `typed_`

    static constexpr i32 OUTSIDE = std::numeric_limits<i32>::min();

    i64 n_asked() const { return static_cast<i64>(asked_.size()) - 1; }

    Policy* policy(const PolicyRow& of)
    {
        std::unique_ptr<Policy>& found = policies_[&of];
        if (!found)
            found = of.make();
        return found.get();
    }

    static void by_level(Graph& graph)
    {
        for (Whole& b : graph) {
            for (i64 v = 0; v < b.n; v++) {
                b.local[v] = static_cast<i32>(b.levels[v]);
                b.top = std::max<i64>(b.top, b.local[v]);
            }
        }
    }

    // Stages of one rank follow each other; all of them precede the next rank.
    static void rank(Graph& graph)
    {
        i64 depth = 1;
        for (const Whole& b : graph)
            depth = std::max(depth, b.top + 1);
        for (i64 k = 0; k < graph.n_blocks; k++) {
            Whole& b = graph.blocks[k];
            const i64 component = graph.components.of_block(k);
            b.rank = b.last = graph.components.rank(component) * depth;
            for (const i32 other : graph.components.members(component))
                b.last = std::max(b.last, b.rank + graph.blocks[other].top);
        }
    }

    // Stages within a component, from 0. False where nobody has told how to run it.
    bool within(Graph& graph, i64 component)
    {
        const Ragged::List members = graph.components.members(component);
        members_.assign(members.begin(), members.end());
        Whole& first = graph.blocks[members_[0]];
        if (!graph.components.is_recurrent(component)) {
            std::fill(first.local.begin(), first.local.end(), 0);
            return true;
        }
        Policy* policy = &policy_;
        Choice* choice = nullptr;
        if (members_.size() > 1 && policy->asks()) {
            choice = chosen(graph);
            if (!choice)
                return false;
            policy = choice->policy;
        }
        if (members_.size() == 1 || policy->by_level())
            levels(graph);
        else
            run(graph, *policy, choice);
        return true;
    }

    Choice* chosen(const Graph& graph)
    {
        asked_.clear();
        i64 n = 0;
        for (const i64 k : members_) {
            asked_.push_back(address(graph.blocks[k].cell));
            n += graph.blocks[k].n;
        }
        i64 digits = 0;
        for (; policy_.asks_by_size() && n; n >>= 1)
            digits++;
        asked_.push_back(digits);
        const auto found = choice_of_.find(asked_);
        return found == choice_of_.end() ? nullptr : &choices[found->second];
    }

    // Longest distance of each vertex of the members from the first of its kind, counting members only.
    void levels(Graph& graph)
    {
        level_of_value_.assign(graph.n_values, -1);
        auto settle = [&](Whole& b, i64 v) {
            i32 level = -1;
            for_values(b, v, [&](i64 value) { level = std::max(level, level_of_value_[value]); });
            b.local[v] = ++level;
            b.top = std::max<i64>(b.top, level);
            for (const Column& ids : b.values)
                level_of_value_[ids[v]] = level;
        };
        if (members_.size() == 1 && graph.in_order()) {
            Whole& only = graph.blocks[members_[0]];
            for (i64 v = 0; v < only.n; v++)
                settle(only, v);
            return;
        }
        // By level in the whole graph, which any reader's exceeds.
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
            Whole& b = graph.blocks[graph.block_of(vertex)];
            settle(b, vertex - b.first_vertex);
        }
    }

    // Batch by batch.
    void run(Graph& graph, Policy& policy, Choice* choice = nullptr)
    {
        if (choice && !choice->order.empty()) {
            rising_ = members_;
            for (size_t t = 0; t < rising_.size(); t++)
                members_[t] = rising_[choice->order[t]];
        }
        take(graph);
        policy.batch(typed_, choice ? choice->automaton : none_);
        if (choice)
            choice->latest += policy.unseen;
        i64 first = 0;
        for (const i64 k : members_) {
            Whole& b = graph.blocks[k];
            for (i64 v = 0; v < b.n; v++) {
                b.local[v] = policy.run.stage(first + v);
                b.top = std::max<i64>(b.top, b.local[v]);
            }
            first += b.n;
        }
    }

    // The members as a typed graph: vertices block after block.
    void take(const Graph& graph)
    {
        shift_of_block_.assign(graph.n_blocks, OUTSIDE);
        i64 n = 0, most_edges = 0;
        for (const i64 k : members_) {
            const Whole& b = graph.blocks[k];
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
            const Whole& b = graph.blocks[k];
            const Column levels = b.levels;
            for (i64 v = 0; v < b.n; v++) {
                typed_.type[first + v] = type;
                typed_.level[first + v] = static_cast<i32>(levels[v]);
            }
            // What takes no value of the recurrence has no edge.
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
