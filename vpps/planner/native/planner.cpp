// The planner: writes the script of a batch. Cells are passed as records (records.py), batches as arrays (inputs.py).

#include "call.h"
#include "grouped_schedule.h"
#include "grouping.h"
#include "policy_calls.h"
#include "index_lists.h"
#include "launch_end.h"
#include "memory_map.h"
#include "paper_schedule.h"
#include "stages.h"

#include <ctime>
#include <exception>

namespace {

class Planner {
public:
    Planner(const PolicyRow& policy, Numbers& automata, Numbers& model) : stages_(policy, automata), model_(model)
    {
        const i64 one_part = 1;
        Numbers numbers(&one_part, 1);  // reading past the 1 gives zeros
        nothing_at_all_.by_key.emplace(std::vector<u8>{false, false}, Parts(numbers));
    }

    i64 add_cell(const CellInput& cell)
    {
        cells_.push_back(std::make_unique<RecordedCell>(RecordedCell{cell, {}, {}}));
        return static_cast<i64>(cells_.size()) - 1;
    }

    bool add_parts(i64 cell, std::vector<u8> key, Numbers& from)
    {
        Parts parts(from);
        if (!from.complete() || parts.parts.empty())
            return false;
        cells_[cell]->by_key.emplace(std::move(key), std::move(parts));
        return true;
    }

    void report(AccountResult* into) { launch_.report(*into); }

    void add_pair(const Pair& pair, i64 answer) { boundaries_.add_pair(pair, answer); }

    void map(MemoryResult& found)
    {
        memory_map_.find(launch_.rows, memory_, found);
        found.n_blocks = n_cells();
    }

    Status plan(Call* call)
    {
        call_ = call;
        memory_.keeps_arrays = call->account;
        launch_.begin(call);
        take_blocks(*call, cells_, graph_);
        graph_.take_present(nothing_at_all_, pointer<const u32>(call->present), call->n_present);
        if (!graph_.number())
            return Status::TORN;
        if (!understood())
            return Status::NO_VALUE;
        find_needed();
        if (const Status lacking = arrange(); lacking != Status::DONE)
            return lacking;
        find_memory();
        if (!place_lists())
            return Status::NO_GRADIENT;
        call->encoding = now();
        if (model_.exclusive)
            write_instructions(paper_);
        else if (in_groups())
            write_instructions(grouped_);
        else
            write_instructions(vector_);
        return finish();
    }

private:
    Stages stages_;
    const Model model_;
    std::vector<std::unique_ptr<RecordedCell>> cells_;
    Graph graph_;
    RecordedCell nothing_at_all_{{0, 0, 0, 1, -1, 0}, {}, {}};
    Call* call_ = nullptr;
    LossChain chain_, nothing_;
    const i64* asked_ = nullptr;  // wanted values, or those that backward begins with
    i64 n_asked_ = 0;
    SlabAllocator memory_;
    MemoryMap memory_map_;
    LaunchPlan launch_{model_};
    ReverseLists reverse_lists_{launch_};
    IndexLists index_lists_{launch_, reverse_lists_};
    Boundaries boundaries_{launch_};
    VectorSchedule vector_{launch_, boundaries_};
    Grouping grouping_;
    GroupedSchedule grouped_{launch_, boundaries_};
    PaperSchedule paper_{launch_};
    LaunchEnd end_{launch_};
    std::vector<u32> kept_;
    std::vector<IntPair> input_gradients_;

    bool in_groups() const { return model_.groups > 1; }
    // True if the caller acts between forward and backward.
    bool is_divided() const { return call_->seeded && call_->n_wanted; }

    // Number of blocks, not counting the one that stands for present values.
    i64 n_cells() const { return launch_.rows.n_blocks - graph_.has_present(); }

    // First free address of the pool before the launch.
    i64 start() const { return std::max(model_.end, call_->present_stop); }

    const i64* wanted() const { return pointer<const i64>(call_->wanted); }

    // Returns true if all values that are read or wanted exist. Otherwise reports the block that reads a missing value.
    bool understood()
    {
        call_->new_block = graph_.read();
        return call_->new_block < 0 &&
               std::all_of(wanted(), wanted() + call_->n_wanted, [&](i64 value) { return graph_.is_value(value); });
    }

