// Executes launches from standard input by a kernel of the cpu target and writes their pools to standard output: for
// aarch64.py. A launch is the numbers of words of its script and of its pool, then these.
// Arguments: the kernel, a library of tails, virtual processors.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

template <class F> static F* symbol(void* library, const char* name)
{
    void* found = library ? dlsym(library, name) : nullptr;
    if (!found) fprintf(stderr, "%s: %s\n", name, dlerror()), exit(1);
    return (F*)found;
}

int main(int, char** arguments)
{
    void *kernel = dlopen(arguments[1], RTLD_NOW), *tails = dlopen(arguments[2], RTLD_NOW);
    const auto launch = symbol<int(void*, void*, void*, int)>(kernel, "vpps_launch");
    const auto wait = symbol<long(void*, int)>(kernel, "vpps_wait");
    void* machine = symbol<void*(int, int)>(kernel, "vpps_open")(atoi(arguments[3]), 1);
    symbol<void(void*, void*)>(kernel, "vpps_set_tails")(machine, symbol<void>(tails, "vpps_tails"));
    for (uint32_t words[2]; fread(words, 4, 2, stdin) == 2;) {
        void* of[2];
        for (int k = 0; k < 2; k++) {
            of[k] = aligned_alloc(64, ((size_t)words[k] + 15) / 16 * 64);
            if (fread(of[k], 4, words[k], stdin) != words[k]) return 2;
        }
        long result = launch(machine, of[1], of[0], 0) ? -1 : 3;
        while (result < 0) result = wait(machine, 1000);
        if (result) return 3;
        fwrite(of[1], 4, words[1], stdout);
        free(of[0]), free(of[1]);
    }
}
