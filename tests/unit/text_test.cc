#include "base/text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rdmacoll {
namespace {

TEST(Text, cat_and_join_put_values_together) {
  EXPECT_EQ(cat("rank ", 3, " of ", 8), "rank 3 of 8");
  EXPECT_EQ(join(std::vector<int>{1, 2, 5}, ", "), "1, 2, 5");
  EXPECT_EQ(join(std::vector<int>{}, ", "), "");
}

TEST(Text, bytes_have_a_unit_only_when_it_is_exact) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1500), "1500 B");
  EXPECT_EQ(bytes_text(1024), "1 KiB");
  EXPECT_EQ(bytes_text(4194304), "4 MiB");
  EXPECT_EQ(bytes_text(uint64_t{3} << 30), "3 GiB");
  EXPECT_EQ(bytes_text(uint64_t{5} << 41), "10 TiB");
  EXPECT_EQ(bytes_text((uint64_t{1} << 31) + 1), "2147483649 B");
}

TEST(Text, the_edit_distance_counts_letters) {
  EXPECT_EQ(edit_distance("same", "same"), 0u);
  EXPECT_EQ(edit_distance("", "four"), 4u);
  EXPECT_EQ(edit_distance("TRANSPROT", "TRANSPORT"), 2u);
  EXPECT_EQ(edit_distance("CHUNKSIZE", "CHUNK_SIZE"), 1u);
}

TEST(Text, json_escapes_what_json_forbids) {
  EXPECT_EQ(json_quote("plain"), "\"plain\"");
  EXPECT_EQ(json_quote("a\"b\\c\n\t\x01"), "\"a\\\"b\\\\c\\n\\t\\u0001\"");
  EXPECT_EQ(json_quote(std::string_view("a\0b", 3)), "\"a\\u0000b\"");
}

TEST(Text, json_keeps_utf8_and_replaces_what_is_not) {
  EXPECT_EQ(json_quote("Größe € 😀"), "\"Größe € 😀\"");
  for (const char* broken :
       {"\xff", "\x80", "\xc3", "\xe2\x82", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    std::string expected = "\"";
    for (std::size_t i = 0; i < std::string_view(broken).size(); ++i) expected += "\\ufffd";
    EXPECT_EQ(json_quote(broken), expected + "\"") << "of length " << std::string(broken).size();
  }
  EXPECT_EQ(json_quote("\xc3\x28"), "\"\\ufffd(\"");
}

}  // namespace
}  // namespace rdmacoll
