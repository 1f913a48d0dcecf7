// ---- the simt emulator: runs a kernel that a host compiler has compiled from CUDA source. Every CUDA thread is a fiber.
//
// words.h makes the source compile; this file is linked to it. A kernel compiled with -fsanitize=thread calls functions
// __tsan_* before every memory access. They are defined here, and libtsan is not linked.
#include <cstring>

#include "barriers.h"

using namespace simt;

// ---- functions declared in words.h
extern "C" {

unsigned simt_thread() { return hot.thread % MAX_THREADS; }
unsigned simt_block() { return block_of(hot.thread); }
unsigned simt_threads() { return machine.request.threads; }
unsigned simt_blocks() { return machine.request.blocks; }
float* simt_shared_memory() { return (float*)hot.shared; }

void simt_block_barrier(unsigned line) { block_barrier(line); }
void simt_warp_barrier(unsigned mask, unsigned line) { meet(mask, line, Exchange::NONE); }

uint64_t simt_shuffle(unsigned mask, uint64_t value, int source, unsigned line)
{
    Warp& warp = *hot.warp;
    const uint32_t lane = hot.fiber->lane;
    warp.value[lane] = value;
    warp.source[lane] = source;
    meet(mask, line, Exchange::SHUFFLE);
    return warp.value[lane];
}

unsigned simt_ballot(unsigned mask, bool predicate, unsigned line)
{
    Warp& warp = *hot.warp;
    const uint32_t lane = hot.fiber->lane;
    warp.value[lane] = predicate;
    meet(mask, line, Exchange::BALLOT);
    return (unsigned)warp.value[lane];
}

}  // extern "C"

static void bring_fragments(Operands mine, void (*multiply)(const Fragments&), unsigned line)
{
    hot.warp->value[hot.fiber->lane] = (uint64_t)(uintptr_t)&mine;
    hot.warp->multiply = multiply;
    meet(~0u, line, Exchange::FRAGMENTS);
}
extern "C" {

void simt_mma_bf16(float* c, unsigned* a, unsigned* b, unsigned line) { bring_fragments({c, a, b}, mma<2, 16>, line); }
void simt_mma_tf32(float* c, unsigned* a, unsigned* b, unsigned line) { bring_fragments({c, a, b}, mma<1, 8>, line); }
unsigned simt_movmatrix(unsigned a, unsigned line)
{
    bring_fragments({nullptr, &a, nullptr}, movmatrix, line);
    return a;
}

}  // extern "C"

void at(unsigned position) { hot.position = position; }
unsigned long long nanoseconds() { return machine.clock; }
void nap(unsigned) { spin(); }

// ---- atomics: their effects, and the clocks that they transfer

static Counter& counter_at(const unsigned* p)
{
    for (Counter& c : machine.counters)
        if (c.address == p) return c;
    machine.counters.push_back({p, {}});
    machine.counters.back().published.forget(machine.start);
    return machine.counters.back();
}

static void touch_atomically(const void* p)
{
    if (!hot.checking) return;
    const uintptr_t address = (uintptr_t)p;
    if (Shadow* s = shadow_of(address, 4, Kind::ATOMIC)) atomic_word(*s, address);
}

// Adds this thread's accesses and clock to the counter.
static void publish(const unsigned* p, Order order)
{
    if (!hot.checking) return;
    Fiber& me = *hot.fiber;
    Knowledge& published = counter_at(p).published;
    published.merge(knowledge_of(me), machine.block_count, order);
    const uint32_t warp = me.thread - me.lane;
    published.learn({me.thread, me.thread, hot.now, order});
    published.learn({warp, warp + LANES - 1, me.warp->time, order});
    if (me.warp->partial >> me.lane & 1)
        for (uint32_t l = 0; l < LANES; l++) published.learn({warp + l, warp + l, me.lanes[l], order});
    advance();
}

static void acquire(const unsigned* p, Order order)
{
    if (!hot.checking) return;
    const Knowledge& published = counter_at(p).published;
    own_knowledge(*hot.fiber).merge(published, machine.block_count, order);
}

// A loop that polls one word must let other threads run, even if it never naps.
static void count_polls(const unsigned* p)
{
    Fiber& me = *hot.fiber;
    const bool again =
        me.polled == p && me.polled_progress == machine.progress && me.polled_position == hot.position;
    me.polls = again ? me.polls + 1 : 0;
    me.polled = p;
    me.polled_position = hot.position;
    me.polled_progress = machine.progress;
    if (me.polls >= 64) spin();
}

