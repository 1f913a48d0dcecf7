// ---- race detection: every word of the watched arrays has a shadow with its last write and the reads since then. Each
// access is compared with those that it must be ordered with. This follows FastTrack (Flanagan and Freund, PLDI 2009), with
// the three granularities of clocks.h instead of one clock per thread.
//
// Shadows outlive a launch. Time continues, and all accesses of earlier launches are ordered before this launch.
#pragma once
#include "machine.h"

namespace simt {

enum : uint32_t {
    THREAD = MAX_BLOCKS * MAX_THREADS - 1,  // bits of a thread's number
    IN_WARP = 1u << 26,   // several threads of one warp, the latest at `time`
    IN_BLOCK = 1u << 27,  // several warps of one block
    IN_TABLE = 1u << 28,  // several blocks; the other bits are a row of `readers`
    AS_READ = 1u << 29,   // in place of a write: reads that atomic operations must be ordered with
    ATOMIC = 1u << 30,    // an atomic operation; in a set: it holds only atomic operations
    PENDING = 1u << 31,   // a write started by copy_async; its time is FOREVER
    ROW = IN_WARP - 1,
};
constexpr Time FOREVER = ~0u;

struct Access {
    Time time;
    uint32_t who;
    Position position;
};

struct Shadow {
    Access write;
    Access read;  // one read, or a set of reads or of atomic operations
};

// Reads of one word by several blocks: a row with one Access per block. There are as many rows as words.
static Reserved<Access> readers;
static uint32_t rows_used;
static std::vector<uint32_t> free_rows;

// Last read of a word through the non-coherent path, if any.
struct NonCoherentRead {
    Time time;
    Position position;
};
static Reserved<NonCoherentRead> non_coherent[RANGES];
static Reserved<Shadow> shadows[RANGES], shared_shadows;

enum class Kind { READ, WRITE, ATOMIC };

static Access access_now(uint32_t flags = 0) { return {hot.now, hot.thread | flags, hot.position}; }

// True if one access, or each access of a set within one block, happened before this thread's current access.
static bool ordered(const Access& a)
{
    if (a.who & PENDING) return false;
    if (a.time <= hot.known[block_of(a.who)]) return true;
    const uint32_t thread = a.who & THREAD;
    if (!(a.who & (IN_WARP | IN_BLOCK)) && thread == hot.thread) return true;
    const uint32_t warp = thread / LANES * LANES;
    if (!(a.who & IN_BLOCK) && warp == hot.thread / LANES * LANES) {
        if (a.time <= hot.warp->time) return true;
        if (hot.warp->partial && !(a.who & IN_WARP) && a.time <= hot.fiber->lanes[thread % LANES]) return true;
    }
    const uint32_t block = thread / MAX_THREADS * MAX_THREADS;
    const uint32_t first = a.who & IN_BLOCK ? block : a.who & IN_WARP ? warp : thread;
    const uint32_t last = a.who & IN_BLOCK ? block + MAX_THREADS - 1 : a.who & IN_WARP ? warp + LANES - 1 : thread;
    return knowledge_of(*hot.fiber).has_part(first, last, a.time, Order::ESTABLISHED);
}

// ---- texts of findings

static std::string place_of(uintptr_t address)
{
    constexpr size_t LINE = 128;  // bytes of a counter, as the kernel lays them out
    const size_t into = address - machine.ranges[COUNTERS].base;
    if (into < machine.ranges[COUNTERS].bytes && into % LINE == 0) return text("counter %zu", into / LINE);
    for (const Range& r : machine.ranges)
        if (address - r.base < r.bytes) return text("%s[%zu]", r.name, (size_t)(address - r.base) / 4);
    return text("shared memory[%zu]", (size_t)(address - hot.shared) / 4);
}

static const char* verb_of(Kind kind)
{
    return kind == Kind::READ ? "reads" : kind == Kind::WRITE ? "writes" : "updates";
}

// Returns a likely reason why an earlier access is not ordered, and sets the finding's `kind`.
static const char* explain(const Access& earlier, const char*& kind)
{
    const uint32_t thread = earlier.who & THREAD;
    const Knowledge& mine = knowledge_of(*hot.fiber);
    if (earlier.who & PENDING) return "nobody has waited for the copy yet (copy_async_wait)";
    kind = "unwritten fence";
    if (mine.has_part(thread, thread, earlier.time, Order::RELAXED_SIGNAL))
        return "the signal in between is relaxed and releases nothing";
    if (mine.has_part(thread, thread, earlier.time, Order::RELAXED_WAIT))
        return "the wait in between is relaxed and acquires nothing";
    kind = "race";
    if (block_of(thread) == hot.block->id) return "no barrier of the block lies between";
    const FiberBlock& theirs = machine.blocks[block_of(thread)];
    const Time barrier = theirs.known.blocks[theirs.id];  // time of the block's last barrier
    for (const Part& p : mine.parts)
        if (p.order == Order::ESTABLISHED && block_of(p.first) == theirs.id &&
            (earlier.time <= p.time || barrier <= p.time))
            return "no __syncthreads lies between that and the signal of its block";
    return "no signal and wait lie between";
}

static void report_race(const Access& earlier, const char* did, Kind kind, uintptr_t address)
{
    const char* name = "race";
    const char* why = explain(earlier, name);
    if (!is_new(name, hot.position, earlier.position)) return;
    const char* others = earlier.who & (IN_WARP | IN_BLOCK) ? " (and others of its block)" : "";
    machine.findings.push_back(
        {name,
         text("%s %s %s in {0}; %s%s %s it in {1}, and %s", name_of(hot.thread).c_str(), verb_of(kind),
              place_of(address).c_str(), name_of(earlier.who & THREAD).c_str(), others, did, why),
         {hot.position, earlier.position}});
}

// Describes an address that is in none of the arrays, or an access that reaches beyond an array's end.
static std::string whereabouts(uintptr_t address)
{
    if (address - (uintptr_t)machine.shared.data < machine.shared.count)
        return text("%zd words from the start of its shared memory (%zu words)",
                    (std::ptrdiff_t)(address - hot.shared) / 4, hot.shared_bytes / 4);
    const Range* nearest = nullptr;
    size_t distance = ~(size_t)0;
    for (const Range& r : machine.ranges) {
        const uintptr_t end = r.base + r.bytes;
        const size_t apart = address < r.base ? r.base - address : address < end ? 0 : address - end;
        if (!r.base || apart >= distance) continue;
        nearest = &r;
        distance = apart;
    }
    if (!nearest) return text("at address %#zx", (size_t)address);
    if (address < nearest->base) return text("%zu words before %s", (distance + 3) / 4, nearest->name);
    if (address - nearest->base < nearest->bytes)
        return text("reaches past the end of %s (%zu words)", nearest->name, nearest->bytes / 4);
    return text("%zu words past the end of %s (%zu words)", distance / 4, nearest->name, nearest->bytes / 4);
}

[[noreturn]] static __attribute__((noinline)) void report_outside(uintptr_t address, uint32_t bytes, Kind kind)
{
    fail("out of bounds", {hot.position},
         text("%s %s %u bytes in {0}: %s", name_of(hot.thread).c_str(), verb_of(kind), bytes,
              whereabouts(address).c_str()));
}

[[noreturn]] static __attribute__((noinline)) void report_misaligned(uintptr_t address, uint32_t bytes)
{
    fail("misaligned access", {hot.position},
         text("%s accesses %u bytes in {0} at %s, which is no multiple of that", name_of(hot.thread).c_str(), bytes,
              place_of(address).c_str()));
}

// ---- sets of reads, or of atomic operations

inline Access* row_of(uint32_t who) { return readers.data + (who & ROW) * (size_t)machine.block_count; }

// Replaces the set by a single access.
static void replace_set(Access& set, const Access& now)
{
    if (set.who & IN_TABLE && set.time > machine.start) free_rows.push_back(set.who & ROW);
    set = now;
}

// Calls f for every access of the set that belongs to this launch.
template <class F> static void for_set(const Access& set, F f)
{
    if (set.time <= machine.start) return;
    if (!(set.who & IN_TABLE)) return f(set);
    const Access* row = row_of(set.who);
    for (uint32_t b = 0; b < machine.block_count; b++)
        if (row[b].time > machine.start) f(row[b]);
}

// Adds an access of this thread to a set of one block.
inline void join_within_block(Access& set, uint32_t flags)
{
    const uint32_t who = set.who & ~ATOMIC;
    if (who == hot.thread || ordered(set)) {
        set = access_now(flags);
        return;
    }
    const bool in_warp = (who & THREAD) / LANES == hot.thread / LANES && !(who & IN_BLOCK);
    set = access_now(flags | (in_warp ? IN_WARP : IN_BLOCK));
}

static __attribute__((noinline)) void join_set(Access& set, uint32_t flags)
{
    if (set.time <= machine.start) {
        set = access_now(flags);
        return;
    }
    if (!(set.who & IN_TABLE)) {
        if (block_of(set.who) == hot.block->id) return join_within_block(set, flags);
        if (ordered(set)) {
            set = access_now(flags);
            return;
        }
        uint32_t row = rows_used;
        if (free_rows.empty()) {
            rows_used++;
        } else {
            row = free_rows.back();
            free_rows.pop_back();
        }
        std::fill_n(row_of(row), machine.block_count, Access{0, 0, NOWHERE});
        row_of(row)[block_of(set.who)] = set;
        set.who = IN_TABLE | flags | row;
    }
    Access& mine = row_of(set.who)[hot.block->id];
    set.time = hot.now;
    if (mine.time <= machine.start) mine = access_now(flags);
    else join_within_block(mine, flags);
}

// ---- accesses

static const char* past_verb_of(uint32_t who)
{
    return who & PENDING ? "began a copy to" : who & ATOMIC ? "updated" : who & AS_READ ? "read" : "wrote";
}

static void check_write(const Shadow& s, Kind kind, uintptr_t address)
{
    if (s.write.time > machine.start && !ordered(s.write))
        report_race(s.write, past_verb_of(s.write.who), kind, address);
}

static void check_set(const Shadow& s, Kind kind, uintptr_t address)
{
    for_set(s.read, [&](const Access& a) {
        if (!ordered(a)) report_race(a, past_verb_of(a.who | AS_READ), kind, address);
    });
}

// Reads after atomic operations, or the reverse, begin a new set. The latest access of the old set replaces the earlier
// write in the shadow, so that later accesses are checked against it. (Other blocks' accesses in the old set are dropped.)
static void begin_set(Shadow& s, Kind kind, uintptr_t address, uint32_t flags)
{
    check_set(s, kind, address);
    Access latest = {0, 0, NOWHERE};
    for_set(s.read, [&](const Access& a) {
        if (a.time > latest.time) latest = a;
    });
    s.write = latest;
    s.write.who |= AS_READ;
    replace_set(s.read, access_now(flags));
}

static __attribute__((noinline)) void read_slowly(Shadow& s, uintptr_t address)
{
    check_write(s, Kind::READ, address);
    if (s.read.time > machine.start && s.read.who & ATOMIC) {
        begin_set(s, Kind::READ, address, 0);
        return;
    }
    join_set(s.read, 0);
}

inline void read_word(Shadow& s, uintptr_t address)
{
    const uint32_t writer = s.write.who, reader = s.read.who;
    if (__builtin_expect((s.write.time <= hot.known[block_of(writer)] || writer == hot.thread) &&
                         !(reader & (IN_TABLE | ATOMIC)), 1)) {
        if (s.read.time <= hot.known[block_of(reader)] || reader == hot.thread) {
            s.read = access_now();
            return;
        }
        if (block_of(reader) == block_of(hot.thread)) {
            join_within_block(s.read, 0);
            return;
        }
    }
    read_slowly(s, address);
}

static void check_non_coherent(const Range& range, uintptr_t address)
{
    const Reserved<NonCoherentRead>& reads = non_coherent[&range - machine.ranges];
    const NonCoherentRead& read = reads.data[(address - range.base) / 4];
    if (read.time > machine.start && is_new("non-coherent read", read.position, hot.position))
        machine.findings.push_back(
            {"non-coherent read",
             text("%s writes %s in {1}, which was read through the non-coherent path in {0} of the same launch",
                  name_of(hot.thread).c_str(), place_of(address).c_str()),
             {read.position, hot.position}});
}

static __attribute__((noinline)) void write_slowly(Shadow& s, uintptr_t address)
{
    check_write(s, Kind::WRITE, address);
    check_set(s, Kind::WRITE, address);
    s.write = access_now();
    replace_set(s.read, {0, 0, NOWHERE});
    if (hot.pool_non_coherent && address - hot.pool < hot.pool_bytes) check_non_coherent(machine.ranges[POOL], address);
}

inline void write_word(Shadow& s, uintptr_t address)
{
    const uint32_t writer = s.write.who, reader = s.read.who;
    if (__builtin_expect((s.write.time <= hot.known[block_of(writer)] || writer == hot.thread) &&
                         (s.read.time <= hot.known[block_of(reader)] || reader == hot.thread) &&
                         !(reader & (IN_TABLE | ATOMIC)) && !hot.pool_non_coherent, 1)) {
        s.write = access_now();
        s.read = {0, 0, NOWHERE};
        return;
    }
    write_slowly(s, address);
}

// Atomic operations on one word do not race with each other.
static void atomic_word(Shadow& s, uintptr_t address)
{
    check_write(s, Kind::ATOMIC, address);
    if (s.read.time > machine.start && !(s.read.who & ATOMIC)) {
        begin_set(s, Kind::ATOMIC, address, ATOMIC);
        return;
    }
    join_set(s.read, ATOMIC);
}

// Records the write of a copy that has started. Any access before the wait for the copy is a race.
static void begin_write(Shadow& s, uintptr_t address)
{
    check_write(s, Kind::WRITE, address);
    check_set(s, Kind::WRITE, address);
    s.write = {FOREVER, hot.thread | PENDING, hot.position};
    replace_set(s.read, {0, 0, NOWHERE});
}

inline void end_write(Shadow& s, uint32_t thread)
{
    if (s.write.who == (thread | PENDING)) s.write = {hot.now, thread, s.write.position};
}

extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));  // bounds of this library, set by the linker
extern "C" char _end[] __attribute__((visibility("hidden")));

