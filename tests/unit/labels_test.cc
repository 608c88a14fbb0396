// The labels of an operation's tensors in errors.
#include <gtest/gtest.h>

#include <string>

#include "operation/operation.h"

namespace rdmacoll {
namespace {

TEST(Labels, of_long_lists_are_counted_and_long_ones_cut_between_characters) {
  Request request;
  EXPECT_EQ(request.labels(), "");
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\xc3\xa4";
  for (const std::string& label : {std::string("a"), "x" + umlauts, std::string("c")}) {
    request.tensors.push_back({nullptr, nullptr, {4}, label});
  }
  EXPECT_EQ(request.labels(), "a, x" + umlauts.substr(0, 118) + " and 1 more");
  request.name = "a";  // said already
  EXPECT_EQ(request.labels(), "x" + umlauts.substr(0, 118) + ", c");
}

}  // namespace
}  // namespace rdmacoll
