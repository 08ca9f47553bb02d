// Exercises every entry point of the C++ kernels under a sanitizer; see sanitize.sh.
//
// libgomp is not instrumented, so ThreadSanitizer cannot see its barriers and reports races that are none. Threading is
// therefore tested with std::thread: the kernels are built without OpenMP and several threads call them at once, on shared
// inputs; the LIF of one step also writes disjoint positions of shared outputs. What this cannot see is how OpenMP
// divides one call: that is tested by comparing bits for 1, 2 and 3 threads (tests/kernels). A number of threads is
// passed all the same, because few channels on several threads take another path.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#define DECLARE(F, S)                                                                                                 \
    extern "C" void sage_lif_##S(const F*, const F*, std::int64_t, F*, F*, std::int64_t, std::int64_t, double, double,\
                                 double, int, int, const double*, double, double*, int);                              \
    extern "C" void sage_lif_backward_##S(const F*, const F*, std::int64_t, const F*, const F*, const double*, const F*,\
                                          const std::int64_t*, F*, F*, double*, double*, double*, std::int64_t,       \
                                          std::int64_t, double, double, double, int, int, const double*, int, int,    \
                                          int);                                                                       \
    extern "C" void sage_norm_lif_##S(const F*, const F*, const F*, F*, F*, const F*, F*, std::int64_t, std::int64_t, \
                                      std::int64_t, std::int64_t, int, double, int, double, double, double, int, int, \
                                      const double*, double, double*, int);                                           \
    extern "C" void sage_norm_lif_backward_##S(const F*, const F*, const F*, const F*, const F*, const F*, const F*,  \
                                               const double*, const F*, const std::int64_t*, F*, F*, F*, F*, double*, \
                                               double*, double*, std::int64_t, std::int64_t, std::int64_t,            \
                                               std::int64_t, int, double, int, double, double, double, int, int,      \
                                               const double*, int, int, int);                                         \
    extern "C" void sage_norm_##S(const F*, const F*, const F*, F*, F*, F*, std::int64_t, std::int64_t, double, int,  \
                                  int);                                                                               \
    extern "C" void sage_norm_backward_##S(const F*, const F*, const F*, const F*, F*, F*, F*, F*, std::int64_t,      \
                                           std::int64_t, double, int, int);                                           \
    extern "C" void sage_pool_##S(const F*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, F*,               \
                                  std::uint8_t*, int);                                                                \
    extern "C" void sage_pool_backward_##S(const F*, const std::uint8_t*, std::int64_t, std::int64_t, std::int64_t,   \
                                           std::int64_t, F*, int);                                                    \
    extern "C" std::int64_t sage_event_size_##S(std::int64_t, std::int64_t, std::int64_t);                            \
    extern "C" int sage_event_pack_##S(const F*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,\
                                       std::int64_t, F*, int);                                                        \
    extern "C" int sage_event_conv_##S(const F*, const F*, std::int64_t, std::int64_t, std::int64_t, const F*, const F*,\
                                       std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,          \
                                       std::int64_t, std::int64_t, F*, int);                                          \
    extern "C" int sage_event_conv_weight_##S(const F*, const std::uint64_t*, const F*, std::int64_t, std::int64_t,  \
                                              std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,   \
                                              F*, int);                                                               \
    extern "C" int sage_event_map_##S(const F*, const F*, const F*, const F*, std::int64_t, std::int64_t, std::int64_t,\
                                      int, std::int64_t, F*, int);                                                    \
    extern "C" int sage_event_map_weight_##S(const F*, const std::uint64_t*, const F*, std::int64_t, std::int64_t,   \
                                             std::int64_t, std::int64_t, F*, int);                                    \
    extern "C" int sage_mix_##S(const F*, const F*, const F*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, \
                                double, F*, int);                                                                     \
    extern "C" int sage_mix_backward_##S(const F*, const void*, const void*, const void*, int, std::int64_t,          \
                                         std::int64_t, std::int64_t, std::int64_t, double, F*, F*, F*, int);          \
    extern "C" void sage_fire_##S(const F*, std::int64_t, void*, int, std::int64_t, std::int64_t, double, double,     \
                                  double, int, int, const double*, int);                                              \
    extern "C" int sage_count_##S(const F*, std::int64_t, int, std::uint8_t*, int);                                   \
    extern "C" void sage_unpack_bits_##S(const std::uint64_t*, std::int64_t, F*, int);
