// Changes one field of a control message. It works on the fields of the message, not on its bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "agreement/messages.h"
#include "base/wire.h"
#include "operation/operation.h"

namespace rdmacoll {

// The bytes of a descriptor, of which any field may be wrong.
inline std::string encode_raw(const Descriptor& d) {
  Writer writer;
  writer.put(d.kind).put(d.dtype).put(d.op).put(static_cast<int32_t>(d.root.value()));
  writer.put(d.prescale).put(d.postscale).put_text(d.name);
  writer.put(static_cast<uint32_t>(d.shapes.size()));
  for (const std::vector<int64_t>& shape : d.shapes) {
    writer.put(static_cast<uint8_t>(shape.size()));
    for (int64_t dim : shape) writer.put(dim);
  }
  writer.put_text(d.manifest).put_text(d.group).put(d.shares_results);
  writer.put_text(d.refusal).put(!d.refusal.empty());
  return {reinterpret_cast<const char*>(writer.bytes().data()), writer.size()};
}

class Mutator {
 public:
  explicit Mutator(std::mt19937_64& random) : random_(random) {}

  // Changes one field and returns its name.
  std::string mutate(Message& message) {
    fields_.clear();
    std::visit([this](auto& body) { visit(body); }, message);
    if (fields_.empty()) return "none";
    auto& [name, change] = fields_[random_() % fields_.size()];
    change();
    return name;
  }

 private:
  using Change = std::function<void()>;
  void field(std::string name, Change change) {
    fields_.emplace_back(std::move(name), std::move(change));
  }

