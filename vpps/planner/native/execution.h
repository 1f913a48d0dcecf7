// Executes a graph batch by batch (ED-Batch, Algorithm 1).
#pragma once

// A *component* is a set of types (cells) that read each other, directly or not. Claim: running an optimal sequence of
// batches for each component, in topological order, is optimal for the whole graph. Proof:
//
// - Take any sequence of types that runs the whole graph, and keep only the types of one component. The result runs the
//   whole component. By induction, each vertex of the component runs no later than before: it waits for fewer vertices,
//   all of them in the component.
// - Sequences of the components in topological order run the whole graph, as no component reads from a later one.
//
// Each batch has one type, which is in one component, so lengths add up: no sequence is shorter than the sum of the
// shortest sequences of the components. A cell on no cycle takes one batch; a recurrence of a single cell takes one
// batch per level. Only recurrences of two or more cells require a policy, which need not see the rest.

#include "typed_graph.h"

// State of an execution: the ready vertices, the executed vertices and their stages.
//
// In a kernel, barriers cost time and batches do not. So a batch joins the first stage after the stages of all its
// operands. That stage may precede the previous batch's. Batches of one type in one stage form one step.
class Execution {
public:
    struct Batch {
        i32 stage, type, n;  // n: vertices
    };
    i64 executed = 0;
    i32 n_stages = 0;
    std::vector<Batch> batches;  // in order

    // ranks: true if the caller needs the ranking of policy "critical" (is_more_critical).
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

    // Returns the best type among those with a ready vertex; the first one if several are equal.
    template <class Better> i32 best_ready(Better&& better) const
    {
        i32 found = -1;
        for (i32 t = 0; t < static_cast<i32>(queues_.size()); t++)
            if (ready(t) && (found < 0 || better(t, found)))
                found = t;
        return found;
    }

    // True if policy "critical" prefers `type` to `other`, which has a smaller number. Criteria in this order: the
    // longer path from a ready vertex; a batch that is sure to shorten the longest chain of its type, because all
    // vertices that start such a chain are ready; more ready vertices. Requires start with `ranks`.
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

    // Executes all ready vertices of a type, in the first stage after those of their operands. Calls passes(reader) for
    // each of their outgoing edges.
    template <class Passes> void execute(const TypedGraph& graph, i32 type, Passes&& passes)
    {
        Queue& queue = queues_[type];
        const i32 stage = queue.stage, begin = queue.begin, end = queue.end;
        queue.begin = end;
        queue.stage = queue.highest = 0;
        executed += end - begin;
        n_stages = std::max(n_stages, stage + 1);
        if (ranks_ && waiting_[longest_[type]] == 0)
            longest_[type]--;  // by 1 only: the next vertices of such chains have not been executed
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

    // Executes a whole graph, each vertex in the first stage after those of its operands.
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

    // The batches sorted by stage and type; batches with the same stage and type are merged into one step.
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
        i32 waits;  // edges from producers that have not been executed; -1 once the vertex is executed
        i32 type;
        i32 stage;  // the first stage after those of its executed producers; final once it is executed
    };
    struct Queue {
        i32 begin, end;      // in `ready_`
        i32 stage, highest;  // stage and largest height of the next batch
    };
    std::vector<Vertex> vertices_;
    std::vector<i32> ready_;  // by type: executed vertices, ready vertices, room for the rest
    std::vector<Queue> queues_;

    bool ranks_ = false;
    const i32* heights_ = nullptr;
    std::vector<i32> slots_;    // by vertex: its type and the length of the chain that starts there, as one number
    std::vector<i32> longest_;  // by type: the slot of the longest remaining chain
    std::vector<i32> waiting_;  // by slot: number of vertices that are not ready

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

// Counts each type's remaining vertices that depend on no other vertex of the type: |Frontier(G^a)| in ED-Batch, 2.2.
class Subgraphs {
public:
    // Counts the vertices that are not executed.
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

    // Executes a type and updates the counts. Each edge from an executed vertex removes one dependence on the type. A
    // reader without dependences joins the frontier if it has that type; otherwise its readers lose a dependence, too.
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
    std::vector<i32> above_;  // by vertex and type: edges from vertices that have the type or depend on it
    std::vector<i32> counts_, lost_;
};
