// Batch normalisation and LIF where a position's channels lie together: x (T, R, C), R = images times positions.
//
// The lanes of a tile are neighbours in memory. After `period` values channels and tiles begin together again; a column
// is the tile at one place of all periods, so that each of its lanes belongs to one channel throughout. Where a period is
// one row, a column holds whole channels and is read from memory once; else the phases follow one another.
#pragma once

#include <algorithm>
#include <numeric>

#include "moments.h"
#include "norm.h"

namespace sage {

constexpr Index PART = 256;  // periods to a piece of work
constexpr Index AHEAD = 4;   // periods to ask for in advance: their rows lie apart, which the processor does not foresee

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
    bool by_column() const { return period == channels && (columns() >= 4 * threads || columns() % threads == 0); }
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

// visit(offset in memory of step 0, lanes in use) for the tiles of a column in a part.
template <class F, class Visit>
void tiles_of(const Rows<F>& p, Index column, Index part, Visit&& visit) {
    const Index first = part * PART * p.period + column * TILE;
    const Index end = std::min(p.size, first + PART * p.period);
    for (Index at = first; at < end; at += p.period) visit(at, std::min<Index>(TILE, p.size - at));
}

template <int Write, class F>
void fetch_ahead(const Rows<F>& p, const F* from, Index at) {
    const Index next = at + AHEAD * p.period;
    if (p.period == TILE || next + TILE > p.size) return;
    for (Index t = 0; t < p.steps; ++t)
        for (Index j = 0; j < TILE; j += LINE / Index(sizeof(F)))
            __builtin_prefetch(from + t * p.size + next + j, Write, 2);
}

// A tile that is cut off is worked on in a buffer, so that the arithmetic is that of a whole one.
template <class F>
const F* gather(const Rows<F>& p, const F* from, Index at, Index count, F pad, std::vector<F>& buffer) {
    if (count == TILE) return from + at;
    buffer.assign(size_t(p.steps * TILE), pad);
    for (Index t = 0; t < p.steps; ++t)
        std::memcpy(&buffer[size_t(t * TILE)], from + t * p.size + at, size_t(count) * sizeof(F));
    return buffer.data();
}

template <class F>
F* target(const Rows<F>& p, F* to, Index at, Index count, std::vector<F>& buffer) {
    if (count == TILE) return to + at;
    buffer.resize(size_t(p.steps * TILE));
    return buffer.data();
}

template <class F>
void scatter(const Rows<F>& p, F* to, Index at, Index count, const F* rows) {
    if (count == TILE) return;
    for (Index t = 0; t < p.steps; ++t)
        std::memcpy(to + t * p.size + at, rows + t * TILE, size_t(count) * sizeof(F));
}

template <class F>
Currents<F, LaneAffine<F>> currents(const Rows<F>& p, const Lanes<F>& lanes, Index column, const F* x, Index at,
                                    Index count, Scratch<F>& scratch) {
    const Currents<F, LaneAffine<F>> plain{lanes.of(column), x, count == TILE ? p.size : TILE};
    if (!p.residual) return plain;
    fetch_ahead<0>(p, p.residual, at);
    const F* residual = gather(p, p.residual, at, count, F(0), scratch.residual);
    return with_residual(plain, residual, lanes.unchanged(), p.steps, scratch.sum);
}

// Moments of every lane of a column in a part: sums of (x - c) and (x - c)^2 about the first value c of a brief run.
template <class F>
void measure(const Rows<F>& p, Index column, Index part, Moments* found) {
    F centre[TILE] = {}, first[TILE] = {}, second[TILE] = {};
    Index run = 0;
    const auto close = [&] {
        const double n = double(run);
        for (int j = 0; run && j < TILE; ++j) {
            const double rest = first[j], squares = double(second[j]) - rest * rest / n;
            found[j].add({n, double(centre[j]) + rest / n, squares < 0 ? 0 : squares});  // NaN stays NaN
        }
        run = 0;
    };
    for (Index t = 0; t < p.steps; ++t) {
        tiles_of(p, column, part, [&](Index at, Index count) {
            const F* __restrict x = p.x + t * p.size + at;
            if (count < TILE) {
                for (int j = 0; j < count; ++j) found[j].add({1, double(x[j]), 0});
                return;
            }
            if (run == 0)
                for (int j = 0; j < TILE; ++j) centre[j] = x[j], first[j] = second[j] = F(0);
            for (int j = 0; j < TILE; ++j) {
                const F d = x[j] - centre[j];
                first[j] += d;
                second[j] += d * d;
            }
            if (++run == 4 * BRIEF) close();
        });
        close();
    }
}

// The normalisation of a channel, on all its lanes; if it is measured, mean and var too.
template <class F>
void settle(const Rows<F>& p, Index c, const std::vector<Moments>& found, bool measures, F* mean, F* var,
            Lanes<F>& lanes) {
    Moments all;
    for (Index lane = c; measures && lane < p.period; lane += p.channels)
        for (Index part = 0; part < p.parts(); ++part) all.add(found[size_t(part * p.period + lane)]);
    if (measures) mean[c] = F(all.mean), var[c] = F(all.squares / all.count);
    for (Index lane = c; lane < p.period; lane += p.channels) lanes.set(lane, p.norm.affine(mean, var, c));
}

template <class F>
void fire_part(const Rows<F>& p, const Tiles<F, LaneAffine<F>>& functions, const Lanes<F>& lanes, Index column,
               Index part, F* spikes, double near, double* seen, Scratch<F>& scratch) {
    Census<F> census(near, p.steps, seen, scratch.census);
    tiles_of(p, column, part, [&](Index at, Index count) {
        fetch_ahead<0>(p, p.x, at);
        fetch_ahead<1>(p, static_cast<const F*>(spikes), at);
        F v[TILE];
        for (int j = 0; j < TILE; ++j) v[j] = p.membrane.rest;
        const Index stride = count == TILE ? p.size : TILE;
        F* out = target(p, spikes, at, count, scratch.out);
        const auto in = currents(p, lanes, column, gather(p, p.x, at, count, F(0), scratch.in), at, count, scratch);
        census.begin(count);
        functions.fire(p.membrane, in.affine, in.rows, in.stride, p.steps, v, out, stride, &census);
        census.end(count);
        scatter(p, spikes, at, count, out);
    });
    census.close(TILE);
}

template <class F>
void forward(const Rows<F>& p, bool measures, F* mean, F* var, F* spikes, Asked asked) {
    const Tiles<F, LaneAffine<F>> functions(p.membrane, asked.moments == nullptr);
    const Index period = p.period, columns = p.columns(), parts = p.parts();
    PieceSums seen(parts * columns, p.steps * 3, asked.moments);
    std::vector<Moments> found(measures ? size_t(parts * period) : 0);
    Lanes<F> lanes(period);
    const auto see = [&](Index column, Index part) {
        measure(p, column, part, &found[size_t(part * period + column * TILE)]);
    };
    const auto fire = [&](Index column, Index part, Scratch<F>& scratch) {
        fire_part(p, functions, lanes, column, part, spikes, asked.near, seen.of(part * columns + column), scratch);
    };
    if (p.by_column()) {
        spread<F>(p.threads, columns, [&](Index column, Scratch<F>& scratch) {
            for (Index part = 0; measures && part < parts; ++part) see(column, part);
            for (Index c = column * TILE; c < (column + 1) * TILE; ++c) settle(p, c, found, measures, mean, var, lanes);
            for (Index part = 0; part < parts; ++part) fire(column, part, scratch);
        });
    } else {
        const auto each = [&](Index i, Scratch<F>&) { see(i % columns, i / columns); };
        if (measures) spread<F>(p.threads, columns * parts, each);
        for (Index c = 0; c < p.channels; ++c) settle(p, c, found, measures, mean, var, lanes);
        spread<F>(p.threads, columns * parts,
                  [&](Index i, Scratch<F>& scratch) { fire(i % columns, i / columns, scratch); });
    }
    if (asked.moments) report(seen.found, p.steps, p.size, asked.moments);
}

// Gradient of the normalised values of a part, left in g.normal(); sums get its sum and its sum with x - mean, lane by lane.
template <bool Plain, class F>
void back_part(const Rows<F>& p, const Tiles<F, LaneAffine<F>>& functions, const Gradients<F>& g, const Lanes<F>& lanes,
               Index column, Index part, double* sums, const BackSums& asked, Scratch<F>& scratch) {
    const LaneAffine<F> affine = lanes.of(column);
    scratch.charged.resize(size_t(p.steps * TILE));
    F plain[TILE] = {}, with_x[TILE] = {}, rest[TILE];
    if (!Plain) std::fill(rest, rest + TILE, p.membrane.rest);
    Squares<F> squares(asked.squares);
    Index run = 0;
    const auto close = [&] {
        for (int j = 0; j < TILE; ++j) {
            sums[2 * j] += plain[j], sums[2 * j + 1] += with_x[j];
            plain[j] = with_x[j] = F(0);
        }
        run = 0;
    };
    tiles_of(p, column, part, [&](Index at, Index count) {
        fetch_ahead<0>(p, p.x, at);
        fetch_ahead<0>(p, g.spikes, at);
        fetch_ahead<1>(p, static_cast<const F*>(g.normal()), at);
        F v[TILE], grad_v[TILE] = {};
        for (int j = 0; j < TILE; ++j) v[j] = p.membrane.rest;
        const Index stride = count == TILE ? p.size : TILE;
        const F* x = gather(p, p.x, at, count, F(0), scratch.in);
        const F* grad = gather(p, g.spikes, at, count, F(0), scratch.grad);
        F* out = target(p, g.normal(), at, count, scratch.out);
        const auto in = currents(p, lanes, column, x, at, count, scratch);
        functions.charge(p.membrane, in.affine, in.rows, in.stride, p.steps, v, scratch.charged.data());
        TileSlopes<F> slopes{g.slopes, nullptr, 0};
        if (!Plain)
            slopes = g.own_slopes.of_tile(g.slopes, p.steps, scratch.slopes,
                                          [&](auto gather) { gather(at, count, 0); });
        functions.back(p.membrane, scratch.charged.data(), grad, stride, slopes, p.steps, grad_v, out, stride, asked,
                       Plain ? nullptr : rest);
        for (Index t = 0; t < p.steps; ++t)
            for (int j = 0; j < TILE; ++j) {
                plain[j] += out[t * stride + j];
                with_x[j] += out[t * stride + j] * (x[t * stride + j] - affine.shift[j]);
            }
        if (!Plain && asked.squares) squares.add(grad, out, stride, p.steps);
        scatter(p, g.normal(), at, count, out);
        if (++run == BRIEF) close();
    });
    close();
    if (!Plain && asked.squares) squares.close();
}

// From the gradient of the normalised values to that of x.
template <class F>
void back_norm(const Rows<F>& p, const Gradients<F>& g, const Lanes<F>& lanes, Index column, Index part,
               bool measured) {
    const size_t lane = size_t(column * TILE);
    const F *shift = &lanes.shift[lane], *gain = &lanes.gain[lane];
    const F *level = &lanes.level[lane], *tilt = &lanes.tilt[lane];
    for (Index t = 0; t < p.steps; ++t)
        tiles_of(p, column, part, [&](Index at, Index count) {
            const F* __restrict x = p.x + t * p.size + at;
            const F* normal = g.normal() + t * p.size + at;  // may be where the result goes
            F* grad = g.x + t * p.size + at;
            if (!measured)
                for (int j = 0; j < count; ++j) grad[j] = normal[j] * gain[j];
            else
                for (int j = 0; j < count; ++j) grad[j] = (normal[j] - level[j] - (x[j] - shift[j]) * tilt[j]) * gain[j];
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

template <class F>
void backward(const Rows<F>& p, const Gradients<F>& g, int shape, bool measured) {
    const Tiles<F, LaneAffine<F>> functions(p.membrane, is_plain(g), shape);
    const Index period = p.period, columns = p.columns(), parts = p.parts();
    std::vector<double> sums(size_t(parts * period * 2));
    BackPieces pieces(parts * columns, p.steps, g.sums);
    Lanes<F> lanes(period);
    for (Index lane = 0; lane < period; ++lane) lanes.set(lane, p.norm.affine(g.mean, g.var, lane % p.channels));
    const auto back = [&](Index column, Index part, Scratch<F>& scratch) {
        const auto run = is_plain(g) ? back_part<true, F> : back_part<false, F>;
        run(p, functions, g, lanes, column, part, &sums[size_t((part * period + column * TILE) * 2)],
            pieces.of(part * columns + column), scratch);
    };
    const auto finish = [&](Index column, Index part) { back_norm(p, g, lanes, column, part, measured); };
    if (p.by_column()) {
        spread<F>(p.threads, columns, [&](Index column, Scratch<F>& scratch) {
            for (Index part = 0; part < parts; ++part) back(column, part, scratch);
            for (Index c = column * TILE; c < (column + 1) * TILE; ++c) settle_back(p, c, sums, g, lanes);
            for (Index part = 0; part < parts; ++part) finish(column, part);
        });
    } else {
        spread<F>(p.threads, columns * parts,
                  [&](Index i, Scratch<F>& scratch) { back(i % columns, i / columns, scratch); });
        for (Index c = 0; c < p.channels; ++c) settle_back(p, c, sums, g, lanes);
        spread<F>(p.threads, columns * parts, [&](Index i, Scratch<F>&) { finish(i % columns, i / columns); });
    }
    pieces.finish();
}

}  // namespace sage
