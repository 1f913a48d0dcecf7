// Instructions of groups of virtual processors, and of exclusive scripts: each group, or each virtual processor, has a stream
// of its own.
#pragma once

#include "script.h"

// One counter of signals is for barriers of all streams: who has executed something since the last one signals; before
// anything more is executed, whoever does waits for all signals given so far. Each group has one more, for the barriers among
// its virtual processors.
class Streams {
public:
    // `account`: null where nobody asks.
    void reset(const Model& model, Account* account)
    {
        account_ = account;
        n_ = model.exclusive ? model.n_vps : model.groups;
        first_ = n_barriers_ = n_for_all_ = 0;
        begin();
    }

    // Room for n words of a stream's next instructions, which wait if they must.
    u32* add(const Model& model, i64 stream, i64 n)
    {
        give_to_all(model);
        return append(model, stream, n);
    }

    // Room for instructions of all. They go to them when the next ones are begun: until then their words may change.
    u32* add_for_all(const Model& model, i64 n)
    {
        give_to_all(model);
        n_for_all_ = n;
        for_all_.resize(std::max(for_all_.size(), static_cast<size_t>(n)));
        return for_all_.data();
    }

    // A barrier of all streams. A group that has come to one of its own just before leaves that out.
    void barrier(const Model& model)
    {
        give_to_all(model);
        n_barriers_++;
        if (account_)
            account_->come();
        for (i64 i = 0; i < n_ && n_ > 1; i++) {
            Stream& stream = of_[first_ + i];
            if (stream.unmet) {  // others may wait for it, whether or not it goes on
                note_barrier(first_ + i);
                stream.add(model.signal.back());
                signals_ += model.exclusive ? 1 : model.n_vps;
            }
            stream.busy = stream.unmet = false;
            if (stream.signals > stream.awaited) {
                stream.signals = stream.awaited;
                stream.n_barriers--;
            }
        }
    }

    void barrier_of_group(const Model& model, i64 group)
    {
        give_to_all(model);
        Stream& stream = of_[first_ + group];
        stream.n_barriers++;
        if (model.n_vps == 1 || !stream.busy)
            return;
        if (account_)
            account_->come();
        stream.signals += model.n_vps;
        stream.busy = false;
    }

    // Signals for the next barrier of a group now: what is executed until then is ordered by the one after it.
    void signal_early(const Model& model, i64 group)
    {
        if (model.n_vps == 1)
            return;
        add(model, group, 0);
        note_barrier(first_ + group);
        of_[first_ + group].add(model.signal[group]);
        of_[first_ + group].signalled = true;
    }

    // What follows is for a second launch, whose counters are others.
    void next_launch(const Model& model)
    {
        give_to_all(model);
        first_ = n_;
        begin();
    }

    // Those of the stream that has most.
    i64 n_barriers() const
    {
        i64 most = 0;
        for (i64 i = first_; i < first_ + n_; i++)
            most = std::max(most, of_[i].n_barriers);
        return n_barriers_ + most;
    }

    // Puts all of them into the script, one behind the other, and tells where they begin.
    void finish(const Model& model, Script& script, std::vector<i64>& begins)
    {
        give_to_all(model);
        begins.clear();
        for (i64 i = 0; i < first_ + n_; i++) {
            begins.push_back(script.size);
            if (account_)
                account_->end(i, static_cast<i64>(of_[i].size));
            of_[i].add(model.stop);
            std::copy_n(of_[i].words.data(), of_[i].size, script.add(static_cast<i64>(of_[i].size)));
        }
    }

    // What is for all goes to them now.
    void give_to_all(const Model& model)
    {
        for (i64 i = 0; i < n_ && n_for_all_; i++)
            std::copy_n(for_all_.data(), n_for_all_, append(model, i, n_for_all_));
        n_for_all_ = 0;
    }

private:
    struct Stream {
        std::vector<u32> words;  // more than there are
        size_t size = 0;
        i64 met = 0;                   // signals of all streams that it has waited for
        i64 signals = 0, awaited = 0;  // of its group: given, and waited for
        i64 n_barriers = 0;            // of its group
        bool unmet = false;            // there are instructions after its latest signal to all,
        bool busy = false;             // and to its group
        bool signalled = false;        // for the next barrier of its group, before what is executed until then

        u32* add(size_t n)
        {
            if (words.size() < size + n)
                words.resize(2 * (size + n));
            size += n;
            return words.data() + size - n;
        }
        void add(const std::vector<u32>& more) { std::copy(more.begin(), more.end(), add(more.size())); }
        void wait(const std::vector<u32>& waiting, i64 until)
        {
            add(waiting);
            words[size - 1] = static_cast<u32>(until);
        }
        void begin()
        {
            size = 0;
            met = signals = awaited = n_barriers = 0;
            unmet = busy = signalled = false;
        }
    };
    std::vector<Stream> of_;  // by launch; more than there are
    i64 n_ = 0, first_ = 0;   // streams of a launch, the first of this one
    i64 n_barriers_ = 0, signals_ = 0, n_for_all_ = 0;  // of all streams
    std::vector<u32> for_all_;
    Account* account_ = nullptr;

    void begin()
    {
        signals_ = 0;
        of_.resize(std::max(of_.size(), static_cast<size_t>(first_ + n_)));
        for (i64 i = first_; i < first_ + n_; i++) {
            of_[i].begin();
            if (account_)
                account_->begin_stream(0);
        }
    }

    u32* append(const Model& model, i64 i, i64 n)
    {
        Stream& stream = of_[first_ + i];
        stream.busy = stream.unmet = true;
        if (stream.awaited < stream.signals) {
            note_barrier(first_ + i);
            stream.wait((stream.signalled ? model.wait : model.barrier)[i], stream.awaited = stream.signals);
            stream.signalled = false;
        }
        if (stream.met < signals_) {
            note_barrier(first_ + i);
            stream.wait(model.wait.back(), stream.met = signals_);
        }
        if (account_)
            note_words(first_ + i, n > 0);
        return stream.add(static_cast<size_t>(n));
    }

    void note_words(i64 i, bool any)
    {
        const auto at = static_cast<i64>(of_[i].size);
        if (any)
            account_->section(i, at);
        else
            account_->begin_period(i, at);
    }

    void note_barrier(i64 i)
    {
        if (account_)
            account_->barrier(i, static_cast<i64>(of_[i].size), n_barriers());
    }
};
