// What is added up over tiles beside the results: membranes in the forward pass, gradients in the backward pass. Sums
// stay in the precision of x for a few tiles, lane by lane, and then go on in double. And the slopes of tiles.
#pragma once

#include <algorithm>

#include "membrane.h"

namespace sage {

constexpr Index BRIEF = 16;  // tiles whose sums stay in the precision of x

// Of the membranes before firing, (T, 3): distance to the threshold, its square, how many are nearer than `near`.
template <class F>
struct Census {
    double* totals;  // (T, 3), or null: nobody asks

    Census(double near_, Index steps, double* totals_, std::vector<F>& buffer)
        : totals(totals_), near(F(near_)), sums(buffer), rows(totals_ ? steps * 3 : 0) {
        sums.assign(size_t(rows * TILE), F(0));
    }

    void add(Index t, const F* distances) {
        const F limit = near;
        F *__restrict first = &sums[size_t(t * 3 * TILE)], *__restrict second = first + TILE;
        F* __restrict third = second + TILE;
        for (int j = 0; j < TILE; ++j) {
            first[j] += distances[j];
            second[j] += distances[j] * distances[j];
            third[j] += std::fabs(distances[j]) < limit ? F(1) : F(0);
        }
    }

    // Around every tile: one that is cut off is summed by itself, without the lanes that hold nothing.
    void begin(Index count) {
        if (totals && count < TILE) close(TILE);
    }
    void end(Index count) {
        if (totals && (count < TILE || ++run == BRIEF)) close(count);
    }
    void close(Index count) {
        for (Index i = 0; i < rows; ++i) {
            F* row = &sums[size_t(i * TILE)];
            std::fill(row + count, row + TILE, F(0));
            totals[i] += sum(row);
        }
        std::fill(sums.begin(), sums.end(), F(0));
        run = 0;
    }

  private:
    F near;
    std::vector<F>& sums;
    Index rows, run = 0;
};

// Where pieces of work leave their sums; they are added up in the order of the pieces, whoever made them.
struct PieceSums {
    Index width;
    double* totals;  // null: nobody asks
    std::vector<double> found;

    PieceSums(Index pieces, Index width_, double* totals_)
        : width(width_), totals(totals_), found(totals_ ? size_t(pieces * width_) : 0) {}

    double* of(Index piece) { return totals ? &found[size_t(piece * width)] : nullptr; }
    void finish() const {
        if (totals) add_up(found, width, totals);
    }
};

// (T, 4) of the censuses (pieces, T, 3): the count of neurons comes first.
inline void report(const std::vector<double>& pieces, Index steps, Index count, double* moments) {
    std::vector<double> totals(size_t(steps * 3));
    add_up(pieces, steps * 3, totals.data());
    for (Index t = 0; t < steps; ++t) {
        moments[t * 4] = double(count);
        for (int k = 0; k < 3; ++k) moments[t * 4 + 1 + k] = totals[size_t(t * 3 + k)];
    }
}

// Sums of squares of the gradients of spikes and of currents.
template <class F>
struct Squares {
    double* totals;  // (2)
    F of_spikes[TILE] = {}, of_currents[TILE] = {};
    Index run = 0;

    explicit Squares(double* totals_) : totals(totals_) {}

    void add(const F* spikes, const F* currents, Index stride, Index steps) {
        for (Index t = 0; t < steps; ++t)
            for (int j = 0; j < TILE; ++j) {
                const F a = spikes ? spikes[t * stride + j] : F(0), b = currents[t * stride + j];
                of_spikes[j] += a * a;
                of_currents[j] += b * b;
            }
        if (++run == BRIEF) close();
    }
    void close() {
        totals[0] += sum(of_spikes), totals[1] += sum(of_currents);
        std::fill(of_spikes, of_spikes + TILE, F(0));
        std::fill(of_currents, of_currents + TILE, F(0));
        run = 0;
    }
};

// What backward adds up beside gradients, each null if nobody asks.
struct BackSums {
    double* slopes = nullptr;     // (T): d loss / d slope
    double* constants = nullptr;  // (T + 1): d loss / d threshold, and d loss / d tau
    double* squares = nullptr;    // (2)
};

struct BackPieces {
    PieceSums slopes, constants, squares;

    BackPieces(Index pieces, Index steps, const BackSums& asked)
        : slopes(pieces, steps, asked.slopes), constants(pieces, steps + 1, asked.constants),
          squares(pieces, 2, asked.squares) {}

    BackSums of(Index piece) { return {slopes.of(piece), constants.of(piece), squares.of(piece)}; }
    void finish() const { slopes.finish(), constants.finish(), squares.finish(); }
};

// Slopes of a tile: one per step, or rows of one per lane, `stride` apart (0: the same row for all steps).
template <class F>
struct TileSlopes {
    const double* steps;  // either may be null
    const F* lanes;
    Index stride;
};

// Slopes of their own for the neurons of a step; they broadcast over its three axes in memory.
template <class F>
struct NeuronSlopes {
    const F* values = nullptr;  // null: one slope per step
    Index second = 1, third = 1;  // sizes of the last two axes
    Index step = 0, strides[3] = {};  // 0 along an axis whose neurons share a slope

    NeuronSlopes() = default;
    NeuronSlopes(const F* values_, const std::int64_t* layout) : values(values_) {
        if (!values) return;
        second = layout[0], third = layout[1], step = layout[2];
        for (int axis = 0; axis < 3; ++axis) strides[axis] = layout[3 + axis];
    }

    Index rows(Index steps) const { return step ? steps : 1; }

    // The slopes of `count` neurons from the place `first` of a step on: `count` lanes of rows that lie TILE apart.
    void gather(Index first, Index count, Index steps, F* lanes) const {
        for (Index done = 0; done < count;) {
            const Index at = first + done, place = at % third, line = at / third;
            const Index n = std::min(count - done, third - place), apart = strides[2];
            const F* from = values + line / second * strides[0] + line % second * strides[1] + place * apart;
            for (Index t = 0; t < rows(steps); ++t, from += step) {
                F* to = lanes + t * TILE + done;
                if (apart == 0) std::fill(to, to + n, *from);
                else if (apart == 1) std::copy(from, from + n, to);
                else
                    for (Index i = 0; i < n; ++i) to[i] = from[i * apart];
            }
            done += n;
        }
    }

    // The slopes of a tile; visit(gather) calls gather(first, count, lane) for the runs of neurons that it holds.
    template <class Visit>
    TileSlopes<F> of_tile(const double* each_step, Index steps, std::vector<F>& buffer, Visit&& visit) const {
        if (!values) return {each_step, nullptr, 0};
        buffer.assign(size_t(rows(steps) * TILE), F(1));
        visit([&](Index first, Index count, Index lane) { gather(first, count, steps, buffer.data() + lane); });
        return {each_step, buffer.data(), step ? TILE : 0};
    }
};

// Does backward ask for one slope per step, and for no sums but theirs?
template <class G>
bool is_plain(const G& g) {
    return !g.own_slopes.values && !g.sums.constants && !g.sums.squares;
}

}  // namespace sage
