// Account of a plan, on request: the lists of a script and the origin of each word. Recorded while it is written.
#pragma once

#include "interface.h"

class Account {
public:
    i64 top = 0;  // the last stage
    LaunchPhase during = LaunchPhase::FORWARD;
    SectionResult next{};  // description of the next section

    void begin()
    {
        during = LaunchPhase::FORWARD;
        coming_ = why_ = {static_cast<i64>(Reason::NONE), 0};
        period_ = BEFORE;
        streams_.clear();
        lists_.clear();
        allocated_.clear();
    }

    // ---- lists, and memory for the whole launch

    // `goes_on`: the words extend the previous list.
    void list(i64 start, i64 n, bool goes_on)
    {
        if (goes_on)
            lists_.back().second = start + n;
        else
            lists_.push_back({start, start + n});
    }
    void take(i64 start, i64 floats)
    {
        if (floats)
            allocated_.push_back({start, start + floats});
    }

    // ---- context of the next instructions

    void begin_phase(LaunchPhase phase)
    {
        during = phase;
        if (phase == LaunchPhase::GRADIENTS)
            period_ = 2 * top + 2;
    }

    // Begins a new period of the launch (memory.h), and sets the reason for the barriers in it and after it.
    void begin_stage(bool backward, i64 stage)
    {
        period_ = backward ? 2 * top + 1 - stage : stage;
        set_reason(backward ? Reason::BACKWARD : Reason::FORWARD, stage);
    }

    // Sets the reason for the next barriers.
    void set_reason(Reason reason, i64 stage) { coming_ = {static_cast<i64>(reason), stage}; }

    // Records that the next barrier is reached. `barrier` then records the instructions that signal or wait for it.
    void reach_barrier() { why_ = coming_; }

    // ---- instructions

    void begin_stream() { streams_.push_back({{}, {}, {{0, BEFORE}}}); }

    // Begins the section described by `next` at a position of a stream.
    void section(size_t stream, i64 at)
    {
        begin_period(stream, at);
        StreamSections& s = streams_[stream];
        if (next.run && !s.sections.empty() && s.sections.back().run == next.run) {
            s.sections.back().n_rows += next.n_rows;
        } else {
            s.sections.push_back(next);
            s.sections.back().start = at;
        }
        s.rows.insert(s.rows.end(), rows_.begin(), rows_.begin() + next.n_rows);
    }

    // If rows are executed one by one, adds rows of group number `run` to the next section.
    void give_rows(i64 run, const std::vector<i64>& rows)
    {
        next.run = run;
        next.n_rows = static_cast<i64>(rows.size());
        rows_ = rows;
    }

    void barrier(size_t stream, i64 at, i64 n) { add(stream, at, Origin::BARRIER, why_.first, why_.second, n); }
    void end(size_t stream, i64 at) { add(stream, at, Origin::END, 0, 0, 0); }

    // Records the start of a period, if the next instruction is its first one.
    void begin_period(size_t stream, i64 at)
    {
        StreamSections& s = streams_[stream];
        if (s.periods.back().second != period_)
            s.periods.push_back({at, period_});
    }

    // ----

    // `begins`: positions of the streams in the script.
    void report(const std::vector<i64>& begins, AccountResult& into)
    {
        begun_.clear();
        sections_.clear();
        all_rows_.clear();
        periods_.clear();
        for (size_t i = 0; i < streams_.size(); i++) {
            const StreamSections& s = streams_[i];
            begun_.push_back({begins[i], static_cast<i64>(s.sections.size())});
            sections_.insert(sections_.end(), s.sections.begin(), s.sections.end());
            all_rows_.insert(all_rows_.end(), s.rows.begin(), s.rows.end());
            for (const auto& [at, period] : s.periods)
                periods_.push_back({begins[i] + at, period});
        }
        tell(begun_, into.n_streams, into.streams);
        tell(sections_, into.n_sections, into.sections);
        tell(all_rows_, into.n_rows, into.rows);
        tell(lists_, into.n_lists, into.lists);
        tell(periods_, into.n_periods, into.periods);
        tell(allocated_, into.n_allocated, into.allocated);
    }

private:
    static constexpr i64 BEFORE = -1;  // the period before the first
    struct StreamSections {
        std::vector<SectionResult> sections;
        std::vector<i64> rows;  // rows of all its sections, in order
        std::vector<IntPair> periods;
    };

    std::vector<StreamSections> streams_;
    std::vector<IntPair> lists_, allocated_;
    std::vector<i64> rows_;
    IntPair coming_{}, why_{};  // reason and stage of the next barrier, and of the latest one
    i64 period_ = BEFORE;
    std::vector<IntPair> begun_, periods_;  // in the reported format
    std::vector<SectionResult> sections_;
    std::vector<i64> all_rows_;

    void add(size_t stream, i64 at, Origin made, i64 a, i64 b, i64 first)
    {
        const auto what = static_cast<i64>(made), when = static_cast<i64>(during);
        streams_[stream].sections.push_back({at, what, -1, a, b, first, 0, 0, when});
    }

    template <class T> static void tell(const std::vector<T>& found, i64& n, i64& at)
    {
        n = static_cast<i64>(found.size());
        at = address(found.data());
    }
};
