// Learns a machine for a recurrence from one graph: tabular N-step Q-learning (ED-Batch, 2.3).
//
// A trial batches the whole graph once. In every state it takes the action of the greatest value, or with probability
// epsilon any; where none has been tried, what policy `critical` would do, or `sufficient` where states do not rank
// types. After the trial the value of each action that it took moves towards the sum of the next N rewards and the best
// value N steps later, last action first.
//
// A state does not tell everything about a frontier, so values go up and down, and so do greedy policies made of them.
// They are tried out now and then, and the best one is kept, not the last; the first is what a trial did before anything
// was learned.
//
// The same seed gives the same machine, on all machines: doubles are computed in a fixed order, multiplications and
// additions are not contracted (library.py, FLAGS), and chance is splitmix64.
#pragma once

#include <cmath>
#include <limits>
#include <utility>
#include "policies/fsm.h"

// Steele, Lea and Flood 2014.
class SplitMix64 {
public:
    explicit SplitMix64(u64 seed) : state_(seed) {}
    u64 next()
    {
        u64 z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

private:
    u64 state_;
};

// The model of costs, whose numbers vpps/compiler/cost.py has.
struct Costs : GivenCosts {
    i64 barriers_of(i64 type) const { return pointer<const i64>(barriers)[type]; }

    // Seconds of a step of n vertices, without barriers.
    double step(i64 type, i64 n) const
    {
        return (static_cast<double>(n) + fixed) * pointer<const double>(flops)[type] / (vps * speed);
    }

    // The same, in barriers; opens: no other step of its stage has run, then with those after it.
    double alone(i64 type, i64 n, bool opens) const
    {
        return step(type, n) / barrier + static_cast<double>(opens ? barriers_of(type) : 0);
    }

    // Seconds of a graph, where steps of a stage share barriers.
    double seconds(const Execution& run) const
    {
        const std::vector<Execution::Batch> steps = run.steps();
        double total = 0;
        i64 n_barriers = 0, of_stage = 0;
        for (size_t i = 0; i < steps.size(); i++) {
            total += step(steps[i].type, steps[i].n);
            of_stage = std::max(of_stage, barriers_of(steps[i].type));
            if (i + 1 == steps.size() || steps[i + 1].stage != steps[i].stage)
                n_barriers += std::exchange(of_stage, 0);
        }
        return barrier * static_cast<double>(n_barriers) + total;
    }
};

// What comes of it.
struct Learned {
    Machine machine;
    i64 trials, n_steps, n_stages, bound;
};

class Learner {
public:
    Learner(TypedGraph& graph, const GivenSettings& settings, const GivenCosts& costs)
        : graph_(graph),
          settings_(settings),
          encoding_{static_cast<EncodingKind>(settings.encoding), settings.phases},
          costs_{costs},
          chance_(settings.seed)
    {
    }

    Learned learn()
    {
        Learned found{{}, 0, -1, 0, graph_.lower_bound()};
        run_.start(graph_);
        whole_.start(graph_, run_);
        double epsilon = settings_.epsilon;
        std::pair<double, double> least;
        trial(0);
        Machine machine = of_trial();
        for (;;) {
            fsm_.batch(graph_, machine);
            const auto n_steps = static_cast<i64>(fsm_.run.steps().size());
            std::pair<double, double> loss(n_steps, fsm_.run.n_stages);
            if (settings_.by_time)
                loss = {costs_.seconds(fsm_.run), 0};
            if (found.n_steps < 0 || loss < least) {
                least = loss;
                found.machine = std::move(machine);
                found.n_steps = n_steps;
                found.n_stages = fsm_.run.n_stages;
            }
            if (found.trials >= settings_.trials || (n_steps == found.bound && !settings_.by_time))
                return found;
            for (i64 k = std::min(settings_.check_every, settings_.trials - found.trials); k > 0; k--) {
                found.trials++;
                trial(epsilon);
                learn_from();
                epsilon = std::max(settings_.least_epsilon, epsilon * settings_.decay);
            }
            machine = of_values();
        }
    }

private:
    struct Taken {
        i64 state;
        i32 type;
        double reward;
    };
    TypedGraph& graph_;
    const GivenSettings& settings_;
    const Encoding encoding_;
    const Costs costs_;
    SplitMix64 chance_;
    Fsm fsm_;
    Execution run_;
    Subgraphs whole_, subgraphs_;  // of the graph before it is begun; of a trial
    States states_;
    std::vector<double> values_, sums_;  // by state and type, NaN where it has not been tried; of rewards
    std::vector<i64> known_;             // states with values, in the order in which they got them
    std::vector<u8> is_known_;
    std::vector<Taken> taken_;
    std::vector<i32> state_, types_;

