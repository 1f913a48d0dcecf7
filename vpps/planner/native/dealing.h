// Load balancing: assigns work to groups of virtual processors.
#pragma once

#include "cell_descriptor.h"

#include <algorithm>
#include <utility>

// A connected component of a graph's vertices.
struct ConnectedComponent {
    i64 work, first_call;  // floats; recording index of its first vertex
    i32 root;              // a vertex that identifies it
};

class Dealing {
public:
    // Assigns components, largest first, each to the least loaded group (Graham 1969). If there are many components,
    // the smallest ones fill each group in turn up to the mean load. `total`: the total work; `group_of`: by root.
    void deal(std::vector<ConnectedComponent>& components, i64 total, i64 n_groups, std::vector<i32>& group_of)
    {
        std::sort(components.begin(), components.end(), [](const ConnectedComponent& a, const ConnectedComponent& b) {
            return a.work != b.work ? a.work > b.work : a.first_call < b.first_call;
        });
        heap_.clear();
        for (i64 g = 0; g < n_groups; g++)
            heap_.emplace_back(0, g);
        const size_t n = components.size(), one_by_one = std::min(n, DEALT_ONE_BY_ONE);
        for (size_t i = 0; i < one_by_one; i++) {
            group_of[components[i].root] = heap_[0].second;
            heap_[0].first += components[i].work;
            sift_down(heap_);
        }
        if (one_by_one == n)
            return;
        // Prefix sum, in heap order, of the room below the mean load.
        const double mean = static_cast<double>(total) / static_cast<double>(n_groups);
        double room = 0;
        room_.clear();
        for (const auto& [load, g] : heap_)
            room_.push_back(room += std::max(mean - static_cast<double>(load), 0.));
        i64 rest = 0, until = 0;
        for (size_t i = one_by_one; i < n; i++)
            rest += components[i].work;
        for (size_t i = one_by_one; i < n; i++) {
            const i64 work = components[i].work;
            until += work;
            const double middle = static_cast<double>(until) - static_cast<double>(work) / 2;
            const auto at = std::lower_bound(room_.begin(), room_.end() - 1, middle * (room / static_cast<double>(rest)));
            group_of[components[i].root] = heap_[at - room_.begin()].second;
        }
    }

private:
    static constexpr size_t DEALT_ONE_BY_ONE = 512;

    std::vector<std::pair<i64, i32>> heap_;  // (load, group), a min-heap
    std::vector<double> room_;
};
