// Callers with tensors on simulated GPUs, and the copies of their engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "compute/inline.h"
#include "compute/job.h"
#include "fetched_results.h"
#include "operation/operation.h"
#include "verbs_sim/gpus.h"

namespace rdmacoll::conformance {

// Performs copies from and to GPUs in a later poll. They read what kernels see.
class CopyingCompute final : public Compute {
 public:
  explicit CopyingCompute(verbs_sim::SimGpus& gpus) : gpus_(gpus) {}

  Status submit(const ComputeJob& job) override {
    if (!job.on_gpu) return host_.submit(job);
    EXPECT_TRUE(is_copy(job) && job.sources[0].remote.empty());
    jobs_.push_back(job);
    return {};
  }
  Status perform_at_once(const ComputeJob& job, std::size_t bytes) override {
    EXPECT_FALSE(job.on_gpu);
    return host_.perform_at_once(job, bytes);
  }
  bool poll(ComputeSink& sink) override {
    const bool moved = host_.poll(sink);
    const std::vector<ComputeJob> jobs = std::exchange(jobs_, {});
    for (const ComputeJob& job : jobs) {
      copy(job);
      sink.computed(job.cookie, {});
    }
    return moved || !jobs.empty();
  }
  bool arm() override { return jobs_.empty() && host_.arm(); }
  uint64_t bytes_copied() const override { return host_.bytes_copied(); }
  GpuCounters gpu_counters() const override { return counters_; }

 private:
  void copy(const ComputeJob& job) {
    std::vector<std::byte> bytes;
    for (const Piece& piece : job.sources[0].pieces) {
      if (piece.gpu == kHost) {
        bytes.insert(bytes.end(), piece.data, piece.data + piece.bytes);
      } else {
        const std::vector<std::byte> read = gpus_.read(piece.data, piece.bytes);
        bytes.insert(bytes.end(), read.begin(), read.end());
      }
    }
    const auto is_on_host = [](const Piece& piece) { return piece.gpu == kHost; };
    const bool is_staged = std::ranges::any_of(job.to, is_on_host) ||
                           std::ranges::any_of(job.sources[0].pieces, is_on_host);
    if (is_staged) counters_.bytes_staged += bytes.size();
    std::size_t done = 0;
    for (const Piece& piece : job.to) {
      if (piece.gpu == kHost) {
        std::memcpy(piece.data, bytes.data() + done, piece.bytes);
      } else {
        gpus_.write(piece.data, {bytes.data() + done, piece.bytes});
      }
      done += piece.bytes;
    }
  }

  verbs_sim::SimGpus& gpus_;
  InlineCompute host_;
  std::vector<ComputeJob> jobs_;
  GpuCounters counters_;
};

class GpuCaller {
 public:
  explicit GpuCaller(verbs_sim::SimGpus& gpus) : gpus_(gpus) {}
  ~GpuCaller() { free(); }
  GpuCaller(const GpuCaller&) = delete;
  GpuCaller& operator=(const GpuCaller&) = delete;

  std::byte* allocate(Gpu gpu, std::size_t bytes) {
    memory_.push_back(gpus_.allocate(gpu, std::max<std::size_t>(bytes, 1)));
    return memory_.back();
  }
  // Frees all tensors.
  void free() {
    for (std::byte* memory : std::exchange(memory_, {})) gpus_.free(memory);
  }
  // Moves the tensors of a request to the GPU.
  void take(Gpu gpu, Request& request) {
    for (TensorRef& tensor : request.tensors) {
      const std::size_t bytes = tensor.bytes(request.dtype);
      const bool is_in_place = tensor.output == tensor.input;
      std::byte* const input = allocate(gpu, bytes);
      if (bytes > 0) gpus_.write(input, {tensor.input, bytes});
      tensor.input = input;
      const bool has_output = tensor.output != nullptr && !row_of(request.kind).makes_result;
      tensor.output = !has_output ? nullptr : is_in_place ? input : allocate(gpu, bytes);
      tensor.gpu = gpu;
    }
    request.result_memory = [&gpus = gpus_, gpu](uint64_t bytes) {
      std::byte* const memory = gpus.allocate(gpu, std::max<std::size_t>(bytes, 1));
      return std::shared_ptr<std::byte[]>(memory, [&gpus](std::byte* freed) { gpus.free(freed); });
    };
  }
  void fetch(Operation& operation) {
    fetch_results(operation, kept_, [this](const std::byte* memory, std::size_t bytes) {
      return fetched(memory, bytes);
    });
  }

 private:
  std::shared_ptr<std::byte[]> fetched(const std::byte* memory, std::size_t bytes) {
    std::shared_ptr<std::byte[]> copy(new std::byte[bytes + 1]);
    if (bytes == 0) return copy;
    const std::vector<std::byte> read = gpus_.read(memory, bytes);
    std::copy(read.begin(), read.end(), copy.get());
    return copy;
  }

  verbs_sim::SimGpus& gpus_;
  std::vector<std::byte*> memory_;
  std::vector<std::shared_ptr<std::byte[]>> kept_;
};

}  // namespace rdmacoll::conformance
