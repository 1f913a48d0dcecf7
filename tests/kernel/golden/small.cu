// vpps 0.1.0: forward, backward and update in one launch, guided by a script.
// Rendered from templates/kernel.cu.j2 for target cuda: 2 matrices in 2 slots.
// Begin at the end, with the kernel: a case per instruction. What a case calls is above it, a section per file of templates/.

// ---- configuration
#define VP_PANEL 1                  // units are dealt one by one
#define VP_TILE_COLUMNS 64          // columns of a tile of a matrix in memory
#define VP_SCRIPT_WORDS 2048        // of the script are in shared memory at a time
#define VP_GROUPS 1                 // of virtual processors, as many in each
#define VP_COUNT 0                  // virtual processors; 0: any number, as the launch says
#define VP_SLOTS 2                  // that hold weights on the chip
#define VP_CACHED 1                 // floats of weights and gradients in the registers of every thread
#define VP_AMPLE 1                  // there are registers for more that is on its way
#define VP_TILE 8                   // vectors whose products with the slots are summed up at a time
#define VP_TILES 2                  // such tiles of a pass: vectors that are brought and finished together
#define VP_STAGE 32                 // floats of a vector in shared memory
#define VP_STAGED 1024              // floats of all vectors there; room, too, for the weights or gradients of a slot
#define VP_MOST 1                   // floats that a slot takes of each thread, at most
#define VP_BUFFERS 2                // such sets of vectors in shared memory: 2 where the next one comes meanwhile
#define VP_SUMS 128                 // floats of partial sums
#define VP_RESULTS 1280             // floats of products that wait for a tail; 0: in scratch memory
#define VP_DENSE 0                  // matrices in windows
#define VP_HOMES 0                  // of these that registers hold until they are needed
#define VP_WINDOWS_AT 2688          // floats of shared memory in front of the windows
#define VP_WINDOW_FLOATS 0          // of all windows
#define VP_PRODUCT_TILES 0          // shapes of what a warp computes of products with them
#define VP_MOST_VECTORS 0           // that are multiplied by a matrix in a window at a time
#define VP_CHUNKS 0                 // floats of shared memory for chunks of vectors that are multiplied by them
#define VP_CHUNK_COLUMNS 0          // of a chunk
#define VP_PLACES 512               // of segments of vectors that are looked up together
#define VP_KEEPS 0                  // gradients of some matrices stay on the chip until the update
#define VP_GRADIENTS_AT 0           // floats of shared memory behind which gradients are added up
#define VP_GRADIENT_ROWS 128        // of a tile of a gradient, VP_TILE_COLUMNS columns wide
#define VP_GRADIENT_VERTICES 32     // that are brought together to add up gradients
#define VP_SEGMENT 64               // vertices for which a gradient's sum has one more segment
#define VP_MOST_SEGMENTS 8          // of such segments
#define VP_SHARED_TILES 1024        // partial tiles of a gradient in memory; with more, segments are not divided
#define VP_TURNS 0                  // rows of some matrices are dealt in turns, not by parts
#define VP_MOST_SUMS 1              // of listed rows, that a tail begins with
#define VP_CHAINS 0                 // tails take the results of products

// ---- words of the script
#define VP_HEADER_WORDS 4           // of a script; then one entry point per virtual processor
#define VP_HEAD_WORDS   5           // of an instruction
#define VP_INDEXED      0x80000000u  // bits of an operand's mode: rows are found through an index list,
#define VP_SCALAR       0x40000000u  // a float per row serves every unit,
#define VP_OFFSET_MASK  0x1fffffffu  // offset within a row, or stride between rows
#define VP_COUNTERS     8           // of signals
enum { ACCUMULATE = 1, ROWS = 2, MEAN = 4, NO_GRADIENT = 8, ALONE = 16, OWNED = 32, TURNS = 64, ALL = 128, CHAINED = 256, BF16 = 512, TF32 = 1024, PAIRS = 2048 };  // flags
enum { USE_READ = 0, USE_WRITE = 1, USE_SUM = 2, USE_MEAN = 3, USE_CONSTANT = 4, USE_RESULT = 5 };  // of a tail's view
struct Hyper { float lr, weight_decay, beta1, complement1, beta2, complement2, eps, step_size, inv_sqrt_correction; };  // of an optimizer

// ---- slots of weights: R rows of a group of warps, C columns a lane, W warps along a row; AT is the first
// register, or unit of shared memory; KEEPS_GRADIENT: the gradient takes the place of the weights at the end of a launch;
// KIND: 0 floats, or fragments for tensor cores
template <int S> struct Slot;
template <> struct Slot<0> { enum { R = 1, C = 1, W = 1, AT = 0, IN_REGISTERS = 1, KEEPS_GRADIENT = 0, TRAINED = 1, KIND = 0 }; };
template <> struct Slot<1> { enum { R = 1, C = 1, W = 1, AT = 0, IN_REGISTERS = 0, KEEPS_GRADIENT = 0, TRAINED = 0, KIND = 0 }; };

