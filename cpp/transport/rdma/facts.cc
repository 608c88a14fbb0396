#include "transport/rdma/facts.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/text.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

std::string_view text(LinkLayer link) {
  switch (link) {
    case LinkLayer::infiniband:
      return "InfiniBand";
    case LinkLayer::ethernet:
      return "Ethernet";
    case LinkLayer::unknown:
      break;
  }
  return "unknown link layer";
}

std::string_view text(PortState state) {
  switch (state) {
    case PortState::down:
      return "down";
    case PortState::init:
      return "initializing";
    case PortState::armed:
      return "armed";
    case PortState::active:
      return "active";
    case PortState::other:
      break;
  }
  return "in an unknown state";
}

std::string_view text(GidType type) {
  switch (type) {
    case GidType::infiniband:
      return "InfiniBand";
    case GidType::roce_v1:
      return "RoCE v1";
    case GidType::roce_v2:
      return "RoCE v2";
    case GidType::unknown:
      break;
  }
  return "unknown type";
}

bool Gid::is_of_subnet(const Gid& other) const {
  constexpr std::size_t kPrefixBytes = 8;
  return std::equal(raw.begin(), raw.begin() + kPrefixBytes, other.raw.begin());
}

bool Gid::is_ipv4() const {
  return std::all_of(raw.begin(), raw.begin() + 10, [](uint8_t byte) { return byte == 0; }) &&
         raw[10] == 0xff && raw[11] == 0xff;
}

std::string Gid::text() const {
  char buffer[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET6, raw.data(), buffer, sizeof(buffer));
  return buffer;
}

// In the order of ibv_wc_status. Each text begins with plain words, which hold for either end that
// may see the status. The specification's words follow.
std::string completion_text(int status) {
  static constexpr std::string_view kTexts[] = {
      "success",
      "a message is longer than the place for it: local length error",
      "the device refused a request of this end: local queue pair operation error",
      "local end-to-end context operation error",
      "a piece lies outside of its registered memory: local protection error",
      "flushed after an earlier failure: work request flushed error",
      "memory window bind error",
      "the answer makes no sense: bad response error",
      "this end may not write there: local access error",
      "a request of one end is invalid at the other: remote invalid request error",
      "one end accessed memory of the other where it may not: remote access error",
      "a request of one end failed at the other: remote operation error",
      "no answer from the other end: retry counter exceeded",
      "the other end had no receive posted: receiver-not-ready retry counter exceeded",
      "local reliable-datagram-domain violation error",
      "remote invalid reliable-datagram request",
      "the other end gave up the request: remote aborted error",
      "invalid end-to-end context number",
      "invalid end-to-end context state",
      "the device failed: fatal error",
      "no response in time: response timeout error",
      "the device gave no closer reason: general error",
      "tag matching error",
      "tag matching: rendezvous incomplete",
  };
  const auto index = static_cast<std::size_t>(status);
  const bool is_known = status >= 0 && index < std::size(kTexts);
  return cat(is_known ? kTexts[index] : "unknown completion status", " (", status, ")");
}

}  // namespace rdmacoll::rdma
