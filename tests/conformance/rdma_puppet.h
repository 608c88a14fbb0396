// A peer of an RDMA transport on simulated verbs. It sends any data that a test wants.
#pragma once

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "conformance/verbs_fleet.h"
#include "transport/rdma/greeting.h"
#include "transport/rdma/message.h"

namespace rdmacoll::conformance {

// Rank 1 of a fleet. It uses the adapters of its own host. Rank 0 is a transport.
class RdmaPuppet {
 public:
  static constexpr uint32_t kReceiveBytes = 10'000;
  static constexpr uint32_t kReceives = 64;
  static constexpr std::size_t kSendArea = std::size_t{kReceiveBytes} * kReceives;
  static constexpr uint32_t kSends = 64;

  RdmaPuppet(VerbsFleet& fleet, const std::vector<verbs_sim::AdapterModel>& adapters)
      : fleet_(fleet), memory_(kSendArea + std::size_t{kSends} * kReceiveBytes) {
    verbs_sim::SimVerbs& verbs = fleet.fabric.add_host(adapters);
    std::vector<rdma::DeviceFacts> present;
    EXPECT_TRUE(verbs.list(present).ok());
    std::vector<std::string> names;
    for (const auto& adapter : adapters) names.push_back(adapter.facts.name);
    Status status = rdma::choose_rails(present, {.devices = join(names, ",")}, rails_);
    EXPECT_TRUE(status.ok()) << status.message();
    greeting = {.epoch = 3,
                .rank = 1,
                .eager_bytes = 8 << 10,
                .chunk_bytes = 1 << 20,
                .receives = kReceives};
    for (const rdma::Rail& rail : rails_) {
      End& end = ends_.emplace_back();
      EXPECT_TRUE(verbs.open({rail.device, 4096}, end.device).ok());
      EXPECT_TRUE(
          end.device->register_memory(memory_.data(), memory_.size(), end.registration).ok());
      EXPECT_TRUE(end.device
                      ->create_queue_pair({.sends = kSends, .receives = kReceives}, rail.port,
                                          rail.gid_index, rail.pkey_index, end.queue_pair)
                      .ok());
      greeting.rails.push_back({rail.link, end.queue_pair->local()});
    }
    auto [ours, theirs] = unix_pair();
    socket_ = std::move(ours);
    fleet.at(0).adopt(1, std::move(theirs));
  }
  ~RdmaPuppet() {
    for (End& end : ends_) end.queue_pair.reset();
  }

  rdma::Greeting greeting;       // say_greeting() sends it
  uint32_t eager_cut = 8 << 10;  // the value in its path record
  uint32_t posted = kReceives;   // the true number of receives
  rdma::Greeting theirs;
  std::vector<std::vector<std::byte>> messages;  // came on the first rail
  std::vector<uint32_t> immediates;
  std::size_t messages_before_writes = 0;  // came before the first immediate
  int failures = 0;                        // completions with an error

