// Parameter servers: ranks beside those of the set, which are ready for every sum and never submit
// any. The root tells them what is decided at the moment in which it begins that itself, in the log
// or by a plan. So they know nothing of readiness and plans, and are never ahead of all others:
// what they have begun, a rank with data has begun, and runs to its end.
#include "base/text.h"
#include "engine/process_set.h"

namespace rdmacoll {

void ProcessSet::post_servers(const Message& message) {
  for (int server : servers_) post(server, message);
}

// At the root. What the others do among themselves has its number at the servers, too; how many
// rows they have in it is no concern of theirs.
void ProcessSet::tell_servers(const Decision& decision) {
  if (servers_.empty()) return;
  Decision told = decision;
  told.rows.clear();
  told.most_rows = 0;
  post_servers(told);
}

// At a server: its part of the operations has no memory of a caller's, and begins at once.
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
