// Slab allocator: reuses memory once its last reader has run.
//
// The periods of a launch are the stages of forward, then those of backward, then its end; a full barrier closes each
// period. `Life` defines the lifetime of a slab in periods (vpps/compiler/slabs.py). In training, most lifetimes are
// per block, which costs almost no planning time. Argument gradients in training, and values in inference, have
// lifetimes per step: a long chain needs no more memory for them than a short one.
#pragma once

#include "arena.h"
#include "memory_of_block.h"
#include "stages_in_order.h"

#include <queue>

class SlabAllocator {
public:
    i64 top = 0;  // the last stage
    bool keeps_arrays = false;  // true: record the lifetimes of all arrays, for the memory map

    // The period of a stage's backward. A stage's forward has the stage number as its period.
    i64 backward(i64 stage) const { return 2 * top + 1 - stage; }
    i64 end() const { return 2 * top + 2; }

    i64 stop() const { return arena_.stop; }  // end of the allocated memory

    // Each of the following three functions sets the bases of all slabs.
    //
    // `forward`, `rest`: stages of forward and of backward that follow the previous stage without a barrier. `turns`:
    // the first stage of backward follows forward without a barrier.
    void for_training(RowsOfBlocks& graph, i64 start, const std::vector<i64>& forward, bool turns,
                      const std::vector<i64>& rest)
    {
        begin(graph, start, true);
        const i64 last = end();
        for (i64 k : with_rows_)
            take_whole(graph.blocks[k], k, Life::KEPT, BEFORE, last);
        backward_of_values(graph);
        find_periods(graph);
        unseparated_ = forward;
        if (turns)
            unseparated_.push_back(backward(executed_.back()));
        for (const i64 stage : rest)
            unseparated_.push_back(backward(stage));
        order(graph, [](const Block& b) { return *std::min_element(b.stage.begin(), b.stage.end()); });
        for (const auto& [first, k] : sorted_) {
            const Block& b = graph.blocks[k];
            begin(first);
            take_whole(b, k, Life::ACROSS, first, b.n_needed_steps ? backward(b.stage[0]) : last_stage(b) + b.pause);
            // A stage can have two steps; only the first has a backward.
            take_scratch(b, k, Life::FORWARD, 0, b.n_needed_steps);
            take_scratch(b, k, Life::FORWARD, b.n_needed_steps, b.n_steps);
        }
        // Last stage first, in the order of backward.
        order(graph, [](const Block& b) { return b.n_needed_steps ? -b.stage[b.n_needed_steps - 1] : 1; });
        for (const auto& [key, k] : sorted_) {
            const Block& b = graph.blocks[k];
            if (!b.n_needed_steps)
                continue;
            const i64 first = backward(b.stage[b.n_needed_steps - 1]);
            begin(first);
            take_whole(b, k, Life::LATE, first, last);
            take_handed_back(b, k);
            take_scratch(b, k, Life::SCRATCH, 0, b.n_needed_steps, backward(b.stage[0]), b.n_steps);
        }
        settle(graph);
    }

    // Groups of virtual processors do not wait for each other at the end of a stage. So all slabs live to the end,
    // except scratch memory, which is separate for each group.
    void for_training_in_groups(RowsOfBlocks& graph, i64 start)
    {
        begin(graph, start, true);
        for (i64 k : with_rows_) {
            const Block& b = graph.blocks[k];
            const i64 n = b.n_needed_steps;
            for (const Life life : {Life::KEPT, Life::ACROSS, Life::LATE})
                if (n || life != Life::LATE)
                    take_whole(b, k, life, BEFORE, end());
            order_.clear();
            for (i64 s = 0; s < b.n_steps; s++)
                if (std::find(order_.begin(), order_.end(), b.group_of(s)) == order_.end())
                    order_.push_back(b.group_of(s));
            for (const i64 group : order_) {
                // A group can have two steps in a stage; only the first has a backward.
                const auto [begin, end] = steps_of(b, group, 0, n);
                const auto [other, stop] = steps_of(b, group, n, b.n_steps);
                take_scratch(b, k, Life::FORWARD, begin, end);
                take_scratch(b, k, Life::FORWARD, other, stop);
                take_scratch(b, k, Life::SCRATCH, begin, end);
            }
        }
        settle(graph);
    }

