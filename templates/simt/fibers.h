// ---- fibers: contexts with separate stacks that one OS thread runs in turn.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_ASSEMBLY
#else
#include <ucontext.h>
#endif

namespace simt {

constexpr size_t STACK_BYTES = 128 << 10;  // address space; the system allocates pages as a fiber touches them

#if defined(SIMT_ASSEMBLY)
struct Context {
    void* stack_pointer;
};

// Switches by a jump and not by `ret`. The processor's return stack then remains correct, because the next fiber is
// usually inside the same calls. Callers save the registers in the clobber list.
inline __attribute__((always_inline)) void switch_context(Context& from, const Context& to)
{
    void** save = &from.stack_pointer;
    void* load = to.stack_pointer;
    asm volatile(
        "pushq %%rbp\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%0)\n\t"
        "movq %1, %%rsp\n\t"
        "popq %%rax\n\t"
        "jmpq *%%rax\n"
        "1:\n\t"
        "popq %%rbp\n\t"
        : "+D"(save), "+S"(load)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", "xmm0",
          "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
          "xmm14", "xmm15");
}

inline void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)())
{
    void** top = (void**)((uintptr_t)(stack + bytes) & ~(uintptr_t)63);
    *--top = nullptr;        // in place of a return address, so that `entry` finds the stack as after a call
    *--top = (void*)entry;   // switch_context pops it and jumps to it
    context.stack_pointer = top;
}
#else
struct Context {
    ucontext_t saved;
};

inline void switch_context(Context& from, const Context& to) { swapcontext(&from.saved, &to.saved); }

inline void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)())
{
    getcontext(&context.saved);
    context.saved.uc_stack.ss_sp = stack;
    context.saved.uc_stack.ss_size = bytes;
    context.saved.uc_link = nullptr;
    makecontext(&context.saved, entry, 0);
}
#endif

// Zeroed memory that costs nothing until it is touched. Growing zeroes it again.
template <class T> struct Reserved {
    T* data = nullptr;
    size_t count = 0;

    void release()
    {
        if (data) munmap(data, count * sizeof(T));
        data = nullptr;
        count = 0;
    }
    bool reserve(size_t wanted)
    {
        if (wanted <= count) return true;
        release();
        data = (T*)mmap(nullptr, wanted * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data == MAP_FAILED) data = nullptr;
        else count = wanted;
        return data != nullptr;
    }
    void clear()
    {
        if (data) madvise(data, count * sizeof(T), MADV_DONTNEED);
    }
};

}  // namespace simt
