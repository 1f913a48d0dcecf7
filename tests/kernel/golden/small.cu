// vpps 0.1.0: forward, backward and update in one launch, guided by a script.
// Rendered from templates/kernel.cu.j2 for target cuda: 2 groups, 1 in windows.
// Read the kernel at the end first: it has a case per instruction. Routines are above it, in a section per file of templates/.

// ---- configuration
#define VP_PANEL 1                  // units are dealt one by one
#define VP_TILE_COLUMNS 64          // columns of a tile of a matrix in memory
#define VP_SCRIPT_WORDS 2048        // words of the script in shared memory at a time
#define VP_GROUPS 2                 // groups of virtual processors, of equal size
#define VP_COUNT 0                  // virtual processors; 0: any number, given by the launch
#define VP_SLOTS 0                  // slots of weights in registers
#define VP_CACHED 0                 // words of weights in the registers of every thread
#define VP_TILE 8                   // vectors that a thread multiplies by a slot at a time
#define VP_STAGE 0                  // stride in floats of such vectors in shared memory
#define VP_STAGED 2304              // floats of shared memory for vectors
#define VP_SUMS 2304                // floats of partial sums
#define VP_RESULTS 1280             // floats for results of products with a chained tail
#define VP_HOMES 0                  // matrices in registers that a product copies to a window
#define VP_CHANGING_WINDOWS 0       // 1: the content of windows changes during a launch
#define VP_WINDOWS_OF_CHUNKS 0      // 1: some windows hold only a chunk of their matrix
#define VP_FRAGMENTS 0              // 1: tensor cores multiply some windows
#define VP_WINDOWS_AT 5888          // floats of shared memory before the windows
#define VP_WINDOW_FLOATS 160        // floats of all windows
#define VP_PRODUCT_TILES 3          // shapes of a warp's tile of a product with a window
#define VP_MOST_VECTORS 32          // maximum vectors that a window multiplies at a time
#define VP_CHUNKS 1280              // floats of shared memory for the vectors of such products
#define VP_CHUNK_COLUMNS 16         // columns of a chunk of vectors
#define VP_PLACES 512               // segment addresses of vectors that are looked up together
#define VP_GRADIENT_ROWS 128        // rows of a gradient's tile, VP_TILE_COLUMNS columns wide
#define VP_GRADIENT_VERTICES 32     // vertices per step of a gradient sum
#define VP_SEGMENT 64               // a gradient sum has one segment per so many vertices
#define VP_MOST_SEGMENTS 8          // maximum number of segments
#define VP_SHARED_TILES 1024        // partial tiles of a gradient in memory; with more, segments are not divided
#define VP_TURNS 0                  // 1: rows of matrices are dealt in turns, not by parts
#define VP_MOST_SUMS 1              // maximum sums of listed rows in a tail
#define VP_CHAINS 0                 // 1: some tails are chained to products

// ---- words of the script
#define VP_HEADER_WORDS 4           // script header; then one entry point per virtual processor
#define VP_HEAD_WORDS   5           // head of an instruction
#define VP_INDEXED      0x80000000u  // bits of an operand's mode: an index list gives the rows,
#define VP_SCALAR       0x40000000u  // one float per row serves every unit,
#define VP_OFFSET_MASK  0x1fffffffu  // offset within a row or stride between rows
#define VP_COUNTERS     8           // number of signal counters
enum { ACCUMULATE = 1, ROWS = 2, MEAN = 4, NO_GRADIENT = 8, ALONE = 16, TURNS = 32, ALL = 64, CHAINED = 128, BF16 = 256, TF32 = 512, PAIRS = 1024 };  // flags
enum { USE_READ = 0, USE_WRITE = 1, USE_SUM = 2, USE_MEAN = 3, USE_CONSTANT = 4, USE_RESULT = 5 };  // uses of a tail's view
struct Hyper { float lr, weight_decay, beta1, complement1, beta2, complement2, eps, step_size, inv_sqrt_correction; };  // hyper-parameters of an optimizer

