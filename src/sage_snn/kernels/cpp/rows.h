// Batch normalisation where a position's channels lie together: x (T, R, C), R = images times positions.
//
// The lanes of a tile are neighbours in memory. After `period` values channels and tiles begin together again; a column
// is the tile at one place of all periods, so that each of its lanes belongs to one channel throughout. What is summed is
// summed column by column and part by part, whoever does the work; and work goes through a band of several columns at
// once, in the order of memory.
#pragma once

#include <algorithm>
#include <numeric>

#include "moments.h"
#include "norm.h"

namespace sage {

constexpr Index PART = 256;  // periods to a piece of work
constexpr Index RUN = 4 * BRIEF;  // periods whose moments are summed in the precision of x

struct Band {
    Index first, count;  // columns
};

template <class F>
struct Rows {
    Norm<F> norm;
    const F *x, *residual;  // null: none is added to the normalised values
    Index steps, rows, channels;
    Membrane<F> membrane;
    int threads;
    Index size = rows * channels;  // of a step
    Index period = std::lcm(channels, Index(TILE));

    Index columns() const { return period / TILE; }
    Index periods() const { return (size + period - 1) / period; }
    Index parts() const { return (periods() + PART - 1) / PART; }
    // Columns of a band: all, which is the order of memory, or as many as leave even shares for all threads. What is
    // summed over several tiles (moments of membranes, squares), and a last period that is cut off, want a column alone.
    Index breadth(bool by_tile) const {
        if (!by_tile || size % period) return 1;
        Index bands = 1;
        while (bands < columns() && !is_even(bands * parts())) ++bands;
        return (columns() + bands - 1) / bands;
    }
    // Has the thread with the largest share of so many pieces at most a quarter more than its due?
    bool is_even(Index pieces) const { return (pieces + threads - 1) / threads * threads * 4 <= pieces * 5; }
};

// The normalisation, lane by lane of a period; and what leads from its gradient to that of x.
template <class F>
struct Lanes {
    std::vector<F> shift, gain, offset, level, tilt, zeros, ones;

    explicit Lanes(Index period)
        : shift(size_t(period)), gain(size_t(period)), offset(size_t(period)), level(size_t(period)),
          tilt(size_t(period)), zeros(TILE, F(0)), ones(TILE, F(1)) {}

    void set(Index lane, Affine<F> affine) {
        shift[size_t(lane)] = affine.shift, gain[size_t(lane)] = affine.gain, offset[size_t(lane)] = affine.offset;
    }
    LaneAffine<F> of(Index column) const {
        return {&shift[size_t(column * TILE)], &gain[size_t(column * TILE)], &offset[size_t(column * TILE)]};
    }
    LaneAffine<F> unchanged() const { return {zeros.data(), ones.data(), zeros.data()}; }
};

// body(band, part, scratch) for all work, spread over the threads.
template <class F, class Body>
void each_piece(const Rows<F>& p, Index breadth, Body&& body) {
    const Index columns = p.columns(), bands = (columns + breadth - 1) / breadth;
    spread<F>(p.threads, bands * p.parts(), [&](Index i, Scratch<F>& scratch) {
        const Index first = i % bands * breadth;
        body(Band{first, std::min(breadth, columns - first)}, i / bands, scratch);
    });
}

// visit(offset in memory of step 0, lanes in use) for the rows of a band in a part.
template <class F, class Visit>
void rows_of(const Rows<F>& p, Band band, Index part, Visit&& visit) {
    const Index end = std::min(p.size, (part + 1) * PART * p.period);
    for (Index at = part * PART * p.period + band.first * TILE; at < end; at += p.period)
        visit(at, std::min(band.count * TILE, end - at));
}

// visit(offset in memory of step 0, lanes in use, column) for their tiles; after() when those of a row are done.
template <class F, class Visit, class After>
void tiles_of(const Rows<F>& p, Band band, Index part, Visit&& visit, After&& after) {
    rows_of(p, band, part, [&](Index at, Index width) {
        for (Index i = 0; i < width; i += TILE)
            visit(at + i, std::min<Index>(TILE, width - i), band.first + i / TILE);
        after();
    });
}

// Moments of every lane of every part: the arithmetic of `Moments`, on arrays that vector code can take.
struct LaneMoments {
    std::vector<double> count, mean, squares;