  void say(std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void say(rdma::GreetingSocket::Word word) {
    const auto byte = static_cast<std::byte>(word);
    say(std::span(&byte, 1));
  }
  void hang_up() { socket_.reset(); }

  // Performs all steps until the transport counts this peer as connected.
  void connect() {
    hear_greeting();
    say(rdma::encode(greeting));
    connect_pairs();
    say(rdma::GreetingSocket::Word::ready);
    send_path();
    EXPECT_TRUE(poll_until([&] { return fleet_.at(0).is_connected(1); }));
  }
  void send_path() {
    std::array<std::byte, sizeof eager_cut> cut;
    std::memcpy(cut.data(), &eager_cut, cut.size());
    send_record({.kind = rdma::RecordKind::path, .bytes = cut.size()}, cut);
  }
  void hear_greeting() {
    std::vector<std::byte> bytes(rdma::greeting_bytes());
    std::size_t got = 0;
    EXPECT_TRUE(poll_until([&] {
      const ssize_t more =
          ::recv(socket_.get(), bytes.data() + got, bytes.size() - got, MSG_DONTWAIT);
      if (more > 0) got += static_cast<std::size_t>(more);
      return got == bytes.size();
    }));
    EXPECT_EQ(rdma::decode(bytes, theirs), "");
  }
  void connect_pairs() {
    for (std::size_t i = 0; i < ends_.size() && i < theirs.rails.size(); ++i) {
      for (uint32_t id = 0; id < std::min(posted, greeting.receives); ++id) post_receive(i, id);
      const rdma::PathSettings path{.gid_index = rails_[i].gid_index,
                                    .pkey_index = rails_[i].pkey_index,
                                    .needs_grh = rails_[i].link == rdma::LinkLayer::ethernet,
                                    .mtu = rails_[i].mtu};
      const Status status = ends_[i].queue_pair->connect(theirs.rails[i].end, path);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  void post_receive(std::size_t rail, uint64_t id) {
    const uint32_t bytes = rail == 0 ? kReceiveBytes : 0;
    const rdma::ReceiveRequest request{id, {memory_.data() + id * kReceiveBytes, bytes, key(rail)}};
    Status status;
    EXPECT_EQ(ends_[rail].queue_pair->post_receives(std::span(&request, 1), status), 1u);
  }

  // One message with one record, numbered as it should be.
  void send_record(const rdma::RecordHeader& header, std::span<const std::byte> payload = {},
                   uint16_t credits = 0) {
    std::vector<std::byte> bytes(rdma::kMessageHeaderBytes + rdma::kRecordHeaderBytes +
                                 payload.size());
    rdma::MessageHeader message{
        .epoch = 3, .number = number_, .bytes = static_cast<uint32_t>(bytes.size())};
    message.credits[0] = credits;
    rdma::encode(message, bytes.data());
    rdma::encode(header, bytes.data() + rdma::kMessageHeaderBytes);
    std::copy(payload.begin(), payload.end(),
              bytes.begin() + rdma::kMessageHeaderBytes + rdma::kRecordHeaderBytes);
    send(bytes);
  }
  void send(std::span<const std::byte> bytes) {
    ++number_;
    std::byte* at = next_slot(bytes);
    const rdma::Sge piece{at, static_cast<uint32_t>(bytes.size()), key(0)};
    post(0, {.is_signalled = true, .pieces = std::span(&piece, 1)});
  }
  void write(std::size_t rail, std::span<const std::byte> bytes, uint64_t address, uint32_t remote,
             uint32_t immediate) {
    std::byte* at = next_slot(bytes);
    const rdma::Sge piece{at, static_cast<uint32_t>(bytes.size()), key(rail)};
    post(rail, {.kind = rdma::SendKind::write_with_immediate,
                .is_signalled = true,
                .immediate = immediate,
                .remote_key = remote,
                .remote_address = address,
                .pieces = std::span(&piece, bytes.empty() ? 0 : 1)});
  }
  uint32_t number() const { return number_; }
  // The address at which the transport may write, once it knows this address.
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  uint32_t remote_key() const { return ends_[0].registration->keys().remote; }
  // Targets that the transport has granted.
  std::vector<rdma::WriteTarget> targets() const {
    std::vector<rdma::WriteTarget> found;
    for (const auto& message : messages) {
      std::span<const std::byte> bytes = std::span(message).subspan(rdma::kMessageHeaderBytes);
      for (rdma::RecordHeader header; rdma::decode(bytes, header);) {
        Reader reader(bytes.subspan(rdma::kRecordHeaderBytes, header.bytes));
        while (header.kind == rdma::RecordKind::grant && reader.left() > 0) {
          found.push_back(rdma::decode_target(reader));
        }
        bytes = bytes.subspan(rdma::kRecordHeaderBytes + header.bytes);
      }
    }
    return found;
  }

  // Polls the transport, the fabric and this.
  bool poll_until(const std::function<bool()>& done) {
    return fleet_.poll_until([&] {
      poll();
      return done();
    });
  }
  void settle(int polls = 300) {
    for (int i = 0; i < polls; ++i) {
      fleet_.poll_all();
      poll();
    }
  }

 private:
  struct End {
    std::unique_ptr<rdma::Device> device;
    std::unique_ptr<rdma::Registration> registration;
    std::unique_ptr<rdma::QueuePair> queue_pair;
  };

  uint32_t key(std::size_t rail) const { return ends_[rail].registration->keys().local; }
  std::byte* next_slot(std::span<const std::byte> bytes) {
    EXPECT_LE(bytes.size(), kReceiveBytes);
    std::byte* at = memory_.data() + kSendArea + sends_++ % kSends * kReceiveBytes;
    std::copy(bytes.begin(), bytes.end(), at);
    return at;
  }
  void post(std::size_t rail, const rdma::SendRequest& request) {
    Status status;
    const bool taken = poll_until([&] {
      return ends_[rail].queue_pair->post_sends(std::span(&request, 1), status) == 1 ||
             !status.ok();
    });
    EXPECT_TRUE(taken && status.ok()) << status.message();
  }
  void poll() {
    std::vector<rdma::Completion> found(64);
    for (std::size_t rail = 0; rail < ends_.size(); ++rail) {
      Status status;
      const std::size_t count = ends_[rail].device->poll(found, status);
      for (std::size_t i = 0; i < count; ++i) {
        const rdma::Completion& completion = found[i];
        if (completion.status != 0) {
          ++failures;
        } else if (completion.kind == rdma::CompletionKind::received) {
          const std::byte* at = memory_.data() + completion.id * kReceiveBytes;
          messages.emplace_back(at, at + completion.bytes);
        } else if (completion.kind == rdma::CompletionKind::received_immediate) {
          if (immediates.empty()) messages_before_writes = messages.size();
          immediates.push_back(completion.immediate);
        }
      }
    }
  }

  VerbsFleet& fleet_;
  std::vector<std::byte> memory_;
  std::vector<rdma::Rail> rails_;
  std::vector<End> ends_;
  Fd socket_;
  uint32_t number_ = 0;
  std::size_t sends_ = 0;
};

}  // namespace rdmacoll::conformance
