// Batch normalisation and LIF where a channel's positions lie together: x (T*B, C, L).
//
// A channel is read from memory once: its statistics, its normalisation and its membranes follow while it is in the
// cache. With fewer channels than keep all threads busy the same pieces are spread over threads one phase after the
// other; the bits are the same.
#pragma once

#include "moments.h"
#include "norm.h"

namespace sage {

constexpr Index CHUNK = 16;  // tiles to a piece of work
constexpr Index FORESEEN = 512;  // values of a row from which on the processor sees by itself what comes next

template <class F>
struct Planes {
    Norm<F> norm;
    const F *x, *residual;  // null: none is added to the normalised values
    Index steps, batch, channels, length;
    Membrane<F> membrane;
    int threads;

    Index planes() const { return steps * batch; }
    Index plane_stride() const { return channels * length; }
    Index positions() const { return batch * length; }
    Index chunks() const { return (positions() + CHUNK * TILE - 1) / (CHUNK * TILE); }
    bool by_channel() const { return channels >= 4 * threads || channels % threads == 0; }
};

// A tile of one channel: positions count through the images, so that it may begin in one and end in the next.
template <class F>
struct Tile {
    const Planes<F>& p;
    Index channel, first, count, image, place;
    bool whole;  // its rows lie together in memory

    Tile(const Planes<F>& problem, Index channel_, Index tile)
        : p(problem), channel(channel_), first(tile * TILE), count(std::min<Index>(TILE, p.positions() - first)),
          image(first / p.length), place(first % p.length), whole(count == TILE && place + TILE <= p.length) {}

    Index offset() const { return (image * p.channels + channel) * p.length + place; }
    Index step_stride() const { return p.batch * p.plane_stride(); }
    Index stride() const { return whole ? step_stride() : TILE; }

    // visit(offset in memory of step 0, place in the tile, values) for every run of values that lie together.
    template <class Visit>
    void runs(Visit&& visit) const {
        Index at = 0, b = image, l = place;
        while (at < count) {
            const Index n = std::min(count - at, p.length - l);
            visit((b * p.channels + channel) * p.length + l, at, n);
            at += n, ++b, l = 0;
        }
    }

    // Rows of few values lie far apart, which the processor does not foresee: ask for those of the next channel now.
    template <int Write>
    void fetch_next(const F* from) const {
        if (!whole || p.length > FORESEEN || channel + 1 == p.channels) return;
        for (Index t = 0; t < p.steps; ++t)
            for (Index j = 0; j < TILE; j += LINE / Index(sizeof(F)))
                __builtin_prefetch(from + offset() + p.length + t * step_stride() + j, Write, 2);
    }

    const F* gather(const F* from, F pad, std::vector<F>& buffer) const {
        if (whole) return from + offset();
        buffer.assign(size_t(p.steps * TILE), pad);
        runs([&](Index source, Index at, Index n) {
            for (Index t = 0; t < p.steps; ++t)
                std::memcpy(&buffer[size_t(t * TILE + at)], from + source + t * step_stride(), size_t(n) * sizeof(F));
        });
        return buffer.data();
    }

    F* target(F* to, std::vector<F>& buffer) const {
        if (whole) return to + offset();
        buffer.resize(size_t(p.steps * TILE));
        return buffer.data();
    }

    void scatter(F* to, const F* rows) const {
        if (whole) return;
        runs([&](Index source, Index at, Index n) {
            for (Index t = 0; t < p.steps; ++t)
                std::memcpy(to + source + t * step_stride(), rows + t * TILE + at, size_t(n) * sizeof(F));
        });
    }

