// The compiled planner: the script that vpps/plan/build.py writes, word for word, for schedule "vector" and one group of
// virtual processors. Cells come as recipes (recipe.h), a batch as flat arrays (vpps/plan/native/planner.py).

#include "calls.h"
#include "script.h"
#include "stages.h"

#include <array>
#include <ctime>
#include <exception>
#include <memory>
#include <utility>

namespace {

// What `plan` is called with, and what it finds; as in planner.py, class _Call. Addresses of arrays are numbers, too.
struct Call {
    i64 training, policy, at_once, by_readers, splits, dead_outputs, chunk_rows, n_blocks, blocks, n_values, wanted, n_wanted, loss_slot, key_on, key_low, key_high;
    i64 updates, keeps, clips, max_norm, averages, n_hyper, hyper, hyper_of;
    i64 held, n_held_rows, held_rows;                 // held_rows: (parameter, number of rows, address) of each table
    i64 script, capacity, addresses, room_for_values, touched, tables, cells; // memory for results; tables: (OfTable) of each; cells: id of each, ~id where late
    i64 words, pool_floats, n_barriers, encoding, names, n_tables, n_all_values, new_block, key, n_key, n_cells;
    i64 after, before, group, backward, unseen;
};
// Of each block; then, for each list, the address of its ends, or 0 and that of its lengths, and of its elements. Columns are where they begin and how far
// apart their numbers are; those of arguments lie side by side.
enum OfBlock : i64 {
    CELL, N, CALLS, FIRST = CALLS + 2, LEVELS = FIRST + 2, ARGS = LEVELS + 2, INTS = ARGS + 2, DATA = INTS + 2, BLOCK
};
enum OfTable : i64 { PARAMETER, ROWS, GRADIENT, OFFSETS, NUMBERS, IDLE, TABLE };
// NEW_BLOCK: `new_block` has a cell whose parts, by `key`, have not been told yet. NEW_PAIR: nor what of
// the cell `after` may begin while others still execute `group` of the cell `before`: `backward` says after what. NEW_RECURRENCE: nor how that of
// `new_block` is to run.
// Of a pair: a step of the same direction, the first of backward, the gradients of the parameters.
enum Following : i64 { FORWARD, BACKWARD, TURN };
enum Status : i64 { DONE, MORE_MEMORY, NO_GRADIENT, NOT_MINE, NEW_BLOCK, NEW_PAIR, NEW_RECURRENCE };

// Holes of the instructions that no cell makes: what their words say of a table or of the launch.
enum Frame : i64 { F_ROWS, F_GRADIENT, F_OFFSETS, F_NUMBERS, F_IDLE, F_PARTIALS, F_HYPER, F_SOURCE, F_SLOT, F_NORM, FRAME };

struct Used {
    i64 n = 0, gradient = 0, offsets = 0, numbers = 0, idle = 0;
    bool present = false;
    std::vector<u32> ids, addresses;  // of gradient rows, in fixed order; last, ids of rows that have none
};

class Planner {
public:
    explicit Planner(Numbers& from) : model_(from), used_(model_.parameters.size()), hyper_(model_.parameters.size()) {}

    i64 add_cell(const i64* counts)
    {
        cells_.push_back(std::make_unique<WholeCell>(WholeCell{counts[0], counts[1], counts[2], counts[3], counts[4], {}}));
        return static_cast<i64>(cells_.size()) - 1;
    }

    bool add_parts(i64 cell, std::vector<u8> key, Numbers& from)
    {
        Parts parts = Cell::made<Part>(from);
        if (!from.complete() || parts.empty())
            return false;
        cells_[cell]->by_key.emplace(std::move(key), std::move(parts));
        return true;
    }

    // Numbers of FSM: of its types, then its machine.
    bool add_choice(Policy policy, Numbers& from)
    {
        Choice choice{policy, {}, {}};
        if (policy == Policy::FSM) {
            from.take(choice.order, stages_.n_asked());
            choice.machine = Machine(from);
        }
        if (from.complete())
            stages_.choose(std::move(choice));
        return from.complete();
    }

    // How many steps the machine of a choice did not know since this was asked last.
    i64 unseen(i64 choice) { return std::exchange(stages_.choices[choice].unseen, 0); }

    void add_pair(const i64* pair, i64 answer) { answers_.emplace(Pair{pair[0], pair[1], pair[2], pair[3]}, answer); }

