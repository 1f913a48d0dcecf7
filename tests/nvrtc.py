"""For tests that compile with NVRTC: skip conditions, GPUs, and a kernel that caches weights in registers."""

from __future__ import annotations

import os
import platform
import struct
import sys

import pytest

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")  # Turing to Blackwell

# Each takes 5 to 40 seconds: CI compiles a selection, VPPS_TEST_ARCHS=all every kernel of a matrix.
COMPILE_ALL = os.environ.get("VPPS_TEST_ARCHS") == "all"

# If wheels exist for the platform, group "dev" installs them, and a test that does not find them fails.
needs_nvrtc = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason=f"NVIDIA publishes no NVRTC for {sys.platform} on {platform.machine()}",
)

_INTERPRETER = """
struct Launch {{ float* pool; const unsigned* script; }};

extern "C" __global__ void __launch_bounds__(256, 1) vpps_kernel(const Launch launch{parameter})
{{
    extern __shared__ float shared[];
    const int lane = threadIdx.x;
    float* home = launch.pool + (blockIdx.x * {cached} + 1) * 256 + lane;
    float weight[{cached}];
    #pragma unroll
    for (int i = 0; i < {cached}; i++) weight[i] = home[i * 256];

    const unsigned* at = launch.script + launch.script[4 + blockIdx.x];
    #pragma unroll 1
    for (;; at += 4) {{
        asm volatile("" ::: "memory");
        const unsigned opcode = at[0];
        const float* x = launch.pool + at[1];
        float* y = launch.pool + at[2];
        switch (opcode) {{
        case 1: {{
            shared[lane] = x[lane];
            __syncthreads();
            float sum = 0.f;
            #pragma unroll
            for (int i = 0; i < {cached}; i++) sum = __fmaf_rn(weight[i], shared[i], sum);
            y[lane] = sum;
            break;
        }}
        case 2: {{
            #pragma unroll
            for (int i = 0; i < {cached}; i++) weight[i] = __fmaf_rn(x[i], y[lane], weight[i]);
            break;
        }}
        case 3: y[lane] = x[lane] + y[lane]; break;
        case 4: y[lane] = x[lane] * y[lane]; break;
        case 5: y[lane] = x[lane] > 0.f ? x[lane] : 0.f; break;
        case 6: y[lane] = __frcp_rn(x[lane]); break;
        case 7: y[lane] = y[lane] / x[lane]; break;
        case 8: y[lane] = sqrtf(x[lane]); break;
        case 9: {{
            float sum = x[lane];
            #pragma unroll
            for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
            y[lane] = sum;
            break;
        }}
        {case}
        default:
            #pragma unroll
            for (int i = 0; i < {cached}; i++) home[i * 256] = weight[i];
            return;
        }}
        __syncthreads();
    }}
}}
"""


def registers_and_stack(image: bytes, kernel: str) -> tuple[int, int]:
    """Return registers and stack size, which the driver reads from entries (attribute, symbol, value) in .nv.info.

    NVIDIA does not document them; `cuobjdump --dump-elf` calls them EIATTR_REGCOUNT and EIATTR_MIN_STACK_SIZE (for a
    kernel, including the functions it calls).
    """

    def text(start: int) -> str:
        return image[start : image.index(b"\0", start)].decode()

    (table,) = struct.unpack_from("<Q", image, 0x28)  # System V ABI, chapter 4
    entry_size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", image, table + i * entry_size) for i in range(count)]
    sections = {text(headers[names][4] + header[0]): header for header in headers}
    (*_, info, info_size, _, _), (*_, symbols, _, link, _) = sections[".nv.info"], sections[".symtab"]
    found = {}
    position = info
    while position < info + info_size:
        form, attribute, size = struct.unpack_from("<BBH", image, position)
        position += 4
        if form != 4:  # not EIFMT_SVAL: no value follows
            continue
        if size == 8:
            symbol, value = struct.unpack_from("<II", image, position)
            (name,) = struct.unpack_from("<I", image, symbols + 24 * symbol)
            if text(headers[link][4] + name) == kernel:
                found[attribute] = value
        position += size
    return found[0x2F], found[0x12]


def interpreter(cached: int, parameter: str = "", case: str = "") -> str:
    """Return the source of a kernel that keeps weights in registers around an interpreter's loop.

    Args:
        cached: floats per thread.
        parameter: a kernel parameter besides Launch.
        case: one more instruction, which may use `weight`, `x`, `y`, `lane` and `at`.
    """
    return _INTERPRETER.format(cached=cached, case=case, parameter=parameter and f", {parameter}")
