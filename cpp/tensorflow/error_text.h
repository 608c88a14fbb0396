// From the engine's error (JSON) to a TensorFlow status: graphs know a code and a text only, so the
// text carries the fields of the error for rdmacoll.error_from().
#pragma once

#include <string>
#include <string_view>

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

// Its text: "KIND: message [rdmacoll {json without the message}]".
void set_error(TF_Status* status, std::string_view error_json);

// Ends a kernel with it; `done` is still to be called.
void fail(TF_OpKernelContext* context, std::string_view error_json);

// {"kind": kind, "message": message}: an error that is found on this side.
std::string error_json(std::string_view kind, std::string_view message);

// A string member of the outermost object, unescaped; "" if there is none.
std::string json_member(std::string_view json, std::string_view name);

}  // namespace rdmacoll::tensorflow
