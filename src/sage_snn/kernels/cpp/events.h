// Where a tensor is not zero, as lists: what event-driven products walk in place of all its entries.
#pragma once

#include <algorithm>
#include <memory>

#include "bits.h"

namespace sage {

// Rows of `length` values in segments of `cut` values (the last of a row may be shorter). An entry is the place of a
// value in its row; segment s of row r has the entries starts[r * segments + s] to starts[r * segments + s + 1].
// `values` is null where all of them are 1.
template <class F>
struct Events {
    Index rows = 0, length = 0, cut = 1, segments = 0;
    std::unique_ptr<std::uint32_t[]> entries;
    std::unique_ptr<Index[]> starts;
    std::unique_ptr<F[]> values;
};

// Bits of the first `count` <= 64 values that are not zero (a NaN is not); true if all those are 1.
template <class F>
bool active(const F* x, Index count, Word& word) {
#if defined(__AVX512F__)
    if (sizeof(F) == 4) {
        const __m512 zeros = _mm512_setzero_ps(), ones = _mm512_set1_ps(1);
        Word one = 0;
        word = 0;
        for (Index i = 0; i < count; i += 16) {
            const __mmask16 here = count - i < 16 ? __mmask16((1u << (count - i)) - 1) : __mmask16(0xFFFF);
            const __m512 values = _mm512_maskz_loadu_ps(here, x + i);
            word |= Word(_mm512_cmp_ps_mask(values, zeros, _CMP_NEQ_UQ)) << i;
            one |= Word(_mm512_cmp_ps_mask(values, ones, _CMP_EQ_OQ)) << i;
        }
        return one == word;
    }
#elif defined(__AVX2__)
    if (sizeof(F) == 4 && count % 8 == 0) {
        const __m256 zeros = _mm256_setzero_ps(), ones = _mm256_set1_ps(1);
        Word one = 0;
        word = 0;
        for (Index i = 0; i < count; i += 8) {
            const __m256 values = _mm256_loadu_ps(reinterpret_cast<const float*>(x + i));
            word |= Word(unsigned(_mm256_movemask_ps(_mm256_cmp_ps(values, zeros, _CMP_NEQ_UQ)))) << i;
            one |= Word(unsigned(_mm256_movemask_ps(_mm256_cmp_ps(values, ones, _CMP_EQ_OQ)))) << i;
        }
        return one == word;
    }
#endif
    bool plain = true;
    word = 0;
    for (Index i = 0; i < count; ++i) {
        word |= Word(x[i] != F(0)) << i;
        plain &= x[i] == F(0) || x[i] == F(1);
    }
    return plain;
}

// What lists are made from: numbers as they lie in memory,
template <class F>
struct Reals {
    const F* x;
    bool read(Index at, Index count, Word& word) const { return active(x + at, count, word); }
    F value(Index at) const { return x[at]; }
    static Index listed(Index) { return 1; }
    static Index all_listed(Index, Index, Word word) { return __builtin_popcountll(word); }
};

// spikes that were kept as bits,
template <class F>
struct Spikes {
    const Word* bits;
    bool read(Index at, Index count, Word& word) const {
        const Index shift = at % WORD;
        word = bits[at / WORD] >> shift;
        if (shift + count > WORD) word |= bits[at / WORD + 1] << (WORD - shift);
        if (count < WORD) word &= (Word(1) << count) - 1;
        return true;
    }
    F value(Index) const { return F(1); }
    static Index listed(Index) { return 1; }
    static Index all_listed(Index, Index, Word word) { return __builtin_popcountll(word); }
};

// or counts in bytes, each listed as often as it says, so that all events are 1.
template <class F>
struct Counts {
    const std::uint8_t* x;
    bool read(Index at, Index count, Word& word) const {
        word = 0;
#if defined(__AVX512BW__)
        const __mmask64 here = count < WORD ? (Word(1) << count) - 1 : ~Word(0);
        const __m512i values = _mm512_maskz_loadu_epi8(here, x + at);
        word = _mm512_test_epi8_mask(values, values);
#else
        unsigned char some[WORD] = {};
        for (Index i = 0; i < count; ++i) some[i] = x[at + i] != 0;
        for (Index g = 0; g * 8 < count; ++g) word |= eight(some + g * 8) << (g * 8);
#endif
        return true;
    }
    F value(Index) const { return F(1); }
    Index listed(Index at) const { return x[at]; }
    Index all_listed(Index at, Index count, Word) const {
        std::uint32_t sum = 0;
        for (Index i = 0; i < count; ++i) sum += x[at + i];
        return sum;
    }
};

// A look at some values that lie apart: are there clearly more than so many of a thousand?
template <class From>
bool looks_dense(From x, Index size, Index per_mille) {
    constexpr Index looks = 128;
    Index count = 0;
    if (size < 4 * looks * WORD) return false;
    for (Index i = 0; i < looks; ++i) {
        Word word;
        x.read(size / looks * i, WORD, word);
        count += __builtin_popcountll(word);
    }
    return count * 1000 > looks * WORD * (per_mille + per_mille / 4);
}

// The lists of x, rows x length; false if there are more than so many events to a thousand values.
template <class F, class From>
bool find_events(From x, Index rows, Index length, Index cut, Index per_mille, int threads, Events<F>& to) {
    if (looks_dense(x, rows * length, per_mille)) return false;
    const Index segments = (length + cut - 1) / cut, each = words(cut), all = rows * segments;
    std::unique_ptr<Word[]> bits(new Word[size_t(all * each)]);
    to.rows = rows, to.length = length, to.cut = cut, to.segments = segments;
    to.starts.reset(new Index[size_t(all + 1)]);
    Index* starts = to.starts.get();
    bool plain = true;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(&& : plain)
    for (Index s = 0; s < all; ++s) {
        const Index first = s % segments * cut, size = std::min(cut, length - first);
        const Index from = s / segments * length + first;
        Index count = 0;
        bool ones = true;
        for (Index i = 0; i < each; ++i) {
            Word& word = bits[size_t(s * each + i)];
            word = 0;
            if (i * WORD >= size) continue;
            const Index at = from + i * WORD, here = std::min(WORD, size - i * WORD);
            ones &= x.read(at, here, word);
            count += x.all_listed(at, here, word);
        }
        starts[s + 1] = count;
        plain = plain && ones;
    }
    starts[0] = 0;
    for (Index s = 0; s < all; ++s) starts[s + 1] += starts[s];
    if (starts[all] * 1000 > rows * length * per_mille) return false;
    to.entries.reset(new std::uint32_t[size_t(starts[all])]);
    to.values.reset(plain ? nullptr : new F[size_t(starts[all])]);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index s = 0; s < all; ++s) {
        const Index row = s / segments * length;
        Index at = starts[s];
        for (Index i = 0; i < each; ++i)
            for (Word word = bits[size_t(s * each + i)]; word; word &= word - 1) {
                const Index place = s % segments * cut + i * WORD + __builtin_ctzll(word);
                if (!plain) to.values[size_t(at)] = x.value(row + place);
                for (Index times = x.listed(row + place); times; --times) to.entries[size_t(at++)] = std::uint32_t(place);
            }
    }
    return true;
}

}  // namespace sage
