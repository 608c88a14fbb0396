#include "agreement/messages.h"

#include <algorithm>

#include "agreement/movement_fields.h"
#include "agreement/rank_fields.h"
#include "base/wire.h"
#include "operation/listing.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kTextBytesMax = kControlBytesMax;
constexpr std::size_t kRecordsMax = 1u << 16;

void put(Writer& writer, const DescriptorRef& descriptor) {
  writer.put(descriptor.id);
  if (descriptor.id == 0) writer.put_text(descriptor.bytes);
}
DescriptorRef get_descriptor(Reader& reader) {
  DescriptorRef descriptor;
  descriptor.id = reader.get<uint32_t>();
  if (descriptor.id == 0) descriptor.bytes = reader.get_text(kTextBytesMax);
  return descriptor;
}

void put(Writer& writer, const Status& status) {
  writer.put(status.code()).put_text(status.message());
  const ErrorDetail& detail = status.detail();
  put(writer, detail.rank);
  writer.put_text(detail.host).put_text(detail.cause).put_text(detail.tensor);
  put(writer, detail.ranks);
}
Status get_status(Reader& reader, int ranks) {
  const auto code = reader.get<Code>();
  std::string message = reader.get_text(kTextBytesMax);
  ErrorDetail detail;
  detail.rank = JobRank(reader.get<int32_t>());
  detail.host = reader.get_text(kTextBytesMax);
  detail.cause = reader.get_text(kTextBytesMax);
  detail.tensor = reader.get_text(kTextBytesMax);
  detail.ranks = get_ranks<JobRank>(reader, ranks);
  if (code == Code::ok || code == Code::busy || code > Code::failed) reader.fail();
  return {code, std::move(message), std::move(detail)};
}

std::vector<int64_t> get_rows(Reader& reader) {
  std::vector<int64_t> rows = reader.get_list<int64_t>(kControlBytesMax / sizeof(int64_t));
  for (int64_t number : rows) {
    if (number < 0) reader.fail();
  }
  return rows;
}

void put(Writer& writer, const ReadyMessage& message) {
  writer.put(message.era).put(static_cast<uint32_t>(message.records.size()));
  for (const ReadyRecord& record : message.records) {
    put(writer, record.descriptor);
    writer.put(record.iteration);
    put(writer, record.origin);
    writer.put(record.subtree);
    writer.put(static_cast<uint32_t>(record.rows.size()));
    for (const auto& [rank, rows] : record.rows) {
      put(writer, rank);
      writer.put_list(rows);
    }
    writer.put_text(record.labels).put_text(record.listing);
    writer.put(record.age).put(record.joins);
  }
  put(writer, message.times);
}
ReadyMessage get_ready(Reader& reader, int ranks) {
  ReadyMessage message;
  message.era = reader.get<uint32_t>();
  const auto count = reader.get<uint32_t>();
  if (count > kRecordsMax) reader.fail();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    ReadyRecord record;
    record.descriptor = get_descriptor(reader);
    record.iteration = reader.get<int64_t>();
    record.origin = get_rank<SetRank>(reader, ranks);
    record.subtree = reader.get<uint8_t>() != 0;
    const auto said = reader.get<uint32_t>();
    if (said > static_cast<uint32_t>(ranks)) reader.fail();
    for (uint32_t j = 0; j < said && reader.ok(); ++j) {
      const auto rank = get_rank<SetRank>(reader, ranks);
      record.rows.emplace_back(rank, get_rows(reader));
    }
    record.labels = reader.get_text(kTextBytesMax);
    record.listing = reader.get_text(kListingBytesMax);
    record.age = reader.get<Nanoseconds>();
    if (record.age < 0) reader.fail();
    record.joins = reader.get<uint8_t>() != 0;
    message.records.push_back(std::move(record));
  }
  message.times = get_times(reader, ranks, kRecordsMax);
  return message;
}

void put(Writer& writer, const InternMessage& message) {
  writer.put(message.id).put_text(message.bytes);
}
InternMessage get_intern(Reader& reader) {
  InternMessage message;
  message.id = reader.get<uint32_t>();
  message.bytes = reader.get_text(kTextBytesMax);
  if (message.id == 0) reader.fail();
  return message;
}

using Rows = std::vector<std::vector<int64_t>>;

void put_rows(Writer& writer, const Rows& rows, int64_t most_rows) {
  writer.put(static_cast<uint32_t>(rows.size()));
  for (const std::vector<int64_t>& said : rows) writer.put_list(said);
  writer.put(most_rows);
}
void get_rows(Reader& reader, int ranks, Rows& rows, int64_t& most_rows) {
  const auto said = reader.get<uint32_t>();
  if (said > static_cast<uint32_t>(ranks)) reader.fail();
  for (uint32_t i = 0; i < said && reader.ok(); ++i) rows.push_back(get_rows(reader));
  most_rows = reader.get<int64_t>();
  if (most_rows < 0) reader.fail();
}

