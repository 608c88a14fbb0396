#include "agreement/readiness.h"

#include <algorithm>

#include "base/text.h"
#include "operation/operation.h"

namespace rdmacoll {

std::string title(const UnitKey& key, const SetWorld& world) {
  return cat(key.name.empty() ? cat("operation number ", key.iteration) : cat("'", key.name, "'"),
             world.part());
}

Readiness::Readiness(const SetWorld& world, const DescriptorTable& table, Limits limits)
    : world_(world),
      table_(table),
      limits_(limits),
      subtree_ranks_(static_cast<int>(tree_subtree(world.rank(), world.size()).size())) {}

bool Readiness::add(const ReadyRecord& record, Nanoseconds now) { return add(record, now, false); }

bool Readiness::add(const ReadyRecord& record, Nanoseconds now, bool is_passed_on) {
  if (has_joined() || record.joins) join_moved_at_ = std::max(join_moved_at_, now);
  if (record.joins) return add_join(record);
  const std::string* descriptor = table_.resolve(record.descriptor);
  if (descriptor == nullptr) return false;
  // Records are not merged after a join, since the root must know which ranks have spoken and which
  // have joined.
  if (!is_root() && has_joined()) {
    upward_.push_back(record);
    return true;
  }
  const UnitKey key{std::string(descriptor_name(*descriptor)), record.iteration};
  Pending& pending = pending_[key];
  if (pending.contributions.empty()) pending.since = now;
  pending.piecemeal |= is_passed_on;
  pending.since = std::min(pending.since, now - record.age);
  pending.age = std::max(pending.age, record.age);
  if (has_spoken(pending, record)) {
    // This rank has seen an error that another rank has not seen yet. The record is the rank's next
    // operation of that name. It is held until the other rank has caught up.
    if (!is_root()) {
      // The root may judge an operation that a plan had started before it receives the record.
      if (!std::exchange(pending.piecemeal, true)) pass_on(key, pending, 0);
      if (!is_passed_on) upward_.push_back(record);
    } else if (pending.verdict.ok() || is_held(pending, record)) {
      return false;
    }
    pending.held.push_back(record);
    pending.held_since = now;
    return true;
  }
  if (counts_twice(pending, record)) return false;

  auto variant = std::find(pending.variants.begin(), pending.variants.end(), *descriptor);
  if (variant == pending.variants.end()) {
    variant = pending.variants.insert(pending.variants.end(), *descriptor);
  }
  auto listing = std::find(pending.listings.begin(), pending.listings.end(), record.listing);
  if (listing == pending.listings.end()) {
    listing = pending.listings.insert(pending.listings.end(), record.listing);
  }
  const Contribution contribution{record.origin, record.subtree,
                                  static_cast<std::size_t>(variant - pending.variants.begin()),
                                  static_cast<std::size_t>(listing - pending.listings.begin())};
  const bool is_conflict = pending.variants.size() > 1 ||
                           (!pending.contributions.empty() &&
                            pending.contributions.front().listing != contribution.listing);
  pending.contributions.push_back(contribution);
  pending.ranks +=
      record.subtree ? static_cast<int>(tree_subtree(record.origin, world_.size()).size()) : 1;
  pending.rows.insert(pending.rows.end(), record.rows.begin(), record.rows.end());
  note_labels(key, pending, record.labels);

  if (pending.piecemeal) {
    if (!is_passed_on) pass_on(key, pending, pending.contributions.size() - 1);
  } else if (!pending.verdict.ok()) {
    verdicts_.push_back(
        {key.name, key.iteration, ranks_of(record.origin, record.subtree), pending.verdict});
  } else if (is_conflict && !is_root()) {
    pending.piecemeal = true;
    pass_on(key, pending, 0);
  }
  if (pending.ranks == subtree_ranks_) {
    complete(key, pending);
  } else if (has_joined()) {
    go_on_without_data(key);
  }
  return true;
}

void Readiness::complete(const UnitKey& key, Pending& pending) {
  if (!is_root()) {
    if (!pending.piecemeal) {
      ReadyRecord whole = record(key, pending, pending.contributions.front());
      whole.origin = world_.rank();
      whole.subtree = true;
      whole.rows = std::move(pending.rows);
      upward_.push_back(std::move(whole));
    }
  } else if (pending.variants.size() > 1) {
    if (pending.verdict.ok()) judge(key, pending, mismatch(key, pending));
  } else if (is_refusal(pending.variants.front())) {  // refused by all ranks, for one reason
    if (pending.verdict.ok()) judge(key, pending, mismatch(key, pending));
  } else if (Status order = check_order(key, pending, true); pending.verdict.ok() && !order.ok()) {
    judge(key, pending, std::move(order));
  } else if (pending.verdict.ok()) {
    remember_names(key, pending);
    ReadyUnit unit{key, pending.variants.front(), {}};
    if (!pending.rows.empty()) unit.rows.resize(world_.size());
    for (auto& [rank, rows] : pending.rows) unit.rows[rank.index()] = std::move(rows);
    ready_.push_back(std::move(unit));
  }
  const std::vector<ReadyRecord> held = std::move(pending.held);
  const Nanoseconds now = pending.held_since;
  if (!said_by_all_.empty()) said_by_all_.erase(key);
  pending_.erase(UnitKey(key));  // a copy: `key` may lie in what is erased
  for (const ReadyRecord& record : held) {
    // Below the root, the held records were passed on already. They belong to the operation that is
    // gathered now, not to a later one.
    const bool added = add(record, now, !is_root());
    RC_ASSERT(added);
  }
}

ReadyRecord Readiness::record(const UnitKey& key, const Pending& pending,
                              const Contribution& of) const {
  ReadyRecord record;
  record.descriptor = table_.refer(pending.variants[of.variant]);
  record.listing = pending.listings[of.listing];
  record.iteration = key.iteration;
  if (record.descriptor.id == 0 || key.name.empty()) record.labels = pending.labels;
  record.age = pending.age;
  return record;
}

void Readiness::pass_on(const UnitKey& key, Pending& pending, std::size_t from) {
  for (std::size_t i = from; i < pending.contributions.size(); ++i) {
    const Contribution& contribution = pending.contributions[i];
    ReadyRecord piece = record(key, pending, contribution);
    piece.origin = contribution.origin;
    piece.subtree = contribution.subtree;
    const std::vector<SetRank> ranks = ranks_of(contribution.origin, contribution.subtree);
    for (const auto& said : pending.rows) {
      if (std::binary_search(ranks.begin(), ranks.end(), said.first)) piece.rows.push_back(said);
    }
    upward_.push_back(std::move(piece));
  }
}

void Readiness::judge(const UnitKey& key, Pending& pending, Status verdict) {
  pending.verdict = verdict;
  std::vector<SetRank> ranks;
  for (const Contribution& contribution : pending.contributions) {
    for (SetRank rank : ranks_of(contribution.origin, contribution.subtree)) ranks.push_back(rank);
  }
  verdicts_.push_back({key.name, key.iteration, std::move(ranks), std::move(verdict)});
}

void Readiness::check(Nanoseconds now, bool is_held_up) {
  if (is_held_up) held_up_at_ = now;
  check_join(now);
  for (auto& [key, pending] : pending_) {
    if (is_root() && pending.variants.size() > 1 && pending.verdict.ok() &&
        now - pending.since >= limits_.mismatch_grace) {
      judge(key, pending, mismatch(key, pending));
    }
    check_stall(key, pending, now);
  }
}

void Readiness::check_stall(const UnitKey& key, Pending& pending, Nanoseconds now) {
  const Nanoseconds age = now - pending.since;
  if (!is_root()) {
    // The root must know the missing ranks below before it warns.
    if (!pending.piecemeal && age >= limits_.stall_warning / 2) {
      pending.piecemeal = true;
      pass_on(key, pending, 0);
    }
    return;
  }
  if (!pending.held.empty() && now - pending.held_since >= limits_.stall_error) {
    for (const ReadyRecord& record : std::exchange(pending.held, {})) {
      verdicts_.push_back(
          {key.name, key.iteration, ranks_of(record.origin, record.subtree), pending.verdict});
    }
  }
  if (!pending.verdict.ok() || age < limits_.stall_warning) return;
  if (age < limits_.stall_error && warned_.contains(key)) return;
  const std::vector<SetRank> absent = missing(pending);
  const UnitKey* other = other_iteration(key, absent);
  const std::string sentence =
      other != nullptr
          ? iterations_apart(key, *other, age)
          : cat(label(key, pending), " was submitted by ", world_.size() - absent.size(), " of ",
                world_.size(), " ranks, and for ", tenths_of_seconds(age), " s not by ",
                describe_ranks(absent), submitted_instead(absent, now));
  const std::string_view cure = cure_of_catching_up(now);
  if (age >= limits_.stall_error) {
    judge_stalled(key, pending, absent, sentence, cure);
    // Otherwise its ranks would learn nothing of the loop.
    if (other != nullptr) {
      Pending& at_other = pending_.at(*other);
      judge_stalled(*other, at_other, missing(at_other), sentence, cure);
    }
  } else if (warned_.insert(key).second && (other == nullptr || warned_.insert(*other).second)) {
    warnings_.push_back(
        cat(sentence, "; still waiting (RDMACOLL_STALL_ERROR_S sets the limit).", cure));
  }
}

Nanoseconds Readiness::next_deadline() const {
  Nanoseconds next = join_deadline();
  for (const auto& [key, pending] : pending_) {
    if (is_root() && !pending.held.empty()) {
      next = std::min(next, pending.held_since + limits_.stall_error);
    }
    if (!pending.verdict.ok() || pending.piecemeal) continue;
    Nanoseconds due = pending.since + limits_.stall_error;
    if (!is_root()) {
      due = pending.since + limits_.stall_warning / 2;
    } else if (pending.variants.size() > 1) {
      due = pending.since + limits_.mismatch_grace;
    } else if (!warned_.contains(key)) {
      due = pending.since + limits_.stall_warning;
    }
    next = std::min(next, due);
  }
  return next;
}

bool Readiness::is_late(Nanoseconds now, Nanoseconds limit) const {
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& entry) {
    return !entry.second.verdict.ok() || now - entry.second.since >= limit;
  });
}

