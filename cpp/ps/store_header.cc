// The description of a store in a checkpoint, and the encoding of a spec.
#include <algorithm>

#include "base/text.h"
#include "ps/sharding.h"
#include "ps/store.h"

namespace rdmacoll::ps {
namespace {

std::string slots_of(const UpdateRule& rule) {
  const std::string names = join(rule.slots(), ", ");
  return names.empty() ? "nothing" : names;
}

}  // namespace

std::string text_of(const StoredSpec& spec) {
  return cat(spec.name, " (", name_of(spec.dtype), ", shape (", join(spec.dims, ", "), "), ",
             spec.elements, " elements here", spec.row_elements > 0 ? ", by rows" : "",
             spec.decays ? "" : ", not decayed", ")");
}

bool are_other_parts(const StoredSpec& one, StoredSpec other) {
  if (one.shares == other.shares) return false;
  other.shares = one.shares;
  return one == other;
}

void write(const StoredSpec& spec, Writer& writer) {
  writer.put_text(spec.name).put(spec.dtype).put(static_cast<uint8_t>(spec.decays));
  writer.put(spec.elements).put(spec.row_elements).put(static_cast<uint8_t>(spec.dims.size()));
  for (const int64_t dim : spec.dims) writer.put(dim);
  writer.put(spec.shares);
}

StoredSpec read_spec(Reader& reader) {
  StoredSpec spec;
  spec.name = reader.get_text(kVariableNameBytesMax);
  spec.dtype = reader.get<Dtype>();
  spec.decays = reader.get<uint8_t>() != 0;
  spec.elements = reader.get<uint64_t>();
  spec.row_elements = reader.get<uint64_t>();
  const auto dims = reader.get<uint8_t>();
  if (dims > kVariableDimsMax) reader.fail();
  for (uint8_t i = 0; i < dims && reader.ok(); ++i) spec.dims.push_back(reader.get<int64_t>());
  spec.shares = reader.get<uint64_t>();
  const bool is_float = spec.dtype == Dtype::float32 || spec.dtype == Dtype::float64;
  const bool has_rows = spec.row_elements == 0 || spec.elements % spec.row_elements == 0;
  const bool fits = std::max(spec.elements, spec.row_elements) <= kVariableElementsMax;
  if (!is_float || !has_rows || !fits) reader.fail();
  return spec;
}

// The rules come first, without duplicates, since many variables may share a long rule.
void Store::write_header(Writer& writer) {
  std::vector<const Rule*> rules;
  std::vector<uint32_t> numbers;  // by variable: its rule
  for (const Variable& variable : variables_) {
    const auto found = std::find(rules.begin(), rules.end(), variable.rule.get());
    numbers.push_back(static_cast<uint32_t>(found - rules.begin()));
    if (found == rules.end()) rules.push_back(variable.rule.get());
  }
  writer.put(static_cast<uint32_t>(rules.size()));
  for (const Rule* rule : rules) writer.put_text(rule->text);
  writer.put(static_cast<uint32_t>(variables_.size()));
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const Variable& variable = variables_[i];
    ps::write(variable.spec, writer);
    writer.put(numbers[i]).put(static_cast<uint8_t>(variable.is_initialized));
    writer.put(variable.updates);
  }
}

std::vector<std::span<std::byte>> Store::memory() {
  std::vector<std::span<std::byte>> memory;
  for (Variable& variable : variables_) {
    memory.emplace_back(variable.values);
    memory.insert(memory.end(), variable.slots.begin(), variable.slots.end());
  }
  return memory;
}

bool Store::read_header(Reader& reader, std::vector<Variable>& saved) {
  std::vector<RuleRef> rules;
  const auto rule_count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < rule_count && reader.ok(); ++i) {
    std::string text = reader.get_text(kRuleBytesMax);
    UpdateRule rule;
    if (!rule_from(text, rule).ok()) reader.fail();
    rules.push_back(std::make_shared<const Rule>(Rule{std::move(text), std::move(rule)}));
  }
  const auto count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    Variable& variable = saved.emplace_back();
    variable.spec = read_spec(reader);
    const auto rule = reader.get<uint32_t>();
    if (rule >= rules.size()) {
      reader.fail();
      break;
    }
    variable.rule = rules[rule];
    variable.is_initialized = reader.get<uint8_t>() != 0;
    variable.updates = reader.get<uint64_t>();
  }
  return reader.done();
}

bool Store::fits(Reader& reader, std::string& why) const {
  std::vector<Variable> saved;
  if (!read_header(reader, saved)) {
    why = "its header is damaged. Take another one.";
  } else if (saved.size() != variables_.size()) {
    why = cat("it has ", saved.size(), " variables, and this run has ", variables_.size(),
              ". Declare the same ones before.");
  }
  for (std::size_t i = 0; i < variables_.size() && why.empty(); ++i) {
    const Variable &theirs = saved[i], &ours = variables_[i];
    if (are_other_parts(theirs.spec, ours.spec)) {
      why = cat("it has other parts of variable ", text_of(ours.spec),
                " than this server. Declare the same variables in the same calls as then, with the "
                "same RDMACOLL_CHUNK_SIZE.");
    } else if (theirs.spec != ours.spec) {
      why = cat("its variable ", i, " is ", text_of(theirs.spec), ", and here it is ",
                text_of(ours.spec), ". Use the same model, and as many servers.");
    } else if (theirs.rule->update.slots() != ours.rule->update.slots()) {
      why = cat("the optimizer of its variable ", ours.spec.name, " keeps ",
                slots_of(theirs.rule->update), ", and here it keeps ", slots_of(ours.rule->update),
                ". Restore it with the optimizer that it was saved with.");
    }
  }
  return why.empty();
}

void Store::take_header(Reader& reader) {
  std::vector<Variable> saved;
  RC_ASSERT(read_header(reader, saved) && saved.size() == variables_.size());
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    variables_[i].is_initialized = saved[i].is_initialized;
    begin_at(variables_[i], saved[i].updates);
  }
}

}  // namespace rdmacoll::ps