    Status plan(Call* call)
    {
        call_ = call;
        const bool training = call->training;
        const i64 *wanted = pointer<const i64>(call->wanted), n_wanted = call->n_wanted;
        take_blocks();
        call->words = call->unseen = 0;
        if (!graph_.number() || !graph_.read())
            return NOT_MINE;
        for (i64 i = 0; i < n_wanted; i++)
            if (!graph_.is_value(wanted[i]))
                return NOT_MINE;
        graph_.recurrences();
        chain_.clear();
        if (training) {
            chain_.find(graph_, wanted[0]);
            graph_.reach(wanted[0], chain_);
        } else {
            graph_.reach(wanted, n_wanted);
        }
        if (call->dead_outputs && training)
            graph_.find_unread(chain_.values.data(), static_cast<i64>(chain_.values.size()));
        else if (call->dead_outputs)
            graph_.find_unread(wanted, n_wanted);
        else
            for (i64 k = 0; k < graph_.n_blocks; k++)
                graph_.blocks[k].unread.assign(graph_.blocks[k].values.size(), 0);
        call->new_block = stages_.find(graph_, static_cast<Policy>(call->policy));
        if (call->new_block >= 0)
            return NEW_RECURRENCE;
        if (!training)
            graph_.leave_out();  // stages are the same in inference
        const i64 unknown = rows_of_.take(graph_, chain_, call->at_once, call->splits, training, call->chunk_rows);
        if (unknown >= 0)
            return ask_for(unknown);
        call->n_all_values = rows_of_.n_values;
        if (rows_of_.n_values > call->room_for_values)
            return MORE_MEMORY;
        rows_of_.arrange(graph_, !training, call->by_readers);
        if (training && !decide())
            return NEW_PAIR;
        const i64 stop = training ? memory_.for_training(rows_of_, model_.end, free_[false], turns_, free_[true])
                                  : memory_.for_inference(rows_of_, model_.end, wanted, n_wanted);
        cursor_ = aligned(std::max(stop, model_.end));
        lists_.addresses = pointer<u32>(call->addresses);
        std::fill_n(lists_.addresses, rows_of_.n_values, ~0u);
        for (i64 k = 0; k < rows_of_.n_blocks; k++)
            lists_.address(rows_of_.blocks[k]);

        script_.reset(pointer<u32>(call->script), call->capacity);
        names_ = 0;
        key_at_ = -1;
        script_.add(model_.header);
        if (training)
            reverse_lists();
        place_lists(training);
        if (training) {
            touch();
            place_end();
            if (!has_gradient_)
                return NO_GRADIENT;
            place_constants();
        }
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        call_->encoding = i64(now.tv_sec) * 1000000000 + now.tv_nsec;
        const i64 entry = script_.size;
        load(training);
        late_.clear();
        next_late_ = 0;
        if (training && !constants_.empty())
            write(model_.constants);
        steps(false);
        if (training) {
            find_late();
            frame_[F_SOURCE] = lists_.addresses[wanted[0]];
            frame_[F_SLOT] = call->loss_slot;
            if (!turns_)
                barrier();
            steps(true);
            barrier();
            find_last();
            const bool guarded = call->updates || call->keeps, first = guarded && changes_with_gradients();
            if (guarded && (first || !call->clips))
                watch();
            if (first) {
                meet();
                write(model_.guard);
            }
            gradients();
            meet();
            if (guarded && !first)
                write(model_.guard);
            if (call->updates)
                update();
        } else {
            keep(wanted, n_wanted);
        }
        script_.add(model_.stop);
        call_->words = script_.size;
        if (!script_.complete())
            return MORE_MEMORY;
        script_.at(0)[3] = static_cast<u32>(script_.size);
        for (size_t i = 4; i < model_.header.size(); i++)
            script_.at(0)[i] = static_cast<u32>(entry);
        call_->pool_floats = cursor_;
        call_->n_barriers = script_.n_barriers;
        call_->names = names_;
        report_tables();
        call->unseen = stages_.count_unseen();
        call->n_cells = rows_of_.n_blocks;
        for (i64 k = 0; k < rows_of_.n_blocks; k++)
            pointer<i64>(call->cells)[k] = rows_of_.blocks[k].late ? ~rows_of_.blocks[k].cell->id : rows_of_.blocks[k].cell->id;
        return DONE;
    }

private:
    const Model model_;
    std::vector<std::unique_ptr<WholeCell>> cells_;
    Graph graph_;
    Stages stages_;
    RowsOfBlocks rows_of_;
    Memory memory_;
    Lists lists_;
    Script script_;
    Call* call_ = nullptr;
    i64 cursor_ = 0;  // the pool beyond is free
    i64 names_ = 0, key_at_ = -1;
    i64 uses_ = 0;  // position of the offsets into the reverse lists
    bool has_gradient_ = false;
    i64 frame_[FRAME] = {};
    std::vector<Used> used_;   // by parameter
    std::vector<i64> hyper_;   // by parameter: position of its hyper-parameters
    std::vector<u8> touched_, held_, written_, stepped_;
    std::vector<const Gradient*> last_;
    std::vector<u32> ordinal_, targets_, starts_, rows_, sorted_, other_, found_;
    std::vector<i64> kept_, block_ordinal_, first_, count_;
    struct InStage {
        i64 stage, block, step;
    };
    std::vector<InStage> members_;
    size_t n_stages_ = 0;
    LossChain chain_;
    std::vector<u32> constants_;               // gradients other than 1 that backward begins with
    std::vector<std::vector<InStage>> late_;   // stages of the chain of the loss; an empty one reports it
    size_t next_late_ = 0;
    struct Since {  // what virtual processors have executed since their last barrier
        std::vector<std::pair<i64, i64>> groups;  // (block, group)
        bool of_one_stage = true;                 // all of it belongs to one stage
        bool others = false;                      // blocks have begun that took no part in the stage before
        bool pauses = false;                      // they have signalled for the next barrier already
    } since_;
    std::vector<i64> free_[2];  // by direction: stages that follow the one before with no barrier, in order
    bool turns_ = false;        // backward begins with none behind forward
    using Pair = std::array<i64, 4>;           // cell after, cell before, group, what follows
    std::map<Pair, i64> answers_;

    static void columns(std::vector<Column>& into, const i64* given, i64 n)
    {
        into.clear();
        for (i64 k = 0; k < n; k++)
            into.push_back({pointer<const i64>(given[0]) + k, given[1], 0});
    }

