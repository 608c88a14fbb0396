// The body of every kernel that reduces or copies, for one thread.
#pragma once

#include "cuda/kernels/elements.h"

namespace rdmacoll::cuda {

// One row of the job's table.
struct Row {
  Word first_tile;
  Word count;
  int shift;
  Access access;
  Word to;
  Word sources;  // index of its first source's word
};

template <typename T, typename Op>
class Reduction {
 public:
  RC_INLINE Reduction(const ReduceParameters& job, Thread at) : job_(job), at_(at), op_(job.op) {}

  RC_INLINE void run() const {
    if (at_.block >= job_.tiles) return;
    unsigned index = 0;
    Row row = row_at(index);
    Word end = end_of(index);
    RC_ROLL
    for (Word tile = at_.block; tile < job_.tiles; tile += at_.blocks) {
      if (tile >= end) {
        index = index_of(tile, index);
        row = row_at(index);
        end = end_of(index);
      }
      reduce_tile(row, tile - row.first_tile);
    }
  }

 private:
  using Raw = typename T::Raw;
  using Value = typename T::Value;
  static constexpr unsigned kUnit = kUnitBytes / sizeof(Raw);  // elements
  static constexpr unsigned kPart =
      sizeof(Raw) < 4 ? 4 / sizeof(Raw) : 1;  // a part, for Access::words
  static constexpr bool kCopies = Op::kCopies;

  RC_INLINE Word word(Word index) const {
    if (job_.table == 0) return job_.words[index];
    return load_constant(job_.table + index * sizeof(Word));
  }
  RC_INLINE Word first_word(unsigned row) const {
    return static_cast<Word>(row) * (kRowHead + job_.sources);
  }
  RC_INLINE Row row_at(unsigned index) const {
    const Word first = first_word(index);
    const Word shift_and_access = word(first + 2);
    return {word(first),
            word(first + 1),
            static_cast<int>(shift_and_access >> 3),
            static_cast<Access>(static_cast<unsigned>(shift_and_access & 7)),
            word(first + 3),
            first + kRowHead};
  }
  // The number of the tile after the last one of a row.
  RC_INLINE Word end_of(unsigned index) const {
    return index + 1 < job_.rows ? word(first_word(index + 1)) : job_.tiles;
  }
  // The last row, from `low` on, that does not begin after the tile.
  RC_INLINE unsigned index_of(Word tile, unsigned low) const {
    unsigned high = job_.rows;
    if (job_.table != 0) {
      const unsigned step = (job_.rows + kInlineWords - 1) / kInlineWords;
      unsigned sample = low / step;
      unsigned end = (job_.rows + step - 1) / step;
      RC_ROLL
      while (end - sample > 1) {
        const unsigned middle = sample + (end - sample) / 2;
        const bool is_begun = job_.words[middle] <= tile;
        sample = is_begun ? middle : sample;
        end = is_begun ? end : middle;
      }
      low = low > sample * step ? low : sample * step;
      high = high < (sample + 1) * step ? high : (sample + 1) * step;
    }
    RC_ROLL
    while (high - low > 1) {
      const unsigned middle = low + (high - low) / 2;
      const bool is_begun = word(first_word(middle)) <= tile;
      low = is_begun ? middle : low;
      high = is_begun ? high : middle;
    }
    return low;
  }

  RC_INLINE void reduce_tile(const Row& row, Word tile) const {
    const unsigned width = row.access == Access::units   ? kUnit
                           : row.access == Access::words ? kPart
                                                         : 1;
    const auto count = static_cast<long long>(row.count);
    const long long begin = static_cast<long long>(tile * kThreads * kUnit) - row.shift;
    if constexpr (Op::kHasUnits && !T::kIsMixed) {
      const bool is_whole = begin >= 0 && begin + kUnit * kThreads <= count;
      if (is_whole && row.access == Access::words) {
        return reduce_unit<kThreads * kPart>(row, begin + at_.thread * kPart);
      }
    }
    RC_ROLL
    for (unsigned done = 0; done < kUnit * kThreads; done += width * kThreads) {
      const long long first = begin + done + at_.thread * width;
      if (first >= count) return;
      if (first >= 0 && first + width <= count) {
        if constexpr (Op::kHasUnits) {
          if (row.access == Access::units) {
            reduce_unit<kPart>(row, first);
            continue;
          }
        }
        if (row.access == Access::words) {
          reduce_part<kPart, true>(row, first);
          continue;
        }
      }
      const long long end = first + width < count ? first + width : count;
      RC_ROLL
      for (long long i = first < 0 ? 0 : first; i < end; ++i) reduce_part<1, false>(row, i);
    }
  }