unsigned load_relaxed(const unsigned* p)
{
    count_polls(p);
    touch_atomically(p);
    Fiber& me = *hot.fiber;
    if (*p != me.seen || me.polls == 0) acquire(p, Order::RELAXED_WAIT);
    return me.seen = *p;
}

unsigned load_acquire(const unsigned* p)
{
    count_polls(p);
    touch_atomically(p);
    acquire(p, Order::ESTABLISHED);
    return hot.fiber->seen = *p;
}

void store_relaxed(unsigned* p, unsigned value)
{
    touch_atomically(p);
    if (hot.checking) counter_at(p).published.forget(machine.start);  // a store ends earlier release sequences
    publish(p, Order::RELAXED_SIGNAL);
    *p = value;
    made_progress();
}

static void add(unsigned* p, unsigned value, Order order)
{
    touch_atomically(p);
    publish(p, order);
    *p += value;
    made_progress();
}
void add_relaxed(unsigned* p, unsigned value) { add(p, value, Order::RELAXED_SIGNAL); }
void add_release(unsigned* p, unsigned value) { add(p, value, Order::ESTABLISHED); }

unsigned compare_and_swap(unsigned* p, unsigned expected, unsigned desired)
{
    touch_atomically(p);
    const unsigned before = *p;
    acquire(p, Order::RELAXED_WAIT);
    if (before == expected && before != desired) {
        publish(p, Order::RELAXED_SIGNAL);
        *p = desired;
        made_progress();
    } else {
        count_polls(p);
    }
    return before;
}

void add_float(float* p, float value)
{
    touch_atomically(p);
    *p += value;
}

Word load_script(const Word* p)
{
    if (hot.checking) read_non_coherently((uintptr_t)p);
    return *p;
}

// ---- asynchronous copies: executed at the wait for their group; the source counts as read at the start and at the wait

static void begin_copy(float* to, const float* from, uint32_t floats)
{
    if (((uintptr_t)to | (uintptr_t)from) % (4 * floats)) report_misaligned((uintptr_t)to, 4 * floats);
    if (hot.checking) {
        touch<false>((uintptr_t)from, 4 * floats);
        if (Shadow* s = shadow_of((uintptr_t)to, 4 * floats, Kind::WRITE))
            for (uint32_t i = 0; i < floats; i++) begin_write(s[i], (uintptr_t)(to + i));
    }
    hot.fiber->copies.push_back({to, from, floats});
}

// Removes the first `count` pending copies, and executes them if `made`.
static void end_copies(Fiber& fiber, size_t count, bool made)
{
    for (size_t k = 0; k < count; k++) {
        const AsyncCopy& copy = fiber.copies[k];
        if (made) {
            if (hot.checking) touch<false>((uintptr_t)copy.from, 4 * copy.floats);
            std::copy(copy.from, copy.from + copy.floats, copy.to);
        }
        if (!machine.request.races) continue;
        Shadow* s = fiber.block->shared.shadow + (copy.to - (float*)fiber.block->shared.base);
        for (uint32_t i = 0; i < copy.floats; i++) end_write(s[i], fiber.thread);
    }
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + count);
}

void copy_async4(float* shared, const float* global) { begin_copy(shared, global, 1); }
void copy_async16(float* shared, const float* global) { begin_copy(shared, global, 4); }
void copy_async_wait()
{
    end_copies(*hot.fiber, hot.fiber->copies.size(), true);
    hot.fiber->groups.clear();
}
void copy_async_commit() { hot.fiber->groups.push_back(hot.fiber->copies.size()); }
void simt_copy_wait(unsigned newest)
{
    std::vector<size_t>& groups = hot.fiber->groups;
    if (groups.size() <= newest) return;
    const size_t done = groups.size() - newest, count = groups[done - 1];
    end_copies(*hot.fiber, count, true);
    groups.erase(groups.begin(), groups.begin() + done);
    for (size_t& end : groups) end -= count;
}

// ---- accesses, as reported by the compiler

