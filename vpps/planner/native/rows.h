// Arranges vertices as rows in execution order, and divides recurrent cells into parts (vpps/compiler/phases.py).
#pragma once

#include "loss_chain.h"
#include "block.h"

class RowsOfBlocks : public Blocks<Block> {
public:
    static constexpr i64 LEVEL = static_cast<i64>(Batching::LEVEL);

    i64 n_values = 0;  // includes values that cross between parts
    i64 stretch = 1;  // factor that stage numbers are multiplied by
    // With groups of virtual processors: first stage after the shared sources, first stage of joining vertices
    // (grouping.h).
    i64 first_own = 0, first_joining = 0;
    std::vector<const Parts*> of_whole;  // parts for each of the graph's blocks

    // Finds the parts of a graph's cells. Returns -1, or the number of a block whose parts are unknown.
    i64 find_parts(const Graph& graph, bool splits, bool training)
    {
        of_whole.clear();
        for (i64 k = 0; k < graph.n_blocks; k++) {
            make_key(graph.blocks[k], splits, training, key);
            const Parts* parts = graph.blocks[k].cell->parts(key);
            if (!parts)
                return k;
            of_whole.push_back(parts);
        }
        return -1;
    }

    // Makes the blocks of a graph. `late`: the loss chain that runs alongside backward.
    void take(const Graph& graph, const LossChain& late, bool at_once, i64 chunk_rows)
    {
        i64 n = 0;
        n_values = graph.n_values;
        bool any = false;
        for (const Parts* parts : of_whole) {
            any |= parts->parts.size() > 1;
            n += static_cast<i64>(parts->parts.size());
        }
        stretch = any ? STAGES : 1;
        resize(n);
        i64 next = 0;
        for (i64 k = 0; k < graph.n_blocks; k++) {
            const RecordedBlock& whole = graph.blocks[k];
            const std::vector<Part>& parts = of_whole[k]->parts;
            const bool split = parts.size() > 1;
            Block* first = &blocks[next];
            for (size_t p = 0; p < parts.size(); p++) {
                Block& b = blocks[next++];
                b.cell = &parts[p].cell;
                b.parts = first;
                b.stage_of.clear();
                b.pause = 0;
                b.late = !split && late.has(k);
                b.factor = stretch;
                b.base = whole.rank * b.factor + (any ? LEVEL : 0);
                if (!split) {
                    static_cast<Vertices&>(b) = whole;
                    continue;
                }
                b.base = whole.rank * STAGES + parts[p].batching;
                if (at_once && parts[p].batching != LEVEL) {
                    b.factor = 0;
                    b.base = (parts[p].batching < LEVEL ? whole.rank : whole.last) * STAGES + parts[p].batching;
                }
                if (at_once && parts[p].batching < LEVEL && parts[p].streams)
                    stream(b, whole, chunk_rows);
                take_part(b, whole, parts[p], first);
            }
        }
    }

    // Key of a cell's parts: flags for its unread outputs, for training, and for the operands and outputs that cross
    // between its vertices.
    std::vector<u8> key;
    static void make_key(const RecordedBlock& whole, bool splits, bool training, std::vector<u8>& key)
    {
        key = whole.unread;
        key.push_back(training);
        if (splits && whole.recurrent)
            key.insert(key.end(), whole.crossed.begin(), whole.crossed.end());
    }

    // Assigns rows and steps to all blocks. Rows of a step are in recording order. All parts of a cell use the order of
    // a leading part, which runs by level if any part does. List elements follow the order of their vertices. `group`:
    // by vertex, its group of virtual processors; null if there is only one.
    void arrange(const Graph& graph, bool skip_rest, const i32* group)
    {
        i64 next = 0;
        for (i64 k = 0; k < graph.n_blocks; k++) {
            const RecordedBlock& whole = graph.blocks[k];
            const std::vector<Part>& parts = of_whole[k]->parts;
            const i64 piece = of_whole[k]->piece_rows;
            Block* leader = &blocks[next];
            for (size_t p = 0; p < parts.size(); p++)
                if (parts[p].batching == LEVEL)
                    leader = &blocks[next + p];
            lead(*leader, whole, graph.needed(whole), skip_rest, group ? group + whole.first_vertex : nullptr);
            divide(*leader, piece);
            for (size_t p = 0; p < parts.size(); p++) {
                Block& b = blocks[next++];
                if (&b != leader)
                    follow(b, *leader, piece);
                b.n_steps = static_cast<i64>(b.stage.size());
                b.n_needed_steps = 0;
                while (b.n_needed_steps < b.n_steps && b.first_row[b.n_needed_steps * b.domains()] < b.n_needed)
                    b.n_needed_steps++;
                elements(b);
            }
        }
    }

private:
    std::vector<i64> starts_;
    Block undivided_;  // scratch: the steps before division

