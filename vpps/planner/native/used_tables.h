// Finds the rows of lookup tables that a batch uses, and the gradient rows to sum for each.
#pragma once

#include "launch.h"

class UsedTables {
public:
    explicit UsedTables(LaunchPlan& launch) : launch_(launch), used_(launch.model.parameters.size()) {}

    void reset()
    {
        for (UsedRows& used : used_) {
            used.present = used.given = false;
            used.ids.clear();
            used.addresses.clear();
        }
    }

    // Finds the tables that the loss depends on. Returns true if there are any.
    bool take()
    {
        for (const Block& b : launch_.rows)
            for (size_t i = 0; i < b.cell->tables.size() && b.n_needed && launch_.reach.is_all(); i++)
                used_[b.cell->tables[i].table].present = true;
        bool any = false;
        for (size_t p = 0; p < used_.size(); p++)
            any |= used_[p].present |= !launch_.reach.tables[p].empty();
        return any;
    }

    // True if a parameter is a used table, and the number of its used rows.
    bool present(size_t parameter) const { return used_[parameter].present; }
    i64 n_rows(size_t parameter) const { return used_[parameter].n; }
    // True if the caller writes the rows' gradients.
    bool given(size_t parameter) const { return used_[parameter].given; }

    // Places the lists of used rows, and allocates memory for their gradients.
    void place()
    {
        const RowsOfBlocks& graph = launch_.rows;
        collect_held();
        collect_given();
        for (const Block& b : graph) {
            if (!b.n_needed)
                continue;
            for (const TableGradient& g : b.cell->tables) {
                UsedRows& used = used_[g.table];
                const size_t before = used.ids.size();
                used.ids.resize(before + b.n_needed);
                used.addresses.resize(before + b.n_needed);
                launch_.lists.values(b, g.ids, used.ids.data() + before, b.n_needed);
                launch_.lists.addresses_of(b, g.gradient, used.addresses.data() + before, b.n_needed);
                if (!launch_.reach.is_all())
                    leave_out_unused(used, before, launch_.reach.tables[g.table]);
            }
        }
        for (size_t p = 0; p < used_.size(); p++)
            for (size_t row = 0; row < launch_.reach.tables[p].size(); row++)
                if (launch_.reach.tables[p][row] == WITHOUT_GRADIENT)
                    used_[p].ids.push_back(static_cast<u32>(row));
        for (size_t p = 0; p < used_.size(); p++)
            if (used_[p].present)
                place_table(launch_.model.parameters[p], used_[p]);
    }

    // Sets the table whose rows the next instructions work on.
    void describe(size_t p) const
    {
        const UsedRows& used = used_[p];
        launch_.frame[Frame::ROWS] = used.n;
        launch_.frame[Frame::GRADIENT] = used.gradient;
        launch_.frame[Frame::OFFSETS] = used.offsets;
        launch_.frame[Frame::NUMBERS] = used.numbers;
        launch_.frame[Frame::IDLE] = used.idle;
    }

    // Reports to the caller.
    void report() const
    {
        auto* next = pointer<UsedTable>(launch_.call->tables);
        for (size_t p = 0; p < used_.size(); p++) {
            const UsedRows& used = used_[p];
            if (!used.present)
                continue;
            *next++ = {static_cast<i64>(p), used.n, used.gradient, used.offsets, used.numbers, used.idle};
            launch_.call->n_tables++;
        }
    }

private:
    struct UsedRows {
        i64 n = 0, gradient = 0, offsets = 0, numbers = 0, idle = 0;
        bool present = false, given = false;
        std::vector<u32> ids, addresses;  // by gradient row, in fixed order; then the ids of rows without a gradient
    };

    LaunchPlan& launch_;
    std::vector<UsedRows> used_;  // by parameter
    std::vector<u32> starts_, rows_, sorted_, other_;

    static constexpr u8 WITHOUT_GRADIENT = 1, WITH_GRADIENT = 2;  // flags of used rows

    // Removes the gradient rows from index `first` on that the loss does not depend on.
    static void leave_out_unused(UsedRows& found, size_t first, std::vector<u8>& used)
    {
        size_t kept = first;
        for (size_t i = first; i < found.ids.size(); i++) {
            const u32 number = found.ids[i];
            if (number >= used.size() || !used[number])
                continue;
            used[number] = WITH_GRADIENT;
            found.ids[kept] = number;
            found.addresses[kept++] = found.addresses[i];
        }
        found.ids.resize(kept);
        found.addresses.resize(kept);
    }