    // `stay`: the first `stay` values live to the end, in addition to the wanted values.
    void for_inference(RowsOfBlocks& graph, i64 start, const i64* wanted, i64 n_wanted, i64 stay)
    {
        begin(graph, start, false);
        const i64 never = end();
        last_readers(graph);
        for (i64 i = 0; i < n_wanted; i++)
            readers_[wanted[i]] = never;
        std::fill_n(readers_.begin(), stay, never);
        for (i64 k : with_rows_) {
            take_whole(graph.blocks[k], k, Life::KEPT, BEFORE, never);
            last_periods(graph.blocks[k], k);
        }
        steps_.find(graph, false, false);
        i64 stage = -1, group = 0;
        for (size_t i = 0; i < steps_.size(); i++) {
            const StagesInOrder::StageStep& step = steps_[i];
            if (step.group != group) {
                arena_.reset(arena_.stop);
                group = step.group;
                stage = -1;
            }
            if (step.stage != stage)
                arena_.begin(stage = step.stage);
            const Block& b = steps_.block(i);
            BlockMemory& m = of_block_[step.block];
            for (const auto& [number, last] : m.passed_on) {
                const SlabGroup& slabs = group_of(b, number);
                const i64 size = floats(slabs, rows_of(b, slabs, step.step));
                // All groups of virtual processors read the values of shared sources. A step that fills a pause may
                // write until the next pause, even if no vertex reads its values.
                const i64 until = stage < graph.first_own ? never : std::max(stage + b.pause, last[step.step]);
                m.at[number * b.n_steps + step.step] = arena_.take(size, until);
                note(step.block, number * b.n_steps + step.step, stage, until);
            }
            if (step.step == 0 || b.group_of(step.step - 1) != group)
                take_scratch(b, step.block, Life::SCRATCH, step.step, steps_of(b, group, step.step, b.n_steps).second);
        }
        settle(graph);
    }

    // Returns all arrays of the blocks whose lifetimes are recorded.
    std::vector<Array> arrays(const RowsOfBlocks& graph) const
    {
        std::vector<Array> found;
        for (const i64 k : with_rows_)
            of_block_[k].arrays(graph.blocks[k], found);
        return found;
    }

private:
    static constexpr i64 BEFORE = -1;  // the period before the launch

    Arena arena_;
    bool training_ = false;
    std::vector<i64> with_rows_, readers_;
    std::vector<i64> executed_;  // the stages in which anything runs backward, in order
    std::vector<i64> periods_;   // the periods in which steps are executed, in order
    std::vector<i64> unseparated_;  // periods that follow the previous one without a barrier
    std::vector<i64> order_;     // groups of virtual processors, in the order of a block's steps
    std::vector<i64> slots_, slot_of_, place_;             // rows per slot; slot of each step; address of each slot
    std::priority_queue<std::pair<i64, i64>> taken_, idle_;  // (-last period, slot) and (rows, -slot)
    std::vector<BlockMemory> of_block_;
    StagesInOrder steps_;
    std::vector<std::pair<i64, i64>> sorted_;  // (key, block)

    static const SlabGroups& groups(const Block& b) { return b.cell->memory; }
    static const SlabGroup& group_of(const Block& b, i32 group) { return groups(b).groups[group]; }
    static bool whole(Life life) { return BlockMemory::whole(life); }
    static i64 rows_of(const Block& b, const SlabGroup& group, i64 step) { return BlockMemory::rows_of(b, group, step); }

    void note(i64 k, i64 at, i64 first, i64 last)
    {
        if (keeps_arrays)
            of_block_[k].lives[at] = {first, last};
    }

