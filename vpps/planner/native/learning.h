// Learns an automaton for a recurrence from one graph: tabular N-step Q-learning (ED-Batch, 2.3).
//
// A trial batches the whole graph once. In every state, it takes the action with the greatest value or, with probability
// epsilon, a random action. In a state without tried actions it follows policy `critical`, or `sufficient` if states do
// not rank types. After the trial, from the last action to the first, the value of each action is moved towards the sum
// of the next N rewards plus the best value N steps later.
//
// A state does not describe a frontier completely. So values fluctuate, and so does the quality of the greedy policies.
// Greedy policies are tried from time to time, and the best one, not the last, is kept. The first candidate consists of
// a trial's choices before any learning.
//
// The same seed gives the same automaton on all machines: doubles are computed in a fixed order, multiplications and
// additions are not contracted (library.py, FLAGS), and random numbers come from splitmix64.
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

// Result of learning.
struct LearningResult {
    Automaton automaton;
    i64 trials, n_steps, n_stages, bound;
};

class Learner {
public:
    Learner(TypedGraph& graph, const SettingsInput& settings)
        : graph_(graph),
          settings_(settings),
          encoding_{static_cast<EncodingKind>(settings.encoding), settings.phases},
          chance_(settings.seed)
    {
    }

    LearningResult learn()
    {
        LearningResult found{{}, 0, -1, 0, graph_.lower_bound()};
        run_.start(graph_);
        whole_.start(graph_, run_);
        double epsilon = settings_.epsilon;
        trial(0);
        Automaton automaton = of_trial();
        for (;;) {
            fsm_.batch(graph_, automaton);
            const auto n_steps = static_cast<i64>(fsm_.run.steps().size()), n_stages = i64{fsm_.run.n_stages};
            if (found.n_steps < 0 || std::pair(n_steps, n_stages) < std::pair(found.n_steps, found.n_stages)) {
                found.automaton = std::move(automaton);
                found.n_steps = n_steps;
                found.n_stages = n_stages;
            }
            if (found.trials >= settings_.trials || n_steps == found.bound)
                return found;
            for (i64 k = std::min(settings_.check_every, settings_.trials - found.trials); k > 0; k--) {
                found.trials++;
                trial(epsilon);
                learn_from();
                epsilon = std::max(settings_.least_epsilon, epsilon * settings_.decay);
            }
            automaton = of_values();
        }
    }

private:
    using Values = std::vector<double>;  // by type, NaN if not tried; empty if nothing was learned
    using States = std::map<std::vector<i32>, Values>;
    struct Transition {
        States::value_type* state;
        i32 type;
        double reward;
    };
    TypedGraph& graph_;
    const SettingsInput& settings_;
    const Encoding encoding_;
    SplitMix64 chance_;
    Fsm fsm_;
    Execution run_;
    Subgraphs whole_, subgraphs_;  // frontiers of the graph before execution, and in a trial
    States states_;
    std::vector<double> sums_;  // sums of rewards from each action on
    std::vector<Transition> taken_;
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
            States::value_type& state = *states_.try_emplace(state_).first;
            i32 type = types_[0];
            if (types_.size() > 1) {
                if (chance_.uniform() < epsilon)
                    type = types_[chance_.next() % types_.size()];
                else
                    type = state.second.empty() ? untried() : best(state.second);
            }
            const double share = static_cast<double>(run_.ready(type)) / static_cast<double>(subgraphs_[type]);
            taken_.push_back({&state, type, -1 + settings_.alpha * share});
            subgraphs_.execute(graph_, run_, type);
        }
    }

    // Updates the values of a trial's actions, from last to first.
    void learn_from()
    {
        const auto n = static_cast<i64>(taken_.size());
        sums_.assign(n + 1, 0);
        for (i64 t = n - 1; t >= 0; t--) {
            const Transition& taken = taken_[t];
            const i64 after = t + settings_.horizon;
            sums_[t] = taken.reward + sums_[t + 1];
            double target = sums_[t];
            if (after < n) {
                const Values& values = taken_[after].state->second;
                target = sums_[t] - sums_[after] + values[best(values)];
            }
            Values& values = taken.state->second;
            values.resize(graph_.n_types, std::numeric_limits<double>::quiet_NaN());
            double& moved = values[taken.type];
            moved = std::isnan(moved) ? target : moved + settings_.rate * (target - moved);
        }
    }

    // Returns the type with the greatest value; the first one if several are equal.
    static i32 best(const Values& values)
    {
        i32 found = -1;
        for (i32 t = 0; t < static_cast<i32>(values.size()); t++)
            if (!std::isnan(values[t]) && (found < 0 || values[t] > values[found]))
                found = t;
        return found;
    }

    i32 untried() const { return encoding_.ranks() ? state_[1] : nearest(run_, subgraphs_); }

    // Returns the latest trial as an automaton: its last action in each state.
    Automaton of_trial() const
    {
        Automaton found;
        found.encoding = encoding_;
        for (const Transition& taken : taken_)
            found.next[taken.state->first] = taken.type;
        return found;
    }

    // Returns the greedy policy as an automaton.
    Automaton of_values() const
    {
        Automaton found;
        found.encoding = encoding_;
        for (const auto& [state, values] : states_)
            if (!values.empty())
                found.next[state] = best(values);
        return found;
    }
};
