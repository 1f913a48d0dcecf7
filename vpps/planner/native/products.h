// Weight gradients of strategy "gemm": which vectors a product of matrices needs, and how they
// come to lie side by side.
#pragma once

#include "launch.h"

class GradientProducts {
public:
    explicit GradientProducts(Launch& launch) : launch_(launch) {}

    // Of a batch: what each matrix met, in the order of the blocks.
    void find()
    {
        found_.clear();
        contributions_.clear();
        of_parameter_.assign(launch_.model.parameters.size(), NONE);
        for (const Block& b : launch_.rows) {
            if (b.n_needed)
                for (const Gathered& g : b.cell->gathered)
                    if (launch_.reach.parameters[g.parameter])
                        add(b, g);
        }
    }

    bool any() const { return !found_.empty(); }
    bool makes(size_t parameter) const { return of_parameter_[parameter] != NONE; }

    // Finds room for the vectors; those that lie side by side already stay where they are.
    void take_memory(Memory& memory)
    {
        for (size_t product = 0; product < found_.size(); product++)
            for (const int side : {0, 1})
                take_memory(memory, product, side);
    }

    // Writes the instructions that copy vectors to where the product finds them.
    void gather()
    {
        for (size_t product = 0; product < found_.size(); product++) {
            const Product& made = found_[product];
            i64 before = 0;
            for (const Contribution& c : contributions_) {
                if (c.product != product)
                    continue;
                const i64 n = c.block->needed_rows(c.gathered->domain);
                for (const int side : {0, 1})
                    if (n && made.copied[side])
                        copy(c, side, made.at[side].address + before * made.at[side].stride, made.at[side].stride);
                before += n;
            }
        }
    }

    // Tells the caller what is to be multiplied once the launch has ended.
    void report() const
    {
        auto* next = pointer<GivenProduct>(launch_.call->products);
        launch_.call->n_products = static_cast<i64>(found_.size());
        for (const Product& p : found_) {
            const auto [dy, x] = p.at;
            *next++ = {p.parameter, p.n, dy.address, dy.stride, x.address, x.stride};
        }
    }

private:
    struct Place {
        i64 address, stride;
    };
    struct Product {
        i32 parameter;
        i64 n, contributions;  // n: vectors of all contributions
        Place at[2];           // where they lie side by side: dy, x
        bool copied[2];        // whether the script puts them there
    };
    struct Contribution {
        const Block* block;
        const Gathered* gathered;
        size_t product;
    };
    static constexpr size_t NONE = ~size_t{0};

    Launch& launch_;
    std::vector<Product> found_;
    std::vector<Contribution> contributions_;
    std::vector<size_t> of_parameter_;

    void add(const Block& b, const Gathered& gathered)
    {
        size_t& product = of_parameter_[gathered.parameter];
        if (product == NONE) {
            product = found_.size();
            found_.push_back({gathered.parameter, 0, 0, {}, {}});
        }
        contributions_.push_back({&b, &gathered, product});
        found_[product].n += b.needed_rows(gathered.domain);
        found_[product].contributions++;
    }

    void take_memory(Memory& memory, size_t product, int side)
    {
        Product& made = found_[product];
        const auto only = std::find_if(contributions_.begin(), contributions_.end(),
                                       [&](const Contribution& c) { return c.product == product; });
        const Factor& factor = only->gathered->factors[side];
        const Block& b = *only->block;
        made.copied[side] = made.contributions > 1 || factor.slab < 0;
        if (made.copied[side])
            made.at[side] = {memory.take_at_end(made.n * factor.width), factor.width};
        else  // the slab lives to the end of the launch: one array for all steps
            made.at[side] = {b.bases[factor.slab] + factor.offset, b.cell->slabs[factor.slab].width};
    }

    void copy(const Contribution& c, int side, i64 address, i64 stride)
    {
        const auto number = c.gathered - c.block->cell->gathered.data();
        i64 copy = side ? static_cast<i64>(c.gathered->factors[0].copies.size()) : 0;
        for (const VectorCopy& made : c.gathered->factors[side].copies) {
            launch_.note(Made::COPY, *c.block, number, copy++);
            u32* words = launch_.write_needed(*c.block, made.copy);
            words[launch_.model.head_words] = static_cast<u32>(address + made.column);
            words[launch_.model.head_words + 1] = static_cast<u32>(stride);
        }
    }
};
