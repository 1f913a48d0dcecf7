// A graph executed batch by batch (ED-Batch, Algorithm 1).
#pragma once

// An optimal sequence of batches of a whole graph is one of each *component* of its types - cells that read each other,
// directly or not - after the other, what is read first:
//
// - Of any sequence of types that runs all of a graph, the types of one component alone run all of the component: what of
//   it has run in the whole by some batch has run alone by then, too. For alone a vertex waits for fewer others, and
//   those are of the component, of which that holds by induction.
// - Sequences of components one after the other run all of the graph, as no earlier one reads of a later one.
//
// A batch is of one type and so of one component, which makes a whole as long as its parts: none is shorter than the
// shortest sequences of its components together. A component of a cell that is on no cycle is one batch, one of a single
// cell its levels. Only recurrences of two cells or more leave anything to choose; there a policy need not see the rest.

#include "typed_graph.h"

// What is ready, what has been executed, and in which stages.
//
// A kernel pays for barriers rather than batches: a batch is of the first stage after those of everything that it reads,
// which may be an earlier one than that of the batch before it. Vertices of its own type that are there already are one
// step with it.
class Execution {
public:
    struct Batch {
        i32 stage, type, n;  // n: vertices
    };
    i64 executed = 0;
    i32 n_stages = 0;
    std::vector<Batch> batches;  // in order

    // ranks: whether it matters which types policy "critical" prefers.
    void start(TypedGraph& graph, bool ranks = false)
    {
        executed = n_stages = 0;
        ranks_ = ranks;
        if (ranks)
            start_ranks(graph);
        batches.clear();
        vertices_.resize(graph.n);
        ready_.resize(graph.n);
        queues_.assign(graph.n_types, Queue{0, 0, 0, 0});
        for (i64 v = 0; v < graph.n; v++) {
            vertices_[v] = {graph.n_producers[v], graph.type[v], 0};
            queues_[graph.type[v]].end++;
        }
        i32 room = 0;
        for (Queue& queue : queues_) {
            queue.begin = room;
            room += queue.end;
            queue.end = queue.begin;
        }
        for (i64 v = 0; v < graph.n; v++)
            if (!vertices_[v].waits)
                add(queues_[vertices_[v].type], static_cast<i32>(v));
    }

    bool done() const { return executed == static_cast<i64>(vertices_.size()); }
    bool is_executed(i64 vertex) const { return vertices_[vertex].waits < 0; }
    i32 stage(i64 vertex) const { return vertices_[vertex].stage; }
    i64 ready(i64 type) const { return queues_[type].end - queues_[type].begin; }
    const i32* ready_of(i64 type) const { return ready_.data() + queues_[type].begin; }

    // The first type that no other is better than, of those that have a ready vertex.
    template <class Better> i32 best_ready(Better&& better) const
    {
        i32 found = -1;
        for (i32 t = 0; t < static_cast<i32>(queues_.size()); t++)
            if (ready(t) && (found < 0 || better(t, found)))
                found = t;
        return found;
    }

    // Whether policy "critical" prefers a type to another one of smaller number: the one at whose ready vertex a longer
    // path begins; of equal ones one whose batch shortens the longest chain of its type for certain, as all that begin one
    // are ready; then the one of which more are ready. After start with `ranks`.
    bool is_more_critical(i64 type, i64 other) const
    {
        const i32 mine = queues_[type].highest, others = queues_[other].highest;
        if (mine != others)
            return mine > others;
        const bool shortens = waiting_[longest_[type]] == 0, other_shortens = waiting_[longest_[other]] == 0;
        return shortens != other_shortens ? shortens : ready(type) > ready(other);
    }

    void execute(const TypedGraph& graph, i32 type)
    {
        execute(graph, type, [](i32) {});
    }

    // Executes all that is ready of a type, in the first stage after those of everything that any of it reads. Calls
    // passes(reader) for every edge from there.
    template <class Passes> void execute(const TypedGraph& graph, i32 type, Passes&& passes)
    {
        Queue& queue = queues_[type];
        const i32 stage = queue.stage, begin = queue.begin, end = queue.end;
        queue.begin = end;
        queue.stage = queue.highest = 0;
        executed += end - begin;
        n_stages = std::max(n_stages, stage + 1);
        if (ranks_ && waiting_[longest_[type]] == 0)
            longest_[type]--;  // by no more: what follows in such a chain has not been executed
        batches.push_back({stage, type, end - begin});
        const i32* ready = ready_.data();
        Vertex* vertices = vertices_.data();
        Queue* queues = queues_.data();
        for (i32 i = begin; i < end; i++) {
            const i32 vertex = ready[i];
            vertices[vertex].waits = -1;
            vertices[vertex].stage = stage;
            graph.for_readers(vertex, [&](i32 number) {
                Vertex& reader = vertices[number];
                reader.stage = std::max(reader.stage, stage + 1);
                passes(number);
                if (--reader.waits)
                    return;
                Queue& other = queues[reader.type];
                other.stage = std::max(other.stage, reader.stage);
                add(other, number);
            });
        }
    }

