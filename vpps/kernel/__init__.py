"""Kernel source from templates, compiled binaries from source, both cached.

`render.py` renders `templates/` for what `spec.py` and `chip.py` say. `host_compiler.py` compiles for the cpu,
`simt_compiler.py` for the emulator, `nvrtc.py` cubins; `resources.py` says what these need; `ziglang.py` is the
compiler of last resort; `processes.py` ends compilers with whoever waits; `cache/` keeps what was compiled,
`prebuilt.py` finds what came compiled with the package. `shared_types.py` renders what Python shares with compiled
code.

On `cpu` the weights live in memory and shapes come with the script, so one binary per instruction set serves every
model (compiled in some 9 s, once, or in the wheel). On `cuda` and `simt` the kernel is specialised to the model.

The cache's key has what `nvrtcVersion()` says and the library's size; `explain()` and every bench line name NVRTC and
driver by their own answers. A matrix in CI compiles every kernel by 13.0.88 and the newest.

Tests compile a covering selection of cubins - every program, architecture and instruction, the most registers;
`tests/nvrtc.py` says how all are compiled, some ten processor minutes. Tests that use an emulated handle in several
ways say so ahead (`example=`), so that one kernel serves; those that need a cache of their own get one with the usual
kernels in it (`tests/caches.py`).
"""