    // Assigns the vertices of an eager part to the pauses between levels (vpps/compiler/passes/lazy_batching.py).
    void stream(Block& b, const RecordedBlock& whole, i64 chunk_rows)
    {
        starts_.assign(whole.top + 1, 0);
        for (i64 v = 0; v < whole.n; v++)
            starts_[whole.local[v]]++;
        i64 levels = whole.top + 1;
        std::vector<i64>& pause_of = b.stage_of;  // -1: before the first level
        pause_of.assign(levels, -1);
        i64 pause = -1, before = -1, done = 0;
        for (i64 level = 0; level < levels; level++) {
            if (level >= 2 && done >= chunk_rows) {
                before = pause;
                pause = level - 2;
                done = 0;
            }
            pause_of[level] = pause;
            done += starts_[level];
        }
        if (0 < done && done < chunk_rows && pause != -1)  // too few for a separate chunk
            std::replace(pause_of.begin(), pause_of.end(), pause, before);
        for (i64& at : pause_of)
            at = at < 0 ? b.base : (at + whole.rank) * STAGES + LEVEL;
        b.pause = STAGES;
    }

    void take_part(Block& b, const RecordedBlock& whole, const Part& part, const Block* first)
    {
        b.n = whole.n;
        b.calls = whole.calls;
        b.levels = whole.levels;
        b.data = whole.data;
        b.constants = whole.constants;
        b.values.clear();
        b.args.clear();
        b.ints.clear();
        b.lists.clear();
        for (const i32 k : part.outputs) {
            b.values.push_back(k >= 0 ? whole.values[k] : Column{nullptr, 1, n_values});
            if (k < 0)
                n_values += whole.n;
        }
        for (const i32 k : part.vectors)
            b.args.push_back(whole.args[k]);
        for (const Crossing& c : part.crossings)
            b.args.push_back(first[c.part].values[c.output]);
        for (const i32 k : part.ints)
            b.ints.push_back(whole.ints[k]);
        for (const i32 k : part.lists)
            b.lists.push_back(whole.lists[k]);
    }

    // Sorts rows: first the vertices that run backward, then by group, stage and recording order.
    void lead(Block& b, const RecordedBlock& whole, const u8* needed, bool skip_rest, const i32* group)
    {
        const bool by_level = b.factor > 0;
        const i64 stages = by_level ? whole.top + 1 : 1;
        const i64 side = group && b.n ? stages * (1 + *std::max_element(group, group + b.n)) : stages;
        b.n_needed = whole.n_needed;
        b.n_rows = skip_rest ? b.n_needed : b.n;
        clear_steps(b);
        b.identity = b.n_needed == b.n && (side == 1 || one_step(whole, stages > 1, group));
        if (b.identity) {
            add_step(b, b.stage_at(by_level && b.n ? whole.local[0] : 0), 0, b.n);
            if (group)
                b.group.push_back(b.n ? group[0] : 0);
            return;
        }
        auto key = [&](i64 v) {
            return (needed[v] ? 0 : side) + (group ? group[v] * stages : 0) + (by_level ? whole.local[v] : 0);
        };
        starts_.assign(2 * side + 1, 0);
        for (i64 v = 0; v < b.n; v++)
            starts_[key(v) + 1]++;
        for (i64 i = 0; i < 2 * side; i++) {
            const i64 begin = starts_[i], end = begin + starts_[i + 1];
            if (begin < end && begin < b.n_rows) {
                add_step(b, b.stage_at(i % stages), begin, end);
                if (group)
                    b.group.push_back(static_cast<i32>(i % side / stages));
            }
            starts_[i + 1] = end;
        }
        b.order.resize(b.n);
        for (i64 v = 0; v < b.n; v++)
            b.order[starts_[key(v)]++] = static_cast<i32>(v);
    }