    // Batches the graph once.
    void trial(double epsilon)
    {
        run_.start(graph_, encoding_.ranks());
        subgraphs_ = whole_;
        taken_.clear();
        while (!run_.done()) {
            types_.clear();
            for (i32 t = 0; t < graph_.n_types; t++)
                if (run_.ready(t))
                    types_.push_back(t);
            encoding_.encode(graph_, run_, state_);
            const i64 state = states_.add(state_);
            i32 type = types_[0];
            if (types_.size() > 1) {
                if (chance_.uniform() < epsilon)
                    type = types_[chance_.next() % types_.size()];
                else
                    type = is_known(state) ? best(state) : untried();
            }
            const i64 n = run_.ready(type), before = run_.n_stages;
            double reward = -1 + settings_.alpha * (static_cast<double>(n) / static_cast<double>(subgraphs_[type]));
            subgraphs_.execute(graph_, run_, type);
            if (settings_.by_time)
                reward = -costs_.alone(type, n, run_.n_stages > before);
            taken_.push_back({state, type, reward});
        }
    }

    // Moves the values of what a trial has done, last action first.
    void learn_from()
    {
        const auto n = static_cast<i64>(taken_.size());
        is_known_.resize(states_.size(), 0);
        values_.resize(states_.size() * graph_.n_types, std::numeric_limits<double>::quiet_NaN());
        sums_.assign(n + 1, 0);
        for (i64 t = n - 1; t >= 0; t--) {
            const Taken& taken = taken_[t];
            const i64 after = t + settings_.horizon;
            sums_[t] = taken.reward + sums_[t + 1];
            double target = sums_[t];
            if (after < n)
                target = sums_[t] - sums_[after] + value(taken_[after].state, best(taken_[after].state));
            double& moved = value(taken.state, taken.type);
            moved = std::isnan(moved) ? target : moved + settings_.rate * (target - moved);
            if (!is_known_[taken.state]) {
                is_known_[taken.state] = 1;
                known_.push_back(taken.state);
            }
        }
    }

    bool is_known(i64 state) const { return state < static_cast<i64>(is_known_.size()) && is_known_[state]; }
    double& value(i64 state, i64 type) { return values_[state * graph_.n_types + type]; }

    // The type of the greatest value in a known state, of equal ones the first.
    i32 best(i64 state)
    {
        i32 found = -1;
        for (i32 t = 0; t < graph_.n_types; t++)
            if (!std::isnan(value(state, t)) && (found < 0 || value(state, t) > value(state, found)))
                found = t;
        return found;
    }

    i32 untried() const { return encoding_.ranks() ? state_[1] : nearest(run_, subgraphs_); }

    // What the latest trial did last in each state.
    Machine of_trial()
    {
        Machine found;
        found.encoding = encoding_;
        for (const Taken& taken : taken_)
            add(found, taken.state, taken.type);
        return found;
    }

    // The greedy policy.
    Machine of_values()
    {
        Machine found;
        found.encoding = encoding_;
        for (const i64 state : known_)
            add(found, state, best(state));
        return found;
    }

    void add(Machine& to, i64 state, i32 type)
    {
        state_.assign(states_.numbers(state), states_.numbers(state) + states_.length(state));
        to.add(state_, type);
    }
};
