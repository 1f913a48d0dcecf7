// ---- barriers: __syncthreads, __syncwarp, shuffles and votes; and reports of deadlocks.
#pragma once
#include "races.h"
#include "scheduler.h"

namespace simt {

static Knowledge& own_knowledge(Fiber& fiber)
{
    if (fiber.own) return *fiber.own;
    if (machine.spare.empty()) {
        fiber.own = new Knowledge;
    } else {
        fiber.own = machine.spare.back();
        machine.spare.pop_back();
    }
    *fiber.own = fiber.block->known;
    fiber.warp->owners |= 1u << fiber.lane;
    if (&fiber == hot.fiber) hot.known = fiber.own->blocks;
    return *fiber.own;
}

static void give_up_own(Fiber& fiber)
{
    if (!fiber.own) return;
    machine.spare.push_back(fiber.own);
    fiber.own = nullptr;
    fiber.warp->owners &= ~(1u << fiber.lane);
    if (&fiber == hot.fiber) hot.known = fiber.block->known.blocks;
}

template <class F> static void for_lanes(const Warp& warp, uint32_t lanes, F f)
{
    for (; lanes; lanes &= lanes - 1) f(fiber_of(warp, (uint32_t)__builtin_ctz(lanes)));
}

// ---- __syncthreads

static void complete_block_barrier(FiberBlock& block)
{
    Warp* warps = &machine.warps[block.id * machine.warps_per_block];
    if (machine.request.races) {
        for (uint32_t w = 0; w < machine.warps_per_block; w++)
            for_lanes(warps[w], warps[w].owners, [&](Fiber& f) {
                block.known.merge(*f.own, machine.block_count, Order::ESTABLISHED);
                give_up_own(f);
            });
        block.known.blocks[block.id] = hot.now;
        block.known.prune();
        advance();
    }
    block.arrived = 0;
    for (uint32_t w = 0; w < machine.warps_per_block; w++) {
        make_ready(warps[w], warps[w].at_barrier);
        warps[w].at_barrier = 0;
    }
}

// Fails because a thread and the waiting threads are at different barriers, so that the block can never continue together.
static void diverge(const Fiber& other, const char* there, unsigned line, const char* here)
{
    fail("divergent barrier", {hot.position, other.position},
         text("%s is at %s (line %u) in {0}, while %s is at %s (line %u) in {1}", name_of(hot.thread).c_str(), here,
              line, name_of(other.thread).c_str(), there, other.line));
}

static Fiber& waiting_in(const FiberBlock& block)
{
    Warp* warp = &machine.warps[block.id * machine.warps_per_block];
    while (!warp->at_barrier) warp++;
    return fiber_of(*warp, (uint32_t)__builtin_ctz(warp->at_barrier));
}

static void block_barrier(unsigned line)
{
    FiberBlock& block = *hot.block;
    Fiber& me = *hot.fiber;
    if (block.live < machine.request.threads)
        fail("divergent barrier", {hot.position},
             text("%s is at __syncthreads (line %u) in {0}, but %u threads of its block have returned from the kernel",
                  name_of(hot.thread).c_str(), line, machine.request.threads - block.live));
    if (!block.arrived) {
        block.line = line;
        block.position = hot.position;
    } else if (block.line != line || differ(block.position, hot.position)) {
        diverge(waiting_in(block), "__syncthreads", line, "__syncthreads");
    }
    me.line = line;
    if (++block.arrived == machine.request.threads) {
        complete_block_barrier(block);
    } else {
        me.warp->at_barrier |= 1u << me.lane;
        run_another();
    }
}

// ---- __syncwarp, shuffles, votes

// Merges the clocks of the lanes: each lane then knows everything that any of them knew.
static void order_lanes(Warp& warp, uint32_t mask)
{
    if (warp.owners & mask) {
        Knowledge& all = own_knowledge(fiber_of(warp, (uint32_t)__builtin_ctz(warp.owners & mask)));
        for_lanes(warp, warp.owners & mask, [&](Fiber& f) {
            if (f.own != &all) all.merge(*f.own, machine.block_count, Order::ESTABLISHED);
        });
        for_lanes(warp, mask, [&](Fiber& f) {
            if (f.own != &all) own_knowledge(f) = all;
        });
    }
    if (mask == ~0u) {
        warp.time = hot.now;
        warp.partial = 0;
    } else {
        Time times[LANES] = {};
        for_lanes(warp, mask & warp.partial, [&](Fiber& f) {
            for (uint32_t l = 0; l < LANES; l++) times[l] = std::max(times[l], f.lanes[l]);
        });
        for_lanes(warp, mask, [&](Fiber& f) { times[f.lane] = hot.now; });
        for_lanes(warp, mask, [&](Fiber& f) { std::copy(times, times + LANES, f.lanes); });
        warp.partial |= mask;
    }
    advance();
}

static void exchange_values(Warp& warp, uint32_t mask, Exchange exchange)
{
    if (exchange == Exchange::FRAGMENTS) {
        Fragments all;
        for (uint32_t l = 0; l < LANES; l++) all.of[l] = (Operands*)(uintptr_t)warp.value[l];
        return warp.multiply(all);
    }
    uint64_t result[LANES] = {};
    if (exchange == Exchange::BALLOT) {
        uint64_t votes = 0;
        for_lanes(warp, mask, [&](Fiber& f) { votes |= warp.value[f.lane] << f.lane; });
        for (uint64_t& r : result) r = votes;
    } else {
        for_lanes(warp, mask, [&](Fiber& f) {
            const int from = warp.source[f.lane];
            if (!(mask >> from & 1))
                fail("divergent barrier", {f.position, hot.position},
                     text("%s shuffles in {0} from lane %d, which takes no part (mask %#x)", name_of(f.thread).c_str(),
                          from, mask));
            result[f.lane] = warp.value[from];
        });
    }
    for_lanes(warp, mask, [&](Fiber& f) { warp.value[f.lane] = result[f.lane]; });
}

static void meet(uint32_t mask, unsigned line, Exchange exchange)
{
    Fiber& me = *hot.fiber;
    Warp& warp = *hot.warp;
    me.line = line;
    if (!(mask >> me.lane & 1))
        fail("divergent barrier", {hot.position},
             text("%s meets others (line %u) in {0} under mask %#x, which lacks itself", name_of(hot.thread).c_str(),
                  line, mask));
    uint32_t m = 0;
    while (m < warp.meetings && warp.met[m].mask != mask) m++;
    Meeting& meeting = warp.met[m];
    if (m == warp.meetings) {
        meeting = {mask, 0, line, hot.position};
        warp.meetings++;
    } else if (meeting.line != line || differ(meeting.position, hot.position)) {
        diverge(fiber_of(warp, (uint32_t)__builtin_ctz(meeting.arrived)), "a warp barrier or shuffle", line,
                "a warp barrier or shuffle");
    }
    meeting.arrived |= 1u << me.lane;
    if (meeting.arrived != mask) {
        warp.meeting |= 1u << me.lane;
        run_another();
        return;
    }
    meeting = warp.met[--warp.meetings];
    if (exchange != Exchange::NONE) exchange_values(warp, mask, exchange);
    if (machine.request.races && exchange != Exchange::FRAGMENTS) order_lanes(warp, mask);  // fragments order no memory
    const uint32_t others = mask & ~(1u << me.lane);
    warp.meeting &= ~others;
    make_ready(warp, others);
}

// ---- the end of a thread, and deadlock

static void end_thread()
{
    FiberBlock& block = *hot.block;
    if (block.arrived) {
        const Fiber& other = waiting_in(block);
        fail("divergent barrier", {hot.position, other.position},
             text("%s returned from the kernel in {0}, while %s waits at __syncthreads (line %u) in {1}",
                  name_of(hot.thread).c_str(), name_of(other.thread).c_str(), other.line));
    }
    block.live--;
    machine.live--;
    hot.warp->ended |= 1u << hot.fiber->lane;
    run_another();
}

static std::string waits_for(const Fiber& fiber)
{
    const Warp& warp = *fiber.warp;
    if (warp.at_barrier >> fiber.lane & 1) return text("waits at __syncthreads (line %u)", fiber.line);
    if (warp.meeting >> fiber.lane & 1) return text("waits at a warp barrier or shuffle (line %u)", fiber.line);
    if (!fiber.polled) return "waits";
    return text("waits for %s, which is %u,", place_of((uintptr_t)fiber.polled).c_str(), *fiber.polled);
}

// The thread that best explains why a block is stuck: if possible, a thread that waits for another block.
static Fiber* foremost(const FiberBlock& block)
{
    Fiber* found = nullptr;
    for (uint32_t w = 0; w < machine.warps_per_block; w++) {
        const Warp& warp = machine.warps[block.id * machine.warps_per_block + w];
        if (warp.spinning) return &fiber_of(warp, (uint32_t)__builtin_ctz(warp.spinning));
        const uint32_t waiting = warp.meeting | warp.at_barrier;
        if (waiting && !found) found = &fiber_of(warp, (uint32_t)__builtin_ctz(warp.meeting ? warp.meeting : waiting));
    }
    return found;
}

static void report_standstill()
{
    for (const Warp& warp : machine.warps) {
        for (uint32_t m = 0; m < warp.meetings; m++) {
            const Meeting& meeting = warp.met[m];
            const uint32_t missing = meeting.mask & ~meeting.arrived & ~warp.spinning;
            if (!missing) continue;
            const Fiber& here = fiber_of(warp, (uint32_t)__builtin_ctz(meeting.arrived));
            const Fiber& there = fiber_of(warp, (uint32_t)__builtin_ctz(missing));
            const std::string does = warp.ended >> there.lane & 1 ? "has returned from the kernel" : waits_for(there);
            fail("divergent barrier", {here.position, there.position},
                 text("%s waits at a warp barrier or shuffle (line %u) in {0} for %s, which %s in {1}",
                      name_of(here.thread).c_str(), meeting.line, name_of(there.thread).c_str(), does.c_str()));
        }
    }
    constexpr uint32_t MOST = 16;  // maximum number of virtual processors in a message
    std::string message = "no virtual processor can go on";
    std::vector<Position> positions;
    for (uint32_t b = 0; b < machine.block_count; b++) {
        const Fiber* fiber = foremost(machine.blocks[b]);
        if (positions.size() == MOST) {
            message += "; and so on";
            break;
        }
        if (fiber) message += text("; VP %u %s in {%zu}", b, waits_for(*fiber).c_str(), positions.size());
        else message += text("; VP %u has ended in {%zu}", b, positions.size());
        positions.push_back((fiber ? fiber : &fiber_of(machine.warps[b * machine.warps_per_block], 0))->position);
    }
    fail("deadlock", positions, message);
}

}  // namespace simt