    // Adds the rows that hold gradients from earlier batches. They come first in the sums.
    void collect_held()
    {
        const i64* held = pointer<const i64>(launch_.call->held_rows);  // parameter, number of rows, their numbers
        for (i64 i = 0; i < launch_.call->n_held_rows; i++, held += 3) {
            UsedRows& used = used_[held[0]];
            if (launch_.call->updates)
                used.present = true;
            const Parameter& p = launch_.model.parameters[held[0]];
            const i64* rows = pointer<const i64>(held[2]);
            for (i64 r = 0; r < held[1]; r++) {
                used.ids.push_back(static_cast<u32>(rows[r]));
                used.addresses.push_back(static_cast<u32>(p.gradient + rows[r] * p.width));
            }
        }
        if (launch_.call->keeps)
            for (UsedRows& used : used_)
                used.n = static_cast<i64>(used.ids.size());  // the first n rows are held
    }

    void collect_given()
    {
        const i64* given = pointer<const i64>(launch_.call->given_rows);  // parameter, number of rows, their numbers
        for (i64 i = 0; i < launch_.call->n_given_rows; i++, given += 3) {
            UsedRows& used = used_[given[0]];
            used.present = used.given = true;
            const i64* rows = pointer<const i64>(given[2]);
            used.ids.assign(rows, rows + given[1]);
        }
    }

    void place_table(const Parameter& p, UsedRows& used)
    {
        if (launch_.call->keeps)
            leave_alone(used);
        sort(used.ids);
        const size_t n = used.addresses.size();
        u32 *entries, *words;
        const i64 at = launch_.place(static_cast<i64>(n), entries);
        starts_.clear();
        rows_.clear();
        u32 summed = 0;
        for (const u32 i : sorted_) {
            const u32 id = used.ids[i];
            if (rows_.empty() || rows_.back() != id) {
                rows_.push_back(id);
                starts_.push_back(summed);
            }
            if (i < n)
                entries[summed++] = used.addresses[i];
        }
        starts_.push_back(static_cast<u32>(n));
        used.n = static_cast<i64>(rows_.size());
        used.gradient = launch_.call->keeps ? 0 : launch_.take(used.n * p.width);
        used.numbers = launch_.place(used.n, words);
        for (i64 r = 0; r < used.n; r++)
            words[r] = launch_.call->keeps ? static_cast<u32>(p.gradient + rows_[r] * p.width) : rows_[r];
        used.idle = 0;
        if (launch_.call->averages)  // the caller fills them in
            used.idle = launch_.place(used.n, words);
        used.offsets = launch_.place(used.n + 1, words);
        for (i64 r = 0; r <= used.n; r++)
            words[r] = static_cast<u32>(at) + starts_[r];
    }

    // Removes the held rows that this batch does not use; they remain unchanged.
    void leave_alone(UsedRows& used)
    {
        rows_.assign(used.ids.begin() + used.n, used.ids.end());
        sort_numbers(rows_);
        const size_t n = used.addresses.size();
        size_t kept = 0, summed = 0;
        for (size_t i = 0; i < used.ids.size(); i++)
            if (static_cast<i64>(i) >= used.n || std::binary_search(rows_.begin(), rows_.end(), used.ids[i])) {
                used.ids[kept++] = used.ids[i];
                if (i < n)
                    used.addresses[summed++] = used.addresses[i];
            }
        used.ids.resize(kept);
        used.addresses.resize(summed);
    }

    // Sorts indices into `sorted_` by key, with a stable radix sort.
    void sort(const std::vector<u32>& keys)
    {
        constexpr u32 BITS = 8, BUCKETS = 1 << BITS;
        const size_t n = keys.size();
        sorted_.resize(n);
        other_.resize(n);
        u32 largest = 0;
        for (size_t i = 0; i < n; i++) {
            sorted_[i] = static_cast<u32>(i);
            largest = std::max(largest, keys[i]);
        }
        for (u32 shift = 0; shift < 32 && largest >> shift; shift += BITS) {
            u32 at[BUCKETS + 1] = {};
            for (size_t i = 0; i < n; i++)
                at[(keys[i] >> shift & (BUCKETS - 1)) + 1]++;
            for (u32 i = 0; i < BUCKETS; i++)
                at[i + 1] += at[i];
            for (size_t i = 0; i < n; i++)
                other_[at[keys[sorted_[i]] >> shift & (BUCKETS - 1)]++] = sorted_[i];
            sorted_.swap(other_);
        }
    }
};
