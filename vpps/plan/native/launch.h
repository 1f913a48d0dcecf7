// One launch in the making: what its stages share.
#pragma once

#include "call.h"
#include "script.h"

// What the holes of instructions say that no cell makes.
class FrameValues {
public:
    i64& operator[](Frame hole) { return values_[static_cast<i64>(hole)]; }
    i64 at(i64 hole) const { return values_[hole]; }

private:
    i64 values_[FRAME] = {};
};

struct Launch {
    const Model& model;
    Call* call = nullptr;
    RowsOfBlocks rows;
    Lists lists;
    Script script;
    i64 cursor = 0;  // the pool beyond is free
    i64 names = 0;   // bits of the instructions that no group of a cell's makes
    FrameValues frame;

    explicit Launch(const Model& of) : model(of) {}

    void begin(Call* of)
    {
        call = of;
        call->words = call->unseen = names = 0;
    }

    // Memory of the pool for the whole launch.
    i64 take(i64 floats)
    {
        const i64 start = cursor;
        cursor = aligned(start + floats);
        return start;
    }

    // ---- lists

    // Room for a list: its position, and its words.
    i64 place(i64 n, u32*& words)
    {
        const i64 at = script.size;
        words = script.add(n);
        return at;
    }

    i64 place_words(const u32* from, i64 n)
    {
        u32* words;
        const i64 at = place(n, words);
        std::copy_n(from, n, words);
        return at;
    }

    // ---- instructions

    void write(const Instruction& instruction, u32 flags = 0)
    {
        script.join(model);
        u32* words = script.add(size(instruction.words));
        const i64 none = 0;
        fill(instruction.words, words, [&](i32 base) { return frame.at(base); }, &none, &none);
        words[0] |= flags;
        names |= i64{1} << instruction.name;
    }

    u32* write(const Block& b, const Template& group, i64 step, const i64* first, const i64* count)
    {
        script.join(model);
        u32* words = script.add(size(group));
        const i64 n_bases = b.n_bases();
        const i64 *bases = b.bases.data() + step * n_bases, *lists = b.list_at.data();
        const auto base_of = [&](i32 base) { return base < n_bases ? bases[base] : lists[base - n_bases]; };
        fill(group, words, base_of, first, count);
        return words;
    }

    // Lets the chip take in the weights that are used.
    void load(bool training)
    {
        for (const Load& load : model.loads)
            for (i64 k = 0; k < rows.n_blocks; k++) {
                const Block& b = rows.blocks[k];
                const bool both = training && b.n_needed > 0;
                const auto& numbers = both ? b.cell->matrices_of_training : b.cell->matrices_of_forward;
                if (std::find(numbers.begin(), numbers.end(), load.number) == numbers.end())
                    continue;
                script.join(model);
                script.add(load.words.words);
                names |= i64{1} << model.load_name;
                break;
            }
    }
};
