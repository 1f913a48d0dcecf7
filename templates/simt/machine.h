// ---- the emulated machine: threads, warps and blocks, the arguments of a launch, and its findings.
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

// Arguments of the kernel. The rendered source declares the same struct; without a timeline, it omits the last three
// members. Calls are compatible, because the struct is passed by value and these members come last.
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

// Request from vpps/runtime/emulator.py: a launch, the sizes of its arrays in words, and options.
struct SimtRequest {
    Launch launch;
    uint64_t words[8];  // sizes of pool, script, counters, cleared, report, stopped, losses, recording
    uint64_t seed;      // seed of random scheduling; 0: in order
    uint32_t blocks, threads, shared_bytes;
    uint32_t races;     // not 0: detect races
};
}

namespace simt {

typedef uint32_t Position;  // script position, set by `at`
constexpr Position NOWHERE = ~0u;

struct Shadow;

// An array that the kernel may access, and its shadow memory.
struct Range {
    const char* name;
    uintptr_t base;
    size_t bytes;
    Shadow* shadow;
    bool written;  // true if this launch has written to it
};

struct AsyncCopy {  // started by copy_async, executed by copy_async_wait
    float* to;
    const float* from;
    uint32_t floats;
};

struct Warp;
struct FiberBlock;

struct Fiber {
    Context context;
    uint32_t thread;      // block << THREAD_BITS | thread
    uint32_t lane;
    Warp* warp;
    FiberBlock* block;
    Position position;
    unsigned line;        // source line of the barrier where it waits
    Knowledge* own;       // its clock, if it knows more than its block; null: none
    const unsigned* polled;  // address and value of its last load
    unsigned seen;
    uint32_t polls;       // consecutive loads without a new value
    Position polled_position;
    uint64_t polled_progress;
    std::vector<AsyncCopy> copies;
    std::vector<size_t> groups;  // where the committed groups of copies end
    Time lanes[LANES];    // known times of its warp's lanes, from barriers for parts of the warp
};

// A barrier of lanes: a __syncwarp, a shuffle or a vote.
struct Meeting {
    uint32_t mask, arrived;
    unsigned line;
    Position position;
};

enum class Exchange : uint8_t { NONE, SHUFFLE, BALLOT, FRAGMENTS };

struct Warp {
    uint32_t ready, spinning, meeting, at_barrier, ended;  // states of the lanes, a bit per lane
    uint32_t owners;   // lanes with a clock in Fiber::own
    uint32_t partial;  // lanes with times in Fiber::lanes
    Time time;         // time of the last barrier across the whole warp
    bool queued;
    uint32_t meetings;
    Meeting met[LANES];
    uint64_t value[LANES];
    int32_t source[LANES];
    void (*multiply)(const Fragments&);
};

struct FiberBlock {
    uint32_t id, arrived, live;
    unsigned line;      // source line of the __syncthreads where `arrived` threads wait
    Position position;
    Knowledge known;
    Range shared;
};

struct Counter {  // an atomic word, and the clock that an acquire of it transfers
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

// State that every memory access reads. A thread switch replaces the parts that belong to a thread.
struct Hot {
    uintptr_t stacks;
    size_t stack_bytes;
    uintptr_t pool;
    size_t pool_bytes;
    Shadow* pool_shadow;
    uintptr_t shared;
    size_t shared_bytes;
    Shadow* shared_shadow;
    const Time* known;       // known times of the blocks
    Time now;
    uint32_t thread;
    Position position;
    bool checking;           // a kernel runs with race detection
    bool pool_non_coherent;  // some word of the pool was read through the non-coherent path
    Fiber* fiber;
    Warp* warp;
    FiberBlock* block;
};
static Hot hot __attribute__((aligned(64)));

static struct Machine {
    SimtRequest request;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<FiberBlock> blocks;
    uint32_t block_count, warps_per_block;
    Reserved<char> stacks, shared;
    size_t shared_stride;
    Range ranges[RANGES];
    Fiber host;               // the calling context, in which a launch begins and ends
    Time start;               // accesses up to this time belong to earlier launches
    uint64_t progress;        // incremented by every atomic that changes a word
    uint64_t polled_progress; // value of `progress` when spinning threads were last woken
    uint32_t live, spinning;
    uint32_t impatience;      // number of times that the clock was moved because no thread could continue
    uint64_t clock, switches, random;
    std::vector<uint32_t> queue;  // ring buffer of warps with ready lanes
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

// True if there is room for a finding, and no finding of the same kind has the same two positions.
static bool is_new(const char* kind, Position here, Position there)
{
    if (machine.findings.size() >= MAX_FINDINGS) return false;
    for (const Finding& f : machine.findings)
        if (f.kind == kind && f.positions[0] == here && f.positions[1] == there) return false;
    return true;
}

// True if two known positions differ. An unset position does not differ from any other.
inline bool differ(Position a, Position b) { return a != b && a != NOWHERE && b != NOWHERE; }

// Ends the launch; its threads remain suspended.
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

// Increments the time, which separates earlier from later accesses.
inline void advance()
{
    if (++hot.now == 0) fail("deadlock", {}, "the launch is longer than the emulator can count: 2^32 barriers");
}

}  // namespace simt