    // Unless `piece` is 0, divides steps into pieces of `piece` rows or slightly more. So an instruction finds the
    // previous instruction's results in the cache.
    void divide(Block& b, i64 piece)
    {
        const i64 domains = b.domains(), n_steps = static_cast<i64>(b.stage.size());
        if (!piece || std::none_of(b.count.begin(), b.count.end(), [=](i64 n) { return n >= 2 * piece; }))
            return;
        undivided_.stage.swap(b.stage);
        undivided_.first_row.swap(b.first_row);
        undivided_.count.swap(b.count);
        clear_steps(b);
        for (i64 s = 0; s < n_steps; s++) {
            const i64 first = undivided_.first_row[s * domains], n = undivided_.count[s * domains];
            const i64 pieces = std::max<i64>(1, n / piece);
            for (i64 i = 0; i < pieces; i++)
                add_step(b, undivided_.stage[s], first + n * i / pieces, first + n * (i + 1) / pieces);
        }
    }

    // Copies the rows of the leading part to another part of the same cell. The pieces of `b` begin where the leader's
    // do, so that for the rows of one step the slabs of other parts are contiguous.
    static void follow(Block& b, const Block& leader, i64 piece)
    {
        b.n_needed = leader.n_needed;
        b.n_rows = leader.n_rows;
        b.identity = leader.identity;
        if (!b.identity)
            b.order = leader.order;
        clear_steps(b);
        for (size_t s = 0; s < leader.stage.size(); s++) {
            const i64 begin = leader.first_row[s * leader.domains()], n = leader.count[s * leader.domains()];
            const i64 local = leader.factor ? (leader.stage[s] - leader.base) / leader.factor : 0;
            const bool same_side = s && (begin < b.n_needed || leader.first_row[(s - 1) * leader.domains()] >= b.n_needed);
            const bool same_group = leader.group.empty() || (s && leader.group[s] == leader.group[s - 1]);
            const bool has_room = s && (!piece || b.count[b.count.size() - b.domains()] < piece);
            if (same_side && same_group && has_room && b.stage.back() == b.stage_at(local)) {
                b.count[b.count.size() - b.domains()] += n;
                continue;
            }
            add_step(b, b.stage_at(local), begin, begin + n);
            if (!leader.group.empty())
                b.group.push_back(leader.group[s]);
        }
    }

    // True if all vertices share one stage (ignored unless by_level) and one group.
    static bool one_step(const RecordedBlock& b, bool by_level, const i32* group)
    {
        for (i64 v = 1; v < b.n; v++)
            if ((by_level && b.local[v] != b.local[0]) || (group && group[v] != group[0]))
                return false;
        return true;
    }

    static void clear_steps(Block& b)
    {
        b.stage.clear();
        b.group.clear();
        b.first_row.clear();
        b.count.clear();
    }

    static void add_step(Block& b, i64 stage, i64 begin, i64 end)
    {
        b.stage.push_back(stage);
        b.first_row.push_back(begin);
        b.count.push_back(end - begin);
        for (i64 d = 0; d < b.cell->n_domains; d++) {
            b.first_row.push_back(0);
            b.count.push_back(0);
        }
    }

    // Assigns rows to list elements, in the order of their vertices.
    static void elements(Block& b)
    {
        const i64 n_domains = b.cell->n_domains, domains = b.domains();
        b.ends.resize(n_domains);
        b.owner.resize(n_domains);
        for (i64 d = 0; d < n_domains; d++) {
            const i64* given = b.lists[b.cell->list_of_domain[d]].ends;
            auto& ends = b.ends[d];
            auto& owner = b.owner[d];
            ends.resize(b.n_rows + 1);
            owner.clear();
            ends[0] = 0;
            for (i64 r = 0; r < b.n_rows; r++) {
                const i64 v = b.vertex(r);
                ends[r + 1] = ends[r] + given[v + 1] - given[v];
                owner.resize(ends[r + 1], static_cast<i32>(r));
            }
            for (i64 s = 0; s < b.n_steps; s++) {
                const i64 begin = b.first_row[s * domains], end = begin + b.count[s * domains];
                b.first_row[s * domains + d + 1] = ends[begin];
                b.count[s * domains + d + 1] = ends[end] - ends[begin];
            }
        }
    }
};
