// Parameter servers: ranks after the members of the set. They are ready for every sum, and never
// submit one. The root sends them each decision when it begins the decision itself, by the log or
// by a plan. So servers need no readiness and no plans. They are never ahead of all workers: a rank
// with data has begun every decision that they begin, and finishes it.
#include "base/text.h"
#include "engine/process_set.h"

namespace rdmacoll {

void ProcessSet::post_servers(const Message& message) {
  for (int server : servers_) post(server, message);
}

// Root: servers receive all decisions, to count their sequence, but without rows.
void ProcessSet::tell_servers(const Decision& decision) {
  if (servers_.empty()) return;
  Decision told = decision;
  told.rows.clear();
  told.most_rows = 0;
  post_servers(told);
}

// At a server: its placeholders need no caller's memory, and begin at once.
void ProcessSet::serve(Decision decision) {
  const Agreed agreed = agreed_of(std::move(decision));
  if (agreed.decision.algorithm != Algorithm::parameter_server) {
    if (!accept(agreed.decision)) host_.broken_protocol(root(), "a decision out of order");
    return;
  }
  if (!now_.goes_on()) return;
  for (std::size_t i = 0; i < agreed.keys.size() && now_.goes_on(); ++i) stand_in(agreed, i);
  obey(agreed);
}

}  // namespace rdmacoll