DECLARE(float, f32)
DECLARE(double, f64)
extern "C" int sage_attention(const void*, const std::int64_t*, int, std::uint64_t, const void*, const std::int64_t*, int,
                              std::uint64_t, const std::int64_t*, const double*, std::int64_t, double*, double*, double*,
                              int);
extern "C" void sage_pool_counts(const std::uint8_t*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                 std::uint8_t*, int);
extern "C" std::int64_t sage_whole_size(std::int64_t, std::int64_t, std::int64_t);
extern "C" void sage_whole_pack(const std::int16_t*, std::int64_t, std::int64_t, std::int64_t, std::int16_t*);
extern "C" int sage_whole_conv(const std::uint8_t*, const std::int16_t*, const float*, const float*, std::int64_t,
                               std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                               float*, int);
extern "C" int sage_whole_map(const std::uint8_t*, const std::int16_t*, const float*, const float*, std::int64_t,
                              std::int64_t, std::int64_t, std::int64_t, float*, int);
extern "C" int sage_pack_bits(const void*, int, std::uint64_t, std::int64_t, std::uint64_t*, int);
extern "C" void sage_exp_negative(const float*, float*, std::int64_t);

static std::mt19937 generator(0);

template <class F>
std::vector<F> noise(std::int64_t n) {
    std::normal_distribution<double> normal(0.4, 1.5);
    std::vector<F> values(static_cast<size_t>(n));
    for (F& v : values) v = F(normal(generator));
    return values;
}

static void together(int threads, const std::function<void(int)>& body) {
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i) running.emplace_back(body, i);
    for (std::thread& t : running) t.join();
}

