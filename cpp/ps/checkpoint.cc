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

constexpr uint64_t kMagic = 0x35'73'70'6c'6c'6f'63'72;  // "rcollps5"
constexpr std::size_t kSliceBytes = std::size_t{4} << 20;
constexpr std::size_t kHeaderBytesMax = std::size_t{1} << 30;

struct Prefix {
  uint64_t magic = kMagic;
  uint64_t number = 0;
  uint64_t header_bytes = 0;
};

Status refuse(const std::string& path, const std::string& why) {
  return {Code::invalid, cat("the checkpoint ", path, " cannot be restored: ", why)};
}

Status not_written(const std::string& path, int error) {
  if (is_shortage(error)) {  // its text has the cure
    return {Code::invalid,
            cat("the checkpoint ", path, " cannot be written: ", error_text(error), ".")};
  }
  const bool has_no_folder = error == ENOENT || error == ENOTDIR;
  return {Code::invalid,
          cat("the checkpoint ", path, " cannot be written: ", error_text(error), ". ",
              has_no_folder ? "Make its folder on each server's machine"
                            : "Make room, or the folder writable, there",
              ", or give another path.")};
}

Status not_read(const std::string& path, int error) {
  if (is_shortage(error)) return refuse(path, cat(error_text(error), "."));
  return refuse(path, cat(error_text(error),
                          " on this server's machine. Give the path that rdmacoll.ps.save was "
                          "given; each server reads the file that a server of its number wrote."));
}

Status transfer(const Fd& file, std::byte* data, std::size_t bytes, bool writes,
                const std::string& path) {
  if (writes) return write_all(file, data, bytes) ? Status{} : not_written(path, errno);
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t moved = ::read(file.get(), data + done, bytes - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return not_read(path, errno);
    if (moved == 0) return refuse(path, "it ends too early. Take another one.");
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

// The file that has the bytes of an incomplete checkpoint.
std::string draft_of(const std::string& path) { return cat(path, ".part"); }

// Creates a new file that no other process has opened. It follows no symbolic link and opens no
// FIFO of another user. The file of a server that was killed is removed.
Status create_draft(const std::string& path, Fd& file) {
  struct stat there {};
  const bool is_replaceable =
      ::lstat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode) || S_ISLNK(there.st_mode);
  if (!is_replaceable) {
    return {Code::invalid, cat("the checkpoint ", path,
                               " cannot be written: this is a folder, a device, a pipe or a "
                               "socket. Name a file.")};
  }
  const std::string draft = draft_of(path);
  if (::unlink(draft.c_str()) != 0 && errno != ENOENT) return not_written(path, errno);
  file = Fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  return file ? Status{} : not_written(path, errno);
}

bool is_draft(const Fd& file, const std::string& path) {
  struct stat own {
  }, there{};
  return ::fstat(file.get(), &own) == 0 && ::lstat(draft_of(path).c_str(), &there) == 0 &&
         own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

// Without this call, a power failure may lose the new name.
Status sync_folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const Fd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems do not support this call for folders.
  if (!opened || (::fsync(opened.get()) != 0 && errno != EINVAL && errno != ENOTSUP)) {
    return not_written(path, errno);
  }
  return {};
}

Status open_file(const std::string& path, Fd& file, Prefix& prefix) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  file = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return not_read(path, errno);
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return not_read(path, errno);
  if (!S_ISREG(found.st_mode)) {
    return refuse(path, cat("it is ", S_ISDIR(found.st_mode) ? "a folder" : "no regular file",
                            ". Give the path that rdmacoll.ps.save was given."));
  }
  std::array<std::byte, sizeof prefix> start;
  RC_RETURN_IF_ERROR(transfer(file, start.data(), start.size(), false, path));
  std::memcpy(&prefix, start.data(), sizeof prefix);
  if (prefix.magic == kMagic) return {};
  return refuse(path,
                "it is not of this version of rdmacoll. Take one that rdmacoll.ps.save of this "
                "version wrote.");
}

constexpr int kServersSought = 64;

}  // namespace

Status read_number(const std::string& path, int server, int servers, uint64_t& number) {
  const std::string own = checkpoint_path(path, server, servers);
  const int last = ::access(own.c_str(), F_OK) == 0 ? 0 : kServersSought;
  for (int others = 1; others <= last; ++others) {
    if (others == servers) continue;  // then only this server's file is missing
    if (::access(checkpoint_path(path, 0, others).c_str(), F_OK) != 0) continue;
    return refuse(path, cat("it is of ", others, " servers, and this run has ", servers,
                            ". Start as many servers as have saved it."));
  }
  Fd file;
  Prefix prefix;
  RC_RETURN_IF_ERROR(open_file(own, file, prefix));
  number = prefix.number;
  return {};
}

std::string checkpoint_path(const std::string& path, int server, int servers) {
  return cat(path, ".server-", server, "-of-", servers);
}

