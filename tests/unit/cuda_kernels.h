// Jobs for the device kernels, emulated on the processor in memory with addresses of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compute/job.h"
#include "cuda/kernel_library.h"
#include "cuda/kernels/emulate.h"
#include "unit/compute_fixture.h"

namespace rdmacoll::cuda::kernels_test {

using compute_test::cut;
using oracle::Bytes;

// A device's memory. The device has it at addresses that a processor cannot use.
class DeviceMemory final : public EmulatedMemory, public DeviceAddresses {
 public:
  static constexpr Word kAway = Word{1} << 60;

  // Memory between guard bytes, which begins `shift` bytes after a multiple of 64.
  std::span<std::byte> allocate(const Bytes& content, std::size_t shift) {
    const std::size_t bytes = content.size() + shift + 2 * kGuard;
    auto memory = std::make_unique<Block>();
    memory->bytes.resize(bytes + 64, kMark);
    std::byte* const begin = memory->bytes.data();
    const std::size_t skip = (64 - reinterpret_cast<std::uintptr_t>(begin) % 64) % 64;
    memory->used = {begin + skip + kGuard + shift, content.size()};
    std::copy(content.begin(), content.end(), memory->used.begin());
    blocks_.push_back(std::move(memory));
    return blocks_.back()->used;
  }
  std::span<std::byte> allocate(const std::vector<Word>& words) {
    const auto* first = reinterpret_cast<const std::byte*>(words.data());
    return allocate(Bytes(first, first + words.size() * sizeof(Word)), 0);
  }

  Word of(const std::byte* memory) const override {
    return reinterpret_cast<std::uintptr_t>(memory) | kAway;
  }
  std::byte* at(uint64_t address, std::size_t bytes, bool is_written) override {
    if ((address & kAway) == 0) return nullptr;
    auto* const begin = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address & ~kAway));
    for (const auto& block : blocks_) {
      std::byte* const first = block->used.data();
      if (begin < first || begin + bytes > first + block->used.size()) continue;
      block->is_written |= is_written;
      return begin;
    }
    return nullptr;
  }

  bool are_guards_intact() const {
    return std::all_of(blocks_.begin(), blocks_.end(), [](const auto& block) {
      const std::byte* const first = block->bytes.data();
      const std::byte* const end = first + block->bytes.size();
      const auto is_mark = [](std::byte byte) { return byte == kMark; };
      return std::all_of(first, static_cast<const std::byte*>(block->used.data()), is_mark) &&
             std::all_of(static_cast<const std::byte*>(block->used.data()) + block->used.size(),
                         end, is_mark);
    });
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xa5};
  struct Block {
    Bytes bytes;
    std::span<std::byte> used;
    bool is_written = false;
  };
  std::vector<std::unique_ptr<Block>> blocks_;
};

// Launches a job as the engine does. A table that does not fit into the parameters goes to memory
// of the device.
inline Emulated launch(const ComputeJob& job, unsigned multiprocessors, DeviceMemory& memory) {
  LaunchPlanner planner(multiprocessors, &memory);
  Launch launch;
  const Status status = planner.prepare(job, launch);
  EXPECT_TRUE(status.ok()) << status.message();
  if (!status.ok() || launch.blocks == 0) return Emulated::done;
  EXPECT_LE(launch.blocks, multiprocessors * kBlocksOfMultiprocessor);
  if (!launch.table.empty()) {
    launch.parameters.table = memory.of(memory.allocate(launch.table).data());
  }
  void* parameters[] = {&launch.parameters};
  return emulate(kernels()[launch.kernel].name, launch.blocks, kThreads, parameters, memory);
}

// The result of a job on the processor, with aligned operands of one piece.
inline Bytes expected(ComputeJob job, const std::vector<Bytes>& sources,
                      const std::vector<uint8_t>& wide, std::size_t result_bytes) {
  Bytes result(result_bytes);
  std::vector<Piece> pieces;
  std::vector<Operand> operands;
  for (const Bytes& source : sources) {
    pieces.push_back({const_cast<std::byte*>(source.data()), source.size()});
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    operands.push_back({.pieces = {&pieces[i], 1}, .wide = wide[i] != 0});
  }
  const Piece to{result.data(), result.size()};
  job.dtype = component_of(job.dtype);
  job.to = {&to, 1};
  job.sources = operands;
  std::size_t bytes = 0;
  Workspace workspace;
  EXPECT_TRUE(measure(job, bytes).ok());
  EXPECT_TRUE(perform(job, 0, bytes, workspace).ok());
  return result;
}

}  // namespace rdmacoll::cuda::kernels_test