  // Loads `n` elements of the source with this address, from element `first` on.
  template <unsigned n, bool is_aligned>
  RC_INLINE void fetch(const Row& row, Word from, long long first, Value* values) const {
    if constexpr (T::kIsMixed) {
      if ((from & kWideMark) != 0) {
        unsigned raw[n];
        const Word at = (from & ~kWideMark) + static_cast<Word>(first) * sizeof(float);
        get<n, is_aligned>(row, at, raw);
        RC_UNROLL
        for (unsigned i = 0; i < n; ++i) values[i] = real_of(raw[i]);
        return;
      }
    }
    Raw raw[n];
    get<n, is_aligned>(row, from + static_cast<Word>(first) * sizeof(Raw), raw);
    RC_UNROLL
    for (unsigned i = 0; i < n; ++i) values[i] = T::load(raw[i]);
    if constexpr (T::kIsMixed) {
      const auto prescale = static_cast<float>(job_.prescale);
      RC_UNROLL
      for (unsigned i = 0; i < n; ++i) values[i] = values[i] * prescale;
    }
  }

  // Scales `n` elements and stores them from element `first` on.
  template <unsigned n, bool is_aligned, bool scales>
  RC_INLINE void finish(const Row& row, long long first, const Value* values) const {
    if constexpr (T::kIsMixed) {
      if ((row.to & kWideMark) != 0) {
        unsigned raw[n];
        RC_UNROLL
        for (unsigned i = 0; i < n; ++i) raw[i] = canonical_bits(values[i]);
        const Word at = (row.to & ~kWideMark) + static_cast<Word>(first) * sizeof(float);
        return put<n, is_aligned>(row, at, raw);
      }
    }
    Raw raw[n];
    RC_UNROLL
    for (unsigned i = 0; i < n; ++i) {
      raw[i] = T::store(scales ? T::finished(values[i], job_) : values[i]);
    }
    put<n, is_aligned>(row, row.to + static_cast<Word>(first) * sizeof(Raw), raw);
  }

  template <unsigned n, bool is_aligned, typename Any>
  RC_INLINE void get(const Row& row, Word address, Any (&raw)[n]) const {
    if constexpr (!is_aligned && sizeof(Any) > 1) {
      if (row.access == Access::bytes) return load_bytes(address, raw[0]);
    }
    load(address, raw);
  }
  template <unsigned n, bool is_aligned, typename Any>
  RC_INLINE void put(const Row& row, Word address, const Any (&raw)[n]) const {
    if constexpr (!is_aligned && sizeof(Any) > 1) {
      if (row.access == Access::bytes) return store_bytes(address, raw[0]);
    }
    store(address, raw);
  }

  // Up to four sources. The parts of a unit begin `stride` elements after each other. Integers are
  // not scaled here.
  template <unsigned stride>
  RC_INLINE void reduce_unit(const Row& row, long long first) const {
    if constexpr (kCopies) {
      sum_unit<1, stride>(row, first);
    } else {
      switch (job_.sources) {
        case 1:
          return sum_unit<1, stride>(row, first);
        case 2:
          return sum_unit<2, stride>(row, first);
        case 3:
          return sum_unit<3, stride>(row, first);
        default:
          return sum_unit<4, stride>(row, first);
      }
    }
  }

