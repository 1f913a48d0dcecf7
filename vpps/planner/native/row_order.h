// In which order the vertices of a step get their rows (vpps/planner/row_order.py): layout "readers", and orders that are given.
#pragma once

#include "block.h"

#include <numeric>

class RowOrder {
public:
    // Numbers the steps, given the blocks that say in which of them vertices run, in the recorded order. Whether any has
    // several vertices: else there is nothing to put in order.
    bool find_steps(const Graph& graph, const std::vector<Block*>& leaders)
    {
        leaders_ = leaders.data();
        number_steps(graph);
        return largest_ > 1;
    }

    // Of each vertex; -1 where it is left out.
    const std::vector<i32>& steps() const { return step_of_; }

    // Orders the rows of each step by the places of their vertices.
    void by_places(const Graph& graph, const i64* places)
    {
        for (const Step& step : steps_) {
            Block& b = *leaders_[step.block];
            const i64* place = places + graph.blocks[step.block].first_vertex;
            order_of(b);
            const auto first = b.order.begin() + step.first;
            std::sort(first, first + step.n, [=](i32 a, i32 c) { return place[a] < place[c]; });
        }
    }

    // By what the steps of other vertices read.
    void by_readers(const Graph& graph)
    {
        find_waited_for(graph);
        find_constraints(graph);
        follow_readers(graph);
        follow_producers(graph);
    }

private:
    struct Step {
        i64 block, first, n, stage;
    };
    // That vertices of a step lie side by side, in the order of a step that reads them, and nothing else, as an operand.
    struct Constraint {
        i32 step, reader, operand, size;
    };

    Block* const* leaders_ = nullptr;
    std::vector<Step> steps_;
    std::vector<Constraint> constraints_;
    std::vector<i32> step_of_, read_by_, followed_;  // by vertex; followed: number of a constraint, or -1
    std::vector<i32> sorted_, vertices_, head_, next_;
    std::vector<i64> row_of_, cursor_;
    std::vector<u8> waited_for_, placed_;
    i64 largest_ = 0;

    void number_steps(const Graph& graph)
    {
        steps_.clear();
        step_of_.assign(graph.n_vertices, -1);
        largest_ = 0;
        for (i64 k = 0; k < graph.n_blocks; k++) {
            const Block& b = *leaders_[k];
            i32* of = step_of_.data() + graph.blocks[k].first_vertex;
            for (size_t s = 0; s < b.stage.size(); s++) {
                const i64 first = b.first_row[s * b.domains()], n = b.count[s * b.domains()];
                for (i64 r = first; r < first + n; r++)
                    of[b.vertex(r)] = static_cast<i32>(steps_.size());
                steps_.push_back({k, first, n, b.stage[s]});
                largest_ = std::max(largest_, n);
            }
        }
    }

    // Which blocks a recurrence waits for, or are of one.
    void find_waited_for(const Graph& graph)
    {
        waited_for_.assign(graph.n_blocks, 0);
        for (i64 i = graph.n_blocks - 1; i >= 0; i--) {  // what a block reads comes before it, or is of its recurrence
            const i64 k = graph.components.sorted()[i];
            waited_for_[k] |= graph.blocks[k].recurrent;
            for (const i32 source : graph.sources(k))
                waited_for_[source] |= waited_for_[k];
        }
    }

    // Calls act(producer) for what the rows of a step read as an operand, until that is false; whether it never was.
    // Arguments come first, then lists.
    template <class Do> bool producers(const Graph& graph, const Step& reader, i32 operand, Do&& act) const
    {
        const Whole& b = graph.blocks[reader.block];
        const Block& rows = *leaders_[reader.block];
        const auto n_args = static_cast<i32>(b.args.size());
        for (i64 r = reader.first; r < reader.first + reader.n; r++) {
            const i64 v = rows.vertex(r);
            if (operand < n_args) {
                if (!act(graph.producer(b.args[operand][v])))
                    return false;
                continue;
            }
            const List& xs = b.lists[operand - n_args];
            for (i64 e = xs.ends[v]; e < xs.ends[v + 1]; e++)
                if (!act(graph.producer(xs.elements[e])))
                    return false;
        }
        return true;
    }

