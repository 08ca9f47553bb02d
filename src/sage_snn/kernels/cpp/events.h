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

// A look at some values that lie apart: are there clearly more than so many of a thousand?
template <class F>
bool looks_dense(const F* x, Index size, Index per_mille) {
    constexpr Index looks = 128;
    Index count = 0;
    if (size < 4 * looks * WORD) return false;
    for (Index i = 0; i < looks; ++i) {
        Word word;
        active(x + size / looks * i, WORD, word);
        count += __builtin_popcountll(word);
    }
    return count * 1000 > looks * WORD * (per_mille + per_mille / 4);
}

// The lists of x, rows x length; false if more than so many of a thousand values are not zero.
template <class F>
bool find_events(const F* x, Index rows, Index length, Index cut, Index per_mille, int threads, Events<F>& to) {
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
        const F* from = x + s / segments * length + first;
        Index count = 0;
        bool ones = true;
        for (Index i = 0; i < each; ++i) {
            Word& word = bits[size_t(s * each + i)];
            word = 0;
            if (i * WORD < size) ones &= active(from + i * WORD, std::min(WORD, size - i * WORD), word);
            count += __builtin_popcountll(word);
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
        const F* row = x + s / segments * length;
        Index at = starts[s];
        for (Index i = 0; i < each; ++i)
            for (Word word = bits[size_t(s * each + i)]; word; word &= word - 1, ++at) {
                const Index place = s % segments * cut + i * WORD + __builtin_ctzll(word);
                to.entries[size_t(at)] = std::uint32_t(place);
                if (!plain) to.values[size_t(at)] = row[place];
            }
    }
    return true;
}

}  // namespace sage
