#include "ps/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/system_error.h"
#include "base/text.h"
#include "base/wire.h"

namespace rdmacoll::ps {
namespace {

constexpr uint64_t kMagic = 0x31'73'70'6c'6c'6f'63'72;  // "rcollps1"
constexpr std::size_t kSliceBytes = std::size_t{4} << 20;
constexpr std::size_t kHeaderBytesMax = std::size_t{1} << 30;

struct Prefix {
  uint64_t magic = kMagic;
  uint64_t header_bytes = 0;
};

}  // namespace

std::string checkpoint_path(const std::string& path, int server, int servers) {
  return cat(path, ".server-", server, "-of-", servers);
}

Checkpoint::Checkpoint(Way way, std::string path, Store& store)
    : way_(way), path_(std::move(path)), store_(store) {}

Checkpoint::~Checkpoint() {
  if (way_ == Way::save && stage_ != Stage::end && file_) ::unlink(cat(path_, ".part").c_str());
}

Status Checkpoint::refuse(const std::string& why) const {
  return {Code::invalid, cat("the checkpoint ", path_, " cannot be restored: ", why)};
}

Status Checkpoint::step() {
  switch (stage_) {
    case Stage::open:
      RC_RETURN_IF_ERROR(way_ == Way::save ? open_to_save() : open_to_restore());
      return Status::busy();
    case Stage::check:
      return check_slice();
    case Stage::move:
      return way_ == Way::save ? save_slice() : restore_slice();
    case Stage::end:
      return {};
  }
  return {};
}

// FNV-1a (Fowler, Noll, Vo) over words of 8 bytes: against accidents, not against enemies.
void Checkpoint::mix(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    checksum_ = (checksum_ ^ word) * 1099511628211u;
    checksum_ ^= checksum_ >> 29;
  }
}

