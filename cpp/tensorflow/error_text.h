// Converts the engine's error (JSON) to a TensorFlow status. Graphs have only a code and a text, so
// the text carries the error's fields for rdmacoll.error_from().
#pragma once

#include <string>
#include <string_view>

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

// Sets the text "KIND: message [rdmacoll {json without the message}]".
void set_error(TF_Status* status, std::string_view error_json);

// Fails a kernel with this error. The caller still has to call `done`.
void fail(TF_OpKernelContext* context, std::string_view error_json);

// Returns {"kind": kind, "message": message}, for errors that are found in this library.
std::string error_json(std::string_view kind, std::string_view message);

}  // namespace rdmacoll::tensorflow
