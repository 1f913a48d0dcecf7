// Instructions of exclusive scripts: every virtual processor has a stream of its own (vpps/plan/writer.py).
#pragma once

#include "script.h"

// All barriers share one counter. Who has executed something since the last barrier signals; before anything more is
// executed, whoever does waits for all signals given so far.
class Streams {
public:
    i64 n_barriers = 0;

    void reset(i64 n_vps)
    {
        n_ = static_cast<size_t>(n_vps);
        first_ = signals_ = n_barriers = n_for_all_ = 0;
        begin();
    }

    // Room for n words of a virtual processor's next instructions, which wait if they must.
    u32* add(const Model& model, size_t vp, i64 n)
    {
        give_to_all(model);
        return append(model, of_[first_ + vp], n);
    }

    // Room for instructions of all. They go to them when the next ones are begun: until then their words may change.
    u32* add_for_all(const Model& model, i64 n)
    {
        give_to_all(model);
        n_for_all_ = static_cast<size_t>(n);
        for_all_.resize(std::max(for_all_.size(), n_for_all_));
        return for_all_.data();
    }

    void barrier(const Model& model)
    {
        give_to_all(model);
        n_barriers++;
        for (size_t vp = 0; vp < n_ && n_ > 1; vp++) {
            Stream& stream = of_[first_ + vp];
            if (!stream.busy)
                continue;
            signals_++;  // others may wait for it, whether or not it goes on
            stream.add(model.signal);
            stream.busy = false;
        }
    }

    // What follows is for a second launch, whose counters are others.
    void next_launch(const Model& model)
    {
        give_to_all(model);
        first_ = n_;
        signals_ = 0;
        begin();
    }

    // Puts all of them into the script, one behind the other, and tells where they begin.
    void finish(const Model& model, Script& script, std::vector<i64>& begins)
    {
        give_to_all(model);
        begins.clear();
        for (size_t i = 0; i < first_ + n_; i++) {
            begins.push_back(script.size);
            of_[i].add(model.stop);
            std::copy_n(of_[i].words.data(), of_[i].size, script.add(static_cast<i64>(of_[i].size)));
        }
    }

private:
    struct Stream {
        std::vector<u32> words;  // more than there are
        size_t size = 0;
        i64 awaited = 0;    // signals that it has waited for
        bool busy = false;  // there are instructions after its latest signal

        u32* add(size_t n)
        {
            if (words.size() < size + n)
                words.resize(2 * (size + n));
            size += n;
            return words.data() + size - n;
        }
        void add(const std::vector<u32>& more) { std::copy(more.begin(), more.end(), add(more.size())); }
    };
    std::vector<Stream> of_;  // by launch and virtual processor; more than there are
    size_t n_ = 0, first_ = 0, n_for_all_ = 0;
    i64 signals_ = 0;
    std::vector<u32> for_all_;

    void begin()
    {
        of_.resize(std::max(of_.size(), first_ + n_));
        for (size_t vp = 0; vp < n_; vp++) {
            Stream& stream = of_[first_ + vp];
            stream.size = 0;
            stream.awaited = 0;
            stream.busy = false;
        }
    }

    u32* append(const Model& model, Stream& stream, i64 n)
    {
        stream.busy = true;
        if (stream.awaited < signals_) {
            stream.awaited = signals_;
            stream.add(model.wait);
            stream.words[stream.size - 1] = static_cast<u32>(signals_);
        }
        return stream.add(static_cast<size_t>(n));
    }

    void give_to_all(const Model& model)
    {
        for (size_t vp = 0; vp < n_ && n_for_all_; vp++)
            std::copy_n(for_all_.data(), n_for_all_, append(model, of_[first_ + vp], static_cast<i64>(n_for_all_)));
        n_for_all_ = 0;
    }
};
