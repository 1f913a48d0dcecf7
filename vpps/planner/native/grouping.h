// Assigns vertices to groups of virtual processors (vpps/planner/grouping.py).
#pragma once

#include "dealing.h"
#include "graph.h"

#include <limits>
#include <numeric>

class Grouping {
public:
    std::vector<i32> group;      // by vertex, numbered through all blocks
    i64 first_own = 0;           // first stage after the shared sources
    i64 first_joining = 0;       // first stage of joining vertices
    i64 n_components = 0;        // connected components that have any work
    std::vector<i64> loads;      // by group: floats that its vertices process in forward

    // Assigns the vertices of a graph. Shifts its stages: shared sources come first, joining vertices last.
    //
    // `weights`: the parts of each block's cell, which give its work; `runs`: by vertex, 1 if it runs; null if all run.
    void find(Graph& graph, const std::vector<const Parts*>& weights, i64 n_groups, const u8* runs)
    {
        n_groups_ = n_groups;
        find_work(graph, weights, runs);
        find_joining(graph, weights, runs);
        connects_.resize(graph.n_vertices);
        for (i64 v = 0; v < graph.n_vertices; v++)
            connects_[v] = !joining_[v] && (!runs || runs[v]);
        if (graph.has_present())
            connects_.back() = 0;  // it has no work, and no vertex waits for it
        deal(graph);
        for (i64 v = 0; v < graph.n_vertices; v++)
            if (joining_[v])
                group[v] = 0;
        move_stages(graph);
    }

    // Reports to the caller. `stretch`: the factor by which stage numbers have been multiplied since.
    void report(i64 stretch, GroupingResult* found) const
    {
        *found = {first_own * stretch, first_joining * stretch, n_components};
        std::copy(loads.begin(), loads.end(), reinterpret_cast<i64*>(found + 1));
    }

private:
    // Thresholds to try in turn: sources with more readers become shared sources.
    static constexpr i64 MOST_READERS[] = {64, 16, 4, 0};
    static constexpr double EVEN = 1.25, WORTH_A_BARRIER = 0.8;

    // An assignment of vertices to groups.
    struct Division {
        std::vector<i32> group;
        std::vector<u8> first;  // shared sources that several groups read: they must run first
        std::vector<i64> loads;
        double time = 0;        // work before the last group finishes
        i64 n_shared = 0, n_components = 0;
    };

    i64 n_groups_ = 1, total_ = 0;
    std::vector<i64> work_;  // by vertex: floats
    std::vector<u8> joining_, connects_, shared_;  // by vertex
    std::vector<i32> readers_;  // by source: number of times its values are read
    std::vector<i32> parent_, stack_;
    std::vector<i64> first_call_, work_of_root_;  // by root: recording index of its first vertex; floats
    std::vector<i32> own_;                        // the root of each vertex; for a shared source, a reader's root
    std::vector<ConnectedComponent> components_;
    std::vector<i32> group_of_root_;
    Dealing dealing_;
    Division best_, other_;
    std::vector<i64> earliest_, latest_;  // by component of cells

    // Calls act(producer, reader) for every edge between vertices that connect.
    template <class Do> void for_edges(const Graph& graph, Do&& act) const
    {
        for (const RecordedBlock& b : graph) {
            const u8* connects = connects_.data() + b.first_vertex;
            const auto first = static_cast<i32>(b.first_vertex);
            for (i64 i = 0; i < b.operands(); i++)
                for_operand(b, i, [&](i64 value, i64 v) {
                    const i32 producer = graph.made_by(value).vertex;
                    if (connects[v] && connects_[producer])
                        act(producer, first + static_cast<i32>(v));
                });
        }
    }

    static bool is_source(const RecordedBlock& b) { return !b.operands(); }