    // Of each vertex the largest constraint that it is in.
    void find_constraints(const Graph& graph)
    {
        constraints_.clear();
        followed_.assign(graph.n_vertices, -1);
        read_by_.assign(graph.n_vertices, -1);
        i32 number = 0;  // of what a step reads as an operand
        for (size_t s = 0; s < steps_.size(); s++) {
            const Step& reader = steps_[s];
            const Whole& b = graph.blocks[reader.block];
            const auto n_operands = static_cast<i32>(waited_for_[reader.block] ? b.operands() : 0);
            for (i32 k = 0; k < n_operands; k++, number++) {
                i32 step = -1, size = 0;
                const bool of_one_step = producers(graph, reader, k, [&](i64 producer) {
                    const bool again = read_by_[producer] == number;
                    read_by_[producer] = number;
                    step = size++ ? step : step_of_[producer];
                    return !again && step_of_[producer] == step;
                });
                if (!of_one_step || size < 2)
                    continue;
                const auto constraint = static_cast<i32>(constraints_.size());
                constraints_.push_back({step, static_cast<i32>(s), k, size});
                producers(graph, reader, k, [&](i64 producer) {
                    i32& followed = followed_[producer];
                    if (followed < 0 || size > constraints_[followed].size)
                        followed = constraint;
                    return true;
                });
            }
        }
    }

    // From the last stage to the first: producers are readers of the stages before.
    void follow_readers(const Graph& graph)
    {
        sorted_.resize(constraints_.size());
        std::iota(sorted_.begin(), sorted_.end(), 0);
        std::sort(sorted_.begin(), sorted_.end(), [&](i32 i, i32 j) {
            const Constraint &a = constraints_[i], &b = constraints_[j];
            const i64 later = steps_[a.step].stage, earlier = steps_[b.step].stage;
            if (later != earlier)
                return later > earlier;
            if (a.step != b.step)
                return a.step < b.step;
            return a.size != b.size ? a.size > b.size : i < j;
        });
        placed_.assign(graph.n_vertices, 0);
        for (size_t begin = 0, end; begin < sorted_.size(); begin = end) {
            const i32 number = constraints_[sorted_[begin]].step;
            const i64 first_vertex = graph.blocks[steps_[number].block].first_vertex;
            vertices_.clear();
            for (end = begin; end < sorted_.size() && constraints_[sorted_[end]].step == number; end++) {
                const i32 constraint = sorted_[end];
                const Constraint& c = constraints_[constraint];
                producers(graph, steps_[c.reader], c.operand, [&](i64 producer) {
                    if (followed_[producer] == constraint) {
                        placed_[producer] = 1;
                        vertices_.push_back(static_cast<i32>(producer - first_vertex));
                    }
                    return true;
                });
            }
            Block& b = *leaders_[steps_[number].block];
            for (i64 r = steps_[number].first; r < steps_[number].first + steps_[number].n; r++)
                if (!placed_[first_vertex + b.vertex(r)])
                    vertices_.push_back(static_cast<i32>(b.vertex(r)));
            order_of(b);
            std::copy(vertices_.begin(), vertices_.end(), b.order.begin() + steps_[number].first);
        }
    }

    static void order_of(Block& b)
    {
        if (!b.identity)
            return;
        b.identity = false;
        b.order.resize(b.n);
        std::iota(b.order.begin(), b.order.end(), 0);
    }

    // Vertices that no recurrence waits for, in the order of what they read first.
    void follow_producers(const Graph& graph)
    {
        row_of_.resize(graph.n_vertices);
        head_.assign(graph.n_vertices, -1);
        for (const i32 k : graph.components.sorted()) {
            const Whole& whole = graph.blocks[k];
            Block& b = *leaders_[k];
            if (!waited_for_[k] && !whole.args.empty() && b.n_rows > 1)
                follow_first(graph, whole, b);
            for (i64 r = 0; r < b.n_rows; r++)
                row_of_[whole.first_vertex + b.vertex(r)] = whole.first_vertex + r;
        }
    }

    void follow_first(const Graph& graph, const Whole& whole, Block& b)
    {
        next_.resize(b.n);
        i64 least = graph.n_vertices, most = -1;
        for (i64 v = b.n - 1; v >= 0; v--) {
            if (step_of_[whole.first_vertex + v] < 0)
                continue;
            const i64 row = row_of_[graph.producer(whole.args[0][v])];
            next_[v] = head_[row];
            head_[row] = static_cast<i32>(v);
            least = std::min(least, row);
            most = std::max(most, row);
        }
        order_of(b);
        cursor_.clear();
        for (size_t s = 0; s < b.stage.size(); s++)
            cursor_.push_back(b.first_row[s * b.domains()]);
        const i32 first_step = step_of_[whole.first_vertex + b.order[0]];
        for (i64 row = least; row <= most; row++) {
            for (i32 v = head_[row]; v >= 0; v = next_[v])
                b.order[cursor_[step_of_[whole.first_vertex + v] - first_step]++] = v;
            head_[row] = -1;
        }
    }
};
