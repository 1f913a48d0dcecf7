"""Kernel source from templates, compiled binaries from source, both cached.

`render.py` renders `templates/` for a kernel described by `spec.py` and `chip.py`. `host_compiler.py` compiles for the
cpu, `simt_compiler.py` for the emulator, `nvrtc.py` compiles cubins, and `resources.py` reads their resource usage.
`ziglang.py` is the fallback compiler. `processes.py` kills compilers that are no longer needed. `cache/` stores
binaries, `prebuilt.py` finds those in the package. `shared_types.py` generates C++ declarations of Python types.

On `cpu`, the weights are in memory and shapes come with the script, so one binary per instruction set serves every
model (in the wheel, or compiled once in some 9 s). On `cuda` and `simt`, the kernel is specialised to the model.

The cache key contains the result of `nvrtcVersion()` and the library's size. `explain()` and every bench line print the
versions that NVRTC and the driver report. A CI matrix compiles every kernel with NVRTC 13.0.88 and the newest version.

Tests compile a covering selection of cubins: every program, architecture and instruction, and the most registers.
`tests/nvrtc.py` explains how to compile all of them, in some ten processor minutes. Tests that use an emulated handle
in several ways give it all examples first (`example=`), so that one kernel suffices. Tests that need a separate cache
get a cache that holds the usual kernels (`tests/caches.py`).
"""