    explicit LaneMoments(Index lanes) : count(size_t(lanes)), mean(size_t(lanes)), squares(size_t(lanes)) {}

    Moments of(Index lane) const { return {count[size_t(lane)], mean[size_t(lane)], squares[size_t(lane)]}; }
    void add(Index lane, const Moments& more) {
        Moments all = of(lane);
        all.add(more);
        count[size_t(lane)] = all.count, mean[size_t(lane)] = all.mean, squares[size_t(lane)] = all.squares;
    }
    // `run` values for each of a tile's lanes, as sums of (x - c) and (x - c)^2.
    template <class F>
    void add_run(Index lane, Index run, const F* centre, const F* first, const F* second) {
        const double n = double(run);
        double *__restrict counts = &count[size_t(lane)], *__restrict means = &mean[size_t(lane)];
        double* __restrict all = &squares[size_t(lane)];
        for (int j = 0; j < TILE; ++j) {
            const double rest = first[j], own = double(second[j]) - rest * rest / n;
            const double total = counts[j] + n, distance = double(centre[j]) + rest / n - means[j];
            means[j] += distance * (n / total);
            all[j] += (own < 0 ? 0 : own) + distance * distance * (counts[j] * n / total);  // NaN stays NaN
            counts[j] = total;
        }
    }
};

// Sums of (x - c) and (x - c)^2 over rows of `width` lanes, about their first values c.
template <class F>
void sum_rows(const F* x, Index stride, Index rows, Index width, F* centre, F* first, F* second) {
    if (width == TILE) {  // in registers, where one row would wait for the other
        F c[TILE], one[TILE] = {}, two[TILE] = {};
        std::memcpy(c, x, sizeof c);
        for (Index i = 0; i < rows; ++i, x += stride)
            for (int j = 0; j < TILE; ++j) {
                const F d = x[j] - c[j];
                one[j] += d;
                two[j] += d * d;
            }
        std::memcpy(centre, c, sizeof c);
        std::memcpy(first, one, sizeof one);
        std::memcpy(second, two, sizeof two);
        return;
    }
    F *__restrict c = centre, *__restrict one = first, *__restrict two = second;
    for (Index j = 0; j < width; ++j) c[j] = x[j], one[j] = two[j] = F(0);
    for (Index i = 0; i < rows; ++i, x += stride)
        for (Index j = 0; j < width; ++j) {
            const F d = x[j] - c[j];
            one[j] += d;
            two[j] += d * d;
        }
}

// Moments of every lane of a band in a part, from brief runs of rows.
template <class F>
void measure(const Rows<F>& p, Band band, Index part, LaneMoments& found, Scratch<F>& scratch) {
    const Index offset = band.first * TILE, width = band.count * TILE, lane = part * p.period + offset;
    const Index whole = p.size < offset + TILE ? 0 : (p.size - offset - TILE) / p.period + 1;  // periods with whole tiles
    const Index begin = part * PART, end = std::min(begin + PART, whole), cut = whole * p.period + offset;
    F *centre = on_lines(scratch.sum, 3 * width), *first = centre + width, *second = first + width;
    for (Index t = 0; t < p.steps; ++t) {
        const F* x = p.x + t * p.size;
        const auto add = [&](Index at, Index rows) {
            sum_rows(x + at * p.period + offset, p.period, rows, width, centre, first, second);
            for (Index i = 0; i < width; i += TILE) found.add_run(lane + i, rows, centre + i, first + i, second + i);
        };
        Index at = begin;
        for (; at + RUN <= end; at += RUN) add(at, RUN);
        if (whole / PART == part)
            for (Index i = cut; i < p.size; ++i) found.add(lane + i - cut, {1, double(x[i]), 0});
        if (at < end) add(at, end - at);
    }
}

// The normalisation of a channel, on all its lanes; if it is measured, mean and var too.
template <class F>
void settle(const Rows<F>& p, Index c, const LaneMoments& found, bool measures, F* mean, F* var, Lanes<F>& lanes) {
    Moments all;
    for (Index lane = c; measures && lane < p.period; lane += p.channels)
        for (Index part = 0; part < p.parts(); ++part) all.add(found.of(part * p.period + lane));
    if (measures) mean[c] = F(all.mean), var[c] = F(all.squares / all.count);
    for (Index lane = c; lane < p.period; lane += p.channels) lanes.set(lane, p.norm.affine(mean, var, c));
}

// Sums of gradients and of their products with x - mean, lane by lane of a band, for a brief run of periods.
template <class F>
struct LaneSums {
    Index width, run = 0;
    F* lanes;  // (2, width)

