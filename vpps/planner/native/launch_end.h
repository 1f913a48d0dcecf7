// Writes the end of a launch: gradients of parameters, and the optimizer's step.
#pragma once

#include "used_tables.h"

class LaunchEnd {
public:
    explicit LaunchEnd(LaunchPlan& launch) : launch_(launch), tables_(launch), hyper_(launch.model.parameters.size()) {}

    // Finds the parameters that have a gradient from this batch. Returns true if there is a requested gradient;
    // input gradients do not count in a step that only concerns parameters.
    bool touch()
    {
        const size_t n = launch_.model.parameters.size();
        const u8* held = pointer<const u8>(launch_.call->held);
        touched_.assign(n, 0);
        held_.resize(n);
        for (size_t p = 0; p < n; p++)
            held_[p] = held && held[p];
        tables_.reset();
        gives_to_inputs_ = false;
        const std::vector<u8>& reached = launch_.reach.parameters;
        bool any = launch_.rows.n_blocks == 0;  // the caller provides the gradients
        any |= tables_.take() || std::find(reached.begin(), reached.end(), 1) != reached.end();
        for (const Block& b : launch_.rows) {
            if (!b.n_needed)
                continue;
            gives_to_inputs_ |= b.cell->input_gradient.slab >= 0;
            for (const Gradient& g : b.cell->gradients)
                touched_[g.parameter] = reached[g.parameter];
        }
        const bool steps = (launch_.call->updates || launch_.call->keeps) && !launch_.call->seeded;
        return any || (gives_to_inputs_ && !steps);
    }

    // True if inputs get gradients.
    bool gives_to_inputs() const { return gives_to_inputs_; }

    // Places the lists that the end needs: hyper-parameters, used rows of tables.
    void place()
    {
        if (launch_.call->updates)
            place_hyper();
        tables_.place();
    }

    // Writes the instructions: the guard and its watches, the gradients, the update.
    template <class Schedule> void write(Schedule& schedule)
    {
        const Call& call = *launch_.call;
        find_last();
        const bool guarded = call.updates || call.keeps, first = guarded && changes_with_gradients();
        const bool tiled = tiles();
        if (guarded && (first || !call.clips))
            watch();
        if (first || tiled)
            schedule.meet(Reason::GRADIENTS);
        if (first)
            launch_.write(Origin::GUARD, launch_.model.guard);
        gradients();
        schedule.meet(Reason::UPDATE);
        launch_.begin_phase(LaunchPhase::UPDATE);
        if (guarded && !first)
            launch_.write(Origin::GUARD, launch_.model.guard);
        if (call.updates)
            update();
    }

    // Reports to the caller.
    void report() const
    {
        const Reach& reach = launch_.reach;
        u8* flags = pointer<u8>(launch_.call->touched);
        for (size_t p = 0; p < touched_.size(); p++)
            flags[p] = (touched_[p] ? HAS_GRADIENT : 0) | (moves(p) ? STEPS : 0);
        std::copy(reach.users.begin(), reach.users.end(), flags + touched_.size());
        for (size_t p = 0; p < reach.users.size(); p++)
            launch_.call->torn |= !reach.users[p] && reach.parameters[launch_.model.kernel_of[p]];
        tables_.report();
    }

private:
    LaunchPlan& launch_;
    UsedTables tables_;
    bool gives_to_inputs_ = false;
    i64 idle_hyper_ = 0;      // position of hyper-parameters that leave weights unchanged, if there are averages
    std::vector<i64> hyper_;  // by parameter: position of its hyper-parameters
    enum : u8 { HAS_GRADIENT = 1, STEPS = 4 };  // flags that the caller reads (plan.py)
    std::vector<u8> touched_, held_, written_, stepped_;
    std::vector<const Gradient*> last_;
    struct Partials {
        i64 tiles = 0, sums = 0, stored = 0;  // two addresses in the pool; number of partial tiles per tile
    };
    std::vector<Partials> partials_;  // by gradient, across all blocks

