// ---- timeline, host: what every virtual processor did when, in launches that have memory for it.

// An executed instruction. Mirrors RECORD in vpps/runtime/recording.py.
struct Record {
    int64_t start, end;  // nanoseconds of the clock of Python's time.perf_counter_ns
    uint64_t bytes;      // of weights, their gradients and moments that its routine read and wrote
    uint32_t position;   // in the script
    uint32_t vp;
};

// Where one virtual processor puts its records, in cache lines of its own; the caller's memory. Mirrors _LOG there.
struct alignas(128) Timeline {
    Record* records;
    uint64_t capacity;  // of records
    uint64_t executed;  // instructions; those beyond the capacity are counted only
    uint64_t bytes;     // of the instruction that is running
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

// Records one instruction after the other: the clock is read once between two, where the first ends and the second begins.
class Recorder {
    const Vp& vp;
    int64_t start = 0;
    const Word* ip = nullptr;  // of the instruction that is running

    void finish(int64_t end)
    {
        Timeline& t = *vp.timeline;
        if (t.executed < t.capacity)
            t.records[t.executed] = {start, end, t.bytes, (uint32_t)(ip - vp.script), (uint32_t)vp.id};
        t.executed++;
    }

public:
    explicit Recorder(const Vp& v) : vp(v)
    {
        if (vp.timeline) vp.timeline->executed = 0;
    }
    ~Recorder()
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