    LaneSums(Index width_, std::vector<F>& buffer) : width(width_), lanes(on_lines(buffer, 2 * width)) {
        std::fill(lanes, lanes + 2 * width, F(0));
    }
    // `count` lanes from `lane` on; whole tiles say so by a constant, for shorter code.
    template <class Count>
    void add(Index lane, Count count, const F* grad, const F* x, const F* shift, Index stride, Index steps) {
        F *__restrict plain = lanes + lane, *__restrict with_x = plain + width;
        for (Index t = 0; t < steps; ++t, grad += stride, x += stride)
            for (Index j = 0; j < count; ++j) {
                plain[j] += grad[j];
                with_x[j] += grad[j] * (x[j] - shift[j]);
            }
    }
    void close(double* sums) {  // (width, 2)
        for (Index j = 0; j < width; ++j) sums[2 * j] += lanes[j], sums[2 * j + 1] += lanes[width + j];
        std::fill(lanes, lanes + 2 * width, F(0));
        run = 0;
    }
};

// From the gradient of the normalised values to that of x.
template <class F>
void back_norm(const Rows<F>& p, const Gradients<F>& g, const Lanes<F>& lanes, Band band, Index part, bool measured) {
    const size_t lane = size_t(band.first * TILE);
    const F *shift = &lanes.shift[lane], *gain = &lanes.gain[lane], *level = &lanes.level[lane], *tilt = &lanes.tilt[lane];
    for (Index t = 0; t < p.steps; ++t)
        rows_of(p, band, part, [&](Index at, Index width) {
            const F* __restrict x = p.x + t * p.size + at;
            // May be where the result goes, each value to its own place: lanes need not wait for each other.
            const F* normal = g.normal() + t * p.size + at;
            F* grad = g.x + t * p.size + at;
            if (!measured) {
#pragma omp simd
                for (Index j = 0; j < width; ++j) grad[j] = normal[j] * gain[j];
            } else {
#pragma omp simd
                for (Index j = 0; j < width; ++j) grad[j] = (normal[j] - level[j] - (x[j] - shift[j]) * tilt[j]) * gain[j];
            }
        });
}

// Gradients of a channel's weight and bias, and what leads to that of x on all its lanes.
template <class F>
void settle_back(const Rows<F>& p, Index c, const std::vector<double>& sums, const Gradients<F>& g, Lanes<F>& lanes) {
    double totals[2] = {0, 0};
    for (Index lane = c; lane < p.period; lane += p.channels)
        for (Index part = 0; part < p.parts(); ++part)
            for (int k = 0; k < 2; ++k) totals[k] += sums[size_t((part * p.period + lane) * 2 + k)];
    const double deviation = p.norm.deviation(g.var, c), count = double(p.steps * p.rows);
    g.bias[c] = F(totals[0]), g.weight[c] = F(totals[1] * deviation);
    for (Index lane = c; lane < p.period; lane += p.channels) {
        lanes.level[size_t(lane)] = F(totals[0] / count);
        lanes.tilt[size_t(lane)] = F(totals[1] * deviation * deviation / count);
    }
}

}  // namespace sage