void Readiness::forget() {
  part();
  pending_.clear();
  said_by_all_.clear();
  upward_.clear();
  ready_.clear();
}

std::vector<SetRank> Readiness::ranks_of(SetRank origin, bool subtree) const {
  if (!subtree) return {origin};
  return tree_subtree(origin, world_.size());
}

bool Readiness::has_spoken(const Pending& pending, const ReadyRecord& record) const {
  for (const Contribution& contribution : pending.contributions) {
    if (contribution.origin == record.origin) return true;
    if (!contribution.subtree) continue;
    const std::vector<SetRank> ranks = ranks_of(contribution.origin, contribution.subtree);
    if (std::binary_search(ranks.begin(), ranks.end(), record.origin)) return true;
  }
  return false;
}

std::vector<SetRank> Readiness::missing(const Pending& pending) const {
  const std::vector<SetRank> all = world_.ranks();
  std::set<SetRank> absent(all.begin(), all.end());
  for (const Contribution& contribution : pending.contributions) {
    for (SetRank rank : ranks_of(contribution.origin, contribution.subtree)) absent.erase(rank);
  }
  for (const auto& [rank, number] : joined_) absent.erase(rank);
  return {absent.begin(), absent.end()};
}

Status Readiness::mismatch(const UnitKey& key, const Pending& pending) {
  // Reordered variables usually have different shapes, too. The order is the better explanation.
  if (Status order = check_order(key, pending, false); !order.ok()) return order;
  // If gradient lists differ, the first buckets may still be equal.
  std::set<std::string> manifests;
  for (const std::string& variant : pending.variants) manifests.insert(describe_manifest(variant));
  const bool lists_differ = manifests.size() > 1 && !manifests.contains("");
  std::vector<std::string> values;
  for (std::size_t variant = 0; variant < pending.variants.size(); ++variant) {
    std::vector<SetRank> ranks;
    for (const Contribution& contribution : pending.contributions) {
      if (contribution.variant != variant) continue;
      for (SetRank rank : ranks_of(contribution.origin, contribution.subtree))
        ranks.push_back(rank);
    }
    std::sort(ranks.begin(), ranks.end());
    const std::string& descriptor = pending.variants[variant];
    const std::string_view verb = is_refusal(descriptor) ? " "
                                  : ranks.size() == 1    ? " has "
                                                         : " have ";
    values.push_back(cat(ranks.size() == 1 ? "rank " : "ranks ", join(numbers(ranks), ", "), verb,
                         is_refusal(descriptor) ? describe_refusal(descriptor)
                         : lists_differ
                             ? describe_manifest(descriptor)
                             : describe_descriptor(descriptor, differing(pending, variant))));
  }
  const std::vector<SetRank> absent = missing(pending);
  if (!absent.empty()) {
    values.push_back(cat(describe_ranks(absent), absent.size() == 1 ? " has" : " have",
                         " not submitted it yet"));
  }
  ErrorDetail detail;
  detail.tensor = tensor(key, pending);
  std::string what = title(key, world_);
  if (!labels(key, pending).empty()) what += cat(" (", labels(key, pending), ")");
  return {
      Code::mismatch,
      cat("ranks disagree about ", lists_differ ? "the list of gradients of " : "", what, ": ",
          join(values, "; "),
          lists_differ
              ? ". Their number, shapes, dtypes, order and buckets, op and scales, and which of "
                "them are sparse or None must be equal: give every rank the same model and "
                "options, and a loss that depends on the same variables."
              : ". Submit it with the same kind, dtype, shape, op, scales and root "
                "everywhere.",
          key.name.empty()
              ? " Operations without a name are matched by their order: give names to those "
                "that several threads submit."
              : ""),
      detail};
}