    // Finds the vertices that the wanted values depend on, and the outputs that are read.
    void find_needed()
    {
        graph_.recurrences();
        if (call_->stays)
            graph_.keep_crossed();
        chain_.clear();
        asked_ = wanted();
        n_asked_ = call_->n_wanted;
        if (call_->training && !call_->seeded) {
            chain_.find(graph_, asked_[0]);
            graph_.reach(asked_[0], chain_);
            asked_ = chain_.values.data();
            n_asked_ = static_cast<i64>(chain_.values.size());
        } else {
            graph_.reach(asked_, n_asked_);
        }
        if (!call_->stays)
            graph_.find_unread(asked_, n_asked_);
        else
            for (RecordedBlock& b : graph_)
                b.unread.assign(b.values.size(), 0);
    }

    // Finds the stages and rows of vertices, and the barriers to leave out.
    // Returns DONE, or a request for facts that the caller must provide first.
    Status arrange()
    {
        const bool training = call_->training;
        RowsOfBlocks& rows = launch_.rows;
        stages_.find(graph_);
        if (!training)
            graph_.leave_out();  // after `find`, so that inference gets the same stages
        call_->new_block = rows.find_parts(graph_, call_->splits, training);
        if (call_->new_block >= 0) {
            call_->n_key = static_cast<i64>(rows.key.size());
            call_->key = address(rows.key.data());
            return Status::NEW_BLOCK;
        }
        if (in_groups())
            grouping_.find(graph_, rows.of_whole, model_.groups, training ? nullptr : graph_.needed(graph_.blocks[0]));
        const LossChain& late = model_.exclusive || in_groups() ? nothing_ : chain_;
        rows.take(graph_, late, !stages_.row.whole, call_->chunk_rows);
        call_->n_all_values = rows.n_values;
        if (rows.n_values > call_->room_for_values)
            return Status::MORE_MEMORY;
        rows.arrange(graph_, !training, in_groups() ? grouping_.group.data() : nullptr);
        rows.first_own = grouping_.first_own * rows.stretch;
        rows.first_joining = grouping_.first_joining * rows.stretch;
        const bool decided = !training || model_.exclusive || boundaries_.decide(in_groups());
        return decided ? Status::DONE : Status::NEW_PAIR;
    }

    // Allocates the slabs, which gives every value its address.
    void find_memory()
    {
        RowsOfBlocks& rows = launch_.rows;
        if (call_->training)
            launch_.reach.find(graph_, rows, model_, asked_, n_asked_);
        if (call_->training && in_groups())
            memory_.for_training_in_groups(rows, model_.end);
        else if (call_->training)
            memory_.for_training(rows, model_.end, boundaries_.free[false], boundaries_.turns, boundaries_.free[true]);
        else
            memory_.for_inference(rows, start(), wanted(), call_->n_wanted, call_->stays ? graph_.n_values : 0);
        launch_.cursor = aligned(std::max(memory_.stop(), start()));
        launch_.lists.addresses = pointer<u32>(call_->addresses);
        std::fill_n(launch_.lists.addresses, rows.n_values, static_cast<u32>(NOWHERE));
        std::copy_n(pointer<const u32>(call_->present), call_->n_present, launch_.lists.addresses);
        for (i64 k = 0; k < rows.n_blocks; k++)
            launch_.lists.address(rows.blocks[k]);
    }

    // Writes the part of the script before the instructions. Returns false if nothing can be learned.
    bool place_lists()
    {
        launch_.script.add(model_.header);
        if (call_->training)
            reverse_lists_.place(chain_);
        index_lists_.place(call_->training);
        if (!call_->training)
            return true;
        if (!end_.touch())
            return false;
        end_.place();
        reverse_lists_.place_constants();
        return true;
    }

    template <class Schedule> void write_instructions(Schedule& schedule)
    {
        const bool divided = is_divided();
        const bool ends_alone = divided && call_->updates && end_.gives_to_inputs();
        launch_.begin_instructions(1 + divided + ends_alone);
        if (launch_.account)
            launch_.account->top = memory_.top;
        launch_.load(call_->training && !divided);
        schedule.begin();
        if (call_->training) {
            reverse_lists_.write_constants();
            schedule.steps(false);
            launch_.frame[Frame::SOURCE] = call_->seeded ? ZERO : launch_.lists.addresses[wanted()[0]];
            launch_.frame[Frame::SLOT] = call_->loss_slot;
            if (!call_->seeded)
                schedule.report();
            launch_.begin_phase(LaunchPhase::BACKWARD);
            if (divided)
                next_launch();
            schedule.steps(true);
            launch_.begin_phase(LaunchPhase::GRADIENTS);
            schedule.end_backward();
            if (ends_alone)
                next_launch();
            end_.write(schedule);
        } else {
            schedule.steps(false);
            if (!call_->stays)
                keep(wanted(), call_->n_wanted);
        }
    }