#define EXERCISE(F, S)                                                                                                \
    static void exercise_##S(std::int64_t steps, std::int64_t batch, std::int64_t channels, std::int64_t length,      \
                             int hard, int decays, int detaches, int shape, double tau) {                             \
        const std::int64_t total = steps * batch * channels * length, size = batch * channels * length;               \
        const auto x = noise<F>(total), grad = noise<F>(total), weight = noise<F>(channels), bias = noise<F>(channels); \
        const auto v = noise<F>(size), more = noise<F>(total);                                                        \
        const std::vector<double> slopes(size_t(steps), 3.0), thresholds(size_t(steps), 0.8);                         \
        const std::vector<F> own(size_t(total), F(2.5)); /* a slope per neuron, per token and step, or per channel */ \
        const std::int64_t in_planes[3][6] = {{channels, length, size, channels * length, length, 1},                 \
                                              {channels, length, batch * length, length, 0, 1},                       \
                                              {channels, length, 0, 0, 1, 0}};                                        \
        const std::int64_t in_rows[6] = {length, channels, batch * length, length, 1, 0};                             \
        const int training = shape;                                                                                   \
        together(3, [&](int which) { /* shared inputs, an output each */                                              \
            std::vector<F> mean(size_t(channels), F(0.1)), var(size_t(channels), F(1.2)), spikes(x.size()),           \
                grad_x(x.size()), grad_more(x.size()), grad_w(size_t(channels), F(0)),                                \
                grad_b(size_t(channels), F(0)), last(v.size());                                                       \
            std::vector<double> sums(size_t(steps), 0.0), constants(size_t(steps + 1)), moments(size_t(steps * 4));   \
            double squares[2];                                                                                        \
            const bool by_neuron = (steps + channels + which) % 2 != 0; /* then no gradient of the slope */           \
            const double* step_slopes = by_neuron ? nullptr : slopes.data();                                          \
            const F* neuron_slopes = by_neuron ? own.data() : nullptr;                                                \
            double* slope_sums = which && !by_neuron ? sums.data() : nullptr;                                         \
            const double* each = which == 1 ? nullptr : thresholds.data();                                            \
            sage_norm_lif_##S(x.data(), which ? weight.data() : nullptr, bias.data(), mean.data(), var.data(),        \
                              which == 2 ? nullptr : more.data(), spikes.data(), steps, batch, channels, length,      \
                              which % 2, 1e-5, training, tau, 1, 0.1, hard, decays, each, 0.5,                        \
                              which ? moments.data() : nullptr, which + 1);                                           \
            sage_norm_lif_backward_##S(x.data(), which ? weight.data() : nullptr, bias.data(), mean.data(),           \
                                       var.data(), which == 2 ? nullptr : more.data(), grad.data(), step_slopes,    \
                                       neuron_slopes, which % 2 ? in_rows : in_planes[which], grad_x.data(),          \
                                       grad_w.data(), grad_b.data(), which == 2 ? nullptr : grad_more.data(),         \
                                       slope_sums, which ? constants.data() : nullptr, which ? nullptr : squares,     \
                                       steps, batch, channels, length, which % 2, 1e-5, training, tau, 1, 0.1, hard,  \
                                       decays, each, detaches, shape, which + 1);                                     \
            const std::int64_t rows = steps * batch * length;                                                         \
            sage_norm_##S(x.data(), which ? weight.data() : nullptr, bias.data(), mean.data(), var.data(),            \
                          spikes.data(), rows, channels, 1e-5, training, which + 1);                                  \
            grad_more = grad;                                                                                         \
            sage_norm_backward_##S(x.data(), which ? weight.data() : nullptr, mean.data(), var.data(),                \
                                   grad_more.data(), grad_x.data(), grad_w.data(), grad_b.data(), rows, channels,     \
                                   1e-5, training, which + 1);                                                        \
            sage_lif_##S(x.data(), v.data(), which ? 1 : 0, spikes.data(), last.data(), steps, size, tau, 1, 0.1,     \
                         hard, decays, each, 0.5, which ? moments.data() : nullptr, 1);                               \
            sage_lif_backward_##S(x.data(), v.data(), which ? 1 : 0, which == 1 ? nullptr : grad.data(),              \
                                  which == 2 ? nullptr : v.data(), step_slopes, neuron_slopes, in_planes[which],    \
                                  grad_x.data(), last.data(), slope_sums, which ? constants.data() : nullptr,         \
                                  which ? squares : nullptr, steps, size, tau, 1, 0.1, hard, decays, each, detaches,  \
                                  shape, 1);                                                                          \
            std::vector<std::uint8_t> places(x.size()); /* lines or columns of pixels */                              \
            const std::int64_t height = which ? length : 1, width = which ? 1 : length;                               \
            sage_pool_##S(x.data(), steps * batch, height, width, channels, spikes.data(), places.data(), which + 1); \
            sage_pool_backward_##S(grad.data(), places.data(), steps * batch, height, width, channels, grad_x.data(), \
                                   which + 1);                                                                        \
            std::vector<std::uint8_t> bytes(x.size());                                                                \
            sage_fire_##S(x.data(), which ? size : 0, spikes.data(), 0, steps, size, tau, 1, 0.1, hard, decays, each, \
                          which + 1);                                                                                 \
            sage_fire_##S(x.data(), which ? size : 0, bytes.data(), 1, steps, size, tau, 1, 0.1, hard, decays, each,  \
                          which + 1);                                                                                 \
            sage_pool_counts(bytes.data(), steps * batch, height, width, channels, places.data(), which + 1);         \
            sage_count_##S(x.data(), steps * size, 127, bytes.data(), which + 1); /* NaN and negative ones too */     \
        });                                                                                                           \
        if (steps != 1) return;                                                                                       \
        std::vector<F> spikes(v.size()), last(v.size()); /* one step: positions split between threads */              \
        together(2, [&](int half) {                                                                                   \
            const std::int64_t first = half ? size / 2 : 0, n = half ? size - size / 2 : size / 2;                    \
            sage_lif_##S(x.data() + first, v.data() + first, 1, spikes.data() + first, last.data() + first, 1, n,     \
                         tau, 1, 0.1, hard, decays, nullptr, 0, nullptr, 1);                                          \
        });                                                                                                           \
    }
