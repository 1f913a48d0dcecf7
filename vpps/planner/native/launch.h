// A launch that is being planned: the state shared by all phases of planning.
#pragma once

#include "call.h"
#include "reach.h"
#include "streams.h"

// Relocation values for the instructions that belong to no cell.
class FrameValues {
public:
    i64& operator[](Frame relocation) { return values_[static_cast<i64>(relocation)]; }
    i64 at(i64 relocation) const { return values_[relocation]; }

private:
    i64 values_[FRAME] = {};
};

struct LaunchPlan {
    const Model& model;
    Call* call = nullptr;
    RowsOfBlocks rows;
    Reach reach;
    Lists lists;
    Script script;
    Streams streams{model, script};
    Account* account = nullptr;  // null if not requested
    i64 cursor = 0;  // first free address of the pool
    i64 names = 0;   // bit mask of instructions that belong to no cell
    FrameValues frame;

    explicit LaunchPlan(const Model& of) : model(of) {}

    void begin(Call* of)
    {
        call = of;
        call->words = call->n_tables = call->entries = names = 0;
        account = call->account ? &noted_ : nullptr;
        if (account)
            account->begin();
        lists.draws.begin(*call);
        script.reset(pointer<u32>(call->script), call->capacity);
    }

    // ---- for the account: context of the next instructions

    // Sets the origin for the next instructions.
    void note(Origin made, i64 a = 0)
    {
        if (account)
            note_for_account(made, nullptr, a, 0, 0);
    }
    void note(Origin made, const Block& block, i64 a, i64 b, i64 step = 0)
    {
        if (account)
            note_for_account(made, &block, a, b, step);
    }
    void begin_stage(bool backward, i64 stage)
    {
        if (account)
            settled().begin_stage(backward, stage);
    }
    void begin_phase(LaunchPhase during)
    {
        if (account)
            settled().begin_phase(during);
    }
    // Sets the reason for the next barriers.
    void set_reason(Reason reason)
    {
        if (account)
            settled().set_reason(reason, 0);
    }

    // Allocates pool memory for the whole launch.
    i64 take(i64 floats)
    {
        const i64 start = cursor;
        cursor = aligned(start + floats);
        if (account)
            account->take(start, floats);
        return start;
    }

    // ---- lists

    // Adds room for a list; returns its position and its words. `goes_on`: it extends the previous list.
    i64 place(i64 n, u32*& words, bool goes_on = false)
    {
        const i64 at = script.size;
        if (account)
            account->list(at, n, goes_on);
        words = script.add(n);
        return at;
    }

    i64 place_words(const u32* from, i64 n, bool goes_on = false)
    {
        u32* words;
        const i64 at = place(n, words, goes_on);
        std::copy_n(from, n, words);
        return at;
    }

    // ---- instructions

    // Begins the streams. All lists precede them.
    void begin_instructions(i64 launches)
    {
        u32* words;
        call->n_launches = launches;
        if (launches > 1)
            call->entries = place(n_entries() * (launches - 1), words);
        streams.reset(account);
    }

    // Adds room for instructions in one stream, or in all. The words may change until the next instructions begin.
    u32* room(i64 n, i64 stream = ALL)
    {
        return stream == ALL ? streams.add_for_all(n) : streams.add(stream, n);
    }

    void write(Origin made, const Instruction& instruction, i64 parameter = 0, u32 flags = 0)
    {
        note(made, parameter);
        u32* words = room(size(instruction.words));
        fill(instruction, words);
        words[0] |= flags;
    }

    // Writes an instruction to the first stream only.
    void write_once(Origin made, const Instruction& instruction)
    {
        note(made);
        fill(instruction, room(size(instruction.words), 0));
    }

