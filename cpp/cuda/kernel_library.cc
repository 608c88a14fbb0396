#include "cuda/kernel_library.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/text.h"
#include "compute/reduce_kernels.h"

namespace rdmacoll::cuda {
namespace {

constexpr Kernel kKernels[] = {
#include "cuda/kernels/ptx/table.inc"
};

constexpr int kernel_index(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kKernels); ++i) {
    if (kKernels[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

constexpr int kWriteWord = kernel_index("write_word");
constexpr int kCopyBytes = kernel_index("copy_bytes");
constexpr int kCopyPairs = kernel_index("copy_pairs");
static_assert(kWriteWord >= 0 && kCopyBytes >= 0 && kCopyPairs >= 0);

// The kernels of a dtype, as indices.
struct Choice {
  int sum;
  int any;  // any operator, scaled or not
};

#define RC_CHOICE(sum, any) \
  Choice { kernel_index("sum_" sum), kernel_index("reduce_" any) }
// The kernels of each dtype, whose index is kernel_row(). Those for mixed dtypes follow.
constexpr Choice kChoices[] = {
    RC_CHOICE("uint8", "uint8"),
    RC_CHOICE("uint8", "int8"),
    RC_CHOICE("uint32", "int32"),
    RC_CHOICE("uint64", "int64"),
    RC_CHOICE("float16", "float16"),
    RC_CHOICE("bfloat16", "bfloat16"),
    RC_CHOICE("float32", "float32"),
    RC_CHOICE("float64", "float64"),
    RC_CHOICE("uint16", "uint16"),
    RC_CHOICE("uint32", "uint32"),
    RC_CHOICE("uint64", "uint64"),
    RC_CHOICE("uint16", "int16"),
    RC_CHOICE("mixed_float16", "mixed_float16"),
    RC_CHOICE("mixed_bfloat16", "mixed_bfloat16"),
};
#undef RC_CHOICE
static_assert(std::size(kChoices) == kKernelRows + kMixedDtypes);
constexpr bool are_all_there() {
  return std::all_of(std::begin(kChoices), std::end(kChoices),
                     [](const Choice& choice) { return choice.sum >= 0 && choice.any >= 0; });
}
static_assert(are_all_there());

// Computes the scale as with_finish() of compute/reduce_loops.h does, so that a GPU's results have
// the same bits as the processor's.
template <typename Real>
void set_scale(const ComputeJob& job, ReduceParameters& parameters) {
  const auto divisor = static_cast<Real>(job.divisor);
  const auto factor = static_cast<Real>(job.factor);
  parameters.divisor = static_cast<double>(divisor);
  parameters.factor = static_cast<double>(factor);
  parameters.once = parameters.factor;
  int exponent = 0;
  const bool is_power_of_two = divisor > 0 && std::frexp(parameters.divisor, &exponent) == 0.5 &&
                               exponent > -100 && exponent < 100;
  const bool is_integer_job = is_integer(job.dtype) || job.dtype == Dtype::boolean;
  if (divisor == 1 && factor == 1) {
    parameters.finish = Finish::untouched;
  } else if (factor == 1 && is_power_of_two && !is_integer_job) {
    parameters.once = static_cast<double>(Real{1} / divisor);
    parameters.finish = Finish::once;
  } else if (divisor == 1 && !is_integer_job) {
    parameters.finish = Finish::once;
  } else {
    parameters.finish = Finish::full;
  }
}

bool is_plain_sum(const ComputeJob& job, const ReduceParameters& parameters) {
  return job.op == ReduceOp::sum && job.sources.size() <= kUnitSourcesMax &&
         (!is_integer(job.dtype) || parameters.finish == Finish::untouched);
}

int kernel_of(const ComputeJob& job, const ReduceParameters& parameters) {
  const Dtype dtype = component_of(job.dtype);
  const int row = job.mixes
                      ? kKernelRows + static_cast<int>(dtype) - static_cast<int>(Dtype::float16)
                      : kernel_row(dtype);
  const Choice& choice = kChoices[row];
  return is_plain_sum(job, parameters) ? choice.sum : choice.any;
}

}  // namespace

// Cuts a job into rows in which no piece of an operand ends.
class LaunchPlanner::Rows {
 public:
  Rows(const ComputeJob& job, LaunchPlanner& planner, Launch& launch)
      : job_(job),
        addresses_(planner.addresses_),
        cursors_(planner.cursors_),
        table_(launch.table),
        copies_(is_copy(job)),
        element_(copies_ ? 1 : size_of(component_of(job.dtype))),
        words_(kRowHead + job.sources.size()) {
    cursors_.clear();
    cursors_.emplace_back(job.to);
    cursors_.back().skip(0);
    for (const Operand& source : job.sources) cursors_.emplace_back(source);
    table_.clear();
  }

  Status cut() {
    while (cursors_[0].run() > 0) {
      std::size_t run = cursors_[0].run() / width(0);
      for (std::size_t i = 1; i < cursors_.size(); ++i) {
        run = std::min(run, cursors_[i].run() / width(i));
      }
      if (run == 0 || run % element_ != 0) {
        return Status(Code::failed, "a piece of a reduction on a GPU ends inside an element.");
      }
      table_.insert(table_.end(), {0, run / element_, 0});
      for (std::size_t i = 0; i < cursors_.size(); ++i) add(i, run * width(i));
    }
    return {};
  }

  // Whether the job copies, and every address and run is even: then its elements are pairs.
  bool copies_pairs() {
    if (!copies_) return false;
    Word all = 0;
    for (Word word : table_) all |= word;
    if ((all & 1) != 0) return false;
    element_ = 2;
    for (std::size_t at = 0; at < table_.size(); at += words_) table_[at + 1] /= 2;
    return true;
  }

  // Numbers the tiles, and says how the elements of each row may be accessed. Returns the number of
  // all tiles.
  Word arrange(bool has_units) {
    const Word tile = kThreads * kUnitBytes / element_;
    Word tiles = 0;
    for (std::size_t at = 0; at < table_.size(); at += words_) {
      Word* const row = table_.data() + at;
      const Word shift = shift_of(row);
      row[0] = tiles;
      row[2] = shift << 3 | static_cast<Word>(access_of(row, shift, has_units));
      tiles += (row[1] + shift + tile - 1) / tile;
    }
    return tiles;
  }

  unsigned count() const { return static_cast<unsigned>(table_.size() / words_); }

  // Copies the rows into the parameters, or samples of them if they do not fit.
  void copy_to(Word (&words)[kInlineWords]) {
    if (table_.size() <= kInlineWords) {
      std::copy(table_.begin(), table_.end(), words);
      return table_.clear();
    }
    const std::size_t step = (count() + kInlineWords - 1) / kInlineWords;
    for (std::size_t i = 0; i * step < count(); ++i) words[i] = table_[i * step * words_];
  }

 private:
  // Width of the destination (0) or of a source, in units of the dtype.
  std::size_t width(std::size_t i) const {
    return i == 0 ? job_.width() : job_.sources[i - 1].width();
  }

  void add(std::size_t i, std::size_t bytes) {
    PieceCursor& cursor = cursors_[i];
    const std::byte* const memory = cursor.address();
    RC_ASSERT(memory != nullptr, "a GPU cannot read memory that is not mapped");
    const Word address = addresses_ == nullptr
                             ? static_cast<Word>(reinterpret_cast<std::uintptr_t>(memory))
                             : addresses_->of(memory);
    table_.push_back(address | (width(i) == 2 ? kWideMark : 0));
    cursor.skip(bytes);
  }

  std::size_t bytes_of(Word address) const {
    return (address & kWideMark) != 0 ? sizeof(float) : element_;
  }

  // Elements by which a narrow operand, or else the destination, is past a multiple of kUnitBytes.
  Word shift_of(const Word* row) const {
    const Word* const addresses = row + kRowHead - 1;
    const Word* const end = row + words_;
    const Word* found =
        std::find_if(addresses, end, [](Word address) { return (address & kWideMark) == 0; });
    const Word address = found == end ? *addresses : *found;
    return (address & ~kWideMark) % kUnitBytes / bytes_of(address);
  }

  Access access_of(const Word* row, Word shift, bool has_units) const {
    const Word part = std::max<Word>(4 / element_, 1);
    Access best = has_units ? Access::units : Access::words;
    for (std::size_t i = kRowHead - 1; i < words_; ++i) {
      const std::size_t bytes = bytes_of(row[i]);
      const Word address = row[i] & ~kWideMark;
      const Word begin = address - shift * bytes;
      if (address % bytes != 0) return Access::bytes;
      if (begin % kUnitBytes != 0) best = std::max(best, Access::words);
      if (begin % (part * bytes) != 0) best = std::max(best, Access::elements);
    }
    return best;
  }

  const ComputeJob& job_;
  const DeviceAddresses* const addresses_;
  std::vector<PieceCursor>& cursors_;
  std::vector<Word>& table_;
  const bool copies_;
  std::size_t element_;      // bytes
  const std::size_t words_;  // in a row
};

std::span<const Kernel> kernels() { return kKernels; }
std::array<int, 2> copy_kernels() { return {kCopyBytes, kCopyPairs}; }
int write_word_kernel() { return kWriteWord; }

Status LaunchPlanner::prepare(const ComputeJob& job, Launch& launch) {
  const std::size_t sources = job.sources.size();
  if (sources > kSourcesMax) {
    return Status(Code::failed, cat("a reduction on a GPU has ", sources, " sources, more than ",
                                    kSourcesMax, "."));
  }
  ReduceParameters& parameters = launch.parameters;
  parameters.op = static_cast<unsigned>(job.op);
  parameters.sources = static_cast<unsigned>(sources);
  parameters.prescale = job.prescale;
  const Dtype component = component_of(job.dtype);
  if (component == Dtype::float32 || is_16_bit_float(component)) {
    set_scale<float>(job, parameters);
  } else {
    set_scale<double>(job, parameters);
  }
  Rows rows(job, *this, launch);
  RC_RETURN_IF_ERROR(rows.cut());
  bool has_units = true;
  if (is_copy(job)) {
    launch.kernel = rows.copies_pairs() ? kCopyPairs : kCopyBytes;
  } else {
    launch.kernel = kernel_of(job, parameters);
    has_units = is_plain_sum(job, parameters);
  }
  parameters.tiles = rows.arrange(has_units);
  parameters.rows = rows.count();
  parameters.table = 0;
  launch.blocks = static_cast<unsigned>(std::min<Word>(parameters.tiles, blocks_max_));
  rows.copy_to(parameters.words);
  return {};
}

}  // namespace rdmacoll::cuda
