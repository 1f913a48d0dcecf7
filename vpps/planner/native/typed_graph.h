// Input to batching policies: typed vertices and their edges (vpps/planner/native/typed_graphs.py).
#pragma once

#include <algorithm>
#include <numeric>
#include "cell_descriptor.h"

// Vertices are numbered from 0. Vectors keep their memory between graphs.
class TypedGraph {
public:
    i64 n = 0, n_types = 0, n_edges = 0;
    std::vector<i32> type, level;  // by vertex; its level is above the levels of its producers
    std::vector<i32> n_producers;  // by vertex: number of incoming edges

    void reset(i64 vertices, i64 types)
    {
        n = vertices;
        n_types = types;
        n_edges = 0;
        type.resize(n);
        level.resize(n);
        n_producers.assign(n, 0);
        last_.assign(n, -1);
        order_.clear();
        depths.clear();
    }

    // Reserves room for more edges, so that `add` need not check.
    void expect(i64 more)
    {
        if (static_cast<i64>(edges_.size()) < n_edges + more)
            edges_.resize(n_edges + more);
    }

    // Adds an edge. Skips it if it repeats the previous edge. Most duplicates do, such as a child's h and c.
    void add(i32 producer, i32 reader)
    {
        i32& last = last_[producer];
        if (last >= 0 && edges_[last].reader == reader)
            return;
        edges_[n_edges] = {reader, last};
        last = static_cast<i32>(n_edges++);
        n_producers[reader]++;
    }

    template <class Do> void for_readers(i32 vertex, Do&& act) const
    {
        const Edge* edges = edges_.data();
        for (i32 e = last_[vertex]; e >= 0; e = edges[e].next)
            act(edges[e].reader);
    }

    // Returns a lower bound on the number of batches (ED-Batch, A.3): same-type vertices on a path never share one.
    i64 lower_bound()
    {
        measure();
        return std::accumulate(depths.begin(), depths.end(), i64{0});
    }

    // Returns all vertices in topological order.
    const std::vector<i32>& by_level()
    {
        if (!order_.empty())
            return order_;
        starts_.assign(2, 0);
        for (i64 v = 0; v < n; v++) {
            if (level[v] + 2 > static_cast<i64>(starts_.size()))
                starts_.resize(level[v] + 2, 0);
            starts_[level[v] + 1]++;
        }
        for (size_t l = 1; l < starts_.size(); l++)
            starts_[l] += starts_[l - 1];
        order_.resize(n);
        for (i64 v = 0; v < n; v++)
            order_[starts_[level[v]]++] = static_cast<i32>(v);
        return order_;
    }

    // heights, by vertex: number of vertices on the longest path from it. chains, by vertex: largest number of vertices
    // of the same type on any path from it. depths, by type: the largest chain.
    std::vector<i32> heights, chains, depths;

    // Computes heights, chains and depths once.
    void measure()
    {
        if (!depths.empty())
            return;
        const std::vector<i32>& order = by_level();
        const i64 width = n_types + 1;  // counts per type, then over all types
        most_.assign(n * width, 0);
        heights.resize(n);
        chains.resize(n);
        depths.assign(n_types, 0);
        for (i64 i = n - 1; i >= 0; i--) {
            const i32 vertex = order[i], own = type[vertex];
            i32* most = &most_[vertex * width];
            for_readers(vertex, [&](i32 reader) {
                const i32* after = &most_[reader * width];
                for (i64 t = 0; t < width; t++)
                    most[t] = std::max(most[t], after[t]);
            });
            chains[vertex] = ++most[own];
            heights[vertex] = ++most[n_types];
            depths[own] = std::max(depths[own], chains[vertex]);
        }
    }

private:
    struct Edge {
        i32 reader, next;  // next: previous edge of the same producer, or -1
    };
    std::vector<Edge> edges_;
    std::vector<i32> last_;  // by vertex: latest outgoing edge, or -1
    std::vector<i32> starts_, order_, most_;
};
