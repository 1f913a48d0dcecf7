// Folds the backward of the loss chain, the scalar arithmetic that combines values of vertices into the loss.
//
// The chain consists of separate vertices, such as a sum of losses, its scale, or a mean over a mini-batch. The
// gradients of their operands are constants: in `0.5 * sum(losses)`, the gradient of every loss is 0.5. So the planner
// computes these gradients, in float32 and in the order in which kernels would. Backward begins with the values that
// the chain reads. No backward step depends on the chain's forward, so the chain may run late.
#pragma once

#include "graph.h"

class LossChain {
public:
    std::vector<i64> values;  // the chain's operands; a value that is read twice is listed twice
    std::vector<u32> words;   // bits of the loss gradient with respect to each operand

    bool has(i64 block) const { return !in_chain_.empty() && in_chain_[block]; }

    void find(const Graph& graph, i64 loss)
    {
        in_chain_.assign(graph.n_blocks, 0);
        factor_.assign(graph.n_blocks, 0);
        for (i64 k = 0; k < graph.n_blocks; k++) {
            const Linear op = op_of(graph.blocks[k]);
            const bool known = op >= Linear::LIST_SUM && op < Linear::NUMBER;
            in_chain_[k] = known && (op != Linear::MUL || find_factor(graph, k));
        }
        while (leave_out_what_others_read(graph)) {}
        if (!has(block_of(graph, loss)) || !fold(graph, loss)) {
            in_chain_.clear();
            values.assign(1, loss);
            words.assign(1, word(1.f));
        }
    }

    void clear() { in_chain_.clear(); }

private:
    std::vector<u8> in_chain_;
    std::vector<i64> factor_;  // by block: for a product, which operand is a number
    std::vector<i64> pending_;     // a heap of the chain's values that have a gradient
    std::vector<u8> is_pending_;   // by value
    std::vector<float> gradient_;  // by value

    static u32 word(float x)
    {
        u32 bits;
        std::memcpy(&bits, &x, sizeof bits);
        return bits;
    }

    static Linear op_of(const RecordedBlock& b) { return static_cast<Linear>(b.cell->linear); }

    static i64 block_of(const Graph& graph, i64 value) { return graph.block_of_kind(graph.made_by(value).kind); }

    bool find_factor(const Graph& graph, i64 block)
    {
        bool number[2] = {true, true};
        for (i64 k = 0; k < 2; k++)
            for (const i32 kind : graph.kinds(graph.blocks[block], k))
                number[k] &= op_of(graph.blocks[graph.block_of_kind(kind)]) == Linear::NUMBER;
        factor_[block] = number[0] ? 0 : 1;
        return number[0] != number[1];
    }

    bool leave_out_what_others_read(const Graph& graph)
    {
        bool any = false;
        for (i64 k = 0; k < graph.n_blocks; k++)
            if (!in_chain_[k])
                for (const i32 source : graph.sources(k))
                    any |= std::exchange(in_chain_[source], u8{0}) != 0;
        return any;
    }

    // Folds vertex by vertex, from the loss back, in order of decreasing value number. Returns false if a vertex was
    // recorded before one of its operands.
    bool fold(const Graph& graph, i64 loss)
    {
        values.clear();
        words.clear();
        pending_.clear();
        is_pending_.assign(graph.n_values, 0);
        gradient_.resize(std::max<size_t>(gradient_.size(), graph.n_values));
        add(graph, loss, 1.f);
        while (!pending_.empty()) {
            std::pop_heap(pending_.begin(), pending_.end());
            const i64 value = pending_.back();
            pending_.pop_back();
            if (!fold_vertex(graph, value, gradient_[value]))
                return false;
        }
        return true;
    }

    void add(const Graph& graph, i64 value, float gradient)
    {
        if (!has(block_of(graph, value))) {
            values.push_back(value);
            words.push_back(word(gradient));
            return;
        }
        if (is_pending_[value]) {
            gradient_[value] = gradient_[value] + gradient;
            return;
        }
        is_pending_[value] = 1;
        gradient_[value] = gradient;
        pending_.push_back(value);
        std::push_heap(pending_.begin(), pending_.end());
    }

    bool fold_vertex(const Graph& graph, i64 value, float gradient)
    {
        const i64 number = block_of(graph, value);
        const RecordedBlock& b = graph.blocks[number];
        const i64 v = graph.producer(value) - b.first_vertex;
        const Linear op = op_of(b);
        if (op == Linear::LIST_SUM || op == Linear::LIST_MEAN) {
            const List& xs = b.lists[0];
            const i64 n = xs.ends[v + 1] - xs.ends[v];
            if (op == Linear::LIST_MEAN && n)
                gradient = gradient * (1.f / static_cast<float>(n));
            for (i64 e = xs.ends[v]; e < xs.ends[v + 1]; e++) {
                if (xs.elements[e] >= value)
                    return false;
                add(graph, xs.elements[e], gradient);
            }
            return true;
        }
        if (op == Linear::MUL) {
            const i64 k = factor_[number], factor = b.args[k][v], other = b.args[1 - k][v];
            const RecordedBlock& numbers = graph.blocks[block_of(graph, factor)];
            float x;
            std::memcpy(&x, numbers.data + (graph.producer(factor) - numbers.first_vertex), sizeof x);
            gradient = gradient * x;
            if (other >= value)
                return false;
            add(graph, other, gradient);
            return true;
        }
        for (size_t k = 0; k < b.args.size(); k++) {
            if (b.args[k][v] >= value)
                return false;
            add(graph, b.args[k][v], op == Linear::NEG || (op == Linear::SUB && k) ? -gradient : gradient);
        }
        return true;
    }
};