    void place_hyper()
    {
        const i64* of = pointer<const i64>(launch_.call->hyper_of);  // by parameter: its set; then a set's size
        const size_t n = hyper_.size();
        const i64 each = of[n];
        const i64 at = launch_.script.size;
        for (i64 i = 0; i < launch_.call->n_hyper; i++)
            launch_.place_words(pointer<const u32>(launch_.call->hyper) + i * each, each);
        for (size_t p = 0; p < n; p++)
            hyper_[p] = at + of[p] * each;
        idle_hyper_ = at + (launch_.call->n_hyper - 1) * each;
    }

    // Finds the last contribution to each gradient, if the optimizer's step may be fused into it.
    void find_last()
    {
        last_.assign(launch_.model.parameters.size(), nullptr);
        if (!launch_.call->updates || launch_.call->clips)
            return;
        for (const Block& b : launch_.rows)
            if (b.n_needed)
                for (const Gradient& g : b.cell->gradients)
                    if (touched_[g.parameter])
                        last_[g.parameter] = &g;
    }

    bool has_gradient(size_t p) const { return touched_[p] || held_[p]; }

    // True if an update changes the parameter. If not, the loss does not depend on it (PyTorch: its gradient is None).
    bool moves(size_t p) const
    {
        return launch_.model.parameters[p].is_table ? tables_.present(p) : held_[p] || launch_.reach.parameters[p];
    }

    bool makes_step(const Gradient& g) const { return last_[g.parameter] == &g && size(g.stepped.words) > 0; }

    // True if gradient instructions include steps, or add to held gradients.
    bool changes_with_gradients() const
    {
        bool found = launch_.call->keeps || std::any_of(held_.begin(), held_.end(), [](u8 held) { return held; });
        for (const Block& b : launch_.rows)
            for (const Gradient& g : b.cell->gradients)
                found |= makes_step(g);
        return found;
    }

    void watch()
    {
        for (const Block& b : launch_.rows) {
            if (b.n_needed)
                for (size_t i = 0; i < b.cell->watches.size(); i++) {
                    launch_.note(Origin::WATCH, b, 0, i);
                    launch_.write_needed(b, b.cell->watches[i]);
                }
        }
    }

    // Writes partial tiles for gradients that use them, and sums of the same vectors. Returns false if there are none.
    bool tiles()
    {
        bool any = false;
        i64 turn = 0;  // virtual processor of the first tile, so that all compute the same number of tiles
        const Model& model = launch_.model;
        partials_.clear();
        for (const Block& b : launch_.rows) {
            const std::vector<Gradient>& of = b.cell->gradients;
            const size_t first = partials_.size();
            partials_.resize(first + of.size());
            for (size_t k = 0; k < of.size() && b.n_needed; k++) {
                if (!size(of[k].tiles.words))
                    continue;
                const auto is_summed = [&](const Gradient& g) {
                    return g.summed_by == static_cast<i32>(k) && touched_[g.parameter];
                };
                const bool sums = std::any_of(of.begin(), of.end(), is_summed);
                if (!touched_[of[k].parameter] && !sums)
                    continue;
                launch_.note(Origin::TILES, b, 0, k);
                u32* words = launch_.write_needed(b, of[k].tiles);
                const i64 rows = words[3], columns = words[model.head_words + 1];
                const i64 tiles = upward(rows, model.tile_rows) * upward(columns, model.tile_columns);
                const i64 segments = std::clamp<i64>(upward(words[2], model.segment), 1, model.most_segments);
                Partials& at = partials_[first + k];
                at.stored = tiles * segments > model.shared_tiles ? 1 : segments;
                at.tiles = launch_.take(tiles * at.stored * model.tile_rows * model.tile_columns);
                at.sums = sums ? launch_.take(at.stored * rows) : 0;
                words[model.head_words] = static_cast<u32>(at.tiles);
                words[model.head_words + 2] = static_cast<u32>(at.sums);
                words[model.head_words + 3] = static_cast<u32>(turn);
                turn = (turn + tiles * at.stored) % (model.n_vps * model.groups);
                any = true;
            }
        }
        return any;
    }
    static i64 upward(i64 n, i64 by) { return (n + by - 1) / by; }

