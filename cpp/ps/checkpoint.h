// The checkpoint file of a server's variables. It is written and read in slices, so that the server
// still answers heartbeats. Nothing else uses the store meanwhile.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "ps/fnv.h"
#include "ps/store.h"

namespace rdmacoll::ps {

// "path.server-1-of-2"
std::string checkpoint_path(const std::string& path, int server, int servers);
// The number of the save that wrote the file of this server.
Status read_number(const std::string& path, int server, int servers, uint64_t& number);

class Checkpoint {
 public:
  enum class Action : uint8_t { save, restore };
  // `store` must outlive the checkpoint. A save replaces the file at `path` once it is complete. A
  // restore requires the store's variables and slots, and verifies the checksum before it changes
  // anything. `number`: identifies a save; equal in the files of all servers.
  Checkpoint(Action action, std::string path, Store& store, uint64_t number = 0);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // Performs one slice. Returns busy() if there is more.
  Status step();

 private:
  enum class Stage : uint8_t { open, check, move, end };
  Status open_to_save();
  Status open_to_restore();
  Status save_slice();
  Status check_slice();
  Status restore_slice();
  Status finish_saving();
  Status transfer(std::byte* data, std::size_t bytes, bool writes);
  std::span<std::byte> next_slice();
  void mix(std::span<const std::byte> bytes);

  Action action_;
  std::string path_;
  Store& store_;
  const uint64_t number_;
  Fd file_;
  Stage stage_ = Stage::open;
  std::size_t variable_ = 0;  // catches up before the file is opened
  uint64_t row_ = 0;          // row of this variable
  std::vector<std::byte> header_;
  std::vector<std::span<std::byte>> memory_;  // the header (when saving), and the store's memory
  std::size_t part_ = 0, done_ = 0;           // position in memory_
  uint64_t data_bytes_ = 0;
  uint64_t checksum_ = kFnvBasis;
};

}  // namespace rdmacoll::ps