Status Checkpoint::transfer(std::byte* data, std::size_t bytes, bool writes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t moved = writes ? ::write(file_.get(), data + done, bytes - done)
                                 : ::read(file_.get(), data + done, bytes - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return system_error(cat(writes ? "writing " : "reading ", path_), errno);
    if (moved == 0) return refuse("it ends too early. Take another one.");
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

Status Checkpoint::open_to_save() {
  for (uint64_t left = kElementsAtOnce; variable_ < store_.variables(); ++variable_, row_ = 0) {
    if (!store_.catch_up(variable_, store_.updates(variable_), row_, left)) return Status::busy();
  }
  file_ = Fd(::open(cat(path_, ".part").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file_) return system_error(cat("open(", path_, ".part)"), errno);
  Writer writer;
  writer.put(kMagic).put(uint64_t{0});
  store_.write_header(writer);
  header_.assign(writer.bytes().begin(), writer.bytes().end());
  const Prefix prefix{kMagic, header_.size() - sizeof(Prefix)};
  std::memcpy(header_.data(), &prefix, sizeof prefix);
  memory_ = store_.memory();
  memory_.insert(memory_.begin(), std::span(header_));
  stage_ = Stage::move;
  return {};
}

// Of the part that is under way; empty at the end of all.
std::span<std::byte> Checkpoint::next_slice() {
  while (part_ < memory_.size() && done_ == memory_[part_].size()) {
    ++part_;
    done_ = 0;
  }
  if (part_ == memory_.size()) return {};
  const std::size_t bytes = std::min(kSliceBytes, memory_[part_].size() - done_);
  const std::span<std::byte> slice = memory_[part_].subspan(done_, bytes);
  done_ += bytes;
  return slice;
}

Status Checkpoint::save_slice() {
  const std::span<std::byte> slice = next_slice();
  if (slice.empty()) return finish_saving();
  mix(slice);
  RC_RETURN_IF_ERROR(transfer(slice.data(), slice.size(), true));
  // Each slice at once: all at the end would keep the server from answering for too long.
  if (::fdatasync(file_.get()) != 0) return system_error(cat("writing ", path_), errno);
  return Status::busy();
}

Status Checkpoint::finish_saving() {
  std::array<std::byte, sizeof checksum_> end;
  std::memcpy(end.data(), &checksum_, end.size());
  RC_RETURN_IF_ERROR(transfer(end.data(), end.size(), true));
  if (::fdatasync(file_.get()) != 0 ||
      std::rename(cat(path_, ".part").c_str(), path_.c_str()) != 0) {
    return system_error(cat("writing ", path_), errno);
  }
  stage_ = Stage::end;
  return {};
}

Status Checkpoint::open_to_restore() {
  file_ = Fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) return system_error(cat("open(", path_, ")"), errno);
  struct stat found {};
  if (::fstat(file_.get(), &found) != 0) return system_error(cat("reading ", path_), errno);
  Prefix prefix;
  std::array<std::byte, sizeof prefix> start;
  RC_RETURN_IF_ERROR(transfer(start.data(), start.size(), false));
  std::memcpy(&prefix, start.data(), sizeof prefix);
  if (prefix.magic != kMagic) {
    return refuse("it is none of this version of rdmacoll. Take one that rdmacoll.ps.save wrote.");
  }
  const auto file_bytes = static_cast<uint64_t>(found.st_size);
  if (prefix.header_bytes > std::min<uint64_t>(kHeaderBytesMax, file_bytes)) {
    return refuse("it is damaged at its start. Take another one.");
  }
  header_.resize(prefix.header_bytes);
  RC_RETURN_IF_ERROR(transfer(header_.data(), header_.size(), false));
  // Slices of the header as they were saved: with what is before it.
  std::vector<std::byte> whole(start.begin(), start.end());
  whole.insert(whole.end(), header_.begin(), header_.end());
  for (std::size_t at = 0; at < whole.size(); at += kSliceBytes) {
    mix(std::span(whole).subspan(at, std::min(kSliceBytes, whole.size() - at)));
  }
  Reader reader(header_);
  std::string why;
  if (!store_.fits(reader, why)) return refuse(why);
  memory_ = store_.memory();
  for (const std::span<std::byte> part : memory_) data_bytes_ += part.size();
  if (file_bytes != sizeof prefix + header_.size() + data_bytes_ + sizeof checksum_) {
    return refuse(cat("it has ", file_bytes,
                      " bytes, which is not what it says at its start. Take "
                      "another one."));
  }
  stage_ = Stage::check;
  return {};
}

// As the parts were cut when they were saved, since the checksum is of words.
Status Checkpoint::check_slice() {
  const std::span<std::byte> slice = next_slice();
  if (!slice.empty()) {
    std::vector<std::byte> scratch(slice.size());
    RC_RETURN_IF_ERROR(transfer(scratch.data(), scratch.size(), false));
    mix(scratch);
    return Status::busy();
  }
  uint64_t saved = 0;
  std::array<std::byte, sizeof saved> end;
  RC_RETURN_IF_ERROR(transfer(end.data(), end.size(), false));
  std::memcpy(&saved, end.data(), sizeof saved);
  if (saved != checksum_) return refuse("its checksum is wrong. Take another one.");
  part_ = done_ = 0;
  const auto data = static_cast<off_t>(sizeof(Prefix) + header_.size());
  if (::lseek(file_.get(), data, SEEK_SET) < 0) return system_error(cat("reading ", path_), errno);
  stage_ = Stage::move;
  return Status::busy();
}

Status Checkpoint::restore_slice() {
  const std::span<std::byte> slice = next_slice();
  if (!slice.empty()) {
    RC_RETURN_IF_ERROR(transfer(slice.data(), slice.size(), false));
    return Status::busy();
  }
  Reader reader(header_);
  store_.take_header(reader);
  stage_ = Stage::end;
  return {};
}

}  // namespace rdmacoll::ps