// The shadow of a word outside pool, own shared memory and stacks; null if its accesses are not checked.
static __attribute__((noinline)) Shadow* shadow_elsewhere(uintptr_t address, uint32_t bytes, Kind kind)
{
    if (!hot.checking) return nullptr;
    for (uint32_t r = SCRIPT; r < RANGES; r++) {
        Range& range = machine.ranges[r];
        if (address - range.base >= range.bytes) continue;
        if (address - range.base + bytes > range.bytes) report_outside(address, bytes, kind);
        if (kind != Kind::READ) {
            range.written = true;
            check_non_coherent(range, address);
        }
        return range.shadow + (address - range.base) / 4;
    }
    if (address - (uintptr_t)__ehdr_start < (uintptr_t)(_end - __ehdr_start)) return nullptr;  // tables of constants
    report_outside(address, bytes, kind);
}

// The shadow of the first word of an access, or null.
inline Shadow* shadow_of(uintptr_t address, uint32_t bytes, Kind kind)
{
    if (address - hot.stacks < hot.stack_bytes) return nullptr;
    if (address - hot.pool < hot.pool_bytes) {
        if (bytes > 4 && address - hot.pool + bytes > hot.pool_bytes) report_outside(address, bytes, kind);
        return hot.pool_shadow + (address - hot.pool) / 4;
    }
    if (address - hot.shared < hot.shared_bytes) {
        if (bytes > 4 && address - hot.shared + bytes > hot.shared_bytes) report_outside(address, bytes, kind);
        return hot.shared_shadow + (address - hot.shared) / 4;
    }
    return shadow_elsewhere(address, bytes, kind);
}