    void find_work(const Graph& graph, const std::vector<const Parts*>& weights, const u8* runs)
    {
        work_.resize(graph.n_vertices);
        for (i64 k = 0; k < graph.n_blocks; k++) {
            const RecordedBlock& b = graph.blocks[k];
            i64* work = work_.data() + b.first_vertex;
            std::fill_n(work, b.n, weights[k]->floats);
            for (size_t i = 0; i < b.lists.size(); i++)
                for (i64 v = 0; v < b.n && weights[k]->element_floats[i]; v++)
                    work[v] += weights[k]->element_floats[i] * (b.lists[i].ends[v + 1] - b.lists[i].ends[v]);
            for (i64 v = 0; v < b.n && runs; v++)
                if (!runs[b.first_vertex + v])
                    work[v] = 0;
        }
    }

    // Joining vertices: they use only scalars and no matrices, and only joining vertices read them. Their work counts
    // as 0, because group 0 always runs them.
    void find_joining(const Graph& graph, const std::vector<const Parts*>& weights, const u8* runs)
    {
        joining_.assign(graph.n_vertices, 0);
        auto is_scalar = [&](i64 block) { return weights[block]->is_scalar && !is_source(graph.blocks[block]); };
        for (i64 k = 0; k < graph.n_blocks; k++)
            for (i64 v = graph.blocks[k].first_vertex, end = v + graph.blocks[k].n; v < end && is_scalar(k); v++)
                joining_[v] = !runs || runs[v];
        stack_.clear();
        auto leave_out = [&](i64 value) {
            const i32 producer = graph.made_by(value).vertex;
            if (joining_[producer]) {
                joining_[producer] = 0;
                stack_.push_back(producer);
            }
        };
        for (i64 k = 0; k < graph.n_blocks; k++) {
            bool reads_scalars = false;
            if (!is_scalar(k))
                for (const i32 source : graph.sources(k))
                    reads_scalars |= is_scalar(source);
            const RecordedBlock& b = graph.blocks[k];
            for (i64 v = 0; v < b.n && reads_scalars; v++)
                if (!runs || runs[b.first_vertex + v])
                    for_values(b, v, leave_out);
        }
        graph.visit_all(stack_, leave_out);
        for (i64 v = 0; v < graph.n_vertices; v++)
            if (joining_[v])
                work_[v] = 0;
        total_ = std::accumulate(work_.begin(), work_.end(), i64{0});
    }

    void find_readers(const Graph& graph)
    {
        readers_.assign(graph.n_vertices, 0);
        for_edges(graph, [&](i32 producer, i32) { readers_[producer]++; });
        for (const RecordedBlock& b : graph)
            if (!is_source(b))
                std::fill_n(readers_.begin() + b.first_vertex, b.n, 0);
    }

    // Assigns components. Disconnects sources with many readers if this makes the work more even.
    void deal(const Graph& graph)
    {
        shared_.assign(graph.n_vertices, 0);
        deal(graph, 0, best_);
        for (const i64 most : MOST_READERS) {
            if (best_.time < EVEN * static_cast<double>(total_) / static_cast<double>(n_groups_))
                break;
            if (most == MOST_READERS[0])
                find_readers(graph);
            i64 n_shared = 0;
            for (i64 v = 0; v < graph.n_vertices; v++)
                n_shared += shared_[v] = readers_[v] > most;
            if (n_shared <= best_.n_shared)
                continue;
            deal(graph, n_shared, other_);
            if (other_.time < WORTH_A_BARRIER * best_.time)
                std::swap(best_, other_);
        }
        group.swap(best_.group);
        loads = best_.loads;
        n_components = best_.n_components;
    }

    // Assigns components, ignoring edges from shared sources.
    void deal(const Graph& graph, i64 n_shared, Division& into)
    {
        find_components(graph, n_shared);
        group_of_root_.assign(graph.n_vertices, 0);
        dealing_.deal(components_, total_, n_groups_, group_of_root_);
        settle(graph, n_shared, into);
    }

    i32 root(i32 vertex)
    {
        i32* parent = parent_.data();
        while (parent[vertex] != vertex)
            vertex = parent[vertex] = parent[parent[vertex]];
        return vertex;
    }

