#include <algorithm>
#include <vector>

#include "collectives/choose.h"
#include "collectives/shared_stages.h"

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

// Without separate servers each rank serves a part.
Schedule of_serving_rank(const Shape& shape) {
  Builder program(shape, shape.ranks);
  direct_sums(program, shape, program.output(shape.rank));
  direct_copies(program, shape);
  return program.finish();
}

}  // namespace

// Allreduce over parameter servers. Server k collects part k from every rank, reduces once in
// canonical order, and sends the sum to every rank. Li et al., "Scaling distributed machine
// learning with the parameter server", 2014.
Schedule parameter_server_allreduce(const Shape& shape) {
  if (shape.servers == 0) return of_serving_rank(shape);
  return shape.rank < shape.ranks ? of_worker(shape) : of_server(shape);
}

namespace {

// A server has its part from every worker, and the sum.
int memory_of_servers(const Shape& shape) {
  const int of_server = shape.servers == 0 ? 0 : shape.members() / shape.servers + 1;
  return std::max(memory_of_shares(shape), of_server);
}

}  // namespace

extern constinit const AlgorithmRow parameter_server_row{.algorithm = Algorithm{18},
                                                         .name = "parameter_server",
                                                         .make = parameter_server_allreduce,
                                                         .result = AlgorithmRow::Result::sum,
                                                         .segments = Segments::stages,
                                                         .memory = memory_of_servers,
                                                         .by_servers = true,
                                                         .has_one_writer = true};

}  // namespace rdmacoll