void Readiness::note_labels(const UnitKey& key, Pending& pending, const std::string& labels) {
  if (labels.empty()) return;
  if (pending.labels.empty()) pending.labels = labels;
  const bool has_room =
      labels_.size() < DescriptorTable::kDescriptorsMax || labels_.contains(key.name);
  if (!key.name.empty() && has_room) labels_[key.name] = labels;
}

const std::string& Readiness::labels(const UnitKey& key, const Pending& pending) const {
  const auto known = labels_.find(key.name);
  return pending.labels.empty() && known != labels_.end() ? known->second : pending.labels;
}

// The tensor's name in errors: "bucket_0 (conv1/kernel, conv1/bias and 4 more)".
std::string Readiness::tensor(const UnitKey& key, const Pending& pending) const {
  const std::string& inside = labels(key, pending);
  if (key.name.empty() || inside.empty()) return key.name + inside;
  return cat(key.name, " (", inside, ")");
}

std::string Readiness::label(const UnitKey& key, const Pending& pending) const {
  const std::string& inside = labels(key, pending);
  return cat(title(key, world_), " (", inside, inside.empty() ? "" : "; ",
             describe_descriptor(pending.variants.front()), ")");
}

std::string Readiness::describe_ranks(const std::vector<SetRank>& ranks) const {
  if (ranks.size() == 1) return world_.describe(ranks.front());
  constexpr std::size_t kShown = 16;
  const std::vector<JobRank> all = numbers(ranks);
  if (all.size() <= kShown) return cat("ranks ", join(all, ", "));
  return cat("ranks ", join(std::vector<JobRank>(all.begin(), all.begin() + kShown), ", "), " and ",
             all.size() - kShown, " more");
}

// The world's numbers of these ranks, for messages.
std::vector<JobRank> Readiness::numbers(const std::vector<SetRank>& ranks) const {
  std::vector<JobRank> numbers;
  for (SetRank rank : ranks) numbers.push_back(world_.number(rank));
  return numbers;
}

std::string Readiness::state() const {
  std::string text;
  for (const auto& [rank, number] : joined_) {
    text += cat("  ", world_.describe(rank), " has joined\n");
  }
  for (const auto& [key, pending] : pending_) {
    std::vector<SetRank> absent = missing(pending);
    if (!is_root()) {  // this rank knows nothing outside its subtree
      const std::vector<SetRank> below = tree_subtree(world_.rank(), world_.size());
      std::erase_if(absent, [&](SetRank rank) {
        return !std::binary_search(below.begin(), below.end(), rank);
      });
    }
    text += cat("  ", label(key, pending), ": ", pending.ranks, " of ", subtree_ranks_,
                is_root() ? " ranks" : " ranks of this subtree", " have submitted it",
                absent.empty() ? "" : cat("; missing: ", describe_ranks(absent)), "\n");
  }
  return text;
}

}  // namespace rdmacoll
