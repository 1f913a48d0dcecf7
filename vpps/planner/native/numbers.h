// Defines integer types, and reads integers that Python passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

using i32 = std::int32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;
using u8 = std::uint8_t;

#define EXPORT extern "C" __attribute__((visibility("default")))
#define RARELY __attribute__((noinline, cold))  // for code that runs on request only: keeps it out of hot code

// Python passes addresses of arrays as integers.
template <class T> T* pointer(i64 address) { return reinterpret_cast<T*>(static_cast<std::intptr_t>(address)); }
inline i64 address(const void* of) { return static_cast<i64>(reinterpret_cast<std::intptr_t>(of)); }

// Restores a min-heap after its first element has increased.
template <class T> void sift_down(std::vector<T>& heap)
{
    const T item = heap[0];
    size_t at = 0;
    for (size_t child = 1; child < heap.size(); at = child, child = 2 * child + 1) {
        child += child + 1 < heap.size() && heap[child + 1] < heap[child];
        if (item < heap[child])
            break;
        heap[at] = heap[child];
    }
    heap[at] = item;
}

// Blocks of a graph.
template <class BlockType> struct Blocks {
    std::vector<BlockType> blocks;  // may be longer than n_blocks, so that memory is reused
    i64 n_blocks = 0;

    void resize(i64 n)
    {
        n_blocks = n;
        if (static_cast<i64>(blocks.size()) < n)
            blocks.resize(n);
    }
    BlockType* begin() { return blocks.data(); }
    BlockType* end() { return blocks.data() + n_blocks; }
    const BlockType* begin() const { return blocks.data(); }
    const BlockType* end() const { return blocks.data() + n_blocks; }
};

// Reads integers one by one. The writer is in the same package, so only the count is checked, at the end.
class Numbers {
public:
    Numbers(const i64* numbers, i64 n) : next_(numbers), end_(numbers + n) {}
    i64 take() { return next_ < end_ ? *next_++ : (overrun_ = true, 0); }
    bool complete() const { return next_ == end_ && !overrun_; }
    bool overrun() const { return overrun_; }

private:
    const i64 *next_, *end_;
    bool overrun_ = false;
};

template <class T> struct IsVector : std::false_type {};
template <class T> struct IsVector<std::vector<T>> : std::true_type {};

// Reads a number; a vector, preceded by its length; or a record (vpps/compiler/records.py).
template <class T> T taken(Numbers& from)
{
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
        return static_cast<T>(from.take());
    } else if constexpr (IsVector<T>::value) {
        T found;
        for (i64 n = from.take(); n-- > 0 && !from.overrun();)
            found.push_back(taken<typename T::value_type>(from));
        return found;
    } else {
        return T(from);
    }
}