Checkpoint::Checkpoint(Action action, std::string path, Store& store, uint64_t number)
    : action_(action), path_(std::move(path)), store_(store), number_(number) {}

Checkpoint::~Checkpoint() {
  if (action_ != Action::save || stage_ == Stage::end || !file_ || !is_draft(file_, path_)) return;
  ::unlink(draft_of(path_).c_str());
}

Status Checkpoint::step() {
  uint64_t left = kElementsAtOnce;
  switch (stage_) {
    case Stage::open:
      // otherwise restored slots would be filled later
      if (!store_.fill(left)) return Status::busy();
      RC_RETURN_IF_ERROR(action_ == Action::save ? open_to_save() : open_to_restore());
      return Status::busy();
    case Stage::check:
      return check_slice();
    case Stage::move:
      return action_ == Action::save ? save_slice() : restore_slice();
    case Stage::end:
      return {};
  }
  return {};
}

void Checkpoint::mix(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    checksum_ = fnv_with(checksum_, word);
    checksum_ ^= checksum_ >> 29;
  }
}

Status Checkpoint::transfer(std::byte* data, std::size_t bytes, bool writes) {
  return ps::transfer(file_, data, bytes, writes, path_);
}

Status Checkpoint::open_to_save() {
  for (uint64_t left = kElementsAtOnce; variable_ < store_.variables(); ++variable_, row_ = 0) {
    if (!store_.catch_up(variable_, store_.updates(variable_), row_, left)) return Status::busy();
  }
  RC_RETURN_IF_ERROR(create_draft(path_, file_));
  Writer writer;
  writer.put(kMagic).put(number_).put(uint64_t{0});
  store_.write_header(writer);
  header_.assign(writer.bytes().begin(), writer.bytes().end());
  const Prefix prefix{kMagic, number_, header_.size() - sizeof(Prefix)};
  std::memcpy(header_.data(), &prefix, sizeof prefix);
  memory_ = store_.memory();
  memory_.insert(memory_.begin(), std::span(header_));
  stage_ = Stage::move;
  return {};
}

// Returns the next slice, or an empty one at the end.
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
  // Syncs each slice, since a single sync at the end would block the server too long.
  if (::fdatasync(file_.get()) != 0) return not_written(path_, errno);
  return Status::busy();
}

Status Checkpoint::finish_saving() {
  std::array<std::byte, sizeof checksum_> end;
  std::memcpy(end.data(), &checksum_, end.size());
  RC_RETURN_IF_ERROR(transfer(end.data(), end.size(), true));
  if (::fsync(file_.get()) != 0) return not_written(path_, errno);
  if (!is_draft(file_, path_)) {
    return {Code::invalid,
            cat("the checkpoint ", path_, " cannot be written: another process has taken ",
                draft_of(path_), " meanwhile. Give each job a path of its own.")};
  }
  if (std::rename(draft_of(path_).c_str(), path_.c_str()) != 0) return not_written(path_, errno);
  stage_ = Stage::end;
  return sync_folder(path_);
}

Status Checkpoint::open_to_restore() {
  Prefix prefix;
  RC_RETURN_IF_ERROR(open_file(path_, file_, prefix));
  struct stat found {};
  if (::fstat(file_.get(), &found) != 0) return not_read(path_, errno);
  const auto file_bytes = static_cast<uint64_t>(found.st_size);
  if (prefix.header_bytes > std::min<uint64_t>(kHeaderBytesMax, file_bytes)) {
    return refuse(path_, "its header is damaged. Take another one.");
  }
  header_.resize(prefix.header_bytes);
  RC_RETURN_IF_ERROR(transfer(header_.data(), header_.size(), false));
  // Mixes the header in the slices in which it was saved, including the prefix.
  const auto start = std::as_bytes(std::span(&prefix, 1));
  std::vector<std::byte> whole(start.begin(), start.end());
  whole.insert(whole.end(), header_.begin(), header_.end());
  for (std::size_t at = 0; at < whole.size(); at += kSliceBytes) {
    mix(std::span(whole).subspan(at, std::min(kSliceBytes, whole.size() - at)));
  }
  Reader reader(header_);
  std::string why;
  if (!store_.fits(reader, why)) return refuse(path_, why);
  memory_ = store_.memory();
  for (const std::span<std::byte> part : memory_) data_bytes_ += part.size();
  if (file_bytes != sizeof prefix + header_.size() + data_bytes_ + sizeof checksum_) {
    return refuse(path_, cat("it has ", file_bytes,
                             " bytes, but its header says another size. Take another one."));
  }
  stage_ = Stage::check;
  return {};
}

// Uses the slices in which the parts were saved, since the checksum processes words.
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
  if (saved != checksum_) return refuse(path_, "its checksum is wrong. Take another one.");
  part_ = done_ = 0;
  const auto data = static_cast<off_t>(sizeof(Prefix) + header_.size());
  if (::lseek(file_.get(), data, SEEK_SET) < 0) return not_read(path_, errno);
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