void put(Writer& writer, const Decision& decision) {
  writer.put(decision.sequence);
  put(writer, decision.movement);
  writer.put(static_cast<uint32_t>(decision.units.size()));
  for (const DecisionUnit& unit : decision.units) {
    put(writer, unit.descriptor);
    writer.put(unit.iteration);
  }
  put_rows(writer, decision.rows, decision.most_rows);
  writer.put(decision.is_timed);
}
Decision get_decision(Reader& reader, int ranks) {
  Decision decision;
  decision.sequence = reader.get<uint64_t>();
  decision.movement = get_movement(reader);
  const auto count = reader.get<uint32_t>();
  if (count == 0 || count > kRecordsMax) reader.fail();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    DecisionUnit unit;
    unit.descriptor = get_descriptor(reader);
    unit.iteration = reader.get<int64_t>();
    decision.units.push_back(std::move(unit));
  }
  get_rows(reader, ranks, decision.rows, decision.most_rows);
  decision.is_timed = reader.get<uint8_t>() != 0;
  return decision;
}

void put(Writer& writer, const VerdictMessage& message) {
  writer.put_text(message.name).put(message.iteration);
  put(writer, message.ranks);
  put(writer, message.status);
}
VerdictMessage get_verdict(Reader& reader, int ranks) {
  VerdictMessage message;
  message.name = reader.get_text(kTextBytesMax);
  message.iteration = reader.get<int64_t>();
  message.ranks = get_ranks<SetRank>(reader, ranks);
  message.status = get_status(reader, ranks);
  return message;
}

void put(Writer& writer, const FailureMessage& message) {
  put(writer, message.rank);
  put(writer, message.status);
}
FailureMessage get_failure(Reader& reader, int ranks) {
  FailureMessage message;
  message.rank = get_rank<JobRank>(reader, ranks);
  message.status = get_status(reader, ranks);
  const JobRank named = message.status.detail().rank;  // ranks that connect later receive it, too
  if (named.is_none() || named.value() >= ranks) reader.fail();
  return message;
}

void put(Writer& writer, const LeavingMessage& message) {
  put(writer, message.rank);
  writer.put(message.unfinished);
  writer.put(static_cast<uint32_t>(message.started.size()));
  for (const auto& [set, started] : message.started) writer.put(set).put(started);
  writer.put_text(message.cause);
}
LeavingMessage get_leaving(Reader& reader, int ranks) {
  LeavingMessage message;
  message.rank = get_rank<JobRank>(reader, ranks);
  message.unfinished = reader.get<uint8_t>() != 0;
  const auto sets = reader.get<uint32_t>();
  for (uint32_t i = 0; i < sets && reader.ok(); ++i) {
    const auto set = reader.get<uint32_t>();
    if (!message.started.empty() && set <= message.started.rbegin()->first) reader.fail();
    message.started[set] = reader.get<uint64_t>();
  }
  message.cause = reader.get_text(kTextBytesMax);
  return message;
}

void put(Writer& writer, const GoodbyeMessage& message) { put(writer, message.leaving); }
void put(Writer&, const FarewellMessage&) {}

void put(Writer& writer, const PlanMessage& message) {
  writer.put(message.era).put(message.start).put(message.first_number);
  writer.put(static_cast<uint32_t>(message.decisions.size()));
  for (const PlannedDecision& decision : message.decisions) {
    put(writer, decision.movement);
    writer.put(static_cast<uint32_t>(decision.units.size()));
    for (const PlannedUnit& unit : decision.units) {
      writer.put(unit.descriptor).put(unit.numbered).put(unit.iteration);
    }
    put_rows(writer, decision.rows, decision.most_rows);
  }
}
PlanMessage get_plan(Reader& reader, int ranks) {
  PlanMessage message;
  message.era = reader.get<uint32_t>();
  message.start = reader.get<uint64_t>();
  message.first_number = reader.get<int64_t>();
  const auto count = reader.get<uint32_t>();
  if (count == 0 || count > kRecordsMax) reader.fail();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    PlannedDecision& decision = message.decisions.emplace_back();
    decision.movement = get_movement(reader);
    const auto units = reader.get<uint32_t>();
    if (units == 0 || units > kRecordsMax) reader.fail();
    for (uint32_t j = 0; j < units && reader.ok(); ++j) {
      PlannedUnit& unit = decision.units.emplace_back();
      unit.descriptor = reader.get<uint32_t>();
      unit.numbered = reader.get<uint8_t>() != 0;
      unit.iteration = reader.get<int64_t>();
      if (unit.descriptor == 0) reader.fail();
    }
    get_rows(reader, ranks, decision.rows, decision.most_rows);
  }
  return message;
}

void put(Writer& writer, const FreezeMessage& message) { writer.put(message.era); }