EXERCISE(float, f32)
EXERCISE(double, f64)

// Spikes, counts and other numbers at a rate; shared inputs, an output for each of three threads.
#define EXERCISE_EVENTS(F, S)                                                                                         \
    static int exercise_events_##S(std::int64_t images, std::int64_t height, std::int64_t width, std::int64_t inputs, \
                                   std::int64_t outputs, std::int64_t stride, double rate) {                          \
        std::bernoulli_distribution fires(rate);                                                                      \
        std::vector<F> x(size_t(images * height * width * inputs));                                                   \
        const std::int64_t size = ((height - 1) / stride + 1) * ((width - 1) / stride + 1), rows = images * height * width; \
        const auto weight = noise<F>(outputs * inputs * 9), bias = noise<F>(outputs), grad = noise<F>(images * size * outputs), \
                   more = noise<F>(rows * outputs), numbers = noise<F>(std::int64_t(x.size()));                       \
        int failures = 0;                                                                                             \
        for (int kind = 0; kind < 2; ++kind) {                                                                        \
            for (size_t i = 0; i < x.size(); ++i) x[i] = fires(generator) ? (kind ? numbers[i] : F(1)) : F(0);        \
            std::vector<std::uint64_t> bits(x.size() / 64 + 1);                                                       \
            const std::uint64_t one = sizeof(F) == 4 ? 0x3F800000u : 0x3FF0000000000000u;                             \
            const bool packs = !sage_pack_bits(x.data(), sizeof(F), one, std::int64_t(x.size()), bits.data(), 1);     \
            const std::int64_t heads = inputs % 8 ? 1 : inputs / 8;                                                   \
            std::vector<int> done(3), mixed(3);                                                                       \
            together(3, [&](int which) {                                                                              \
                const std::uint64_t* from = packs && which ? bits.data() : nullptr;                                   \
                const std::int64_t limit = which < 2 ? 1000 : 100;                                                    \
                std::vector<F> out(grad.size()), tokens(more.size()), of_weight(weight.size()),                       \
                    of_matrix(size_t(outputs * inputs));                                                              \
                std::vector<F> kept_conv(size_t(sage_event_size_##S(outputs, inputs, 9))),                            \
                    kept_map(size_t(sage_event_size_##S(outputs, inputs, 1)));                                        \
                sage_event_pack_##S(weight.data(), 9 * inputs, 9, 1, outputs, inputs, 9, kept_conv.data(), which + 1);\
                sage_event_pack_##S(weight.data(), inputs, 1, 0, outputs, inputs, 1, kept_map.data(), which + 1);     \
                done[size_t(which)] =                                                                                 \
                    sage_event_conv_##S(x.data(), weight.data(), 9 * inputs, which ? 1 : 9, which ? inputs : 1,       \
                                        which == 1 ? kept_conv.data() : nullptr, which ? bias.data() : nullptr,       \
                                        images, height, width, inputs, outputs,                                       \
                                        stride, limit, out.data(), which + 1) +                                       \
                    sage_event_conv_weight_##S(x.data(), from, grad.data(), images, height, width, inputs, outputs, stride, \
                                               limit, of_weight.data(), which + 1) +                                  \
                    sage_event_map_##S(x.data(), weight.data(), which == 1 ? kept_map.data() : nullptr,               \
                                       which ? bias.data() : nullptr, rows, inputs, outputs,                          \
                                       which == 1, limit, tokens.data(), which + 1) +                                 \
                    sage_event_map_weight_##S(x.data(), from, more.data(), rows, inputs, outputs, limit, of_matrix.data(),  \
                                              which + 1);                                                             \
                const F* q = x.data();                                                                                \
                const void* kept = from ? static_cast<const void*>(from) : q;                                         \
                std::vector<F> all(x.size()), of_q(x.size()), of_k(x.size()), of_v(x.size());                         \
                mixed[size_t(which)] =                                                                                \
                    sage_mix_##S(q, q, q, images, height * width, heads, inputs / heads, 0.125, all.data(), which + 1) + \
                    sage_mix_backward_##S(numbers.data(), kept, kept, kept, from != nullptr, images, height * width,  \
                                          heads, inputs / heads, 0.125, of_q.data(), of_k.data(), of_v.data(),        \
                                          which + 1);                                                                 \
            });                                                                                                       \
            failures += mixed != std::vector<int>(3, 2);                                                              \
            failures += done[0] != 4 || done[1] != 4 || (rate == 1 && done[2] != 0);                                  \
        }                                                                                                             \
        return failures;                                                                                              \
    }
