// ---- scheduler: picks the next fiber, in order, or at random from a seed. A warp runs as long as one of its lanes can,
// because the stacks of 32 fibers fit into the L1 cache, and those of a thousand do not.
#pragma once
#include "machine.h"

namespace simt {

inline uint64_t random_bits()
{
    uint64_t& r = machine.random;  // xorshift (Marsaglia 2003)
    r ^= r << 13;
    r ^= r >> 7;
    r ^= r << 17;
    return r;
}

static void make_ready(Warp& warp, uint32_t lanes)
{
    warp.ready |= lanes;
    if (warp.queued || !lanes) return;
    warp.queued = true;
    const size_t last = (machine.queue_head + machine.queue_length++) % machine.queue.size();
    machine.queue[last] = (uint32_t)(&warp - machine.warps.data());
}

static Warp& next_in_queue()
{
    std::vector<uint32_t>& queue = machine.queue;
    if (machine.request.seed) {
        const size_t chosen = (machine.queue_head + random_bits() % machine.queue_length) % queue.size();
        std::swap(queue[chosen], queue[machine.queue_head]);
    }
    Warp& warp = machine.warps[queue[machine.queue_head]];
    machine.queue_head = (machine.queue_head + 1) % queue.size();
    machine.queue_length--;
    warp.queued = false;
    return warp;
}

static void wake_spinning()
{
    machine.polled_progress = machine.progress;
    for (Warp& warp : machine.warps) {
        if (!machine.spinning) break;
        machine.spinning -= (uint32_t)__builtin_popcount(warp.spinning);
        make_ready(warp, warp.spinning);
        warp.spinning = 0;
    }
}

static void report_standstill();

enum { MOST_MOVES = 1024 };  // limit of clock moves while no thread can go on; kernels read the clock at every 64th poll only

// Returns the next warp; null if no thread is left.
static Warp* choose_warp()
{
    Warp* warp = hot.warp;
    if (machine.request.seed && warp && warp->ready && machine.queue_length && random_bits() % 8 == 0) {
        make_ready(*warp, warp->ready);
        warp = nullptr;
    }
    while (!warp || !warp->ready) {
        if (machine.queue_length) {
            warp = &next_in_queue();
        } else if (machine.spinning && machine.progress != machine.polled_progress) {
            wake_spinning();
        } else if (!machine.live) {
            return nullptr;
        } else if (machine.spinning && machine.request.launch.patience && machine.impatience < MOST_MOVES) {
            // No thread can continue, but waiting threads read the clock, so advance it.
            machine.impatience++;
            machine.clock += machine.request.launch.patience / 4 + 1;
            wake_spinning();
        } else {
            report_standstill();
        }
    }
    return warp;
}

inline void enter(Fiber& fiber)
{
    FiberBlock& block = *fiber.block;
    hot.fiber = &fiber;
    hot.warp = fiber.warp;
    hot.block = &block;
    hot.thread = fiber.thread;
    hot.position = fiber.position;
    hot.known = knowledge_of(fiber).blocks;
    hot.shared = block.shared.base;
    hot.shared_shadow = block.shared.shadow;
}

// Runs another fiber, and returns when this one is chosen again.
static __attribute__((noinline)) void run_another()
{
    Fiber& before = *hot.fiber;
    before.position = hot.position;
    Warp* warp = choose_warp();
    if (!warp) {
        hot.checking = false;
        switch_context(before.context, machine.host.context);
        return;
    }
    const uint32_t ready = warp->ready;
    uint32_t lane;
    if (machine.request.seed) {
        const uint32_t turn = (uint32_t)random_bits() % LANES;
        const uint32_t turned = ready >> turn | ready << ((LANES - turn) % LANES);
        lane = ((uint32_t)__builtin_ctz(turned) + turn) % LANES;
    } else {
        const uint32_t later = warp == before.warp ? ready & -2u << before.lane : 0;
        lane = (uint32_t)__builtin_ctz(later ? later : ready);
    }
    warp->ready &= ~(1u << lane);
    Fiber& after = fiber_of(*warp, lane);
    machine.switches++;
    machine.clock++;
    enter(after);
    if (&after != &before) switch_context(before.context, after.context);
}

// Suspends this thread until another thread changes an atomic word.
static void spin()
{
    hot.warp->spinning |= 1u << hot.fiber->lane;
    machine.spinning++;
    run_another();
}

// Notes that this thread changed an atomic word.
static void made_progress()
{
    machine.progress++;
    machine.impatience = 0;
    if (!machine.request.seed) return;
    const uint64_t r = random_bits();
    if (r % 4 == 0) wake_spinning();
    if (r % 3 == 0) {
        make_ready(*hot.warp, 1u << hot.fiber->lane);
        run_another();
    }
}

}  // namespace simt
