// ---- timeline, CUDA: what every thread block did when. Part of a kernel only if it was rendered to record one; so is every
// line that begins with VP_TIMELINE, and the kernel without them is the same as if there were no such thing.
//
// Thread 0 writes a stamp where an instruction begins, which is where the one before has ended for all threads. It counts
// cycles, exact but of a clock that each multiprocessor has of its own, and whose rate changes. At the beginning and at
// the end of a launch it notes when that is by the clock of the whole GPU as well, which moves on in steps of up to a
// microsecond: just after a step. From both the host makes nanoseconds (vpps/runtime/stamps.py).

// Where an instruction begins, or the last one has ended. Mirrors STAMP there.
struct Stamp {
    unsigned long long cycles;
    unsigned position;  // in the script; of no meaning at the end
    unsigned floats;    // of weights, their gradients and moments that the instruction before has read and written in memory
};

struct Clocks {
    unsigned long long nanoseconds, cycles;  // at one moment
};

// Of a virtual processor; zeros before a launch. Mirrors TRACK there.
struct alignas(128) Track {
    Clocks begun, ended;
    unsigned long long stamps;  // written or without room
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

// Words beside the verdict of a wait, which thread 0 alone uses.
VP_DEVICE unsigned& stamps_written() { return verdict()[1]; }
VP_DEVICE unsigned& floats_counted() { return verdict()[2]; }

VP_DEVICE void count_floats(const Vp&, size_t floats)
{
    if (thread() == 0) floats_counted() += (unsigned)floats;
}

// Elements of the tiles that this virtual processor owns of a matrix, or of its gradient, times so many floats for each.
template <class Args> VP_DEVICE void count_tiles(const Vp& vp, const Args& i, size_t floats)
{
    const int columns = (int)i.columns;
    const OwnTiles own(vp, i.head.width, columns);  // the last one of a row has fewer columns
    const int last = own.last / own.across - own.first / own.across;
    const int elements = (own.last - own.first) * VP_TILE_COLUMNS - last * (own.across * VP_TILE_COLUMNS - columns);
    count_floats(vp, elements * floats);
}

// Its state is in shared memory and in the parameters of the launch: no register lives from one instruction to the next.
class Recorder {
    const Vp& vp;
    const Launch& launch;

    VP_DEVICE void stamp() const
    {
        const unsigned k = stamps_written()++;  // those of one moment lie side by side: the host copies what there is in one piece
        Stamp* stamps = (Stamp*)(launch.recording + everyone());
        if (k < launch.room) stamps[(size_t)k * everyone() + rank()] = {cycles(), vp.position, floats_counted()};
        floats_counted() = 0;
    }

public:
    VP_DEVICE Recorder(const Vp& v, const Launch& l) : vp(v), launch(l)
    {
        if (thread() != 0) return;
        stamps_written() = floats_counted() = 0;
        launch.recording[rank()].begun = clocks();
    }
    VP_DEVICE ~Recorder()
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