    void begin(RowsOfBlocks& graph, i64 start, bool training)
    {
        training_ = training;
        arena_.reset(start);
        with_rows_.clear();
        top = 0;
        of_block_.resize(std::max<size_t>(of_block_.size(), graph.n_blocks));
        for (i64 k = 0; k < graph.n_blocks; k++) {
            const Block& b = graph.blocks[k];
            if (!b.n_rows)
                continue;
            with_rows_.push_back(k);
            const auto& all = groups(b).groups;
            BlockMemory& m = of_block_[k];
            m.at.assign(all.size() * b.n_steps, 0);
            m.lives.assign(keeps_arrays ? m.at.size() : 0, {});
            m.room.clear();
            for (const SlabGroup& group : all)
                for (i64 s = 0; s < b.n_steps; s++)
                    m.room.push_back(rows_of(b, group, s));
            top = std::max(top, last_stage(b));
        }
    }

    template <class Key> void order(const RowsOfBlocks& graph, Key key)
    {
        sorted_.clear();
        for (i64 k : with_rows_)
            sorted_.emplace_back(key(graph.blocks[k]), k);
        std::sort(sorted_.begin(), sorted_.end());
    }

    void take_whole(const Block& b, i64 k, Life life, i64 first, i64 last)
    {
        const auto& all = groups(b).groups;
        BlockMemory& m = of_block_[k];
        for (size_t g = 0; g < all.size(); g++)
            if (all[g].life == life) {
                const i64 at = arena_.take(floats(all[g], b.rows(all[g].domain)), last);
                std::fill_n(m.at.begin() + g * b.n_steps, b.n_steps, at);
                note(k, g * b.n_steps, first, last);
            }
    }

    static i64 last_stage(const Block& b) { return *std::max_element(b.stage.begin(), b.stage.end()); }

    // Returns the range of steps in [begin, end) that a group of virtual processors runs; these steps are contiguous.
    static std::pair<i64, i64> steps_of(const Block& b, i64 group, i64 begin, i64 end)
    {
        while (begin < end && b.group_of(begin) != group)
            begin++;
        i64 stop = begin;
        while (stop < end && b.group_of(stop) == group)
            stop++;
        return {begin, stop};
    }

    // Allocates one array that the steps in [begin, end) share, large enough for the largest step, until period `last`
    // (default: their last stage). All steps up to `stop` get its address, which backward scratch memory needs.
    void take_scratch(const Block& b, i64 k, Life life, i64 begin, i64 end, i64 last = -1, i64 stop = -1)
    {
        const auto& all = groups(b).groups;
        if (begin == end)
            return;
        if (last < 0)
            last = *std::max_element(b.stage.begin() + begin, b.stage.begin() + end);
        stop = std::max(stop, end);
        for (size_t g = 0; g < all.size(); g++) {
            if (all[g].life != life)
                continue;
            i64 rows = 0;
            for (i64 s = begin; s < end; s++)
                rows = std::max(rows, rows_of(b, all[g], s));
            BlockMemory& m = of_block_[k];
            const i64 at = arena_.take(floats(all[g], rows), last);
            std::fill(m.at.begin() + g * b.n_steps + begin, m.at.begin() + g * b.n_steps + stop, at);
            std::fill(m.room.begin() + g * b.n_steps + begin, m.room.begin() + g * b.n_steps + stop, rows);
            for (i64 s = begin, next; keeps_arrays && s < end; s = next) {
                const i64 now = training_ && life == Life::SCRATCH ? backward(b.stage[s]) : b.stage[s];
                i64 largest = s;  // largest step of a stage
                for (next = s + 1; next < end && b.stage[next] == b.stage[s]; next++)
                    if (rows_of(b, all[g], next) > rows_of(b, all[g], largest))
                        largest = next;
                note(k, g * b.n_steps + largest, now, now);
            }
        }
    }

    void find_periods(const RowsOfBlocks& graph)
    {
        periods_.clear();
        for (i64 k : with_rows_) {
            const Block& b = graph.blocks[k];
            if (!b.cell->forward.empty() && !b.late)
                periods_.insert(periods_.end(), b.stage.begin(), b.stage.end());
        }
        for (const i64 stage : executed_)
            periods_.push_back(backward(stage));
        sort_numbers(periods_);
        periods_.erase(std::unique(periods_.begin(), periods_.end()), periods_.end());
    }