// ---- windows: places of matrix rows in shared memory, and product tiles for few, some and many vectors
enum { BF16_FRAGMENTS = 1, TF32_FRAGMENTS, TF32_PAIRS };  // elements for tensor cores; a pair of tf32 sums to a float32
enum { IN_WINDOW = -1, IN_MEMORY = -2 };  // initial place of a matrix that is not in registers
struct Dense { int window, at, pitch, quads, window_quads, kind, home, few, some, many, few_vectors, some_vectors; };
__constant__ const Dense DENSE[] = {
    {-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {0, 0, 20, 4, 4, 0, -1, 0, 1, 2, 4, 8},  // W 8x16
};
__device__ __forceinline__ Dense dense(unsigned matrix) { return DENSE[matrix <= 1 ? matrix : 0]; }

// Matrices in registers, from register AT on, with QUADS times four words per thread.
template <int H> struct Home;

// Tiles of products: a lane covers RT rows and VT vectors, at strides of LR rows and LV vectors. On tensor cores, a warp
// covers RT by VT products of 16 rows and 8 vectors.
template <int T> struct ProductTile;
template <> struct ProductTile<0> { enum { LV = 4, LR = 8, RT = 1, VT = 1, VECTORS = 4, PITCH = 9, KIND = 0, FEW = 1, MANY = 0 }; };
template <> struct ProductTile<1> { enum { LV = 4, LR = 8, RT = 1, VT = 2, VECTORS = 8, PITCH = 9, KIND = 0, FEW = 1, MANY = 0 }; };
template <> struct ProductTile<2> { enum { LV = 8, LR = 4, RT = 2, VT = 4, VECTORS = 32, PITCH = 9, KIND = 0, FEW = 0, MANY = 1 }; };
struct TileShape { int rows, vectors, pitch; };
__constant__ const TileShape PRODUCT_TILES[] = {
    {8, 4, 9},
    {8, 8, 9},
    {8, 32, 9},
};

#include "cuda/ptx.cuh"
#include "cuda/prelude.h"
#include "math.cuh"
#include "script.cuh"

// ---- decoded instructions: each form's fields (vpps/script/instructions.py), in the order of their words
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

#include "cuda/sync.h"
#include "elementwise.cuh"
#include "ops/elementwise.cuh"
#include "ops/rowwise.cuh"
#include "ops/lists.cuh"
#include "random.cuh"
#include "guard.cuh"
#include "optimizers.cuh"
#include "cuda/dropout.cuh"
#include "cuda/held.cuh"
#include "cuda/windows.cuh"
#include "cuda/dense.cuh"
#include "cuda/matrix.cuh"
#include "cuda/tiles.cuh"
#include "cuda/matmul.cuh"
#include "tails.cuh"
#include "cuda/tails.cuh"

// ---- elementwise instructions: those of the same form share a loop, in which all threads take the same branch
VP_DEVICE float apply(Word opcode, const Rows<1>& r, const int (&u)[1], float value)
{
    switch (opcode) {
    case 50: return apply<&Tanh::forward>(r, u, value);
    case 64: return apply<&Copy::forward>(r, u, value);
    default: return 0.f;
    }
}

VP_DEVICE void map(const Vp& vp, const Map1& i)
{
    map_rows(vp, i, sources(i), [&](const auto& row, const auto& units) { return apply(i.head.opcode, row, units, i.value); });
}

// ---- programs of tails, generated from cells (vpps/compiler/passes/fusion.py)
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

// One loop for all tails, in which all threads take the same branch, and another for chained tails (of a product's results).
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
    for (;;) {  // a script begins with loads, whose copies are all in flight together
        const Word* ip = fetch(vp);
        if (!VP_AGREED(opcode_of(ip) == 6)) break;
        load(vp, Load::decode(vp, ip));
        vp.position += size_of(ip);
    }
    copy_async_wait();  // for all loads
    bool going = true;
    Word position;
    do {
        const Word* ip = fetch(vp);
        if (opcode_of(ip) >= 37) vp.slices = slices_of(vp, ip);
        switch (opcode_of(ip)) {
        case 0: going = false; break;
        case 1: signal(vp, Signal::decode(vp, ip)); break;
        // A barrier is a signal and then a wait. Its words have the layout of a wait, and start with those of a signal.
        case 2: signal(vp, Signal::decode(vp, ip)); [[fallthrough]];  // barrier
        case 3: going = wait(vp, Wait::decode(vp, ip)); break;
        case 4: held_matvec(vp, Matvec::decode(vp, ip)); break;
        case 8: outer_tiles(vp, OuterTiles::decode(vp, ip)); break;
        case 14: going = guard(vp, Guard::decode(vp, ip)); break;
        case 15: report_loss(vp, Loss::decode(vp, ip)); break;  // loss
        case 27: step_tiles<Adam>(vp, StepTiles::decode(vp, ip)); break;  // step_tiles.adam
        case 40: gather_sum(vp, GatherSum::decode(vp, ip)); break;
        case 42: matvec(vp, Matvec::decode(vp, ip)); break;
        case 49: watch(vp, Watch::decode(vp, ip)); break;
        case 146: rowwise<&CrossEntropy::forward>(vp, Row1::decode(vp, ip)); break;  // cross_entropy
        case 147: rowwise<&CrossEntropy::backward>(vp, Row3::decode(vp, ip)); break;  // cross_entropy.grad0
        case 171: tail(vp, Tail::decode(vp, ip)); break;
        case 179: update_rows<Adam>(vp, UpdateRows::decode(vp, ip)); break;  // update_rows.adam
        case 50: case 64: map(vp, Map1::decode(vp, ip)); break;  // tanh, copy
        default: vp.why = UNKNOWN_INSTRUCTION, going = false;
        }
        position = vp.position;
        vp.position += words_of(ip);
    } while (VP_AGREED(going));
    if (vp.why) stop(vp, position, vp.why);
}

