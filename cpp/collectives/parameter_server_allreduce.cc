#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {
namespace {

// The steps of a rank with data. Each rank begins with a different server, so that none is hit by
// all.
Schedule of_worker(const Shape& shape) {
  Builder program(shape, shape.servers);
  const auto server_at = [&](int turn) { return (shape.rank + turn) % shape.servers; };

  for (int turn = 0; turn < shape.servers; ++turn) {
    const int server = server_at(turn);
    program.send(shape.ranks + server, program.contribution(server));
  }
  for (int turn = 0; turn < shape.servers; ++turn) {
    const int server = server_at(turn);
    program.receive(shape.ranks + server, program.output(server));
  }
  return program.finish();
}

// A server has neither input nor output. It sums its part in the engine's own memory, or in the
// workers' output if it shares that memory.
Schedule of_server(const Shape& shape) {
  const int part = shape.rank - shape.ranks;
  Builder program(shape.ranks, shape.rank, shape.servers);

  std::vector<Slice> sources;
  for (int worker = 0; worker < shape.ranks; ++worker) {
    sources.push_back(program.scratch(part));
    program.receive(worker, sources.back());
  }
  const Slice sum = shape.shares_output ? program.output(part) : program.scratch(part);
  program.reduce(sum, sources, true);
  for (int turn = 0; turn < shape.ranks; ++turn) {
    program.send((part + turn) % shape.ranks, sum);
  }
  return program.finish();
}

}  // namespace

Schedule parameter_server_allreduce(const Shape& shape) {
  if (shape.servers == 0) return direct_allreduce(shape);
  return shape.rank < shape.ranks ? of_worker(shape) : of_server(shape);
}

}  // namespace rdmacoll