    void next_launch()
    {
        launch_.streams.next_launch();
        launch_.load(true);
    }

    // Reports the results to the caller.
    Status finish()
    {
        const RowsOfBlocks& rows = launch_.rows;
        if (!launch_.finish())
            return Status::MORE_MEMORY;
        if (call_->grouping)
            grouping_.report(rows.stretch, pointer<GroupingResult>(call_->grouping));
        call_->pool_floats = launch_.cursor;
        call_->names = launch_.names;
        if (call_->training) {
            end_.report();
            find_input_gradients();
        }
        call_->n_cells = n_cells();
        for (i64 k = 0; k < n_cells(); k++)
            pointer<i64>(call_->cells)[k] = rows.blocks[k].late ? ~rows.blocks[k].cell->id : rows.blocks[k].cell->id;
        return Status::DONE;
    }

    void find_input_gradients()
    {
        input_gradients_.clear();
        for (const Block& b : launch_.rows) {
            const SlabView& gradient = b.cell->input_gradient;
            if (gradient.slab < 0 || !b.n_rows)
                continue;
            const i64 width = b.cell->slabs[gradient.slab].width;
            for (i64 r = 0; r < b.n_rows; r++)
                input_gradients_.push_back({b.values[0][b.vertex(r)],
                                            r < b.n_needed ? b.bases[gradient.slab] + r * width + gradient.offset : ZERO});
        }
        call_->input_gradients = address(input_gradients_.data());
        call_->n_input_gradients = static_cast<i64>(input_gradients_.size());
    }

    // Keeps only the addresses of wanted values. The memory of all other values may have been reused.
    void keep(const i64* wanted, i64 n)
    {
        u32* addresses = launch_.lists.addresses;
        kept_.clear();
        for (i64 i = 0; i < n; i++)
            kept_.push_back(addresses[wanted[i]]);
        std::fill_n(addresses, launch_.rows.n_values, static_cast<u32>(NOWHERE));
        for (i64 i = 0; i < n; i++)
            addresses[wanted[i]] = kept_[i];
    }

    static i64 now()
    {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return i64(now.tv_sec) * 1000000000 + now.tv_nsec;
    }
};

Planner& planner_of(void* planner) { return *static_cast<Planner*>(planner); }

}  // namespace

// vpps/planner/native/interface.py documents these functions.

EXPORT void* vpps_planner(const char* policy, const i64* automata, i64 n_automata, const i64* model, i64 n_model)
{
    const PolicyRow* row = policy_named(policy);
    Numbers learned(automata, n_automata), parameters(model, n_model);
    std::unique_ptr<Planner> planner;
    if (row)
        planner = std::make_unique<Planner>(*row, learned, parameters);
    return learned.complete() && parameters.complete() ? planner.release() : nullptr;
}

EXPORT void vpps_planner_free(void* planner) { delete &planner_of(planner); }

EXPORT i64 vpps_planner_cell(void* planner, const CellInput* cell) { return planner_of(planner).add_cell(*cell); }

EXPORT i64 vpps_planner_parts(void* planner, i64 cell, const u8* key, i64 n_key, const i64* numbers, i64 n)
{
    Numbers from(numbers, n);
    return planner_of(planner).add_parts(cell, std::vector<u8>(key, key + n_key), from);
}

EXPORT void vpps_planner_pair(void* planner, const Pair* pair, i64 answer) { planner_of(planner).add_pair(*pair, answer); }

EXPORT void vpps_map(void* planner, MemoryResult* found) { planner_of(planner).map(*found); }

EXPORT void vpps_account(void* planner, AccountResult* noted) { planner_of(planner).report(noted); }

EXPORT Status vpps_plan(void* planner, Call* call)
{
#if defined(__cpp_exceptions)
    try {
        return planner_of(planner).plan(call);
    } catch (const std::exception&) {  // only allocations throw
        return Status::NO_MEMORY;
    }
#else
    return planner_of(planner).plan(call);
#endif
}
