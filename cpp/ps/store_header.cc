// What a checkpoint says of a store, and how a spec is written wherever it is.
#include <algorithm>

#include "base/text.h"
#include "ps/sharding.h"
#include "ps/store.h"

namespace rdmacoll::ps {

std::string text_of(const StoredSpec& spec) {
  return cat(spec.name, " (", name_of(spec.dtype), ", shape (", join(spec.dims, ", "), "), ",
             spec.elements, " elements here", spec.row_elements > 0 ? ", by rows" : "",
             spec.decays ? "" : ", not decayed", ")");
}

void write(const StoredSpec& spec, Writer& writer) {
  writer.put_text(spec.name).put(spec.dtype).put(static_cast<uint8_t>(spec.decays));
  writer.put(spec.elements).put(spec.row_elements).put(static_cast<uint8_t>(spec.dims.size()));
  for (const int64_t dim : spec.dims) writer.put(dim);
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
  const bool is_float = spec.dtype == Dtype::float32 || spec.dtype == Dtype::float64;
  const bool has_rows = spec.row_elements == 0 || spec.elements % spec.row_elements == 0;
  const bool fits = std::max(spec.elements, spec.row_elements) <= kVariableElementsMax;
  if (!is_float || !has_rows || !fits) reader.fail();
  return spec;
}

void Store::write_header(Writer& writer) {
  writer.put_text(rule_text_).put(static_cast<uint32_t>(variables_.size()));
  for (Variable& variable : variables_) {
    ps::write(variable.spec, writer);
    writer.put(static_cast<uint8_t>(variable.is_initialized)).put(variable.updates);
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

bool Store::read_header(Reader& reader, Saved& saved) {
  saved.rule_text = reader.get_text(kRuleBytesMax);
  const auto count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    Variable& variable = saved.variables.emplace_back();
    variable.spec = read_spec(reader);
    variable.is_initialized = reader.get<uint8_t>() != 0;
    variable.updates = reader.get<uint64_t>();
  }
  return reader.done();
}

bool Store::fits(Reader& reader, std::string& why) const {
  Saved saved;
  UpdateRule rule;
  if (!read_header(reader, saved) || !rule_from(saved.rule_text, rule).ok()) {
    why = "it is damaged at its start. Take another one.";
  } else if (rule.slots() != rule_.slots()) {
    why = cat("its optimizer is another one:\n", saved.rule_text, "and here it is\n", rule_text_,
              "Restore it with the optimizer that it was saved with.");
  } else if (saved.variables.size() != variables_.size()) {
    why = cat("it has ", saved.variables.size(), " variables, and this run has ", variables_.size(),
              ". Declare the same ones before.");
  } else {
    for (std::size_t i = 0; i < variables_.size() && why.empty(); ++i) {
      const StoredSpec& theirs = saved.variables[i].spec;
      const StoredSpec& ours = variables_[i].spec;
      if (theirs == ours) continue;
      why = cat("its variable ", i, " is ", text_of(theirs), ", and here it is ", text_of(ours),
                ". Use the same model, and as many servers.");
    }
  }
  return why.empty();
}

void Store::take_header(Reader& reader) {
  Saved saved;
  RC_ASSERT(read_header(reader, saved) && saved.variables.size() == variables_.size());
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    Variable& variable = variables_[i];
    variable.is_initialized = saved.variables[i].is_initialized;
    variable.updates = saved.variables[i].updates;
    std::fill(variable.row_updates.begin(), variable.row_updates.end(), variable.updates);
  }
}

}  // namespace rdmacoll::ps