EXERCISE_EVENTS(float, f32)
EXERCISE_EVENTS(double, f64)

// Counts up to 127 at a rate, the largest weights.
static int exercise_whole(std::int64_t images, std::int64_t height, std::int64_t width, std::int64_t inputs,
                          std::int64_t outputs, std::int64_t stride, double rate) {
    std::bernoulli_distribution fires(rate);
    std::uniform_int_distribution<int> count(1, 127);
    std::vector<std::uint8_t> x(size_t(images * height * width * inputs));
    for (auto& value : x) value = std::uint8_t(fires(generator) ? count(generator) : 0);
    const std::int64_t size = ((height - 1) / stride + 1) * ((width - 1) / stride + 1), rows = images * height * width;
    const std::vector<std::int16_t> weight(size_t(outputs * inputs * 9), -127);
    const auto scale = noise<float>(outputs), bias = noise<float>(outputs);
    std::vector<int> done(3);
    together(3, [&](int which) {
        const std::int64_t limit = which < 2 ? 127000 : 100;
        int all = 0;
        for (const std::int64_t taps : {9, 1}) {
            std::vector<std::int16_t> packed(size_t(sage_whole_size(outputs, inputs, taps)));
            std::vector<float> out(size_t((taps == 9 ? images * size : rows) * outputs));
            sage_whole_pack(weight.data(), outputs, inputs, taps, packed.data());
            all += taps == 9 ? sage_whole_conv(x.data(), packed.data(), scale.data(), bias.data(), images, height, width,
                                               inputs, outputs, stride, limit, out.data(), which + 1)
                             : sage_whole_map(x.data(), packed.data(), scale.data(), bias.data(), rows, inputs, outputs,
                                              limit, out.data(), which + 1);
        }
        done[size_t(which)] = all;
    });
    return done[0] != 2 || done[1] != 2 || (rate == 1 && done[2] != 0);
}

