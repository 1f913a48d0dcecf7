// Minimal C++ runtime for libraries that link none (ziglang.py): memory allocation, and abort if memory runs out. All
// symbols are hidden from other libraries.
#include <cstdio>
#include <cstdlib>
#include <new>

#define OURS __attribute__((visibility("hidden")))

namespace {
void* allocated(std::size_t size)
{
    void* memory = std::malloc(size ? size : 1);
    if (memory) return memory;
    std::fprintf(stderr, "vpps: no memory left for %zu bytes\n", size);
    std::abort();
}
}  // namespace

OURS void* operator new(std::size_t size) { return allocated(size); }
OURS void* operator new[](std::size_t size) { return allocated(size); }
OURS void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return std::malloc(size ? size : 1); }
OURS void operator delete(void* memory) noexcept { std::free(memory); }
OURS void operator delete[](void* memory) noexcept { std::free(memory); }
OURS void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
OURS void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
OURS const std::nothrow_t std::nothrow{};

// Identifies this library to the C library, which destroys its objects at unload.
extern "C" {
OURS extern void* __dso_handle;
void* __dso_handle = &__dso_handle;
}

#if defined(VPPS_STRINGS)  // libc++'s binary has these instances
#include <string>
template class std::basic_string<char>;
#endif

// libc++ calls this function instead of throwing.
_LIBCPP_BEGIN_NAMESPACE_STD
[[noreturn]] OURS void __libcpp_verbose_abort(const char* format, ...) noexcept
{
    std::fprintf(stderr, "vpps: %s\n", format);
    std::abort();
}
_LIBCPP_END_NAMESPACE_STD