    void take_blocks()
    {
        const i64* next = pointer<const i64>(call_->blocks);
        graph_.n_blocks = call_->n_blocks;
        graph_.n_values = call_->n_values;
        if (static_cast<i64>(graph_.blocks.size()) < graph_.n_blocks)
            graph_.blocks.resize(graph_.n_blocks);
        for (i64 k = 0; k < graph_.n_blocks; k++) {
            Whole& b = graph_.blocks[k];
            b.cell = cells_[next[CELL]].get();
            b.n = next[N];
            b.calls = {pointer<const i64>(next[CALLS]), next[CALLS + 1], 0};
            b.levels = {pointer<const i64>(next[LEVELS]), next[LEVELS + 1], 0};
            b.values.clear();
            for (i64 o = 0; o < b.cell->n_outputs; o++)
                b.values.push_back({pointer<const i64>(next[FIRST]), next[FIRST + 1], o});
            columns(b.args, next + ARGS, b.cell->n_args);
            columns(b.ints, next + INTS, b.cell->n_ints);
            b.data = pointer<const u32>(next[DATA]);
            b.lists.resize(b.cell->n_lists);
            next += BLOCK;
            for (size_t i = 0; i < b.lists.size(); i++, next += 3)
                b.lists[i] = {next[0] ? pointer<const i64>(next[0]) : b.ends_of(i, pointer<const i64>(next[1])),
                              pointer<const i64>(next[2])};
        }
    }

    Status ask_for(i64 block)
    {
        call_->new_block = block;
        call_->n_key = static_cast<i64>(rows_of_.key.size());
        call_->key = static_cast<i64>(reinterpret_cast<std::intptr_t>(rows_of_.key.data()));
        return NEW_BLOCK;
    }

    // ---- lists

    i64 place(i64 n, u32*& words)
    {
        const i64 at = script_.size;
        words = script_.add(n);
        return at;
    }

