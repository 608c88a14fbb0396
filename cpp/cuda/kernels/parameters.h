// Arguments of the device kernels. The files of this folder compile both as CUDA and as C++, so
// they use neither the standard library nor C++20.
#pragma once

namespace rdmacoll::cuda {

using Word = unsigned long long;

// A block has this many threads. One after another, the blocks take all tiles whose number is
// theirs modulo the number of blocks.
constexpr unsigned kThreads = 256;
// A thread takes as many elements of a tile as have this many bytes in the job's dtype.
constexpr unsigned kUnitBytes = 16;
// Bit of the address of an operand or a destination that is float32 in a job of 16-bit floats.
constexpr Word kWideMark = Word{1} << 63;
constexpr unsigned kInlineWords = 112;
// A general tree keeps one partial result by bit of the number of its groups of four sources.
constexpr unsigned kGroup = 4;
constexpr unsigned kLevels = 8;
constexpr unsigned kSourcesMax = (kGroup << kLevels) - 1;
// Access::units is for sums of at most this many sources, and for copies.
constexpr unsigned kUnitSourcesMax = 4;

// How results are finished: not at all, by one multiplication, or by a division and a
// multiplication.
enum class Finish : unsigned { untouched, once, full };

// How the elements of a row may be accessed. Each kind needs more alignment than the next one.
enum class Access : unsigned {
  units,     // kUnitBytes at a time
  words,     // four bytes at a time, or one element if that is larger
  elements,  // one element at a time
  bytes,     // elements at any address
};

// The argument of all kernels but write_word. A job is a table of rows. A row is a run of elements
// in which every operand is contiguous:
//
//   word 0     number of the first tile of the row
//   word 1     number of its elements
//   word 2     elements by which its first tile begins before its first element, times 8, plus its
//              Access
//   word 3     address of the destination
//   word 4...  addresses of the sources
//
// A tile is kThreads units of kUnitBytes in the job's dtype. No tile belongs to two rows.
// Rows that do not fit into the parameters are in memory that may be far from the GPU. Then the
// parameters have samples: word i is the first tile of row i * step, where step is the number of
// rows divided by kInlineWords and rounded up.
struct ReduceParameters {
  Word table = 0;  // address of the rows; 0: `words` are the rows and not samples
  Word tiles = 0;  // in all rows together
  unsigned rows = 0;
  unsigned sources = 0;
  unsigned op = 0;  // number of the ReduceOp: only kernels named reduce_* read it
  Finish finish = Finish::untouched;
  double once = 1.0;
  double divisor = 1.0;
  double factor = 1.0;
  double prescale = 1.0;  // for narrow sources: only kernels of mixed widths read it
  Word words[kInlineWords] = {};
};

constexpr unsigned kRowHead = 4;  // words of a row before its sources

// The argument of write_word. All writes of the stream's earlier kernels are visible before it.
struct WriteWordParameters {
  Word address = 0;  // four aligned bytes
  unsigned value = 0;
};

// X(name, dtype, operator): the kernels that reduce. Those named reduce_* perform any operator.
// Those named sum_* add faster. Sums of integers there are not scaled, and have no sign. The
// kernels of mixed widths take float32 operands among those of 16 bits.
#define RC_CUDA_REDUCTIONS(X)                \
  X(sum_uint8, Uint8, Sum)                   \
  X(sum_uint16, Uint16, Sum)                 \
  X(sum_uint32, Uint32, Sum)                 \
  X(sum_uint64, Uint64, Sum)                 \
  X(sum_float16, Float16, Sum)               \
  X(sum_bfloat16, Bfloat16, Sum)             \
  X(sum_float32, Float32, Sum)               \
  X(sum_float64, Float64, Sum)               \
  X(sum_mixed_float16, MixedFloat16, Sum)    \
  X(sum_mixed_bfloat16, MixedBfloat16, Sum)  \
  X(reduce_uint8, Uint8, Any)                \
  X(reduce_int8, Int8, Any)                  \
  X(reduce_int32, Int32, Any)                \
  X(reduce_int64, Int64, Any)                \
  X(reduce_float16, Float16, Any)            \
  X(reduce_bfloat16, Bfloat16, Any)          \
  X(reduce_float32, Float32, Any)            \
  X(reduce_float64, Float64, Any)            \
  X(reduce_uint16, Uint16, Any)              \
  X(reduce_uint32, Uint32, Any)              \
  X(reduce_uint64, Uint64, Any)              \
  X(reduce_int16, Int16, Any)                \
  X(reduce_mixed_float16, MixedFloat16, Any) \
  X(reduce_mixed_bfloat16, MixedBfloat16, Any)
// The kernels that copy: bytes, and pairs of bytes whose addresses are even.
#define RC_CUDA_COPIES(X)    \
  X(copy_bytes, Uint8, Copy) \
  X(copy_pairs, Uint16, Copy)

}  // namespace rdmacoll::cuda
