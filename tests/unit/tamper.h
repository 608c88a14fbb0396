// A faulty peer: makes one field of some messages wrong. The gate of the receiver must refuse the
// message, or the receiver must bear it.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <variant>

#include "agreement/agreement.h"
#include "base/text.h"
#include "mutate_message.h"

namespace rdmacoll {

class Tamper {
 public:
  // `note` receives a description of each wrong message before it is heard.
  Tamper(uint64_t seed, std::function<void(const std::string&)> note)
      : random_(seed), note_(std::move(note)) {}

  uint64_t changed() const { return changed_; }
  uint64_t refused() const { return refused_; }
  // Whether a rank has taken a wrong message. Then its world is no longer judged.
  bool is_tainted() const { return changed_ > refused_; }

  // Lets a rank hear a wrong copy of some messages. Returns true if the rank has taken it in place
  // of the message. A refused copy has no effect.
  bool hear(Agreement& agreement, const SetWorld& world, int servers, SetRank sender,
            const Message& message) {
    const bool is_common = std::holds_alternative<ReadyMessage>(message) ||
                           std::holds_alternative<Decision>(message) ||
                           std::holds_alternative<InternMessage>(message);
    if (random_() % (is_common ? 24 : 3) != 0) return false;
    Message wrong = message;
    const int ranks = world.size() + servers;
    const bool is_misplaced = ranks > 2 && random_() % 16 == 0;
    const std::string field = is_misplaced ? "sender" : Mutator(random_).mutate(wrong);
    if (is_misplaced) sender = SetRank((sender.value() + 1) % ranks);
    note_(cat(field, " of message kind ", message.index(), " from rank ", sender, " to rank ",
              world.rank()));
    ++changed_;
    Message read;
    std::string what = "bytes that cannot be read";
    if (decode(1, world.size(), encode(1, wrong), read, servers)) {
      what = std::visit(
          [&]<typename Body>(Body& body) -> std::string {
            if constexpr (requires { agreement.hear(sender, body); }) {
              return agreement.hear(sender, body);
            } else {
              return "a message about the world";
            }
          },
          read);
    }
    refused_ += what.empty() ? 0 : 1;
    return what.empty();
  }

 private:
  std::mt19937_64 random_;
  std::function<void(const std::string&)> note_;
  uint64_t changed_ = 0, refused_ = 0;
};

}  // namespace rdmacoll