  template <typename T>
  T edge(T value) {
    const auto at = static_cast<uint64_t>(value);
    const uint64_t edges[] = {0,
                              1,
                              2,
                              3,
                              255,
                              at + 1,
                              at - 1,
                              at * 2,
                              at + 64,
                              uint64_t{1} << 28,
                              INT32_MAX,
                              UINT32_MAX,
                              uint64_t{1} << 40,
                              uint64_t{1} << 60,
                              INT64_MAX,
                              uint64_t{1} << 63,
                              static_cast<uint64_t>(-1),
                              static_cast<uint64_t>(-5)};
    return static_cast<T>(edges[random_() % std::size(edges)]);
  }
  template <typename Kind>
  void number(std::string name, Rank<Kind>& rank) {
    field(std::move(name), [this, &rank] { rank = Rank<Kind>(edge(rank.value())); });
  }
  void number(std::string name, bool& value) {
    field(std::move(name), [&value] { value = !value; });
  }
  template <typename T>
  void number(std::string name, T& value) {
    field(std::move(name), [this, &value] {
      if constexpr (std::is_floating_point_v<T>) {
        const T edges[] = {0, -1, 2, std::numeric_limits<T>::infinity(),
                           std::numeric_limits<T>::quiet_NaN()};
        value = edges[random_() % std::size(edges)];
      } else if constexpr (std::is_enum_v<T>) {
        const auto old = static_cast<std::underlying_type_t<T>>(value);
        value = static_cast<T>(random_() % 2 == 0 ? random_() % 20 : edge(old));
      } else {
        value = edge(value);
      }
    });
  }
  void text(std::string name, std::string& value) {
    field(std::move(name), [this, &value] {
      switch (random_() % 5) {
        case 0:
          value.clear();
          break;
        case 1:
          value.resize(value.size() / 2);
          break;
        case 2:
          value.append(5000, 'x');
          break;
        case 3:
          value += '\0';
          break;
        default:
          if (!value.empty()) value[random_() % value.size()] = static_cast<char>(random_());
      }
    });
  }
  template <typename T>
  void list(std::string name, std::vector<T>& values) {
    field(std::move(name), [this, &values] {
      const std::size_t at = values.empty() ? 0 : random_() % values.size();
      switch (values.empty() ? 0 : random_() % 5) {
        case 0:
          values.emplace_back();
          break;
        case 1:
          values.push_back(T(values[at]));  // repeated
          break;
        case 2:
          values.erase(values.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        case 3:
          values.clear();
          break;
        default:
          std::swap(values[at], values.back());
      }
    });
  }
  void numbers(const std::string& name, std::vector<int64_t>& values) {
    list(name, values);
    for (int64_t& value : values) number(name + " number", value);
  }
  void rows(const std::string& name, std::vector<std::vector<int64_t>>& table) {
    list(name, table);
    for (std::vector<int64_t>& row : table) numbers(name + " of a rank", row);
  }

  void descriptor(const std::string& name, std::string& bytes) {
    text(name + " as bytes", bytes);
    Descriptor read;
    if (!decode_descriptor(bytes, read)) return;
    for (int times = 0; times < 4; ++times) {  // it has many fields
      field(name + " field", [this, &bytes] {
        Descriptor changed;
        decode_descriptor(bytes, changed);
        Mutator inner(random_);
        inner.visit(changed);
        inner.fields_[random_() % inner.fields_.size()].second();
        bytes = encode_raw(changed);
      });
    }
  }
  void movement(Movement& movement) {
    number("algorithm", movement.algorithm);
    number("segment_bytes", movement.segment_bytes);
    number("in_place", movement.in_place);
  }
  void descriptor(const std::string& name, DescriptorRef& ref) {
    number(name + " id", ref.id);
    if (ref.id == 0) descriptor(name, ref.bytes);
  }
  void visit(Descriptor& d) {
    number("kind", d.kind);
    number("dtype", d.dtype);
    number("op", d.op);
    number("root", d.root);
    number("prescale", d.prescale);
    number("postscale", d.postscale);
    text("name", d.name);
    list("shapes", d.shapes);
    for (std::vector<int64_t>& shape : d.shapes) numbers("shape", shape);
    text("manifest", d.manifest);
    text("group", d.group);
    number("shares_results", d.shares_results);
    text("refusal", d.refusal);
  }
  void visit(Status& status) {
    field("status", [this, &status] {
      ErrorDetail detail = status.detail();
      detail.rank = JobRank(edge(detail.rank.value()));
      detail.ranks.push_back(JobRank(edge(0)));
      status = {static_cast<Code>(random_() % 16), status.message(), detail};
    });
  }

  void visit(ReadyMessage& message) {
    number("era", message.era);
    list("records", message.records);
    for (ReadyRecord& record : message.records) {
      descriptor("descriptor", record.descriptor);
      number("iteration", record.iteration);
      number("origin", record.origin);
      number("subtree", record.subtree);
      list("rows", record.rows);
      for (auto& [rank, said] : record.rows) {
        number("rank of rows", rank);
        numbers("rows of a rank", said);
      }
      text("labels", record.labels);
      text("listing", record.listing);
      number("age", record.age);
      number("joins", record.joins);
    }
    list("times", message.times);
    for (TrialTime& time : message.times) {
      number("sequence of a time", time.sequence);
      number("time", time.time);
      number("ranks of a time", time.ranks);
    }
  }
  void visit(InternMessage& message) {
    number("id", message.id);
    descriptor("bytes", message.bytes);
  }
  void visit(Decision& message) {
    number("sequence", message.sequence);
    movement(message.movement);
    list("units", message.units);
    for (DecisionUnit& unit : message.units) {
      descriptor("descriptor", unit.descriptor);
      number("iteration", unit.iteration);
    }
    rows("rows", message.rows);
    number("most_rows", message.most_rows);
    number("is_timed", message.is_timed);
  }
  void visit(PlanMessage& message) {
    number("era", message.era);
    number("start", message.start);
    number("first_number", message.first_number);
    list("decisions", message.decisions);
    for (PlannedDecision& decision : message.decisions) {
      movement(decision.movement);
      list("units", decision.units);
      for (PlannedUnit& unit : decision.units) {
        number("descriptor", unit.descriptor);
        number("numbered", unit.numbered);
        number("iteration", unit.iteration);
      }
      rows("rows", decision.rows);
      number("most_rows", decision.most_rows);
    }
  }
  void visit(FreezeMessage& message) { number("era", message.era); }
  void visit(FrozenMessage& message) {
    number("era", message.era);
    number("least", message.least);
    number("furthest", message.furthest);
    number("kept", message.kept);
  }
  void visit(ResumeMessage& message) {
    number("era", message.era);
    number("least", message.least);
    number("furthest", message.furthest);
    number("kept", message.kept);
  }
  void visit(CaughtUpMessage& message) { number("sequence", message.sequence); }
  void visit(ReplayMessage& message) { number("sequence", message.sequence); }
  void visit(ResultAddressMessage& message) {
    number("sequence", message.sequence);
    number("offset", message.offset);
  }
  void visit(AllJoinedMessage& message) {
    number("last", message.last);
    number("next_number", message.next_number);
  }
  void visit(VerdictMessage& message) {
    text("name", message.name);
    number("iteration", message.iteration);
    list("ranks", message.ranks);
    for (SetRank& rank : message.ranks) number("rank", rank);
    visit(message.status);
  }
  void visit(FailureMessage& message) {
    number("rank", message.rank);
    visit(message.status);
  }
  void visit(LeavingMessage& message) {
    number("rank", message.rank);
    number("unfinished", message.unfinished);
    for (auto& [set, started] : message.started) number("started", started);
    field("sets", [this, &message] { message.started[edge<uint32_t>(0)] = edge<uint64_t>(0); });
    text("cause", message.cause);
  }
  void visit(GoodbyeMessage& message) { visit(message.leaving); }
  void visit(FarewellMessage&) {}
  void visit(FragmentMessage& message) {
    number("is_last", message.is_last);
    text("bytes", message.bytes);
  }

  std::mt19937_64& random_;
  std::vector<std::pair<std::string, Change>> fields_;
};

}  // namespace rdmacoll
