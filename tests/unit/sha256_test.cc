#include "bootstrap/sha256.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace rdmacoll {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hex(std::span<const std::byte> bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kHex[std::to_integer<int>(byte) >> 4];
    text += kHex[std::to_integer<int>(byte) & 15];
  }
  return text;
}

std::string sha(std::string_view text) { return hex(Sha256().add(text).finish()); }

// FIPS 180-4's examples and the NIST long message.
TEST(Sha256, agrees_with_the_standard) {
  EXPECT_EQ(sha(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, does_not_depend_on_how_it_is_fed) {
  const std::string text(300, 'x');
  const std::string whole = sha(text);
  for (std::size_t step = 1; step < text.size(); ++step) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += step) hash.add(text.substr(at, step));
    EXPECT_EQ(hex(hash.finish()), whole) << "in steps of " << step;
  }
}

// RFC 4231.
TEST(Sha256, hmac_agrees_with_the_standard) {
  const auto mac = [](const std::string& key, const std::string& data) {
    return hex(hmac_sha256(bytes_of(key), {bytes_of(data)}));
  };
  EXPECT_EQ(mac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(mac(std::string(131, '\xaa'),
                "This is a test using a larger than block-size key and a larger than block-size "
                "data. The key needs to be hashed before being used by the HMAC algorithm."),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Sha256, hmac_takes_its_parts_as_one_text) {
  EXPECT_EQ(hmac_sha256(bytes_of("k"), {bytes_of("ab"), bytes_of(""), bytes_of("c")}),
            hmac_sha256(bytes_of("k"), {bytes_of("abc")}));
}

TEST(Sha256, compares_every_byte) {
  Digest a{};
  for (std::size_t i = 0; i < a.size(); ++i) {
    Digest b = a;
    EXPECT_TRUE(equal_in_constant_time(a, b));
    b[i] ^= std::byte{1};
    EXPECT_FALSE(equal_in_constant_time(a, b));
  }
  EXPECT_FALSE(equal_in_constant_time(a, std::span(a).first(31)));
}

TEST(Sha256, random_bytes_differ) {
  std::set<Digest> seen;
  for (int i = 0; i < 100; ++i) {
    Digest random;
    fill_random(random);
    EXPECT_TRUE(seen.insert(random).second);
  }
}

}  // namespace
}  // namespace rdmacoll
