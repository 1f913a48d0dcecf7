// Numbers, and how they come from Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

using i32 = std::int32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;
using u8 = std::uint8_t;

#define EXPORT extern "C" __attribute__((visibility("default")))

// Addresses of arrays come as numbers.
template <class T> T* pointer(i64 address) { return reinterpret_cast<T*>(static_cast<std::intptr_t>(address)); }

// Takes numbers one after the other. Whoever writes them is in the same package: the count is checked at the end.
class Numbers {
public:
    Numbers(const i64* numbers, i64 n) : next_(numbers), end_(numbers + n) {}
    i64 take() { return next_ < end_ ? *next_++ : (overrun_ = true, 0); }
    bool complete() const { return next_ == end_ && !overrun_; }
    template <class T> void take(std::vector<T>& into, i64 n)
    {
        for (i64 i = 0; i < n && !overrun_; i++)
            into.push_back(static_cast<T>(take()));
    }

private:
    const i64 *next_, *end_;
    bool overrun_ = false;
};
