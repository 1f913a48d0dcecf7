// An interpreter whose instructions do next to nothing: what fetching, decoding and branching cost. FETCH: from where.
#include "ptx.cuh"

#define FROM_GLOBAL 0     // every thread reads the instruction's 32 bytes
#define PREFETCHED 1      // so, but one instruction ahead
#define FROM_SHARED 2     // chunks of the script are copied to shared memory first

constexpr Word CHUNK = 256; // instructions

/// One of 16 instructions that differ in a constant: state = state * (2 k + 3) + all other words, so that none of them is
/// left unread.
DEVICE Word execute(uint4 head, uint4 operands, Word state)
{
    const Word operand = head.y ^ head.z ^ head.w ^ operands.x ^ operands.y ^ operands.z ^ operands.w;
    Word result = state;
#define INSTRUCTION(k) \
    case k: result = multiply_add<2 * k + 3>(state, operand); break;
    switch (head.x) {
        INSTRUCTION(0) INSTRUCTION(1) INSTRUCTION(2) INSTRUCTION(3) INSTRUCTION(4) INSTRUCTION(5) INSTRUCTION(6)
        INSTRUCTION(7) INSTRUCTION(8) INSTRUCTION(9) INSTRUCTION(10) INSTRUCTION(11) INSTRUCTION(12) INSTRUCTION(13)
        INSTRUCTION(14) INSTRUCTION(15)
    default: result = ~state;
    }
#undef INSTRUCTION
    return result;
}

/// script: two uint4 per instruction, the opcode in .x of the first; `count` of them, a multiple of CHUNK, gone through
/// `repeats` times; states: one word per thread. SYNC: a block barrier after each instruction.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
interpreter(const uint4* script, Word* states, Word count, Word repeats)
{
    Word state = blockIdx.x * THREADS + threadIdx.x;
    uint4* chunk = reinterpret_cast<uint4*>(shared());
#pragma unroll 1
    for (Word k = 0; k < repeats; ++k) {
        uint4 head = load_constant(script), operands = load_constant(script + 1);
#pragma unroll 1
        for (Word i = 0; i < count; ++i) {
            if (FETCH == FROM_SHARED) {
                if (i % CHUNK == 0) {
                    __syncthreads();
#pragma unroll 2
                    for (Word j = threadIdx.x; j < 2 * CHUNK; j += THREADS)
                        chunk[j] = load_constant(script + 2 * i + j);
                    __syncthreads();
                }
                head = chunk[i % CHUNK * 2], operands = chunk[i % CHUNK * 2 + 1];
                state = execute(head, operands, state);
            } else if (FETCH == PREFETCHED) {
                const Word next = i + 1 < count ? i + 1 : 0;
                const uint4 next_head = load_constant(script + 2 * next);
                const uint4 next_operands = load_constant(script + 2 * next + 1);
                state = execute(head, operands, state);
                head = next_head, operands = next_operands;
            } else {
                head = load_constant(script + 2 * i), operands = load_constant(script + 2 * i + 1);
                state = execute(head, operands, state);
            }
            if (SYNC) __syncthreads();
        }
    }
    states[blockIdx.x * THREADS + threadIdx.x] = state;
}
