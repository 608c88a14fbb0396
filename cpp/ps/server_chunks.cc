// The way of a chunk: from the worker into the store, and back.
#include <algorithm>
#include <cstring>
#include <utility>

#include "ps/server.h"

namespace rdmacoll::ps {

bool Server::begin_chunks(WorkerRank which) {
  Worker& worker = workers_[which.index()];
  Job& job = *worker.job;
  bool moved = false;
  while (job.begun < job.chunks.size()) {
    const auto found =
        std::find_if(worker.buffers.begin(), worker.buffers.end(),
                     [](const Buffer& buffer) { return buffer.state == Buffer::State::free; });
    if (found == worker.buffers.end()) break;
    const Chunk& chunk = job.chunks[job.begun];
    found->chunk = job.begun;
    found->is_view = goes_as_view(transport_.reach(worker.rank), chunk);
    const std::size_t bytes = std::max(found->is_view ? 0 : chunk.bytes_there, chunk.bytes_back);
    if (bytes > 0) found->data = pool_.allocate(bytes);
    // Retried in the next turn, or when another worker has freed memory.
    if ((bytes > 0 && found->data == nullptr) || !begin_transfer(which, *found, chunk).ok()) {
      free(*found);
      break;
    }
    ++job.begun;
    moved = true;
  }
  return moved;
}

Status Server::begin_transfer(WorkerRank which, Buffer& buffer, const Chunk& chunk) {
  Worker& worker = workers_[which.index()];
  const uint64_t sequence = worker.sequence_there + buffer.chunk;
  const uint64_t cookie =
      which.index() * kWindow + static_cast<std::size_t>(&buffer - worker.buffers.data());
  buffer.given = buffer.data;
  if (chunk.bytes_there == 0) {
    buffer.state = Buffer::State::received;
    return {};
  }
  const Piece piece{buffer.data, chunk.bytes_there};
  bool is_done = false;
  RC_RETURN_IF_ERROR(buffer.is_view
                         ? transport_.await(worker.rank, kLaneThere, sequence, cookie)
                         : transport_.post_recv(
                               {worker.rank, kLaneThere, sequence, {&piece, 1}, cookie, &is_done}));
  buffer.state = is_done ? Buffer::State::received : Buffer::State::receiving;
  bytes_received_ += chunk.bytes_there;
  return {};
}

bool Server::work(Worker& worker) {
  bool moved = false;
  for (Buffer& buffer : worker.buffers) {
    if (!worker.job || buffer.state != Buffer::State::received) continue;
    moved = true;
    const Status worked = work_on(worker, buffer);
    if (worked.ok() || worked.is_busy()) continue;
    hang_up(WorkerRank(static_cast<int>(&worker - workers_.data())), worked.message());
    return true;
  }
  return moved;
}

// Returns busy() if there is more for the next turn. An error means that no rdmacoll client sent
// the request.
Status Server::work_on(Worker& worker, Buffer& buffer) {
  Job& job = *worker.job;
  const Chunk& chunk = job.chunks[buffer.chunk];
  const uint32_t variable = job.request.items[chunk.item].variable;
  if (chunk.bytes_there > 0) RC_RETURN_IF_ERROR(fetch(buffer, chunk));
  if (job.refusal.ok() && goes_by_rows(job.request.kind)) {
    RC_RETURN_IF_ERROR(work_on_rows(job, chunk, buffer));
  } else if (job.refusal.ok()) {
    const std::size_t bytes = chunk.elements * size_of(store_.spec(variable).dtype);
    const std::span<const std::byte> given(buffer.given, bytes);
    if (job.request.kind == RequestKind::init) {
      store_.write(variable, job.request.slot, chunk.first, given);
    }
    if (makes_update(job.request.kind) && !job.is_overtaken) {
      store_.update(variable, job.steps[chunk.item], chunk.first, given, job.request.learning_rate);
    }
    if (chunk.bytes_back > 0) {
      store_policy_.copy(buffer.data,
                         store_.stored(variable, job.request.slot, chunk.first, bytes));
    }
  }
  give_back(worker, buffer);
  if (job.refusal.ok() && chunk.bytes_back > 0) {
    buffer.state = Buffer::State::ready;
    return {};
  }
  free(buffer);
  end_chunk(worker);
  return {};
}

void Server::end_chunk(Worker& worker) {
  ++worker.job->ended;
  end_job(worker);
}

Status Server::work_on_rows(const Job& job, const Chunk& chunk, Buffer& buffer) {
  const uint32_t variable = job.request.items[chunk.item].variable;
  const StoredSpec& spec = store_.spec(variable);
  const std::size_t count = chunk.elements / spec.row_elements, bytes = count * sizeof(int64_t);
  if (buffer.rows.empty()) {
    buffer.rows.resize(count);
    std::memcpy(buffer.rows.data(), buffer.given, bytes);
    for (const int64_t row : buffer.rows) {
      if (row < 0 || static_cast<uint64_t>(row) >= spec.rows()) {
        return {Code::failed, "it named rows that are not there"};
      }
    }
  }
  if (job.is_overtaken) return {};
  const std::span<const int64_t> rows = std::span(buffer.rows).subspan(buffer.rows_done);
  const std::size_t at = buffer.rows_done * spec.row_bytes();
  buffer.rows_done +=
      job.request.kind == RequestKind::push_rows
          ? store_.update_rows(variable, job.steps[chunk.item], rows, buffer.given + bytes + at,
                               left_, job.request.learning_rate)
          : store_.read_rows(variable, rows, buffer.data + at, left_);
  return buffer.rows_done < count ? Status::busy() : Status();
}

// A chunk on its way back has ended for the server: the worker waits for the answer and for the
// chunk.
bool Server::send_chunks(WorkerRank which) {
  Worker& worker = workers_[which.index()];
  bool moved = false;
  for (std::size_t slot = 0; worker.job && slot < kWindow; ++slot) {
    Buffer& buffer = worker.buffers[slot];
    if (buffer.state != Buffer::State::ready) continue;
    const Piece piece{buffer.data, worker.job->chunks[buffer.chunk].bytes_back};
    bool is_done = false;
    // The worker posts all its receives when it reads that the request is accepted.
    const Transfer transfer{.peer = worker.rank,
                            .lane = kLaneBack,
                            .sequence = worker.sequence_back + buffer.chunk,
                            .pieces = {&piece, 1},
                            .cookie = which.index() * kWindow + slot,
                            .is_done = &is_done,
                            .is_announced = true};
    if (!transport_.post_send(transfer).ok()) continue;  // busy: in the next turn
    buffer.state = Buffer::State::sending;
    bytes_sent_ += piece.bytes;
    if (is_done) free(buffer);
    end_chunk(worker);
    moved = true;
  }
  return moved;
}

void Server::viewed(uint64_t cookie, const View& view) {
  Worker& worker = workers_[cookie / kWindow];
  if (!worker.job) return;
  Buffer& buffer = worker.buffers[cookie % kWindow];
  const std::size_t bytes = worker.job->chunks[buffer.chunk].bytes_there;
  if (view.pieces.size() != 1 || view.pieces[0].bytes != bytes ||
      reinterpret_cast<uintptr_t>(view.pieces[0].mapped) % alignof(double) != 0) {
    worker.has_broken_protocol = true;
    return;
  }
  buffer.given = view.pieces[0].mapped;
  buffer.reader = view.reader;
  buffer.unmapped = view.pieces[0];
  buffer.state = Buffer::State::received;
}

Status Server::fetch(Buffer& buffer, const Chunk& chunk) {
  if (buffer.given != nullptr) return {};
  pool_.free(buffer.data);
  buffer.data = pool_.allocate(std::max(chunk.bytes_there, chunk.bytes_back));
  if (buffer.data == nullptr) return Status::busy();  // until another worker has freed memory
  RC_RETURN_IF_ERROR(buffer.reader->read({&buffer.unmapped, 1}, 0, buffer.data, chunk.bytes_there));
  buffer.given = buffer.data;
  return {};
}

// Releases a view, into which the worker packs a later chunk.
void Server::give_back(Worker& worker, Buffer& buffer) {
  if (std::exchange(buffer.is_view, false)) {
    worker.unreleased.push_back(worker.sequence_there + buffer.chunk);
  }
}

void Server::received(uint64_t cookie) {
  Worker& worker = workers_[cookie / kWindow];
  if (worker.job) worker.buffers[cookie % kWindow].state = Buffer::State::received;
}

void Server::sent(uint64_t cookie) { free(workers_[cookie / kWindow].buffers[cookie % kWindow]); }

}  // namespace rdmacoll::ps