    void gradients()
    {
        size_t first = 0;  // index of the first partial tiles of a block
        const auto& parameters = launch_.model.parameters;
        written_ = held_;
        stepped_.assign(parameters.size(), 0);
        for (const Block& b : launch_.rows) {
            const Partials* of_block = partials_.data() + first;
            first += b.cell->gradients.size();
            if (!b.n_needed)
                continue;
            for (const Gradient& g : b.cell->gradients) {
                if (!touched_[g.parameter])
                    continue;
                const bool stepped = makes_step(g);
                const i64 k = &g - b.cell->gradients.data();
                launch_.note(stepped ? Origin::STEPPED : Origin::GRADIENT, b, 0, k);
                const Instruction& instruction = stepped ? g.stepped : g.plain;
                u32* words = launch_.write_needed(b, instruction);
                if (size(g.tiles.words)) {
                    words[size(instruction.words) - 1] = static_cast<u32>(of_block[k].tiles);
                } else if (g.summed_by >= 0) {
                    words[2] = static_cast<u32>(of_block[g.summed_by].stored);
                    words[launch_.model.head_words + 1] = static_cast<u32>(of_block[g.summed_by].sums);
                    words[launch_.model.head_words + 2] = words[3];
                }
                if (stepped) {
                    words[launch_.model.head_words] = static_cast<u32>(hyper_[g.parameter]);
                    stepped_[g.parameter] = 1;
                }
                if (written_[g.parameter])
                    words[0] |= launch_.model.accumulate;
                written_[g.parameter] = 1;
            }
        }
        for (size_t p = 0; p < parameters.size(); p++)
            if (tables_.present(p) && !tables_.given(p)) {
                tables_.describe(p);
                launch_.write(Origin::SUM, launch_.call->keeps ? parameters[p].sum_held : parameters[p].sum, p);
            }
    }

    void update()
    {
        if (launch_.call->clips)
            clip();
        for (size_t p = 0; p < launch_.model.parameters.size(); p++) {
            const Parameter& parameter = launch_.model.parameters[p];
            if (!parameter.trainable || stepped_[p])
                continue;
            launch_.frame[Frame::HYPER] = hyper_[p];
            if (parameter.is_table && !tables_.present(p))
                continue;
            if (parameter.is_table)
                tables_.describe(p);
            const bool none = !parameter.is_table && !has_gradient(p);
            if (!moves(p)) {
                if (!launch_.call->averages)
                    continue;
                launch_.frame[Frame::HYPER] = idle_hyper_;  // the average is still updated
            }
            launch_.write(Origin::STEP, parameter.step, p, none ? launch_.model.no_gradient : 0);
        }
    }

    void clip()
    {
        const auto& parameters = launch_.model.parameters;
        i64 total = 0;
        for (size_t p = 0; p < parameters.size(); p++)
            if (tables_.present(p))
                total += tables_.n_rows(p);
            else if (has_gradient(p))
                total += parameters[p].squares;
        const i64 partials = launch_.take(total);
        launch_.frame[Frame::PARTIALS] = partials;
        for (const bool tables : {false, true})
            for (size_t p = 0; p < parameters.size(); p++)
                if (tables_.present(p) == tables && (tables || has_gradient(p))) {
                    if (tables)
                        tables_.describe(p);
                    launch_.write(Origin::SQUARE, parameters[p].square, p);
                    launch_.frame[Frame::PARTIALS] += tables ? tables_.n_rows(p) : parameters[p].squares;
                }
        launch_.set_reason(Reason::CLIPPING);
        launch_.streams.barrier();
        launch_.frame[Frame::ROWS] = total;
        launch_.frame[Frame::PARTIALS] = partials;
        launch_.frame[Frame::NORM] = launch_.call->max_norm;
        launch_.write(Origin::CLIP, launch_.model.clip);
    }
};