    static void fill(const Block& b, const Template& group, i64 step, const i64* first, const i64* count, u32* words)
    {
        const i64 n_bases = b.n_bases(), n_lists = static_cast<i64>(b.list_at.size());
        const i64 *bases = b.bases.data() + step * n_bases, *lists = b.list_at.data();
        const u32* constants = b.constants;
        const auto base_of = [=](i32 base) {
            const i64 i = base - n_bases;
            return i < 0 ? bases[base] : i < n_lists ? lists[i] : i64{constants[i - n_lists]};
        };
        ::fill(group, words, base_of, first, count);
    }

    // Writes one of a step's instruction groups, for the virtual processors that run the step.
    void write_step(const Block& b, const Template& group, i64 step)
    {
        const i64 at = step * b.domains();
        fill(b, group, step, &b.first_row[at], &b.count[at], room(size(group), b.group_of(step)));
    }

    // Writes an instruction on all rows of a block that run backward.
    u32* write_needed(const Block& b, const Instruction& instruction)
    {
        first_.assign(b.domains(), 0);
        count_.clear();
        for (i32 d = 0; d < b.domains(); d++)
            count_.push_back(b.needed_rows(d));
        names |= i64{1} << instruction.name;
        u32* words = room(size(instruction.words));
        fill(b, instruction.words, 0, first_.data(), count_.data(), words);
        return words;
    }

    // Loads the used weights onto the chip.
    void load(bool training)
    {
        for (const Load& load : model.loads)
            for (const Block& b : rows) {
                const bool both = training && b.n_needed > 0;
                const auto& numbers = both ? b.cell->matrices_of_training : b.cell->matrices_of_forward;
                if (std::find(numbers.begin(), numbers.end(), load.number) == numbers.end())
                    continue;
                note(Origin::LOAD, load.parameter);
                std::copy(load.words.words.begin(), load.words.words.end(), room(size(load.words)));
                names |= i64{1} << model.load_name;
                break;
            }
    }

    // Ends the streams of instructions, and the script. Returns false if the script did not fit into its buffer.
    bool finish()
    {
        streams.finish();
        call->words = script.size;
        call->n_barriers = streams.n_barriers();
        if (!script.complete())
            return false;
        script.at(0)[3] = static_cast<u32>(script.size);
        const size_t n_streams = streams.begins.size() / call->n_launches;
        for (i64 i = 0; i < call->n_launches; i++)
            enter(i ? call->entries + (i - 1) * n_entries() : HEADER, streams.begins.data() + i * n_streams, n_streams);
        return true;
    }

    // Returns the addresses of the account's arrays, which are valid until the next plan.
    void report(AccountResult& into) { noted_.report(streams.begins, into); }

private:
    static constexpr i64 ALL = -1;
    static constexpr i64 HEADER = 4;  // words before the entry points
    std::vector<i64> first_, count_;  // by domain
    Account noted_;

    i64 n_entries() const { return static_cast<i64>(model.header.size()) - HEADER; }

    RARELY void note_for_account(Origin made, const Block* block, i64 a, i64 b, i64 step)
    {
        const bool forward = made == Origin::FORWARD || made == Origin::LOSS;
        const LaunchPhase during = forward ? LaunchPhase::FORWARD : account->during;
        const i64 first = block ? block->first_row[step * block->domains()] : 0;
        settled().next = {0, static_cast<i64>(made), block ? block - rows.blocks.data() : -1, a, b, first, 0, 0,
                          static_cast<i64>(during)};
    }

    // Writes all streams' pending instructions, which belong to the previous origin; returns the account.
    RARELY Account& settled()
    {
        streams.give_to_all();
        return *account;
    }

    // Writes a launch's entry points: virtual processors share the streams evenly.
    void enter(i64 at, const i64* begins, size_t n_streams)
    {
        const auto n = static_cast<size_t>(n_entries());
        for (size_t vp = 0; vp < n; vp++)
            script.at(at)[vp] = static_cast<u32>(begins[vp * n_streams / n]);
    }

    void fill(const Instruction& instruction, u32* words)
    {
        const i64 none = 0;
        ::fill(instruction.words, words, [&](i32 base) { return frame.at(base); }, &none, &none);
        names |= i64{1} << instruction.name;
    }
};