    // For every value, the addresses of the gradient rows that its readers hand back, in the order of blocks,
    // arguments and rows.
    void reverse_lists()
    {
        find_constants();
        ordinal_.resize(std::max<size_t>(ordinal_.size(), rows_of_.n_values));
        block_ordinal_.clear();
        u32 total = 0;
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            const Block& b = rows_of_.blocks[k];
            block_ordinal_.push_back(total);
            for (const Column ids : b.values)
                for (i64 r = 0; r < b.n_rows; r++)
                    ordinal_[ids[b.vertex(r)]] = total++;
        }
        // Where each gradient row goes, and its address; first those that are constants.
        targets_.clear();
        rows_.clear();
        for (size_t i = 0; i < chain_.values.size(); i++) {
            targets_.push_back(ordinal_[chain_.values[i]]);
            rows_.push_back(address_of_constant(chain_.words[i]));
        }
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            const Block& b = rows_of_.blocks[k];
            if (!b.n_needed)
                continue;
            for (const Argument& argument : b.cell->arguments) {
                const Source& read = b.cell->sources[argument.values];
                const i64 n = b.needed_rows(read.domain);
                const size_t before = rows_.size();
                targets_.resize(before + n);
                rows_.resize(before + n);
                lists_.addresses_of(b, argument.gradient, rows_.data() + before, n);
                const u32* ordinal = ordinal_.data();
                u32* targets = targets_.data() + before;
                values_read(b, read, n, [=](i64 row, i64 value) { targets[row] = ordinal[value]; });
            }
        }
        starts_.assign(total + 1, 0);
        u32* starts = starts_.data() + 1;
        for (const u32 target : targets_)
            starts[target]++;
        for (u32 i = 1; i < total; i++)
            starts[i] += starts[i - 1];
        starts = starts_.data();
        u32 *entries, *offsets;
        const auto n = static_cast<i64>(rows_.size());
        const i64 at = place(n, entries);
        uses_ = place(total + 1, offsets);
        for (u32 i = 0; i <= total; i++)
            offsets[i] = static_cast<u32>(at) + starts[i];
        if (script_.size > call_->capacity)
            return;  // there is no memory for the entries; the caller comes again
        for (i64 i = 0; i < n; i++)
            entries[starts[targets_[i]]++] = rows_[i];
    }

    static constexpr u32 ONE = 1, WORD_OF_ONE = 0x3f800000;  // its address

    void find_constants()
    {
        constants_.clear();
        for (const u32 word : chain_.words)  // nearly always the same for all
            if (word != WORD_OF_ONE && (constants_.empty() || word != constants_.back()))
                constants_.push_back(word);
        sort_numbers(constants_);
        constants_.erase(std::unique(constants_.begin(), constants_.end()), constants_.end());
        frame_[F_GRADIENT] = cursor_;
        cursor_ = aligned(cursor_ + static_cast<i64>(constants_.size()));
    }
    u32 address_of_constant(u32 word) const
    {
        if (word == WORD_OF_ONE)
            return ONE;
        const auto at = std::lower_bound(constants_.begin(), constants_.end(), word) - constants_.begin();
        return static_cast<u32>(frame_[F_GRADIENT] + at);
    }
    void place_constants()
    {
        if (constants_.empty())
            return;
        frame_[F_ROWS] = static_cast<i64>(constants_.size());
        frame_[F_NUMBERS] = place_words(constants_.data(), frame_[F_ROWS]);
    }

    void place_lists(bool training)
    {
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            Block& b = rows_of_.blocks[k];
            const i64 n_keys = training ? static_cast<i64>(b.cell->keys.size()) : b.cell->n_forward_keys;
            b.list_at.assign(b.cell->keys.size(), 0);
            for (i64 i = 0; i < n_keys; i++)
                if (b.cell->sources[b.cell->keys[i]].from != From::Beside)
                    b.list_at[i] = place_list(b, b.cell->keys[i], block_ordinal_.empty() ? 0 : block_ordinal_[k]);
            place_row_lists(b, training);
        }
    }

    // How operands find their rows (vpps/plan/row_lists.py).
    void place_row_lists(Block& b, bool training)
    {
        const Cell& cell = *b.cell;
        const auto n_operands = training ? static_cast<i64>(cell.operands.size()) : cell.n_forward_operands;
        for (i32 list = 0; list < static_cast<i32>(cell.row_lists.size()); list++) {
            bool whole = false, by_step = false;
            for (i64 o = 0; o < n_operands; o++)
                if (cell.operands[o].list == list)
                    (cell.operands[o].whole ? whole : by_step) = true;
            if (!whole && !by_step)
                continue;
            const i32 source = cell.row_lists[list], domain = cell.sources[source].domain;
            const i64 n = b.rows(domain), domains = b.domains();
            found_.resize(std::max<size_t>(found_.size(), n));
            lists_.values(b, source, found_.data(), n);
            i64 at = UNEVEN;  // of the whole list
            if (whole) {
                const Run all = run(found_.data(), n);
                if (all.stride == UNEVEN)
                    at = place_words(found_.data(), n);
                for (i64 step = 0; step < b.n_steps; step++)
                    set_operands(b, list, true, n_operands, step, all, at);
            }
            for (i64 step = 0; step < b.n_steps && by_step; step++) {
                const i64 first = b.first_row[step * domains + domain], count = b.count[step * domains + domain];
                const Run rows = run(found_.data() + first, count);
                i64 position = at + first;
                if (rows.stride == UNEVEN && at == UNEVEN)
                    position = place_words(found_.data() + first, count);
                set_operands(b, list, false, n_operands, step, rows, position);
            }
        }
    }

    i64 place_words(const u32* from, i64 n)
    {
        u32* words;
        const i64 at = place(n, words);
        std::copy_n(from, n, words);
        return at;
    }

    // Where rows lie: the address of the first, and the stride between them, or UNEVEN.
    static constexpr i64 UNEVEN = -1;
    struct Run {
        i64 address, stride;
    };
    Run run(const u32* addresses, i64 n) const
    {
        if (n < 2)
            return {n ? addresses[0] : 0, 0};
        const u32 stride = addresses[1] - addresses[0];
        bool even = addresses[1] >= addresses[0] && stride <= model_.offset_mask;
        for (i64 i = 2; i < n && even; i++)
            even = addresses[i] - addresses[i - 1] == stride;
        return {addresses[0], even ? stride : UNEVEN};
    }

    void set_operands(Block& b, i32 list, bool whole, i64 n_operands, i64 step, const Run& rows, i64 position) const
    {
        const bool listed = rows.stride == UNEVEN;
        for (i64 o = 0; o < n_operands; o++) {
            const RowOperand& operand = b.cell->operands[o];
            if (operand.list != list || operand.whole != whole)
                continue;
            i64* words = &b.bases[step * b.n_bases() + b.operand_base(o)];
            words[0] = listed ? position : rows.address + operand.offset;
            words[1] = listed ? model_.indexed | operand.offset : rows.stride;
        }
    }

    i64 place_list(const Block& b, i32 source, i64 first_ordinal)
    {
        const Source& s = b.cell->sources[source];
        u32* words;
        if (s.from == From::Uses)
            return call_->training ? uses_ + first_ordinal + s.a * b.n_rows : 0;
        if (s.from == From::RandomKey) {
            if (key_at_ < 0) {
                key_at_ = place(3, words);
                words[0] = static_cast<u32>(call_->key_low);
                words[1] = static_cast<u32>(call_->key_high);
                words[2] = static_cast<u32>(call_->key_on);
            }
            return key_at_;
        }
        if (s.from == From::Offsets) {
            const i64 entries = place_list(b, s.of, first_ordinal);
            const i64 at = place(b.n_rows + 1, words);
            for (i64 r = 0; r <= b.n_rows; r++)
                words[r] = static_cast<u32>(entries + b.ends[s.a - 1][r]);
            return at;
        }
        const i64 n = Lists::length(b, s), at = place(n, words);
        lists_.values(b, source, words, n);
        return at;
    }

    // ---- the end of a launch (vpps/plan/update.py)

    // Which parameters have a gradient from this batch.
    void touch()
    {
        const size_t n = model_.parameters.size();
        touched_.assign(n, 0);
        held_.resize(n);
        has_gradient_ = false;
        const u8* held = pointer<const u8>(call_->held);
        for (size_t p = 0; p < n; p++) {
            held_[p] = held && held[p];
            used_[p].present = false;
            used_[p].ids.clear();
            used_[p].addresses.clear();
        }
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            const Block& b = rows_of_.blocks[k];
            if (!b.n_needed)
                continue;
            for (const Gradient& g : b.cell->gradients)
                has_gradient_ = (touched_[g.parameter] = 1);
            for (const TableGradient& g : b.cell->tables)
                has_gradient_ = used_[g.table].present = true;
            for (const UsedLookup& u : b.cell->without_gradient)
                used_[u.table].present = true;
        }
        std::copy(touched_.begin(), touched_.end(), pointer<u8>(call_->touched));
    }

    void place_end()
    {
        u32* words;
        const auto n = static_cast<i64>(model_.parameters.size());
        if (call_->updates) {
            const u32* hyper = pointer<const u32>(call_->hyper);
            const i64 *of = pointer<const i64>(call_->hyper_of), sets = call_->n_hyper;
            const i64 each = of[n];
            const i64 at = place(sets * each, words);
            std::copy_n(hyper, sets * each, words);
            for (i64 p = 0; p < n; p++)
                hyper_[p] = at + of[p] * each;
        }
        collect_held();
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            const Block& b = rows_of_.blocks[k];
            if (!b.n_needed)
                continue;
            for (const TableGradient& g : b.cell->tables) {
                Used& used = used_[g.table];
                const size_t before = used.ids.size();
                used.ids.resize(before + b.n_needed);
                used.addresses.resize(before + b.n_needed);
                lists_.values(b, g.ids, used.ids.data() + before, b.n_needed);
                lists_.addresses_of(b, g.gradient, used.addresses.data() + before, b.n_needed);
            }
        }
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            const Block& b = rows_of_.blocks[k];
            if (!b.n_needed)
                continue;
            for (const UsedLookup& u : b.cell->without_gradient) {
                std::vector<u32>& ids = used_[u.table].ids;
                ids.resize(ids.size() + b.n_needed);
                lists_.values(b, u.ids, ids.data() + ids.size() - b.n_needed, b.n_needed);
            }
        }
        for (i64 p = 0; p < n; p++)
            if (used_[p].present)
                place_table(model_.parameters[p], used_[p]);
    }

    // Rows that hold gradients of earlier batches come first among the entries of their sums.
    void collect_held()
    {
        const i64* held = pointer<const i64>(call_->held_rows);  // parameter, number of rows, address of their numbers
        for (i64 i = 0; i < call_->n_held_rows; i++, held += 3) {
            Used& used = used_[held[0]];
            if (call_->updates)
                used.present = true;
            const Parameter& p = model_.parameters[held[0]];
            const i64* rows = pointer<const i64>(held[2]);
            for (i64 r = 0; r < held[1]; r++) {
                used.ids.push_back(static_cast<u32>(rows[r]));
                used.addresses.push_back(static_cast<u32>(p.gradient + rows[r] * p.width));
            }
        }
        if (call_->keeps)
            for (Used& used : used_)
                used.n = static_cast<i64>(used.ids.size());  // the first so many are held
    }

    void place_table(const Parameter& p, Used& used)
    {
        if (call_->keeps)
            leave_alone(used);
        sort(used.ids);
        const size_t n = used.addresses.size();
        u32 *entries, *words;
        const i64 at = place(static_cast<i64>(n), entries);
        starts_.clear();
        rows_.clear();
        u32 summed = 0;
        for (const u32 i : sorted_) {
            const u32 id = used.ids[i];
            if (rows_.empty() || rows_.back() != id) {
                rows_.push_back(id);
                starts_.push_back(summed);
            }
            if (i < n)
                entries[summed++] = used.addresses[i];
        }
        starts_.push_back(static_cast<u32>(n));
        used.n = static_cast<i64>(rows_.size());
        used.gradient = 0;
        if (!call_->keeps) {
            used.gradient = cursor_;
            cursor_ = aligned(cursor_ + used.n * p.width);
        }
        used.numbers = place(used.n, words);
        for (i64 r = 0; r < used.n; r++)
            words[r] = call_->keeps ? static_cast<u32>(p.gradient + rows_[r] * p.width) : rows_[r];
        used.idle = 0;
        if (call_->averages)  // the caller fills them in
            used.idle = place(used.n, words);
        used.offsets = place(used.n + 1, words);
        for (i64 r = 0; r <= used.n; r++)
            words[r] = static_cast<u32>(at) + starts_[r];
    }

    // Of the rows that are held, those that this batch does not use stay as they are.
    void leave_alone(Used& used)
    {
        rows_.assign(used.ids.begin() + used.n, used.ids.end());
        sort_numbers(rows_);
        const size_t n = used.addresses.size();
        size_t kept = 0, summed = 0;
        for (size_t i = 0; i < used.ids.size(); i++)
            if (static_cast<i64>(i) >= used.n || std::binary_search(rows_.begin(), rows_.end(), used.ids[i])) {
                used.ids[kept++] = used.ids[i];
                if (i < n)
                    used.addresses[summed++] = used.addresses[i];
            }
        used.ids.resize(kept);
        used.addresses.resize(summed);
    }

    // `sorted_`: the order of the keys; equal ones stay in theirs.
    void sort(const std::vector<u32>& keys)
    {
        constexpr u32 BITS = 8, BUCKETS = 1 << BITS;
        const size_t n = keys.size();
        sorted_.resize(n);
        other_.resize(n);
        u32 largest = 0;
        for (size_t i = 0; i < n; i++) {
            sorted_[i] = static_cast<u32>(i);
            largest = std::max(largest, keys[i]);
        }
        for (u32 shift = 0; shift < 32 && largest >> shift; shift += BITS) {
            u32 at[BUCKETS + 1] = {};
            for (size_t i = 0; i < n; i++)
                at[(keys[i] >> shift & (BUCKETS - 1)) + 1]++;
            for (u32 i = 0; i < BUCKETS; i++)
                at[i + 1] += at[i];
            for (size_t i = 0; i < n; i++)
                other_[at[keys[sorted_[i]] >> shift & (BUCKETS - 1)]++] = sorted_[i];
            sorted_.swap(other_);
        }
    }

    // ---- instructions

    void write(const Instruction& instruction, u32 flags = 0)
    {
        script_.join(model_);
        u32* words = script_.add(instruction.words.size());
        const i64 none = 0;
        instruction.words.fill(words, [&](i32 base) { return frame_[base]; }, &none, &none);
        words[0] |= flags;
        names_ |= i64{1} << instruction.name;
    }

    u32* write(const Block& b, const Template& group, i64 step, const i64* first, const i64* count)
    {
        script_.join(model_);
        u32* words = script_.add(group.size());
        const i64 n_bases = b.n_bases();
        const i64 *bases = b.bases.data() + step * n_bases, *lists = b.list_at.data();
        group.fill(words, [&](i32 base) { return base < n_bases ? bases[base] : lists[base - n_bases]; }, first, count);
        return words;
    }

    void load(bool training)
    {
        for (const Load& load : model_.loads)
            for (i64 k = 0; k < rows_of_.n_blocks; k++) {
                const Block& b = rows_of_.blocks[k];
                const auto& numbers = b.cell->numbers[training && b.n_needed > 0];
                if (std::find(numbers.begin(), numbers.end(), load.number) == numbers.end())
                    continue;
                script_.join(model_);
                script_.add(load.words.words);
                names_ |= i64{1} << model_.load_name;
                break;
            }
    }

    // A barrier, and behind it what of the chain of the loss has waited for one.
    void barrier()
    {
        script_.barrier(model_.n_vps);
        if (next_late_ == late_.size())
            return;
        const auto& late = late_[next_late_++];
        if (late.empty())
            write(model_.loss);
        for (const InStage& member : late) {
            const Block& b = rows_of_.blocks[member.block];
            for (size_t k = 0; k < b.cell->forward.size(); k++)
                write(b, b.cell->forward, k, member.step);
        }
    }

    // A barrier, and all that has waited for one.
    void meet()
    {
        barrier();
        while (next_late_ < late_.size())
            barrier();
    }

    void find_members(bool backward, bool late)
    {
        members_.clear();
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            const Block& b = rows_of_.blocks[k];
            if (!groups(b, backward).empty() && b.late == late)
                for (i64 s = 0; s < (backward ? b.n_needed_steps : b.n_steps); s++)
                    members_.push_back({b.stage[s], k, s});
        }
        std::stable_sort(members_.begin(), members_.end(), [&](const InStage& a, const InStage& b) {
            return backward ? a.stage > b.stage : a.stage < b.stage;
        });
    }

    void find_late()
    {
        find_members(false, true);
        for (size_t begin = 0, end; begin < members_.size(); begin = end) {
            end = end_of_stage(begin);
            late_.emplace_back(members_.begin() + begin, members_.begin() + end);
        }
        late_.emplace_back();
    }

    // ---- between which stages barriers are left out (vpps/plan/boundaries.py)

    // False where it is not known of some pair what may follow what.
    bool decide()
    {
        since_ = {};
        bool inside;
        if (!boundaries(false, inside))
            return false;
        const bool some = inside || free_[false].size() + 1 < n_stages_;
        find_members(true, false);
        turns_ = some && since_.of_one_stage && !since_.pauses && !members_.empty();
        if (turns_ && !all_answer(0, end_of_stage(0), TURN, turns_))
            return false;
        if (turns_)
            since_.others = true;
        else
            since_ = {};
        return boundaries(true, inside);
    }

    // Of one direction; `inside`: whether there are barriers inside stages.
    bool boundaries(bool backward, bool& inside)
    {
        find_members(backward, false);
        free_[backward].clear();
        n_stages_ = 0;
        inside = false;
        for (size_t before = 0, begin = 0, end; begin < members_.size(); before = begin, begin = end) {
            end = end_of_stage(begin);
            if (begin) {
                bool free = false;
                if (!follows_freely(before, begin, end, backward, free))
                    return false;
                if (free)
                    free_[backward].push_back(members_[begin].stage);
                else
                    since_ = {};
            }
            const size_t n_groups = groups_of_stage(begin, end, backward);
            inside |= n_groups > 1;
            if (n_groups > 1)
                since_ = {};
            since_.of_one_stage = since_.groups.empty();
            since_.pauses = false;
            for (size_t i = begin; i < end; i++) {
                const std::pair<i64, i64> last(members_[i].block, static_cast<i64>(n_groups) - 1);
                if (groups(rows_of_.blocks[last.first], backward).size() == n_groups &&
                    std::find(since_.groups.begin(), since_.groups.end(), last) == since_.groups.end())
                    since_.groups.push_back(last);
                since_.pauses |= model_.n_vps > 1 && fills(members_[i], backward);
            }
            n_stages_++;
        }
        return true;
    }

    // Whether a step fills the pause at the end of its stage.
    bool fills(const InStage& member, bool backward) const
    {
        return !backward && rows_of_.blocks[member.block].pause > 0 &&
               member.stage % RowsOfBlocks::STAGES == RowsOfBlocks::LEVEL;
    }

    size_t groups_of_stage(size_t begin, size_t end, bool backward) const
    {
        size_t found = 0;
        for (size_t i = begin; i < end; i++)
            found = std::max(found, groups(rows_of_.blocks[members_[i].block], backward).size());
        return found;
    }

    // ---- steps

    // The forward steps of all stages, or the backward ones, last stage first; cells of one stage share its barriers. In
    // training what follows the last one is left to what comes.
    void steps(bool backward)
    {
        find_members(backward, false);
        auto free = free_[backward].begin();
        for (size_t begin = 0, end; begin < members_.size(); begin = end) {
            end = end_of_stage(begin);
            const bool hurries = call_->training && free != free_[backward].end() && *free == members_[begin].stage;
            if (hurries)
                free++;
            else if (begin)
                barrier();
            stage(begin, end, backward);
        }
        if (!call_->training && !members_.empty())
            barrier();
    }

    size_t end_of_stage(size_t begin) const
    {
        size_t end = begin;
        while (end < members_.size() && members_[end].stage == members_[begin].stage)
            end++;
        return end;
    }

    void stage(size_t begin, size_t end, bool backward)
    {
        const size_t n_groups = groups_of_stage(begin, end, backward);
        for (size_t k = 0; k < n_groups; k++) {
            if (k)
                barrier();
            // What fills the pause of the barrier comes last, behind the signal.
            bool signals = false;
            for (const bool filling : {false, true})
                for (size_t i = begin; i < end; i++) {
                    const Block& b = rows_of_.blocks[members_[i].block];
                    if ((k == n_groups - 1 && fills(members_[i], backward)) != filling)
                        continue;
                    if (filling && !signals) {
                        signals = true;
                        script_.signal_early(model_);
                    }
                    write(b, groups(b, backward), k, members_[i].step);
                }
        }
    }

    void write(const Block& b, const Groups& all, size_t k, i64 step)
    {
        const i64 at = step * b.domains();
        if (k < all.size())
            for (const Template& group : all[k])
                write(b, group, step, &b.first_row[at], &b.count[at]);
    }

    // Whether the stage from `end` to `after` may follow the one from `begin` to `end` with no barrier between. Where
    // blocks begin, one barrier at least must lie between any three stages, because of the memory that they get. False
    // where it is not known.
    bool follows_freely(size_t begin, size_t end, size_t after, bool backward, bool& free)
    {
        bool others = false;
        for (size_t i = end; i < after; i++) {
            bool found = false;
            for (size_t j = begin; j < end; j++)
                found |= members_[j].block == members_[i].block;
            others |= !found;
        }
        free = !since_.pauses && (since_.of_one_stage || !(others || since_.others));
        if (free && !all_answer(end, after, backward ? BACKWARD : FORWARD, free))
            return false;
        since_.others |= free && others;
        return true;
    }

    // Whether some steps may follow all that has been executed since the last barrier. False where it is not known.
    bool all_answer(size_t begin, size_t end, Following following, bool& free)
    {
        for (size_t i = begin; i < end && free; i++)
            for (const auto& before : since_.groups) {
                const i64* known = answer(rows_of_.blocks[members_[i].block], before, following);
                if (!known)
                    return false;
                free = *known;
                if (!free)
                    break;
            }
        return true;
    }

    // What is known of a pair; null where the caller must be asked first.
    const i64* answer(const Block& after, const std::pair<i64, i64>& before, Following following)
    {
        const Pair pair{after.cell->id, rows_of_.blocks[before.first].cell->id, before.second, following};
        const auto known = answers_.find(pair);
        if (known != answers_.end())
            return &known->second;
        call_->after = pair[0];
        call_->before = pair[1];
        call_->group = pair[2];
        call_->backward = pair[3];
        return nullptr;
    }

    // The last contribution to each gradient, where it may make the step as well.
    void find_last()
    {
        last_.assign(model_.parameters.size(), nullptr);
        for (i64 k = 0; k < rows_of_.n_blocks && call_->updates && !call_->clips; k++)
            if (rows_of_.blocks[k].n_needed)
                for (const Gradient& g : rows_of_.blocks[k].cell->gradients)
                    last_[g.parameter] = &g;
    }

    bool makes_step(const Gradient& g) const { return last_[g.parameter] == &g && g.stepped.words.size() > 0; }

    // Whether the gradients make steps, or add to what is held.
    bool changes_with_gradients() const
    {
        bool found = call_->keeps || std::any_of(held_.begin(), held_.end(), [](u8 held) { return held; });
        for (i64 k = 0; k < rows_of_.n_blocks; k++)
            for (const Gradient& g : rows_of_.blocks[k].cell->gradients)
                found |= makes_step(g);
        return found;
    }

    // What of a block takes part in gradients: rows of each domain, from the first on.
    void find_needed(const Block& b)
    {
        first_.assign(b.domains(), 0);
        count_.clear();
        for (i32 d = 0; d < b.domains(); d++)
            count_.push_back(b.needed_rows(d));
    }

    void watch()
    {
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            const Block& b = rows_of_.blocks[k];
            if (!b.n_needed)
                continue;
            find_needed(b);
            for (const Instruction& watch : b.cell->watches) {
                write(b, watch.words, 0, first_.data(), count_.data());
                names_ |= i64{1} << watch.name;
            }
        }
    }

    static const Groups& groups(const Block& b, bool backward) { return backward ? b.cell->backward : b.cell->forward; }

    void gradients()
    {
        const bool updates = call_->updates;
        const auto& parameters = model_.parameters;
        written_ = held_;
        stepped_.assign(parameters.size(), 0);
        for (size_t p = 0; p < parameters.size(); p++)
            if (parameters[p].keeps_gradient && written_[p] && (updates || touched_[p]))
                write(parameters[p].load_gradient);
        for (i64 k = 0; k < rows_of_.n_blocks; k++) {
            const Block& b = rows_of_.blocks[k];
            if (!b.n_needed)
                continue;
            find_needed(b);
            for (const Gradient& g : b.cell->gradients) {
                const bool stepped = makes_step(g);
                const Instruction& made = stepped ? g.stepped : g.plain;
                names_ |= i64{1} << made.name;
                u32* words = write(b, made.words, 0, first_.data(), count_.data());
                if (stepped) {
                    words[model_.head_words] = static_cast<u32>(hyper_[g.parameter]);
                    stepped_[g.parameter] = 1;
                }
                if (written_[g.parameter])
                    words[0] |= model_.accumulate;
                written_[g.parameter] = 1;
            }
        }
        for (size_t p = 0; p < parameters.size(); p++)
            if (parameters[p].keeps_gradient && !updates && touched_[p])
                write(parameters[p].store_gradient);
        for (size_t p = 0; p < parameters.size(); p++)
            if (used_[p].present) {
                describe(used_[p]);
                write(call_->keeps ? parameters[p].sum_held : parameters[p].sum);
            }
    }

    void describe(const Used& used)
    {
        frame_[F_ROWS] = used.n;
        frame_[F_GRADIENT] = used.gradient;
        frame_[F_OFFSETS] = used.offsets;
        frame_[F_NUMBERS] = used.numbers;
        frame_[F_IDLE] = used.idle;
    }

    void update()
    {
        if (call_->clips)
            clip();
        for (size_t p = 0; p < model_.parameters.size(); p++) {
            const Parameter& parameter = model_.parameters[p];
            if (!parameter.trainable || stepped_[p])
                continue;
            frame_[F_HYPER] = hyper_[p];
            if (parameter.is_table) {
                if (!used_[p].present)
                    continue;
                describe(used_[p]);
                write(parameter.step);
            } else {
                write(parameter.step, touched_[p] || held_[p] ? 0 : model_.no_gradient);
            }
        }
    }

    void clip()
    {
        const auto& parameters = model_.parameters;
        i64 total = 0;
        for (size_t p = 0; p < parameters.size(); p++)
            if (used_[p].present)
                total += used_[p].n;
            else if (touched_[p] || held_[p])
                total += parameters[p].squares;
        const i64 partials = cursor_;
        cursor_ = aligned(cursor_ + total);
        frame_[F_PARTIALS] = partials;
        for (size_t p = 0; p < parameters.size(); p++)
            if (!used_[p].present && (touched_[p] || held_[p])) {
                write(parameters[p].square);
                frame_[F_PARTIALS] += parameters[p].squares;
            }
        for (size_t p = 0; p < parameters.size(); p++)
            if (used_[p].present) {
                describe(used_[p]);
                write(parameters[p].square);
                frame_[F_PARTIALS] += used_[p].n;
            }
        script_.barrier(model_.n_vps);
        frame_[F_ROWS] = total;
        frame_[F_PARTIALS] = partials;
        frame_[F_NORM] = call_->max_norm;
        write(model_.clip);
    }

    // ---- what the caller learns

    // Where other values than the wanted ones lie, others have come since.
    void keep(const i64* wanted, i64 n)
    {
        kept_.clear();
        for (i64 i = 0; i < n; i++)
            kept_.push_back(lists_.addresses[wanted[i]]);
        std::fill_n(lists_.addresses, rows_of_.n_values, ~0u);
        for (i64 i = 0; i < n; i++)
            lists_.addresses[wanted[i]] = static_cast<u32>(kept_[i]);
    }

    void report_tables() const
    {
        call_->n_tables = 0;
        if (!call_->training)
            return;
        i64* next = pointer<i64>(call_->tables);
        for (size_t p = 0; p < used_.size(); p++) {
            const Used& used = used_[p];
            if (!used.present)
                continue;
            const i64 found[TABLE] = {static_cast<i64>(p), used.n, used.gradient, used.offsets, used.numbers, used.idle};
            next = std::copy_n(found, TABLE, next);
            call_->n_tables++;
        }
    }
};

}  // namespace