extern "C" {

#define SIMT_ACCESS(bytes)                                                                                \
    void __tsan_read##bytes(void* p) { touch_aligned<false>((uintptr_t)p, bytes); }                       \
    void __tsan_write##bytes(void* p) { touch_aligned<true>((uintptr_t)p, bytes); }                       \
    void __tsan_unaligned_read##bytes(void* p) { touch<false>((uintptr_t)p, bytes); }                     \
    void __tsan_unaligned_write##bytes(void* p) { touch<true>((uintptr_t)p, bytes); }
SIMT_ACCESS(1)
SIMT_ACCESS(2)
SIMT_ACCESS(4)
SIMT_ACCESS(8)
SIMT_ACCESS(16)

void __tsan_read_range(void* p, size_t bytes) { touch<false>((uintptr_t)p, (uint32_t)bytes); }
void __tsan_write_range(void* p, size_t bytes) { touch<true>((uintptr_t)p, (uint32_t)bytes); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Replace the kernel's memcpy, memmove and memset (words.h), because the compiler does not report their accesses.
void simt_copy(void* to, const void* from, size_t bytes)
{
    if (bytes && hot.checking) {
        touch<false>((uintptr_t)from, (uint32_t)bytes);
        touch<true>((uintptr_t)to, (uint32_t)bytes);
    }
    memmove(to, from, bytes);
}

void simt_fill(void* to, int value, size_t bytes)
{
    if (bytes && hot.checking) touch<true>((uintptr_t)to, (uint32_t)bytes);
    memset(to, value, bytes);
}
void __tsan_memcpy(void* to, const void* from, size_t bytes) { simt_copy(to, from, bytes); }
void __tsan_memmove(void* to, const void* from, size_t bytes) { simt_copy(to, from, bytes); }
void __tsan_memset(void* to, int value, size_t bytes) { simt_fill(to, value, bytes); }

}  // extern "C"

// ---- launches

// The first function of every fiber.
static void run_thread()
{
    vpps_kernel(machine.request.launch);
    end_thread();
}

// Gap around each block's shared memory, so that an address beyond one block's memory is not in another block's.
constexpr size_t GUARD_BYTES = 4096;

// Reserves the memory of this launch. Returns false if the system has no more memory.
static bool reserve(const SimtRequest& request)
{
    const size_t threads = (size_t)request.blocks * request.threads;
    machine.shared_stride = GUARD_BYTES + (request.shared_bytes + 15) / 16 * 16;
    bool done = machine.stacks.reserve(threads * STACK_BYTES) &&
                machine.shared.reserve(request.blocks * machine.shared_stride + GUARD_BYTES);
    if (request.races) {
        size_t words = 0;
        for (int r = 0; r < RANGES; r++) {
            done = done && shadows[r].reserve(request.words[r]) && non_coherent[r].reserve(request.words[r]);
            words += request.words[r];
        }
        done = done && shared_shadows.reserve(request.blocks * machine.shared_stride / 4) &&
               readers.reserve(words * request.blocks);
    }
    return done;
}

static void lay_out(const SimtRequest& request)
{
    const uint32_t threads = request.blocks * request.threads;
    if (machine.fibers.size() != threads || machine.blocks.size() != request.blocks) {
        machine.warps_per_block = request.threads / LANES;
        machine.fibers = std::vector<Fiber>(threads);
        machine.warps = std::vector<Warp>(threads / LANES);
        machine.blocks = std::vector<FiberBlock>(request.blocks);
        machine.queue.resize(machine.warps.size() + 1);
    }
    machine.block_count = request.blocks;
    constexpr uint32_t POISON = 0x7fc5d15d;  // a NaN that is easy to recognise
    for (uint32_t b = 0; b < request.blocks; b++) {
        FiberBlock& block = machine.blocks[b];
        char* memory = machine.shared.data + GUARD_BYTES + b * machine.shared_stride;
        std::fill_n((uint32_t*)memory, request.shared_bytes / 4, POISON);
        block.id = b;
        block.arrived = 0;
        block.live = request.threads;
        block.known.forget(machine.start);
        block.shared = {"shared memory", (uintptr_t)memory, request.shared_bytes,
                        shared_shadows.data + b * machine.shared_stride / 4, true};
    }
    machine.queue_head = machine.queue_length = 0;
    for (Warp& warp : machine.warps) {
        warp.ready = warp.spinning = warp.meeting = warp.at_barrier = warp.ended = warp.owners = warp.partial = 0;
        warp.time = machine.start;
        warp.queued = false;
        warp.meetings = 0;
        make_ready(warp, ~0u);
    }
    for (uint32_t i = 0; i < threads; i++) {
        Fiber& f = machine.fibers[i];
        const uint32_t block = i / request.threads, thread = i % request.threads;
        f.thread = block << THREAD_BITS | thread;
        f.lane = thread % LANES;
        f.warp = &machine.warps[i / LANES];
        f.block = &machine.blocks[block];
        f.position = NOWHERE;
        f.line = 0;
        f.own = nullptr;
        f.polled = nullptr;
        f.seen = f.polls = 0;
        f.copies.clear();
        f.groups.clear();
        std::fill_n(f.lanes, (uint32_t)LANES, machine.start);
        // Stacks start at different offsets in a page; otherwise all of them would compete for the same cache sets.
        char* stack = machine.stacks.data + i * STACK_BYTES;
        prepare_context(f.context, stack, STACK_BYTES - i % LANES * 320, run_thread);
    }
}

static void begin_time(bool races)
{
    if (hot.now > 1u << 31) {  // forget the past before the time overflows
        for (int r = 0; r < RANGES; r++) {
            shadows[r].clear();
            non_coherent[r].clear();
        }
        shared_shadows.clear();
        hot.now = 0;
    }
    machine.start = ++hot.now;
    hot.now++;
    rows_used = 0;
    free_rows.clear();
    machine.counters.clear();
    hot.checking = races;
    hot.pool_non_coherent = false;
}

extern "C" {
#pragma GCC visibility push(default)

// Runs a launch to its end. Returns the number of findings, or -1 if the system has no more memory.
int vpps_simt_run(const SimtRequest* request)
{
    machine.request = *request;
    machine.findings.clear();
    machine.stopped = false;
    if (!reserve(*request)) return -1;
    begin_time(request->races);
    const Launch& launch = request->launch;
    const char* names[RANGES] = {"pool", "script", "counters", "cleared", "report", "stopped", "losses", "recording"};
    const void* bases[RANGES] = {launch.pool,   launch.script,  launch.counters, launch.cleared,
                                 launch.report, launch.stopped, launch.losses,   launch.recording};
    for (int r = 0; r < RANGES; r++)
        machine.ranges[r] = {names[r], (uintptr_t)bases[r], request->words[r] * 4, shadows[r].data, false};
    machine.random = request->seed * 0x9E3779B97F4A7C15ull | 1;
    machine.progress = machine.polled_progress = machine.switches = 0;  // the clock continues
    machine.live = request->blocks * request->threads;
    machine.spinning = machine.impatience = 0;
    lay_out(*request);
    hot.stacks = (uintptr_t)machine.stacks.data;
    hot.stack_bytes = machine.stacks.count;
    hot.pool = (uintptr_t)launch.pool;
    hot.pool_bytes = request->races ? request->words[POOL] * 4 : 0;
    hot.pool_shadow = shadows[POOL].data;
    hot.shared_bytes = request->races ? request->shared_bytes : 0;
    hot.warp = nullptr;
    hot.fiber = &machine.host;
    hot.position = NOWHERE;
    run_another();
    hot.checking = false;
    hot.stack_bytes = hot.pool_bytes = hot.shared_bytes = 0;
    for (Fiber& f : machine.fibers) {
        end_copies(f, f.copies.size(), false);
        give_up_own(f);
    }
    return (int)machine.findings.size();
}

// Writes a finding's positions, at most 32, to `positions`, and returns their number.
int vpps_simt_finding(int index, const char** kind, const char** message, uint32_t* positions)
{
    const Finding& f = machine.findings[index];
    *kind = f.kind;
    *message = f.message.c_str();
    std::copy(f.positions.begin(), f.positions.end(), positions);
    return (int)f.positions.size();
}

// Number of switches between threads in the last launch.
uint64_t vpps_simt_switches() { return machine.switches; }

// Frees all memory until the next launch.
void vpps_simt_release()
{
    machine.fibers = {};
    machine.warps = {};
    machine.blocks = {};
    machine.stacks.release();
    machine.shared.release();
    for (int r = 0; r < RANGES; r++) {
        shadows[r].release();
        non_coherent[r].release();
    }
    shared_shadows.release();
    readers.release();
    for (Knowledge* k : machine.spare) delete k;
    machine.spare.clear();
}

#pragma GCC visibility pop
}  // extern "C"