template <bool WRITE> inline void touch(uintptr_t address, uint32_t bytes)
{
    Shadow* s = shadow_of(address, bytes, WRITE ? Kind::WRITE : Kind::READ);
    if (!s) return;
    const uintptr_t end = address + bytes;
    for (uintptr_t word = address & ~(uintptr_t)3; word < end; word += 4, s++) {
        if (WRITE) write_word(*s, word);
        else read_word(*s, word);
    }
}

template <bool WRITE> inline void touch_aligned(uintptr_t address, uint32_t bytes)
{
    if (bytes > 4 && address % bytes && shadow_of(address, bytes, WRITE ? Kind::WRITE : Kind::READ))
        report_misaligned(address, bytes);  // a CPU allows it, but a GPU traps
    touch<WRITE>(address, bytes);
}

// Checks a read by `load_script`, whose cache does not see writes.
static __attribute__((noinline)) void read_non_coherently(uintptr_t address)
{
    uint32_t r = 0;
    while (r < RANGES && address - machine.ranges[r].base >= machine.ranges[r].bytes) r++;
    if (r == RANGES) report_outside(address, 4, Kind::READ);
    Range& range = machine.ranges[r];
    const size_t word = (address - range.base) / 4;
    if (r == POOL) hot.pool_non_coherent = range.written = true;  // writes to the pool do not set `written`
    if (range.written) {
        const Access& write = range.shadow[word].write;
        if (write.time > machine.start && !(write.who & AS_READ) &&
            is_new("non-coherent read", hot.position, write.position))
            machine.findings.push_back(
                {"non-coherent read",
                 text("%s reads %s in {0} through the non-coherent path; %s wrote it in {1} of the same launch",
                      name_of(hot.thread).c_str(), place_of(address).c_str(), name_of(write.who & THREAD).c_str()),
                 {hot.position, write.position}});
    }
    non_coherent[r].data[word] = {hot.now, hot.position};
}

}  // namespace simt