    Currents<F, Affine<F>> currents(Affine<F> affine, const F* x, Scratch<F>& scratch) const {
        const Currents<F, Affine<F>> plain{affine, x, stride()};
        if (!p.residual) return plain;
        fetch_next<0>(p.residual);
        return with_residual(plain, gather(p.residual, F(0), scratch.residual), {0, 1, 0}, p.steps, scratch.sum);
    }
};

// visit(tile index) for the tiles of a chunk.
template <class F, class Visit>
void tiles_of(const Planes<F>& p, Index chunk, Visit&& visit) {
    const Index tiles = (p.positions() + TILE - 1) / TILE;
    for (Index tile = chunk * CHUNK; tile < std::min(tiles, (chunk + 1) * CHUNK); ++tile) visit(tile);
}

template <class F>
void fire_chunk(const Planes<F>& p, const Tiles<F>& functions, Affine<F> affine, Index c, Index chunk, F* spikes,
                double near, double* seen, Scratch<F>& scratch) {
    Census<F> census(near, p.steps, seen, scratch.census);
    tiles_of(p, chunk, [&](Index index) {
        const Tile<F> tile(p, c, index);
        tile.template fetch_next<0>(p.x);
        tile.template fetch_next<1>(spikes);
        F v[TILE];
        for (int j = 0; j < TILE; ++j) v[j] = p.membrane.rest;
        F* out = tile.target(spikes, scratch.out);
        const auto in = tile.currents(affine, tile.gather(p.x, affine.shift, scratch.in), scratch);
        census.begin(tile.count);
        functions.fire(p.membrane, in.affine, in.rows, in.stride, p.steps, v, out, tile.stride(), &census);
        census.end(tile.count);
        tile.scatter(spikes, out);
    });
    census.close(TILE);
}

template <class F>
void forward(const Planes<F>& p, bool measures, F* mean, F* var, F* spikes, Asked asked) {
    const Tiles<F> functions(p.membrane, asked.moments == nullptr);
    PieceSums seen(p.channels * p.chunks(), p.steps * 3, asked.moments);
    const Pieces pieces(p.planes(), p.length);
    const Index parts = measures ? pieces.count() : 0;
    std::vector<Moments> found(size_t(p.channels * parts));
    const auto measure = [&](Index c, Index i) {
        found[size_t(c * parts + i)] = moments(p.x + c * p.length, p.plane_stride(), pieces, i);
    };
    const auto combine = [&](Index c) {
        Moments all;
        for (Index i = 0; i < parts; ++i) all.add(found[size_t(c * parts + i)]);
        mean[c] = F(all.mean), var[c] = F(all.squares / all.count);
    };
    const auto fire = [&](Index c, Index i, Scratch<F>& scratch) {
        fire_chunk(p, functions, p.norm.affine(mean, var, c), c, i, spikes, asked.near, seen.of(c * p.chunks() + i),
                   scratch);
    };
    if (p.by_channel()) {
        spread<F>(p.threads, p.channels, [&](Index c, Scratch<F>& scratch) {
            for (Index i = 0; i < parts; ++i) measure(c, i);
            if (measures) combine(c);
            for (Index i = 0; i < p.chunks(); ++i) fire(c, i, scratch);
        });
    } else {
        spread<F>(p.threads, p.channels * parts, [&](Index i, Scratch<F>&) { measure(i / parts, i % parts); });
        for (Index c = 0; measures && c < p.channels; ++c) combine(c);
        spread<F>(p.threads, p.channels * p.chunks(),
                  [&](Index i, Scratch<F>& scratch) { fire(i / p.chunks(), i % p.chunks(), scratch); });
    }
    if (asked.moments) report(seen.found, p.steps, p.channels * p.positions(), asked.moments);
}

// Gradient of the normalised values of a chunk, left in g.normal(); sums[0] and sums[1] get its sum and its sum with x - mean.
template <bool Plain, class F>
void back_chunk(const Planes<F>& p, const Tiles<F>& functions, const Gradients<F>& g, Index c, Index chunk,
                double* sums, const BackSums& asked, Scratch<F>& scratch) {
    const Affine<F> affine = p.norm.affine(g.mean, g.var, c);
    F* charged = on_lines(scratch.charged, p.steps * TILE);
    F plain[TILE] = {}, with_x[TILE] = {}, rest[TILE];
    if (!Plain) std::fill(rest, rest + TILE, p.membrane.rest);
    Squares<F> squares(asked.squares);
    tiles_of(p, chunk, [&](Index index) {
        const Tile<F> tile(p, c, index);
        tile.template fetch_next<0>(p.x);
        tile.template fetch_next<0>(g.spikes);
        tile.template fetch_next<1>(g.normal());
        F v[TILE], grad_v[TILE] = {};
        for (int j = 0; j < TILE; ++j) v[j] = p.membrane.rest;
        const Index stride = tile.stride();
        const F* x = tile.gather(p.x, affine.shift, scratch.in);
        const F* grad = tile.gather(g.spikes, F(0), scratch.grad);
        F* out = tile.target(g.normal(), scratch.out);
        const auto in = tile.currents(affine, x, scratch);
        functions.charge(p.membrane, in.affine, in.rows, in.stride, p.steps, v, charged);
        TileSlopes<F> slopes{g.slopes, nullptr, 0};
        if (!Plain)
            slopes = g.own_slopes.of_tile(g.slopes, p.steps, scratch.slopes, [&](auto gather) {
                tile.runs([&](Index source, Index at, Index n) { gather(source, n, at); });
            });
        functions.back(p.membrane, charged, grad, stride, slopes, p.steps, grad_v, out, stride, asked,
                       Plain ? nullptr : rest);
        for (Index t = 0; t < p.steps; ++t)
            for (int j = 0; j < TILE; ++j) {
                plain[j] += out[t * stride + j];
                with_x[j] += out[t * stride + j] * (x[t * stride + j] - affine.shift);
            }
        if (!Plain && asked.squares) squares.add(grad, out, stride, p.steps);
        tile.scatter(g.normal(), out);
    });
    if (!Plain && asked.squares) squares.close();
    sums[0] = sum(plain), sums[1] = sum(with_x);
}

// From the gradient of the normalised values to that of x for the planes [first, last) of a channel.
template <class F>
void back_norm(const Planes<F>& p, const Gradients<F>& g, Index c, Index first, Index last, const double* totals,
               bool measured) {
    const Affine<F> affine = p.norm.affine(g.mean, g.var, c);
    const double deviation = p.norm.deviation(g.var, c), count = double(p.planes() * p.length);
    const F level = measured ? F(totals[0] / count) : F(0);
    const F tilt = measured ? F(totals[1] * deviation * deviation / count) : F(0);
    for (Index n = first; n < last; ++n) {
        const Index at = n * p.plane_stride() + c * p.length;
        const F* __restrict x = p.x + at;
        // May be where the result goes, each value to its own place: lanes need not wait for each other.
        const F* normal = g.normal() + at;
        F* grad = g.x + at;
        if (measured) {
#pragma omp simd
            for (Index l = 0; l < p.length; ++l) grad[l] = (normal[l] - level - (x[l] - affine.shift) * tilt) * affine.gain;
        } else {
#pragma omp simd
            for (Index l = 0; l < p.length; ++l) grad[l] = normal[l] * affine.gain;
        }
    }
}

template <class F>
void backward(const Planes<F>& p, const Gradients<F>& g, int shape, bool measured) {
    const Tiles<F> functions(p.membrane, is_plain(g), shape);
    const Index chunks = p.chunks();
    std::vector<double> sums(size_t(p.channels * chunks * 2)), totals(size_t(p.channels * 2));
    BackPieces pieces(p.channels * chunks, p.steps, g.sums);
    const auto back = [&](Index c, Index i, Scratch<F>& scratch) {
        const Index piece = c * chunks + i;
        const auto run = is_plain(g) ? back_chunk<true, F> : back_chunk<false, F>;
        run(p, functions, g, c, i, &sums[size_t(piece * 2)], pieces.of(piece), scratch);
    };
    const auto combine = [&](Index c) {
        double* total = &totals[size_t(c * 2)];
        for (Index i = 0; i < chunks; ++i)
            for (int k = 0; k < 2; ++k) total[k] += sums[size_t((c * chunks + i) * 2 + k)];
        g.bias[c] = F(total[0]), g.weight[c] = F(total[1] * p.norm.deviation(g.var, c));
    };
    const auto finish = [&](Index c, Index first, Index last) {
        back_norm(p, g, c, first, last, &totals[size_t(c * 2)], measured);
    };
    if (p.by_channel()) {
        spread<F>(p.threads, p.channels, [&](Index c, Scratch<F>& scratch) {
            for (Index i = 0; i < chunks; ++i) back(c, i, scratch);
            combine(c);
            finish(c, 0, p.planes());
        });
    } else {
        spread<F>(p.threads, p.channels * chunks,
                  [&](Index i, Scratch<F>& scratch) { back(i / chunks, i % chunks, scratch); });
        for (Index c = 0; c < p.channels; ++c) combine(c);
        spread<F>(p.threads, p.channels * p.planes(), [&](Index i, Scratch<F>&) {
            finish(i / p.planes(), i % p.planes(), i % p.planes() + 1);
        });
    }
    pieces.finish();
}

}  // namespace sage
