#pragma once
#include "sync.h"
// ---- timeline, CUDA: records the instructions of every thread block. A kernel has this file, and the lines that begin with
// VP_TIMELINE, only if it was rendered to record timelines. Other kernels have no cost.
//
// Thread 0 writes a stamp at the start of each instruction, after all threads have ended the previous one. A stamp holds
// exact cycles, but each multiprocessor has a separate cycle counter whose rate changes. At the start and end of a launch,
// thread 0 also reads the clock of the whole GPU, just after it has advanced; its steps are up to a microsecond. From both
// clocks, the host computes nanoseconds (vpps/runtime/stamps.py).

// The start of an instruction, or the end of the last one. Mirrors STAMP in stamps.py.
struct Stamp {
    unsigned long long cycles;
    unsigned position;  // script position; meaningless at the end
    unsigned floats;    // floats of weights, gradients and moments that the previous instruction read and wrote in memory
};

struct Clocks {
    unsigned long long nanoseconds, cycles;  // both clocks at one moment
};

// The recording of a virtual processor; zero before a launch. Mirrors TRACK in stamps.py.
struct alignas(128) Track {
    Clocks begun, ended;
    unsigned long long stamps;  // number of stamps, including those that were not stored for lack of room
};

#ifdef VP_SIMT
VP_DEVICE unsigned long long cycles() { return nanoseconds(); }
VP_DEVICE void await_step() {}
#else
VP_DEVICE unsigned long long cycles()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
    return t;
}
VP_DEVICE void await_step()
{
    const unsigned long long before = nanoseconds();
    VP_ROLLED for (int polls = 0; polls < 1000 && nanoseconds() == before; polls++) {}
}
#endif

VP_DEVICE Clocks clocks()
{
    await_step();
    return {nanoseconds(), cycles()};
}

// Words next to the verdict of a wait; only thread 0 uses them.
VP_DEVICE unsigned& stamps_written() { return verdict()[1]; }
VP_DEVICE unsigned& floats_counted() { return verdict()[2]; }

VP_DEVICE void count_floats(const Vp&, size_t floats)
{
    if (thread() == 0) floats_counted() += (unsigned)floats;
}

// Counts `floats` floats for each element of this virtual processor's tiles of a matrix or its gradient.
template <class Args> VP_DEVICE void count_tiles(const Vp& vp, const Args& i, size_t floats)
{
    const int columns = (int)i.columns;
    const OwnTiles own(vp, i.head.width, columns);  // the last tile of a row has fewer columns
    const int last = own.last / own.across - own.first / own.across;
    const int elements = (own.last - own.first) * VP_TILE_COLUMNS - last * (own.across * VP_TILE_COLUMNS - columns);
    count_floats(vp, elements * floats);
}

// Its state is in shared memory and in the launch's parameters, so that it occupies no register between instructions.
class TimelineRecorder {
    const Vp& vp;
    const Launch& launch;

    VP_DEVICE void stamp() const
    {
        const unsigned k = stamps_written()++;  // all k-th stamps are adjacent, so that the host needs one copy
        Stamp* stamps = (Stamp*)(launch.recording + everyone());
        if (k < launch.room) stamps[(size_t)k * everyone() + rank()] = {cycles(), vp.position, floats_counted()};
        floats_counted() = 0;
    }

public:
    VP_DEVICE TimelineRecorder(const Vp& v, const Launch& l) : vp(v), launch(l)
    {
        if (thread() != 0) return;
        stamps_written() = floats_counted() = 0;
        launch.recording[rank()].begun = clocks();
    }
    VP_DEVICE ~TimelineRecorder()
    {
        if (thread() != 0) return;
        stamp();
        Track& track = launch.recording[rank()];
        track.stamps = stamps_written();
        track.ended = clocks();
    }

    VP_DEVICE void begin(const Word*) const
    {
        if (thread() == 0) stamp();
    }
};
