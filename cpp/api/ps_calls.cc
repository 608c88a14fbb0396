#include "api/ps_calls.h"

#include <vector>

#include "api/answers.h"
#include "base/text.h"
#include "ps/update.h"

namespace rdmacoll::ps {

int rule_slots(const char* rule, char** json, char** error) {
  UpdateRule read;
  const Status status = rule_from(rule, read);
  if (!status.ok()) return report(status, error);
  std::vector<std::string> names;
  for (const std::string_view name : read.slots()) names.push_back(json_quote(name));
  *json = copy_text(cat("{\"slots\": [", join(names, ", "),
                        "], \"initial_value\": ", read.initial_value_of_slots(), "}"));
  return kDone;
}

int update(const rc_update* update, char** error) {
  UpdateRule rule;
  const Status status = rule_from(update->rule, rule);
  if (!status.ok()) return report(status, error);
  RC_ASSERT(update->size == sizeof(rc_update) &&
            static_cast<std::size_t>(update->n_slots) == rule.slots().size());
  std::vector<std::byte*> slots;
  for (int32_t i = 0; i < update->n_slots; ++i) {
    slots.push_back(static_cast<std::byte*>(update->slots[i]));
  }
  Update(rule, static_cast<Dtype>(update->dtype), update->step, update->decays != 0)
      .apply(static_cast<std::byte*>(update->values), slots,
             static_cast<const std::byte*>(update->gradient), update->count);
  return kDone;
}

}  // namespace rdmacoll::ps