    // Frees memory whose lifetime ends before a period or, if no barrier precedes that period, before the last executed
    // period. If nothing is executed in the period, frees nothing, because there may be no barrier.
    void begin(i64 period)
    {
        const auto at = std::lower_bound(periods_.begin(), periods_.end(), period);
        if (std::find(unseparated_.begin(), unseparated_.end(), period) != unseparated_.end())
            period = *(at - 1);
        else if (period != end() && (at == periods_.end() || *at != period))
            return;
        arena_.begin(period);
    }

    // Finds, for each value, the stage in which its producer runs backward, or top + 1 if it does not.
    void backward_of_values(const RowsOfBlocks& graph)
    {
        readers_.assign(graph.n_values, top + 1);
        executed_.clear();
        for (i64 k : with_rows_) {
            const Block& b = graph.blocks[k];
            if (b.cell->backward.empty())
                continue;
            executed_.insert(executed_.end(), b.stage.begin(), b.stage.begin() + b.n_needed_steps);
            for (i64 s = 0; s < b.n_steps && b.n_needed_steps; s++) {
                const i64 begin = b.first_row[s * b.domains()], end = begin + b.count[s * b.domains()];
                for (const Column& ids : b.values)
                    for (i64 r = begin; r < end; r++)
                        readers_[ids[b.vertex(r)]] = b.stage[s];
            }
        }
        sort_numbers(executed_);
        executed_.erase(std::unique(executed_.begin(), executed_.end()), executed_.end());
    }

    // Allocates argument gradients until the period after their last reader. Steps reuse idle slots, largest first.
    void take_handed_back(const Block& b, i64 k)
    {
        BlockMemory& m = of_block_[k];
        handed_back_until(b, m.passed_on);
        for (const auto& [group, until] : m.passed_on) {
            i64 *at = &m.at[group * b.n_steps], *room = &m.room[group * b.n_steps];
            slots_.clear();
            taken_ = idle_ = {};
            slot_of_.resize(b.n_needed_steps);
            for (i64 s = b.n_needed_steps; s-- > 0;) {
                for (; !taken_.empty() && -taken_.top().first < backward(b.stage[s]); taken_.pop())
                    idle_.emplace(slots_[taken_.top().second], -taken_.top().second);
                if (idle_.empty()) {
                    slot_of_[s] = static_cast<i64>(slots_.size());
                    slots_.push_back(room[s]);
                } else {
                    slot_of_[s] = -idle_.top().second;
                    idle_.pop();
                    slots_[slot_of_[s]] = std::max(slots_[slot_of_[s]], room[s]);
                }
                taken_.emplace(-until[s], slot_of_[s]);
            }
            const i64 last = *std::max_element(until.begin(), until.end());
            place_.clear();
            for (const i64 rows : slots_)
                place_.push_back(arena_.take(floats(group_of(b, group), rows), last));
            for (i64 s = 0; s < b.n_needed_steps; s++) {
                at[s] = place_[slot_of_[s]];
                room[s] = slots_[slot_of_[s]];
                note(k, group * b.n_steps + s, backward(b.stage[s]), until[s]);
            }
        }
    }

    // For each group of handed-back slabs and each step, finds the lifetime's last period: the one after the last reader.
    void handed_back_until(const Block& b, std::vector<std::pair<i32, std::vector<i64>>>& found) const
    {
        const i64 n = b.n_needed_steps;
        found.clear();
        for (const Argument& argument : b.cell->arguments) {
            if (argument.group < 0)
                continue;
            auto of_group = std::find_if(found.begin(), found.end(), [&](auto& p) { return p.first == argument.group; });
            if (of_group == found.end()) {
                found.emplace_back(argument.group, std::vector<i64>(b.stage.begin(), b.stage.begin() + n));
                of_group = found.end() - 1;
            }
            // Backward runs the lowest stage last.
            const Source& read = b.cell->sources[argument.values];
            i64 step = 0, stop = b.count[read.domain];
            i64* lowest = of_group->second.data();
            values_read(b, read, b.needed_rows(read.domain), [&](i64 row, i64 value) {
                while (row >= stop) {
                    step++;
                    stop += b.count[step * b.domains() + read.domain];
                }
                lowest[step] = std::min(lowest[step], readers_[value]);
            });
        }
        for (auto& [group, until] : found)
            for (i64& stage : until) {
                const auto at = std::lower_bound(executed_.begin(), executed_.end(), stage);
                stage = at == executed_.begin() ? end() : backward(*(at - 1));
            }
    }

