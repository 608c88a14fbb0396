#include "tensorflow/waiting.h"

namespace rdmacoll::tensorflow {

Waiting& Waiting::instance() {
  static Waiting waiting;  // trivially destroyed, so TensorFlow's threads may outlive main()
  return waiting;
}

}  // namespace rdmacoll::tensorflow

void rc_tf_start_round(void) { rdmacoll::tensorflow::Waiting::instance().start_round(); }

int32_t rc_tf_waiting(void) {
  return rdmacoll::tensorflow::Waiting::instance().since_before_this_round();
}
