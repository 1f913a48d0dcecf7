// Instruction streams: one for all virtual processors, one for each group, or one for each virtual processor.
#pragma once

#include "script.h"

// One signal counter serves barriers across all streams. A stream that has executed anything since its last signal
// signals; before it executes more, it waits for all signals so far. Each group has another counter, for barriers among
// its virtual processors. A single group needs only that counter, and its stream is written directly into the script.
class Streams {
public:
    std::vector<i64> begins;  // positions of streams in the script, by launch

    Streams(const Model& model, Script& script) : model_(model), script_(script) {}

    // Begins the streams. All lists precede them. `account`: null if not requested.
    void reset(Account* account)
    {
        account_ = account;
        n_ = model_.exclusive ? model_.n_vps : model_.groups;
        is_single_ = !model_.exclusive && n_ == 1;
        first_ = n_barriers_ = n_for_all_ = 0;
        begins.clear();
        begin();
    }

    // Adds room for a stream's next instructions (n words), after any pending wait.
    u32* add(i64 stream, i64 n)
    {
        give_to_all();
        return append(stream, n);
    }

    // Adds room for instructions in all streams. Their words may change until the next instructions begin.
    u32* add_for_all(i64 n)
    {
        if (is_single_)
            return append(0, n);
        give_to_all();
        n_for_all_ = n;
        for_all_.resize(std::max(for_all_.size(), static_cast<size_t>(n)));
        return for_all_.data();
    }

    // Adds a barrier across all streams. It replaces a group's own barrier just before it.
    void barrier()
    {
        if (is_single_) {
            barrier_of_group(0);
            return;
        }
        give_to_all();
        n_barriers_++;
        if (account_)
            account_->reach_barrier();
        for (i64 i = 0; i < n_ && n_ > 1; i++) {
            Stream& stream = of_[first_ + i];
            if (stream.unmet) {  // other streams may wait for it, even if it has no more instructions
                write(i, model_.signal.back());
                signals_ += model_.exclusive ? 1 : model_.n_vps;
            }
            stream.busy = stream.unmet = false;
            if (stream.signals > stream.awaited) {
                stream.signals = stream.awaited;
                stream.n_barriers--;
            }
        }
    }

    void barrier_of_group(i64 group)
    {
        give_to_all();
        Stream& stream = of_[first_ + group];
        stream.n_barriers++;
        if (account_)
            account_->reach_barrier();
        if (model_.n_vps == 1 || !stream.busy)
            return;
        stream.signals += model_.n_vps;
        stream.busy = false;
    }

    // Signals now for a group's next barrier. Work between signal and wait is ordered by the barrier after it.
    void signal_early(i64 group)
    {
        if (model_.n_vps == 1)
            return;
        add(group, 0);
        write(group, model_.signal[group]);
        of_[first_ + group].signalled = true;
    }

    // Begins another launch in the script, which uses separate counters.
    void next_launch()
    {
        end();
        n_barriers_ = n_barriers();
        first_ += n_;
        begin();
    }

    // Returns the largest number of barriers in any stream.
    i64 n_barriers() const
    {
        i64 most = 0;
        for (i64 i = first_; i < first_ + n_; i++)
            most = std::max(most, of_[i].n_barriers);
        return n_barriers_ + most;
    }

    // Ends all streams, and copies those that are not in the script yet into it.
    void finish()
    {
        end();
        for (i64 i = 0; i < first_ + n_ && !is_single_; i++) {
            begins.push_back(script_.size);
            std::copy_n(of_[i].words.data(), of_[i].size, script_.add(of_[i].size));
        }
    }

    // Copies the pending instructions for all streams to each stream.
    void give_to_all()
    {
        for (i64 i = 0; i < n_ && n_for_all_; i++)
            std::copy_n(for_all_.data(), n_for_all_, append(i, n_for_all_));
        n_for_all_ = 0;
    }

private:
    struct Stream {
        std::vector<u32> words;  // may be longer than size
        i64 size = 0;
        i64 met = 0;                   // signals from all streams that it has waited for
        i64 signals = 0, awaited = 0;  // signals in its group: given, and waited for
        i64 n_barriers = 0;            // barriers of its group
        bool unmet = false;            // there are instructions after its latest signal to all streams
        bool busy = false;             // there are instructions after its latest signal to its group
        bool signalled = false;        // it has signalled early for the next barrier of its group
    };
    const Model& model_;
    Script& script_;
    std::vector<Stream> of_;  // by launch; may be longer than needed
    i64 n_ = 0, first_ = 0;   // number of streams in a launch; first stream of this launch
    bool is_single_ = true;
    i64 n_barriers_ = 0, signals_ = 0, n_for_all_ = 0;  // barriers, signals and pending words for all streams
    std::vector<u32> for_all_;
    Account* account_ = nullptr;

    void begin()
    {
        signals_ = 0;
        of_.resize(std::max(of_.size(), static_cast<size_t>(first_ + n_)));
        for (i64 i = first_; i < first_ + n_; i++) {
            Stream fresh;
            fresh.words.swap(of_[i].words);
            of_[i] = std::move(fresh);
            if (account_)
                account_->begin_stream();
        }
        if (is_single_)
            begins.push_back(script_.size);
    }

    // Ends the streams of a launch.
    void end()
    {
        give_to_all();
        for (i64 i = 0; i < n_; i++) {
            if (account_)
                account_->end(first_ + i, of_[first_ + i].size);
            write_words(i, model_.stop);
        }
    }

    u32* append(i64 i, i64 n)
    {
        Stream& stream = of_[first_ + i];
        stream.busy = stream.unmet = true;
        if (stream.awaited < stream.signals) {
            stream.awaited = stream.signals;
            write(i, (stream.signalled ? model_.wait : model_.barrier)[i], stream.awaited);
            stream.signalled = false;
        }
        if (stream.met < signals_) {
            stream.met = signals_;
            write(i, model_.wait.back(), stream.met);
        }
        if (account_)
            note_words(first_ + i, n > 0);
        return room(i, n);
    }

    // Writes a part of a barrier. `until`: the number of signals to wait for, its last word.
    void write(i64 i, const std::vector<u32>& words, i64 until = 0)
    {
        if (account_)
            account_->barrier(first_ + i, of_[first_ + i].size, n_barriers());
        u32* end = write_words(i, words);
        if (until)
            end[-1] = static_cast<u32>(until);
    }

    u32* write_words(i64 i, const std::vector<u32>& words)
    {
        return std::copy(words.begin(), words.end(), room(i, static_cast<i64>(words.size())));
    }

    u32* room(i64 i, i64 n)
    {
        Stream& stream = of_[first_ + i];
        stream.size += n;
        if (is_single_)
            return script_.add(n);
        if (static_cast<i64>(stream.words.size()) < stream.size)
            stream.words.resize(2 * stream.size);
        return stream.words.data() + stream.size - n;
    }

    void note_words(i64 i, bool any)
    {
        if (any)
            account_->section(i, of_[i].size);
        else
            account_->begin_period(i, of_[i].size);
    }
};
