#pragma once
#include "prelude.h"
// ---- timeline, host: records the instructions of every virtual processor, in launches with memory for it.

// An executed instruction. Mirrors RECORD in vpps/runtime/recording.py.
struct Record {
    int64_t start, end;  // in nanoseconds, on the clock of Python's time.perf_counter_ns
    uint64_t bytes;      // bytes of weights, gradients and moments that its routine read and wrote
    uint32_t position;   // script position
    uint32_t vp;
};

// The log of one virtual processor, in separate cache lines of the caller's memory. Mirrors _LOG in recording.py.
struct alignas(128) Timeline {
    Record* records;
    uint64_t capacity;  // maximum number of records
    uint64_t executed;  // number of instructions; those beyond the capacity are only counted
    uint64_t bytes;     // bytes of the current instruction
};

VP_DEVICE int64_t now()
{
#if defined(__APPLE__)
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
#endif
}

VP_DEVICE void count_floats(const Vp& vp, size_t floats)
{
    if (vp.timeline) vp.timeline->bytes += floats * sizeof(float);
}

// Records consecutive instructions. It reads the clock once between two: the end of one is the start of the next.
class TimelineRecorder {
    const Vp& vp;
    int64_t start = 0;
    const Word* ip = nullptr;  // the current instruction

    void finish(int64_t end)
    {
        Timeline& t = *vp.timeline;
        if (t.executed < t.capacity)
            t.records[t.executed] = {start, end, t.bytes, (uint32_t)(ip - vp.script), (uint32_t)vp.id};
        t.executed++;
    }

public:
    explicit TimelineRecorder(const Vp& v) : vp(v)
    {
        if (vp.timeline) vp.timeline->executed = 0;
    }
    ~TimelineRecorder()
    {
        if (vp.timeline) finish(now());
    }

    void begin(const Word* instruction)
    {
        if (!vp.timeline) return;
        const int64_t time = now();
        if (ip) finish(time);
        start = time;
        ip = instruction;
        vp.timeline->bytes = 0;
    }
};