    // Executes a whole graph, every vertex in the first stage after those of everything that it reads itself.
    void by_level(TypedGraph& graph)
    {
        start(graph);
        for (const i32 number : graph.by_level()) {
            Vertex& vertex = vertices_[number];
            batches.push_back({vertex.stage, vertex.type, 1});
            n_stages = std::max(n_stages, vertex.stage + 1);
            graph.for_readers(number, [&](i32 reader) {
                vertices_[reader].stage = std::max(vertices_[reader].stage, vertex.stage + 1);
            });
        }
        executed = graph.n;
        batches = steps();
    }

    // The batches by stage, then type; those that have both in common are one step.
    std::vector<Batch> steps() const
    {
        std::vector<Batch> sorted = batches, found;
        std::sort(sorted.begin(), sorted.end(), [](const Batch& a, const Batch& b) {
            return a.stage != b.stage ? a.stage < b.stage : a.type < b.type;
        });
        for (const Batch& batch : sorted)
            if (!found.empty() && found.back().stage == batch.stage && found.back().type == batch.type)
                found.back().n += batch.n;
            else
                found.push_back(batch);
        return found;
    }

private:
    struct Vertex {
        i32 waits;  // edges from producers that have not been executed; -1 when it has
        i32 type;
        i32 stage;  // the first after those of the executed ones that it reads; its own when it is executed
    };
    struct Queue {
        i32 begin, end;      // in `ready_`
        i32 stage, highest;  // of the next batch
    };
    std::vector<Vertex> vertices_;
    std::vector<i32> ready_;  // by type: what has been executed, what is ready, room for the rest
    std::vector<Queue> queues_;

    bool ranks_ = false;
    const i32* heights_ = nullptr;
    std::vector<i32> slots_;    // of each vertex: type and length of the chain that begins there, as one number
    std::vector<i32> longest_;  // that number for the longest remaining chain of each type
    std::vector<i32> waiting_;  // by that number: how many vertices are not ready

    void start_ranks(TypedGraph& graph)
    {
        graph.measure();
        heights_ = graph.heights.data();
        longest_.assign(graph.n_types, 0);
        i32 room = 0;
        for (i64 t = 0; t < graph.n_types; t++) {
            longest_[t] = room + graph.depths[t];
            room = longest_[t] + 1;
        }
        waiting_.assign(room, 0);
        slots_.resize(graph.n);
        for (i64 v = 0; v < graph.n; v++) {
            const i32 type = graph.type[v];
            slots_[v] = longest_[type] - graph.depths[type] + graph.chains[v];
            waiting_[slots_[v]]++;
        }
    }

    void add(Queue& queue, i32 vertex)
    {
        ready_[queue.end++] = vertex;
        if (!ranks_)
            return;
        queue.highest = std::max(queue.highest, heights_[vertex]);
        waiting_[slots_[vertex]]--;
    }
};

// By type, how many remaining vertices depend on no other remaining one of it: |Frontier(G^a)| of ED-Batch, 2.2.
class Subgraphs {
public:
    // Of what remains.
    void start(TypedGraph& graph, const Execution& done)
    {
        n_types_ = graph.n_types;
        above_.assign(graph.n * n_types_, 0);
        counts_.assign(n_types_, 0);
        lost_.resize(graph.n);
        for (const i32 vertex : graph.by_level()) {
            if (done.is_executed(vertex))
                continue;
            const i32 own = graph.type[vertex];
            const i32* above = &above_[vertex * n_types_];
            counts_[own] += above[own] == 0;
            graph.for_readers(vertex, [&](i32 reader) {
                i32* counts = &above_[reader * n_types_];
                for (i64 t = 0; t < n_types_; t++)
                    counts[t] += above[t] > 0;
                counts[own] += above[own] == 0;
            });
        }
    }

    i64 operator[](i64 type) const { return counts_[type]; }

    // Has a type executed, and takes note of it: readers lose, edge by edge, what they depended on of the type. They may
    // be the first of it then, or else, where nothing of it is left above them, so may what depends on them.
    void execute(const TypedGraph& graph, Execution& run, i32 type)
    {
        const i64 n_types = n_types_;
        const i32* types = graph.type.data();
        i32 *above = above_.data() + type, *lost = lost_.data(), count = counts_[type];
        count -= static_cast<i32>(run.ready(type));
        run.execute(graph, type, [&](i32 first) {
            i64 n_lost = 0;
            auto lose = [&](i32 reader) {
                if (--above[reader * n_types])
                    return;
                if (types[reader] == type)
                    count++;
                else
                    lost[n_lost++] = reader;
            };
            lose(first);
            while (n_lost)
                graph.for_readers(lost[--n_lost], lose);
        });
        counts_[type] = count;
    }

private:
    i64 n_types_ = 0;
    std::vector<i32> above_;  // by vertex and type: edges from vertices that are of the type or depend on one
    std::vector<i32> counts_, lost_;
};