template <typename T>
void put_range(Writer& writer, const T& message) {
  writer.put(message.era).put(message.least).put(message.furthest).put(message.kept);
}
template <typename T>
T get_range(Reader& reader) {
  T message;
  message.era = reader.get<uint32_t>();
  message.least = reader.get<uint64_t>();
  message.furthest = reader.get<uint64_t>();
  message.kept = reader.get<uint64_t>();
  if (std::max(message.least, message.kept) > message.furthest) reader.fail();
  return message;
}
void put(Writer& writer, const FrozenMessage& message) { put_range(writer, message); }
void put(Writer& writer, const ResumeMessage& message) { put_range(writer, message); }

void put(Writer& writer, const CaughtUpMessage& message) { writer.put(message.sequence); }
void put(Writer& writer, const ReplayMessage& message) { writer.put(message.sequence); }

void put(Writer& writer, const ResultAddressMessage& message) {
  writer.put(message.sequence).put(message.offset);
}
ResultAddressMessage get_result_address(Reader& reader) {
  ResultAddressMessage message;
  message.sequence = reader.get<uint64_t>();
  message.offset = reader.get<uint64_t>();
  return message;
}

void put(Writer& writer, const FragmentMessage& message) {
  writer.put(message.is_last).put_text(message.bytes);
}
FragmentMessage get_fragment(Reader& reader) {
  FragmentMessage message;
  message.is_last = reader.get<uint8_t>() != 0;
  message.bytes = reader.get_text(kTextBytesMax);
  return message;
}

void put(Writer& writer, const AllJoinedMessage& message) {
  put(writer, message.last);
  writer.put(message.next_number);
}
AllJoinedMessage get_all_joined(Reader& reader, int ranks) {
  AllJoinedMessage message;
  message.last = get_rank<SetRank>(reader, ranks);
  message.next_number = reader.get<int64_t>();
  if (message.next_number < 0) reader.fail();
  return message;
}

}  // namespace

std::vector<std::byte> encode(uint32_t epoch, const Message& message, uint32_t set) {
  Writer writer;
  writer.put(epoch).put(set).put(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& body) { put(writer, body); }, message);
  return {writer.bytes().begin(), writer.bytes().end()};
}

std::vector<std::vector<std::byte>> encode_in_parts(uint32_t epoch, const Message& message,
                                                    uint32_t set) {
  std::vector<std::vector<std::byte>> parts = {encode(epoch, message, set)};
  if (parts.front().size() <= kControlBytesMax) return parts;
  const std::vector<std::byte> whole = std::move(parts.front());
  parts.clear();
  constexpr std::size_t kFragmentBytes = kControlBytesMax - 64;
  const auto* text = reinterpret_cast<const char*>(whole.data());
  for (std::size_t at = 0; at < whole.size(); at += kFragmentBytes) {
    const std::size_t bytes = std::min(kFragmentBytes, whole.size() - at);
    parts.push_back(
        encode(epoch, FragmentMessage{at + bytes == whole.size(), std::string(text + at, bytes)}));
  }
  return parts;
}

uint32_t epoch_of(std::span<const std::byte> bytes) { return Reader(bytes).get<uint32_t>(); }

uint32_t addressed_set(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  reader.get<uint32_t>();  // skip the epoch
  return reader.get<uint32_t>();
}

bool decode(uint32_t epoch, int ranks, std::span<const std::byte> bytes, Message& message,
            int servers) {
  Reader reader(bytes);
  const bool ours = reader.get<uint32_t>() == epoch;
  reader.get<uint32_t>();  // skip the set
  switch (reader.get<uint8_t>()) {
    case 0:
      message = get_ready(reader, ranks);
      break;
    case 1:
      message = get_intern(reader);
      break;
    case 2:
      message = get_decision(reader, ranks);
      break;
    case 3:
      message = get_verdict(reader, ranks);
      break;
    case 4:
      message = get_failure(reader, ranks + servers);
      break;
    case 5:
      message = get_leaving(reader, ranks + servers);
      break;
    case 6:
      message = GoodbyeMessage{get_leaving(reader, ranks + servers)};
      break;
    case 7:
      message = get_plan(reader, ranks);
      break;
    case 8:
      message = FreezeMessage{reader.get<uint32_t>()};
      break;
    case 9:
      message = get_range<FrozenMessage>(reader);
      break;
    case 10:
      message = get_range<ResumeMessage>(reader);
      break;
    case 11:
      message = CaughtUpMessage{reader.get<uint64_t>()};
      break;
    case 12:
      message = get_fragment(reader);
      break;
    case 13:
      message = FarewellMessage{};
      break;
    case 14:
      message = get_all_joined(reader, ranks);
      break;
    case 15:
      message = ReplayMessage{reader.get<uint64_t>()};
      break;
    case 16:
      message = get_result_address(reader);
      break;
    default:
      return false;
  }
  return ours && reader.done();
}

}  // namespace rdmacoll