static int exercise_attention(std::int64_t tokens, std::int64_t width, bool tokens_last, double rate) {
    const std::int64_t shape[5] = {2, 2, 3, tokens, width}, each = tokens * width;
    const bool heads_together = !tokens_last && tokens % 4 == 0;
    const std::int64_t strides[5] = {6 * each, 3 * each, heads_together ? width : each,
                                     tokens_last ? 1 : heads_together ? 3 * width : width, tokens_last ? tokens : 1};
    std::bernoulli_distribution fires(rate);
    std::vector<float> q(size_t(12 * each)), k(q.size());
    for (float& s : q) s = fires(generator) ? 1.f : 0.f;
    for (float& s : k) s = fires(generator) ? 1.f : 0.f;
    const double factors[2] = {0.5, -2.0};
    double entropy[6] = {}, gini[6] = {};
    int failures = 0;
    together(2, [&](int half) {  // heads split between threads
        const std::int64_t part[5] = {2, 2, half ? 2 : 1, tokens, width}, skip = half ? strides[2] : 0;
        double mine[4], other[4];
        std::vector<double> rows(size_t(4 * part[2] * tokens));
        const int code = sage_attention(q.data() + skip, strides, 4, 0x3F800000u, k.data() + skip, strides, 4, 0x3F800000u,
                                        part, factors, 2, mine, other, half ? rows.data() : nullptr, 1);
        for (int i = 0; i < 2 * part[2]; ++i) entropy[half * 2 + i] = code ? NAN : mine[i], gini[half * 2 + i] = other[i];
    });
    for (double value : entropy) failures += !std::isfinite(value);
    q.back() = 0.5f;
    double a[6], b[6];
    failures += sage_attention(q.data(), strides, 4, 0x3F800000u, k.data(), strides, 4, 0x3F800000u, shape, factors, 2, a, b, nullptr, 1) != 1;
    std::vector<std::uint64_t> bits(k.size() / 64 + 1);
    std::vector<float> back(k.size());
    std::vector<double> wide(k.size());
    failures += sage_pack_bits(k.data(), 4, 0x3F800000u, std::int64_t(k.size()), bits.data(), 1) != 0;
    sage_unpack_bits_f32(bits.data(), std::int64_t(k.size()), back.data(), 1);
    sage_unpack_bits_f64(bits.data(), std::int64_t(k.size()), wide.data(), 1);
    failures += back != k;
    return failures;
}

int main() {
    int failures = 0, options = 0;
    const std::int64_t sizes[][4] = {{1, 1, 1, 2}, {4, 2, 3, 64}, {3, 5, 2, 33}, {2, 1, 1, 2500}, {12, 2, 2, 7}, {1, 3, 4, 130},
                                     {4, 2, 64, 9}, {2, 3, 192, 5}, {3, 2, 100, 7}};
    for (const auto& s : sizes)
        for (int i = 0; i < 4; ++i, ++options) {
            const int hard = options & 1, decays = options >> 1 & 1, detaches = options >> 2 & 1, shape = options >> 3 & 1;
            exercise_f32(s[0], s[1], s[2], s[3], hard, decays, detaches, shape, i & 1 ? 2.0 : 1.3);
            exercise_f64(s[0], s[1], s[2], s[3], hard, decays, detaches, shape, i & 1 ? 1.3 : 2.0);
        }
    for (std::int64_t tokens : {1, 8, 63, 64, 65, 196})
        for (std::int64_t width : {1, 8, 32, 63, 65, 130})
            failures += exercise_attention(tokens, width, tokens % 2 != 0, 0.3) + exercise_attention(tokens, width, width % 2 != 0, 1.0);
    const std::int64_t events[][6] = {{1, 1, 1, 1, 1, 1},    {2, 3, 5, 13, 29, 1},  {2, 4, 3, 70, 80, 2}, {1, 9, 8, 64, 130, 1},
                                      {3, 1, 4, 200, 17, 2}, {1, 20, 20, 33, 5, 2}, {1, 2, 2, 400, 64, 1}};
    for (const auto& s : events)
        for (double rate : {0.0, 0.2, 1.0})
            failures += exercise_events_f32(s[0], s[1], s[2], s[3], s[4], s[5], rate) +
                        exercise_events_f64(s[0], s[1], s[2], s[3], s[4], s[5], rate) +
                        exercise_whole(s[0], s[1], s[2], s[3], s[4], s[5], rate);
    const float x[3] = {0.f, -INFINITY, NAN};
    float e[3];
    sage_exp_negative(x, e, 3);
    failures += e[0] != 1.f || e[1] != 0.f || !std::isnan(e[2]);
    std::printf("%d failures\n", failures);
    return failures != 0;
}
