// ---- the emulated machine: its threads, warps and blocks, what a launch is given and what it finds.
#pragma once
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "clocks.h"
#include "fibers.h"
#include "fragments.h"

typedef uint32_t Word;

// What the kernel is given; the rendered source declares the same, but for the last three where it records no timeline: to
// who passes them by value, behind everything else, that is the same.
struct Launch {
    float* pool;
    const Word* script;
    unsigned* counters;
    unsigned* cleared;
    unsigned* report;
    unsigned long long patience;
    unsigned* stopped;
    float* losses;
    void* recording;
    unsigned room, run;
};

extern "C" {
void vpps_kernel(const Launch launch);

// What vpps/runtime/emulator.py asks for: a launch, the sizes of its arrays in words, and how to run it.
struct SimtRequest {
    Launch launch;
    uint64_t words[8];  // of pool, script, counters, cleared, report, stopped, losses, recording
    uint64_t seed;      // 0: in order
    uint32_t blocks, threads, shared_bytes;
    uint32_t races;     // whether to look for races
};
}

namespace simt {

typedef uint32_t Position;  // in the script, as `at` gave it
constexpr Position NOWHERE = ~0u;

struct Shadow;

// An array that the kernel may access, and the shadow of its words.
struct Range {
    const char* name;
    uintptr_t base;
    size_t bytes;
    Shadow* shadow;
    bool written;  // in this launch
};

struct Copy {  // begun by copy_async, made by copy_async_wait
    float* to;
    const float* from;
    uint32_t floats;
};

struct Warp;
struct Block;

struct Fiber {
    Context context;
    uint32_t thread;      // block << THREAD_BITS | thread
    uint32_t lane;
    Warp* warp;
    Block* block;
    Position position;
    unsigned line;        // of the barrier where it waits
    Knowledge* own;       // beyond its block's; null: none
    const unsigned* polled;  // what its last load looked at, and saw
    unsigned seen;
    uint32_t polls;       // loads that saw nothing new
    Position polled_position;
    uint64_t polled_progress;
    std::vector<Copy> copies;
    std::vector<size_t> groups;  // of copies: where each that was committed ends
    Time lanes[LANES];    // up to when it knows each lane of its warp, from barriers of parts of the warp
};

// Lanes that meet: in a __syncwarp, a shuffle or a vote.
struct Meeting {
    uint32_t mask, arrived;
    unsigned line;
    Position position;
};

enum class Exchange : uint8_t { NONE, SHUFFLE, BALLOT, FRAGMENTS };

struct Warp {
    uint32_t ready, spinning, meeting, at_barrier, ended;  // a bit per lane: what each does
    uint32_t owners;   // lanes with knowledge of their own
    uint32_t partial;  // lanes with times in Fiber::lanes
    Time time;         // of the last barrier of the whole warp
    bool queued;
    uint32_t meetings;
    Meeting met[LANES];
    uint64_t value[LANES];
    int32_t source[LANES];
    void (*multiply)(const Fragments&);
};

struct Block {
    uint32_t id, arrived, live;
    unsigned line;      // of the __syncthreads where `arrived` threads wait
    Position position;
    Knowledge known;
    Range shared;
};

struct Counter {  // a word of atomics, and what whoever acquires it learns
    const unsigned* address;
    Knowledge published;
};

struct Finding {
    const char* kind;
    std::string message;
    std::vector<Position> positions;
};
constexpr size_t MAX_FINDINGS = 20;

enum { POOL, SCRIPT, COUNTERS, CLEARED, REPORT, STOPPED, LOSSES, RECORDING, RANGES };

// What every access to memory looks at; what differs between threads is exchanged when they are switched.
struct Hot {
    uintptr_t stacks;
    size_t stack_bytes;
    uintptr_t pool;
    size_t pool_bytes;
    Shadow* pool_shadow;
    uintptr_t shared;
    size_t shared_bytes;
    Shadow* shared_shadow;
    const Time* known;       // of the blocks
    Time now;
    uint32_t thread;
    Position position;
    bool checking;           // a kernel runs, and races are looked for
    bool pool_non_coherent;  // some of the pool was read through the non-coherent path
    Fiber* fiber;
    Warp* warp;
    Block* block;
};
static Hot hot __attribute__((aligned(64)));

static struct Machine {
    SimtRequest request;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<Block> blocks;
    uint32_t block_count, warps_per_block;
    Reserved<char> stacks, shared;
    size_t shared_stride;
    Range ranges[RANGES];
    Fiber host;               // whoever called: where a launch begins and ends
    Time start;               // accesses up to then were made by earlier launches
    uint64_t progress;        // counted up by every atomic that changes a word
    uint64_t polled_progress; // progress when those who wait were last let look again
    uint32_t live, spinning;
    uint32_t impatience;      // how often the clock was moved because nobody could go on
    uint64_t clock, switches, random;
    std::vector<uint32_t> queue;  // warps with ready lanes: a ring
    size_t queue_head, queue_length;
    std::deque<Counter> counters;
    std::vector<Knowledge*> spare;
    std::vector<Finding> findings;
    bool stopped;
} machine;

inline Fiber& fiber_of(const Warp& warp, uint32_t lane)
{
    return machine.fibers[(&warp - machine.warps.data()) * LANES + lane];
}

inline Knowledge& knowledge_of(Fiber& fiber) { return fiber.own ? *fiber.own : fiber.block->known; }

__attribute__((format(printf, 1, 2))) static std::string text(const char* format, ...)
{
    char line[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    return line;
}

// Whether there is room for a finding, and none yet of the same kind at the same two positions.
static bool is_new(const char* kind, Position here, Position there)
{
    if (machine.findings.size() >= MAX_FINDINGS) return false;
    for (const Finding& f : machine.findings)
        if (f.kind == kind && f.positions[0] == here && f.positions[1] == there) return false;
    return true;
}

// Positions of which one is unknown do not differ: that thread gave none.
inline bool differ(Position a, Position b) { return a != b && a != NOWHERE && b != NOWHERE; }

// Ends the launch: its threads are left where they are.
[[noreturn]] static void stop()
{
    machine.stopped = true;
    hot.checking = false;
    hot.stack_bytes = hot.pool_bytes = hot.shared_bytes = 0;
    switch_context(hot.fiber->context, machine.host.context);
    __builtin_unreachable();
}

[[noreturn]] static void fail(const char* kind, std::vector<Position> positions, const std::string& message)
{
    if (machine.findings.size() >= MAX_FINDINGS) machine.findings.pop_back();
    machine.findings.push_back({kind, message, std::move(positions)});
    stop();
}

static std::string name_of(uint32_t thread)
{
    return text("VP %u, thread %u", block_of(thread), thread % MAX_THREADS);
}

// The next moment: what happened so far and what follows are told apart.
inline void advance()
{
    if (++hot.now == 0) fail("deadlock", {}, "the launch is longer than the emulator can count: 2^32 barriers");
}

}  // namespace simt
