// Sums of whole weights over events, for inference: counts in bytes, weights of -127 to 127 that lie as 16 bits, sums of 32
// and currents in reals. Sixteen bits hold 256 such weights, whatever their signs; then they are added to the sum.
#include "blocks.h"
#include "windows.h"

namespace sage {
namespace {

using Short = std::int16_t;
constexpr Index FULL = 256;
static_assert(FULL * 127 < 32768, "a sum of so many weights fits in 16 bits");

// One block of a row of outputs.
template <int NV>
class Sums {
    static constexpr int WIDTH = NV * LANES<Short>;
    Vector<Short> part[NV];
    std::int32_t whole[WIDTH] = {};
    Index held = 0;

    void empty() {
        for (int i = 0; i < NV; ++i) {
            Short values[LANES<Short>];
            std::memcpy(values, &part[i], sizeof values);
            for (int l = 0; l < LANES<Short>; ++l) whole[i * LANES<Short> + l] += values[l];
            part[i] = Vector<Short>{};
        }
        held = 0;
    }

   public:
    Sums() {
        for (int i = 0; i < NV; ++i) part[i] = Vector<Short>{};
    }
    // Add the rows of weights of the events from `a` to `b`, `shift` further than they say.
    void gather(const Events<Short>& events, Index a, Index b, Index shift, const Short* weights) {
        const std::uint32_t* entries = events.entries.get();
        while (a < b) {
            const Index end = std::min(b, a + FULL - held);
            held += end - a;
            for (; a < end; ++a) {
                const Short* row = weights + (Index(entries[a]) + shift) * WIDTH;
                for (int i = 0; i < NV; ++i) part[i] += load(row + i * LANES<Short>);
            }
            if (held == FULL) empty();
        }
    }
    void store(const float* scale, const float* bias, Index lanes, float* out) {
        empty();
        for (Index l = 0; l < lanes; ++l) out[l] = float(whole[l]) * scale[l] + bias[l];
    }
};

// The synapse: weights as `pack` laid them, a scale and an offset for every output.
struct Synapse {
    const Short* weights;
    const float *scale, *bias;
};

template <class Call>
void each_block(const Blocks<Short>& blocks, Index groups, int threads, Call&& call) {
    choose(blocks.vectors, true, [&](auto vectors, auto) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
        for (Index task = 0; task < blocks.count * groups; ++task) call(vectors, task / groups, task % groups);
    });
}

// 1 if done; 0 if there are too many events.
int convolution(const std::uint8_t* x, Synapse to, Image s, Index per_mille, float* out, int threads) {
    Events<Short> events;
    const Index lines = s.images * s.rows(), inputs = s.inputs;
    const Counts<Short> counts{x};
    if (!find_events(counts, s.images * s.height, s.width * inputs, inputs, per_mille, threads, events)) return 0;
    const Blocks<Short> blocks(s.outputs);
    const Index group = std::max<Index>(1, 64 / s.columns()), groups = (lines + group - 1) / group;
    each_block(blocks, groups, threads, [&](auto vectors, Index block, Index part) {
        const Short* weights = to.weights + block * 9 * inputs * blocks.width();
        const Index first = blocks.first(block);
        for (Index line = part * group; line < std::min(lines, (part + 1) * group); ++line)
            for (Index j = 0; j < s.columns(); ++j) {
                Sums<vectors()> sums;
                for (Index tap = 0; tap < 3; ++tap)
                    window(events, s, line / s.rows(), tap, line % s.rows(), j, [&](Index a, Index b, Index shift) {
                        sums.gather(events, a, b, shift, weights);
                    });
                sums.store(to.scale + first, to.bias + first, blocks.lanes(block),
                           out + (line * s.columns() + j) * s.outputs + first);
            }
    });
    return 1;
}

int map(const std::uint8_t* x, Synapse to, Index rows, Index inputs, Index outputs, Index per_mille, float* out,
        int threads) {
    Events<Short> events;
    if (!find_events(Counts<Short>{x}, rows, inputs, inputs, per_mille, threads, events)) return 0;
    const Blocks<Short> blocks(outputs);
    constexpr Index GROUP = 64;
    each_block(blocks, (rows + GROUP - 1) / GROUP, threads, [&](auto vectors, Index block, Index part) {
        const Short* weights = to.weights + block * inputs * blocks.width();
        const Index first = blocks.first(block);
        for (Index r = part * GROUP; r < std::min(rows, (part + 1) * GROUP); ++r) {
            Sums<vectors()> sums;
            sums.gather(events, events.starts[size_t(r)], events.starts[size_t(r + 1)], 0, weights);
            sums.store(to.scale + first, to.bias + first, blocks.lanes(block), out + r * outputs + first);
        }
    });
    return 1;
}

}  // namespace
}  // namespace sage

#define SAGE_EXPORT extern "C" __attribute__((visibility("default")))

// How many numbers `sage_whole_pack` writes.
SAGE_EXPORT std::int64_t sage_whole_size(std::int64_t outputs, std::int64_t inputs, std::int64_t taps) {
    const sage::Blocks<std::int16_t> blocks(outputs);
    return blocks.count * taps * inputs * blocks.width();
}

SAGE_EXPORT void sage_whole_pack(const std::int16_t* weight, std::int64_t outputs, std::int64_t inputs,
                                 std::int64_t taps, std::int16_t* to) {
    sage::pack(weight, {inputs * taps, taps, 1}, inputs, taps, sage::Blocks<std::int16_t>(outputs), to, 1);
}

SAGE_EXPORT int sage_whole_conv(const std::uint8_t* x, const std::int16_t* weights, const float* scale,
                                const float* bias, std::int64_t images, std::int64_t height, std::int64_t width,
                                std::int64_t inputs, std::int64_t outputs, std::int64_t stride, std::int64_t per_mille,
                                float* out, int threads) {
    return sage::convolution(x, {weights, scale, bias}, {images, height, width, inputs, outputs, stride}, per_mille,
                             out, threads);
}

SAGE_EXPORT int sage_whole_map(const std::uint8_t* x, const std::int16_t* weights, const float* scale,
                               const float* bias, std::int64_t rows, std::int64_t inputs, std::int64_t outputs,
                               std::int64_t per_mille, float* out, int threads) {
    return sage::map(x, {weights, scale, bias}, rows, inputs, outputs, per_mille, out, threads);
}
