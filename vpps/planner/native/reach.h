// Finds the parameters and table rows that the loss depends on through ops with gradients (vpps/compiler/used_rows.py).
// An update changes only these. Vertices may read more values: for another output, or behind stop_gradient.
#pragma once

#include "rows.h"

class Reach {
public:
    std::vector<u8> users, parameters;    // flags for the user's parameters, and for the kernel's
    std::vector<std::vector<u8>> tables;  // by kernel parameter: flags of used rows, unless is_all()

    // Follows the operands from the values that backward begins with.
    void find(const Graph& graph, const RowsOfBlocks& rows, const Model& model, const i64* asked, i64 n)
    {
        all_ = true;
        for (i64 k = 0; k < graph.n_blocks; k++)
            all_ &= !graph.blocks[k].n_needed || rows.of_whole[k]->reaches_all;
        if (!all_)
            search(graph, rows, asked, n);
        users.assign(model.kernel_of.size(), 0);
        parameters.assign(model.parameters.size(), 0);
        tables.resize(parameters.size());
        for (std::vector<u8>& used : tables)
            used.clear();
        for (i64 k = 0; k < graph.n_blocks; k++) {
            const RecordedBlock& b = graph.blocks[k];
            for (size_t o = 0; o < b.values.size(); o++) {
                if (all_ ? !b.n_needed || b.unread[o] : !kinds_[b.first_kind + o])
                    continue;
                const OutputReach& reach = rows.of_whole[k]->reach[o];
                for (const i32 p : reach.parameters)
                    users[p] = parameters[model.kernel_of[p]] = 1;
                for (size_t i = 0; i < reach.lookups.size() && !all_; i++)
                    use_rows(b, reach.lookups[i], b.values[o], tables[model.kernel_of[reach.lookups[i].table]]);
            }
        }
    }

    // True if the loss depends on all values that are read. Then the gradients show which table rows are used.
    bool is_all() const { return all_; }

private:
    bool all_ = true;
    std::vector<u8> values_, kinds_;  // unless is_all(): flags of values and output kinds that it depends on
    std::vector<i64> stack_;

    void use_rows(const RecordedBlock& b, const Lookup& lookup, const Column& values, std::vector<u8>& used)
    {
        for (i64 v = 0; v < b.n; v++) {
            if (!values_[values[v]])
                continue;
            const auto number = static_cast<size_t>(lookup.column < 0 ? lookup.constant : b.ints[lookup.column][v]);
            used.resize(std::max(used.size(), number + 1));
            used[number] = 1;
        }
    }

    void search(const Graph& graph, const RowsOfBlocks& rows, const i64* asked, i64 n)
    {
        values_.assign(graph.n_values, 0);
        kinds_.assign(graph.n_kinds(), 0);
        stack_.clear();
        auto visit = [&](i64 value) {
            if (!std::exchange(values_[value], u8{1}))
                stack_.push_back(value);
        };
        for (i64 i = 0; i < n; i++)
            visit(asked[i]);
        while (!stack_.empty()) {
            const Graph::Producer made = graph.made_by(stack_.back());
            stack_.pop_back();
            kinds_[made.kind] = 1;
            const i64 block = graph.block_of_kind(made.kind);
            const RecordedBlock& b = graph.blocks[block];
            for (const i32 operand : rows.of_whole[block]->reach[made.kind - b.first_kind].operands)
                for_operand_of(b, operand, made.vertex - b.first_vertex, visit);
        }
    }
};