// The same for code that is not to be there once for each slot; it ends with one that is none.
struct SlotShape { int rows, columns, warps; };
__constant__ const SlotShape SHAPES[] = {
    {1, 1, 1},
    {1, 1, 1},
    {0, 0, 1},
};

struct Range { int first, last, columns; };  // slots, and columns of a row in them: at least those of the matrix
__constant__ const Range MATRICES[] = {
    {0, 0, 0},  // in memory
    {0, 1, 32},  // W 8x16 as 1 x (1, 1, 1)
    {1, 2, 32},  // W^T 16x8 as 1 x (1, 1, 1)
};
__device__ __forceinline__ Range slots_of(unsigned matrix) { return MATRICES[matrix <= 2 ? matrix : 0]; }

#include "cuda/ptx.cuh"
#include "cuda/prelude.cuh"
#include "math.cuh"
#include "script.cuh"

// ---- instructions, decoded: the fields of each form (vpps/script/instructions.py) in the order of their words
struct Map1 {
    Head head;
    Operand dst;
    Operand a;
    float value;
    VP_DEVICE static Map1 decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.operand(), in.operand(), in.floating()};
    }
};

struct Row1 {
    Head head;
    Operand dst;
    Operand a;
    Word row_width;
    const Word* labels;
    float value;
    VP_DEVICE static Row1 decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.operand(), in.operand(), in.word(), in.list(), in.floating()};
    }
};

struct Row3 {
    Head head;
    Operand dst;
    Operand a;
    Operand b;
    Operand c;
    Word row_width;
    const Word* labels;
    float value;
    VP_DEVICE static Row3 decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.operand(), in.operand(), in.operand(), in.operand(), in.word(), in.list(), in.floating()};
    }
};

struct GatherSum {
    Head head;
    Operand dst;
    const Word* offsets;
    Word shift;
    VP_DEVICE static GatherSum decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.operand(), in.list(), in.word()};
    }
};

struct Tail {
    Head head;
    Word number;
    Segments views;
    VP_DEVICE static Tail decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word(), in.views()};
    }
};

struct Matvec {
    Head head;
    Operand dst;
    Operand bias;
    Word weights;
    Word columns;
    Word matrix;
    Segments x;
    VP_DEVICE static Matvec decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.operand(), in.operand(), in.word(), in.word(), in.word(), in.segments()};
    }
};

struct Load {
    Head head;
    Word weights;
    Word columns;
    Word matrix;
    VP_DEVICE static Load decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word(), in.word(), in.word()};
    }
};

struct OuterTiles {
    Head head;
    Word partials;
    Word columns;
    Word sums;
    Word turn;
    Operand dy;
    Segments x;
    VP_DEVICE static OuterTiles decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word(), in.word(), in.word(), in.word(), in.operand(), in.segments()};
    }
};

struct StepTiles {
    Head head;
    Word hyper;
    Word moment0;
    Word moment1;
    Word average;
    float complement;
    Word weights;
    Word columns;
    Word transposed;
    Word gradient;
    Word partials;
    VP_DEVICE static StepTiles decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word(), in.word(), in.word(), in.word(), in.floating(), in.word(), in.word(), in.word(), in.word(), in.word()};
    }
};

struct Watch {
    Head head;
    Operand dy;
    Word terms;
    Segments x;
    VP_DEVICE static Watch decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.operand(), in.word(), in.segments()};
    }
};

struct Guard {
    Head head;
    Word loss;
    Word left_out;
    VP_DEVICE static Guard decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word(), in.word()};
    }
};

struct UpdateRows {
    Head head;
    Word weights;
    Word gradient;
    Word moment0;
    Word moment1;
    Word average;
    float complement;
    Word hyper;
    const Word* table_rows;
    const Word* idle;
    VP_DEVICE static UpdateRows decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word(), in.word(), in.word(), in.word(), in.word(), in.floating(), in.word(), in.list(), in.list()};
    }
};

struct Loss {
    Head head;
    Word source;
    Word slot;
    VP_DEVICE static Loss decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word(), in.word()};
    }
};

struct Signal {
    Head head;
    Word counter;
    VP_DEVICE static Signal decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word()};
    }
};

struct Wait {
    Head head;
    Word counter;
    Word target;
    VP_DEVICE static Wait decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head(), in.word(), in.word()};
    }
};

struct End {
    Head head;
    VP_DEVICE static End decode(const Vp& vp, const Word* ip)
    {
        Reader in(vp, ip);
        return {in.head()};
    }
};

#include "cuda/sync.cuh"
#include "elementwise.cuh"
#include "ops/elementwise.cuh"
#include "ops/rowwise.cuh"
#include "ops/lists.cuh"
#include "random.cuh"
#include "guard.cuh"
#include "optimizers.cuh"
#include "cuda/dropout.cuh"
#include "cuda/slots.cuh"
#include "cuda/loads.cuh"
#include "cuda/staging.cuh"
#include "cuda/products.cuh"
#include "cuda/matrix.cuh"
#include "cuda/tiles.cuh"
#include "cuda/matmul.cuh"
#include "tails.cuh"
#include "cuda/tails.cuh"

