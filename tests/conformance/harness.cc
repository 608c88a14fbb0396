#include "conformance/harness.h"

#include <algorithm>
#include <cstring>

namespace rdmacoll::conformance {

bool Fleet::poll_all() {
  bool moved = false;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    if (transports[rank] != nullptr) moved |= transports[rank]->poll(sinks[rank]);
  }
  step();
  return moved;
}

bool Fleet::poll_until(const std::function<bool()>& done, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    for (int i = 0; i < 16; ++i) poll_all();
    if (std::chrono::steady_clock::now() > end) return done();
  }
  return true;
}

void Fleet::offer(const std::function<Status()>& call) {
  Status status;
  const bool accepted = poll_until([&] {
    status = call();
    return !status.is_busy();
  });
  ASSERT_TRUE(accepted) << "busy for a minute";
  ASSERT_TRUE(status.ok()) << status.message();
}

bool Fleet::all_connected() const {
  for (int rank = 0; rank < size(); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    for (const int peer : sinks[index].peers) {
      if (!transports[index]->is_connected(peer)) return false;
    }
    if (sinks[index].peers.size() + 1 != transports.size()) return false;
  }
  return true;
}

World world_of(int ranks, int rank) {
  World world{.job = "conformance", .epoch = 3, .rank = rank};
  world.members.resize(static_cast<std::size_t>(ranks));
  for (Member& member : world.members) member.host = "here";
  return world;
}

std::unique_ptr<MemoryPool> make_pool() {
  std::unique_ptr<MemoryPool> pool;
  const Status status = MemoryPool::create(std::size_t{64} << 20, pool);
  EXPECT_TRUE(status.ok()) << status.message();
  return pool;
}

const Clock& steady_clock() {
  static const SteadyClock clock;
  return clock;
}

std::ostream& operator<<(std::ostream& out, const Backend& backend) { return out << backend.name; }

std::vector<Backend> backends_with_views() {
  std::vector<Backend> found = backends();
  std::erase_if(found, [](const Backend& backend) { return !backend.views; });
  return found;
}

std::vector<Backend> backends_with_processes() {
  std::vector<Backend> found = backends();
  std::erase_if(found, [](const Backend& backend) { return backend.make_endpoint == nullptr; });
  return found;
}

std::string test_name(const testing::TestParamInfo<Backend>& info) { return info.param.name; }

void paint(std::span<std::byte> memory, uint64_t seed) {
  // Writes eight bytes a turn, through plain pointers. Under a sanitizer the tests spend much of
  // their time here.
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1, word = 0;
  const auto draw = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    word = state ^ (state >> 32);
  };
  std::byte* at = memory.data();
  std::byte* const end = at + memory.size();
  for (; end - at >= ptrdiff_t{sizeof word}; at += sizeof word) {
    draw();
    std::memcpy(at, &word, sizeof word);
  }
  if (at < end) {
    draw();
    std::memcpy(at, &word, static_cast<std::size_t>(end - at));
  }
}

bool is_painted(std::span<const std::byte> memory, uint64_t seed) {
  std::vector<std::byte> expected(memory.size());
  paint(expected, seed);
  return memory.empty() || std::memcmp(memory.data(), expected.data(), memory.size()) == 0;
}

Buffer::Buffer(MemoryPool* pool, std::size_t bytes, std::size_t pieces_max, std::mt19937_64& random)
    : pool_(pool), bytes_(bytes) {
  std::size_t left = bytes;
  const std::size_t pieces = 1 + random() % pieces_max;
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t take = i + 1 == pieces ? left : random() % (left + 1);
    std::byte* data = nullptr;
    if (pool_ != nullptr && take > 0) {
      data = pool_->allocate(take);
      EXPECT_NE(data, nullptr) << "the test's pool is too small";
    } else if (take > 0) {
      data = own_.emplace_back(take).data();
    }
    pieces_.push_back({data, take});
    left -= take;
  }
}

Buffer::~Buffer() {
  for (const Piece& piece : pieces_) {
    if (pool_ != nullptr && piece.data != nullptr) pool_->free(piece.data);
  }
}

void Buffer::paint(uint64_t seed) {
  std::vector<std::byte> whole(bytes_);
  conformance::paint(whole, seed);
  std::size_t at = 0;
  for (const Piece& piece : pieces_) {
    if (piece.bytes > 0) std::memcpy(piece.data, whole.data() + at, piece.bytes);
    at += piece.bytes;
  }
}

bool Buffer::is_painted(uint64_t seed) const {
  std::vector<std::byte> whole;
  for (const Piece& piece : pieces_)
    whole.insert(whole.end(), piece.data, piece.data + piece.bytes);
  return conformance::is_painted(whole, seed);
}

std::vector<std::byte> bytes_of_view(const Recorder::Seen& seen) {
  std::size_t bytes = 0;
  for (const RemotePiece& piece : seen.pieces) bytes += piece.bytes;
  std::vector<std::byte> whole(bytes);
  if (seen.reader != nullptr) {
    const Status read = seen.reader->read(seen.pieces, 0, whole.data(), bytes);
    EXPECT_TRUE(read.ok()) << read.message();
    return whole;
  }
  std::size_t at = 0;
  for (const RemotePiece& piece : seen.pieces) {
    if (piece.bytes > 0) std::memcpy(whole.data() + at, piece.mapped, piece.bytes);
    at += piece.bytes;
  }
  return whole;
}

std::size_t random_size(std::mt19937_64& random, std::size_t max) {
  const uint64_t kind = random() % 100;
  const std::size_t cut = kind < 10 ? 0 : kind < 70 ? 300 : kind < 98 ? 20'000 : max;
  return random() % (std::min(cut, max) + 1);
}

}  // namespace rdmacoll::conformance