  template <unsigned sources, unsigned stride>
  RC_INLINE void sum_unit(const Row& row, long long first) const {
    constexpr unsigned kWidth = stride == kPart ? kUnit : kPart;
    Value values[sources][kUnit];
    RC_UNROLL
    for (unsigned i = 0; i < sources; ++i) {
      const Word from = word(row.sources + i);
      RC_UNROLL
      for (unsigned at = 0; at < kUnit; at += kWidth) {
        fetch<kWidth, true>(row, from, first + at / kPart * stride, values[i] + at);
      }
    }
    if constexpr (sources == 4) op_.combine(values[2], values[3]);
    if constexpr (sources >= 2) op_.combine(values[0], values[1]);
    if constexpr (sources >= 3) op_.combine(values[0], values[2]);
    RC_UNROLL
    for (unsigned at = 0; at < kUnit; at += kWidth) {
      const long long element = first + at / kPart * stride;
      finish<kWidth, true, !T::kIsInteger>(row, element, values[0] + at);
    }
  }

  // Any number of sources, a part of a unit or one element at a time.
  template <unsigned n, bool is_aligned>
  RC_INLINE void reduce_part(const Row& row, long long first) const {
    Value value[n] = {};
    if constexpr (kCopies) {
      fetch<n, is_aligned>(row, word(row.sources), first, value);
    } else if constexpr (Op::kHasUnits) {
      evaluate_group<n, is_aligned>(row, 0, job_.sources, first, value);
    } else {
      evaluate<n, is_aligned>(row, first, value);
    }
    finish<n, is_aligned, !kCopies>(row, first, value);
  }

  // The canonical tree over at most four sources from `source` on.
  template <unsigned n, bool is_aligned>
  RC_INLINE void evaluate_group(const Row& row, unsigned source, unsigned sources, long long first,
                                Value (&value)[n]) const {
    Value values[kGroup][n] = {};
    RC_UNROLL
    for (unsigned i = 0; i < kGroup; ++i) {
      if (i >= sources) continue;
      fetch<n, is_aligned>(row, word(row.sources + source + i), first, values[i]);
    }
    if (sources == 4) op_.combine(values[2], values[3]);
    if (sources >= 2) op_.combine(values[0], values[1]);
    if (sources >= 3) op_.combine(values[0], values[2]);
    copy(value, values[0]);
  }

  // The canonical tree over all sources. It works like a binary counter of groups: partial[i] is
  // the tree over 1 << i groups while bit i is set. The last group is the rest, which may be empty.
  // It closes all trees that are open.
  template <unsigned n, bool is_aligned>
  RC_INLINE void evaluate(const Row& row, long long first, Value (&value)[n]) const {
    Value partial[kLevels][n] = {};
    const unsigned groups = job_.sources / kGroup;
    RC_ROLL
    for (unsigned group = 0; group <= groups; ++group) {
      const bool is_rest = group == groups;
      const unsigned sources = is_rest ? job_.sources % kGroup : kGroup;
      bool is_empty = sources == 0;
      if (!is_empty) evaluate_group<n, is_aligned>(row, group * kGroup, sources, first, value);
      const unsigned carried = group & ~(group + 1);  // the ones at the end
      const unsigned closed = is_rest ? groups : carried;
      RC_UNROLL
      for (unsigned level = 0; level < kLevels; ++level) {
        if ((closed >> level & 1) == 0) continue;
        if (!is_empty) op_.combine(partial[level], value);
        copy(value, partial[level]);
        is_empty = false;
      }
      RC_UNROLL
      for (unsigned level = 0; level < kLevels; ++level) {
        if (carried + 1 == 1u << level) copy(partial[level], value);
      }
    }
  }

  template <unsigned n>
  static RC_INLINE void copy(Value (&to)[n], const Value (&from)[n]) {
    RC_UNROLL
    for (unsigned i = 0; i < n; ++i) to[i] = from[i];
  }

  const ReduceParameters& job_;
  const Thread at_;
  const Op op_;
};

}  // namespace rdmacoll::cuda
