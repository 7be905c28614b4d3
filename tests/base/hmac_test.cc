#include "engine/crypto/hmac.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace flow;

TEST_CASE("HMAC-SHA256 equals the examples of RFC 4231") {
  CHECK(hmac_sha256(std::string(20, '\x0b'), "Hi There").hex() ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac_sha256("Jefe", "what do ya want for nothing?").hex() ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hmac_sha256(std::string(131, '\xaa'),
                    "Test Using Larger Than Block-Size Key - Hash Key First")
            .hex() == "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("HMAC-SHA256 accepts keys and data of any length, including none") {
  CHECK(hmac_sha256("", "").hex() ==
        "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  std::string key(64, 'k');
  CHECK(hmac_sha256(key, "data") == hmac_sha256(key, "data"));
  CHECK(hmac_sha256(key, "data") != hmac_sha256(key + "k", "data"));
  // A key longer than a block is replaced by its digest.
  std::string longer(65, 'k');
  CHECK(hmac_sha256(longer, "data") == hmac_sha256(sha256(longer).view(), "data"));
}

TEST_CASE("secret texts are equal if all bytes are equal") {
  CHECK(equal_constant_time("", ""));
  CHECK(equal_constant_time("proof", "proof"));
  CHECK_FALSE(equal_constant_time("proof", "prooF"));
  CHECK_FALSE(equal_constant_time("proof", "proo"));
}