// ---- elementwise instructions of one form share a loop, in which all threads take the same branch
VP_DEVICE float apply(Word opcode, const Rows<1>& r, const int (&u)[1], float value)
{
    switch (opcode) {
    case 61: return apply<&Tanh::forward>(r, u, value);
    case 75: return apply<&Copy::forward>(r, u, value);
    default: return 0.f;
    }
}

VP_DEVICE void map(const Vp& vp, const Map1& i)
{
    map_rows(vp, i, sources(i), [&](const auto& row, const auto& units) { return apply(i.head.opcode, row, units, i.value); });
}

// ---- programs of tails, made of cells (vpps/compiler/passes/fusion.py)
struct Tail_c694e9fc {
    enum { VIEWS = 3, SUMS = 1 };
    VP_DEVICE static void unit(const Unit& at)
    {
        const float v0 = at.sum(0);
        const float v1 = at.load(1);
        const float v2 = Tanh::backward(0.f, v1, v0, 0.f);
        at.store(2, v2);
    }
};

// One loop for all of them, in which all threads take the same branch; and one for those that take a product's results.
VP_DEVICE void compute_alone(Word number, const Unit& at)
{
    switch (number) {
    case 0xc694e9fcu: return Tail_c694e9fc::unit(at);
    default: return stop(at.vp, at.vp.position, UNKNOWN_INSTRUCTION);
    }
}
VP_DEVICE void compute_chained(Word number, const Unit& at)
{
    switch (number) {
    default: return stop(at.vp, at.vp.position, UNKNOWN_INSTRUCTION);
    }
}

VP_ROUTINE void tail(const Vp& vp, const Tail& i)
{
    for_tail(vp, i, [&](const Unit& at) { compute_alone(VP_OPAQUE(i.number), at); });
}
#if VP_CHAINS
VP_DEVICE void chained_tail(const Vp& vp, const Word* ip, const Owned& owned, int first, int last)
{
    const Tail i = Tail::decode(vp, ip);
    for_chained(vp, i, owned, first, last, [&](const Unit& at) { compute_chained(VP_OPAQUE(i.number), at); });
}
#endif

// ---- the kernel: every virtual processor interprets its script
VP_GLOBAL void __launch_bounds__(256, 1) vpps_kernel(const Launch launch)
{
    Vp vp;
    if (!enter(vp, launch)) return;
    for (Coming coming = {0, 0};;) {  // a script begins with loads
        const Word* ip = fetch(vp);
        const bool more = opcode_of(ip) == 6;
        if (!VP_AGREED(load(vp, ip, more, coming))) break;
        vp.position += size_of(ip);
    }
    bool going = true;
    Word position;
    do {
        const Word* ip = fetch(vp);
        if (opcode_of(ip) >= 48) vp.slices = slices_of(vp, ip);
        switch (opcode_of(ip)) {
        case 0: going = false; break;
        case 1: signal(vp, Signal::decode(vp, ip)); break;
        // A barrier's words begin as those of a signal, and are those of a wait.
        case 2: signal(vp, Signal::decode(vp, ip)); [[fallthrough]];  // barrier
        case 3: going = wait(vp, Wait::decode(vp, ip)); break;
        case 4: held_matvec(vp, Matvec::decode(vp, ip)); break;
        case 11: outer_tiles(vp, OuterTiles::decode(vp, ip)); break;
        case 18: going = guard(vp, Guard::decode(vp, ip)); break;
        case 19: report_loss(vp, Loss::decode(vp, ip)); break;  // loss
        case 35: step_tiles<Adam>(vp, StepTiles::decode(vp, ip)); break;  // step_tiles.adam
        case 51: gather_sum(vp, GatherSum::decode(vp, ip)); break;
        case 53: matvec(vp, Matvec::decode(vp, ip)); break;
        case 60: watch(vp, Watch::decode(vp, ip)); break;
        case 157: rowwise<&CrossEntropy::forward>(vp, Row1::decode(vp, ip)); break;  // cross_entropy
        case 158: rowwise<&CrossEntropy::backward>(vp, Row3::decode(vp, ip)); break;  // cross_entropy.grad0
        case 182: tail(vp, Tail::decode(vp, ip)); break;
        case 190: update_rows<Adam>(vp, UpdateRows::decode(vp, ip)); break;  // update_rows.adam
        case 61: case 75: map(vp, Map1::decode(vp, ip)); break;  // tanh, copy
        default: vp.why = UNKNOWN_INSTRUCTION, going = false;
        }
        position = vp.position;
        vp.position += words_of(ip);
    } while (VP_AGREED(going));
    if (vp.why) stop(vp, position, vp.why);
}