    void find_components(const Graph& graph, i64 n_shared)
    {
        parent_.resize(graph.n_vertices);
        std::iota(parent_.begin(), parent_.end(), 0);
        for_edges(graph, [&](i32 producer, i32 reader) {
            if (shared_[producer])
                return;
            const i32 a = root(producer), b = root(reader);
            if (a != b)
                parent_[std::max(a, b)] = std::min(a, b);
        });
        first_call_.assign(graph.n_vertices, graph.n_vertices);
        own_.resize(graph.n_vertices);
        for (const RecordedBlock& b : graph) {
            for (i64 v = 0; v < b.n; v++) {
                const i32 vertex = static_cast<i32>(b.first_vertex + v), of = own_[vertex] = root(vertex);
                first_call_[of] = std::min(first_call_[of], b.calls[v]);
            }
        }
        if (n_shared)
            for_edges(graph, [&](i32 producer, i32 reader) {
                if (!shared_[producer])
                    return;
                const bool first = own_[producer] == producer;  // no reader's root has been assigned yet
                if (first || first_call_[own_[reader]] < first_call_[own_[producer]])
                    own_[producer] = own_[reader];
            });
        work_of_root_.assign(graph.n_vertices, 0);
        for (i64 v = 0; v < graph.n_vertices; v++)
            work_of_root_[own_[v]] += work_[v];
        components_.clear();
        for (i32 v = 0; v < graph.n_vertices; v++)
            if (work_of_root_[v])
                components_.push_back({work_of_root_[v], first_call_[v], v});
    }

    void settle(const Graph& graph, i64 n_shared, Division& into)
    {
        into.n_shared = n_shared;
        into.n_components = static_cast<i64>(components_.size());
        into.group.resize(graph.n_vertices);
        for (i64 v = 0; v < graph.n_vertices; v++)
            into.group[v] = group_of_root_[own_[v]];
        into.first.assign(graph.n_vertices, 0);
        if (n_shared)
            for_edges(graph, [&](i32 producer, i32 reader) {
                if (shared_[producer] && into.group[reader] != into.group[producer])
                    into.first[producer] = 1;
            });
        i64 before = 0;
        into.loads.assign(n_groups_, 0);
        for (i64 v = 0; v < graph.n_vertices; v++) {
            if (into.first[v]) {
                into.group[v] = 0;
                before += work_[v];
            }
            into.loads[into.group[v]] += work_[v];
        }
        i64 last = into.loads[0] - before;
        for (i64 g = 1; g < n_groups_; g++)
            last = std::max(last, into.loads[g]);
        into.time = static_cast<double>(before) + static_cast<double>(last);
    }

    void move_stages(Graph& graph)
    {
        const std::vector<u8>& first = best_.first;
        i64 top = 0;
        for (const RecordedBlock& b : graph)
            top = std::max(top, b.n ? b.rank + b.top : 0);
        first_own = std::find(first.begin(), first.end(), 1) != first.end();
        first_joining = first_own + top + 1;
        earliest_.assign(graph.components.size(), std::numeric_limits<i64>::max());
        latest_.assign(graph.components.size(), 0);
        for (i64 k = 0; k < graph.n_blocks; k++) {
            RecordedBlock& b = graph.blocks[k];
            i64 &earliest = earliest_[graph.components.of_block(k)], &latest = latest_[graph.components.of_block(k)];
            for (i64 v = 0; v < b.n; v++) {
                const i64 vertex = b.first_vertex + v, own = b.rank + b.local[v];
                const i64 moved = first[vertex] ? 0 : own + (joining_[vertex] ? first_joining : first_own);
                b.local[v] = static_cast<i32>(moved);
                earliest = std::min(earliest, moved);
                latest = std::max(latest, moved);
            }
        }
        for (i64 k = 0; k < graph.n_blocks; k++) {
            RecordedBlock& b = graph.blocks[k];
            b.rank = b.n ? earliest_[graph.components.of_block(k)] : 0;
            b.last = latest_[graph.components.of_block(k)];
            b.top = 0;
            for (i32& local : b.local) {
                local -= static_cast<i32>(b.rank);
                b.top = std::max<i64>(b.top, local);
            }
        }
    }
};