// A planner for parameters in their places, or null where the numbers are not what is expected.
EXPORT void* vpps_planner(const i64* numbers, i64 n)
{
    Numbers from(numbers, n);
    auto planner = std::make_unique<Planner>(from);
    return from.complete() ? planner.release() : nullptr;
}

EXPORT void vpps_planner_free(void* planner) { delete static_cast<Planner*>(planner); }

// The number of a new cell, given its numbers of vector, int and list arguments and of outputs.
EXPORT i64 vpps_planner_cell(void* planner, const i64* counts) { return static_cast<Planner*>(planner)->add_cell(counts); }

// Tells the parts of a cell, by what they depend on. 0 where the numbers are not what is expected.
EXPORT i64 vpps_planner_parts(void* planner, i64 cell, const u8* key, i64 n_key, const i64* numbers, i64 n)
{
    Numbers from(numbers, n);
    return static_cast<Planner*>(planner)->add_parts(cell, std::vector<u8>(key, key + n_key), from);
}

// Tells what may follow a step freely, given the numbers that `plan` has asked about: whether it may.
EXPORT void vpps_planner_pair(void* planner, const i64* pair, i64 answer)
{
    static_cast<Planner*>(planner)->add_pair(pair, answer);
}

// Tells by which policy the recurrence runs that `plan` has asked about. Of FSM: which of its cells, in the order of their
// blocks, is each of the machine's types; then the machine. 0 where the numbers are not what is expected.
EXPORT i64 vpps_planner_choice(void* planner, i64 policy, const i64* numbers, i64 n)
{
    Numbers from(numbers, n);
    return static_cast<Planner*>(planner)->add_choice(static_cast<Policy>(policy), from);
}

EXPORT i64 vpps_planner_unseen(void* planner, i64 choice) { return static_cast<Planner*>(planner)->unseen(choice); }

EXPORT i64 vpps_plan(void* planner, Call* call)
{
#if defined(__cpp_exceptions)
    try {
        return static_cast<Planner*>(planner)->plan(call);
    } catch (const std::exception&) {  // no memory: NumPy says so in the user's words
        return NOT_MINE;
    }
#else
    return static_cast<Planner*>(planner)->plan(call);
#endif
}