    // Finds the last stage that reads each value, or -1.
    void last_readers(const RowsOfBlocks& graph)
    {
        readers_.assign(graph.n_values, -1);
        for (const Block& b : graph) {
            for (i64 s = 0; s < b.n_steps; s++) {
                const i64 domains = b.domains(), begin = b.first_row[s * domains];
                for (i64 r = begin; r < begin + b.count[s * domains]; r++)
                    for_values(b, b.vertex(r), [&](i64 value) { readers_[value] = std::max(readers_[value], b.stage[s] + b.pause); });
            }
        }
    }

    void last_periods(const Block& b, i64 k)
    {
        BlockMemory& m = of_block_[k];
        const i64 domains = b.domains();
        m.passed_on.clear();
        for (size_t o = 0; o < b.cell->outputs.size(); o++) {
            const i32 group = b.cell->passed_on[o];
            if (group_of(b, group).life != Life::PASSED_ON)
                continue;
            auto found = std::find_if(m.passed_on.begin(), m.passed_on.end(), [&](auto& p) { return p.first == group; });
            if (found == m.passed_on.end())
                found = m.passed_on.insert(found, {group, std::vector<i64>(b.n_steps, -1)});
            for (i64 s = 0; s < b.n_steps; s++) {
                const i64 begin = b.first_row[s * domains];
                for (i64 r = begin; r < begin + b.count[s * domains]; r++)
                    found->second[s] = std::max(found->second[s], readers_[b.values[o][b.vertex(r)]]);
            }
        }
    }

    // Sets the bases: in each step, row r of a slab starts at base + r * width.
    void settle(RowsOfBlocks& graph)
    {
        for (i64 k = 0; k < graph.n_blocks; k++) {
            Block& b = graph.blocks[k];
            const i64 n_bases = b.n_bases(), domains = b.domains();
            b.bases.assign(n_bases * b.n_steps, 0);
            if (!b.n_rows)
                continue;
            const SlabGroups& all = groups(b);
            for (size_t i = 0; i < all.places.size(); i++) {
                const SlabPlace& place = all.places[i];
                const i32 g = place.group;
                const SlabGroup& group = all.groups[g];
                for (i64 s = 0; s < b.n_steps; s++) {
                    const i64 first = whole(group.life) ? 0 : b.first_row[s * domains + group.domain];
                    b.bases[s * n_bases + i] = of_block_[k].at[g * b.n_steps + s] +
                                             of_block_[k].room[g * b.n_steps + s] * place.before + place.stagger -
                                             first * b.cell->slabs[i].width;
                }
            }
        }
        for (Block& b : graph)
            settle_same_row(b);
    }

    // Sets, for each step, the bases of slabs that belong to other parts of the cell.
    static void settle_same_row(Block& b)
    {
        const i64 n_slabs = b.n_slabs(), n_same_row = static_cast<i64>(b.cell->same_row.size()), n_bases = b.n_bases();
        for (i64 i = n_slabs; i < n_slabs + n_same_row; i++) {
            const SameRow& value = b.cell->same_row[i - n_slabs];
            const Block& other = b.parts[value.part];
            i64 step = 0;
            for (i64 s = 0; s < b.n_steps; s++) {
                while (step + 1 < other.n_steps &&
                       other.first_row[(step + 1) * other.domains()] <= b.first_row[s * b.domains()])
                    step++;
                b.bases[s * n_bases + i] = other.bases[step * other.n_bases() + value.slab] + value.offset;
            }
        }
    }
};