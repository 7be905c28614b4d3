// Texts that clients send as who asks.
#include "engine/submission/requester.hpp"

#include <catch2/catch.hpp>

#include <string>

#include "engine/value/utf8.hpp"

using namespace flow;

TEST_CASE("who asks is one bounded line of text without marks that hide or reorder it") {
  CHECK(clean_requester("ann@node1") == "ann@node1");
  CHECK(clean_requester("  Jos\u00e9@h\u00f4te ") == "Jos\u00e9@h\u00f4te");
  CHECK(clean_requester("a\nb\x1b[2Jc\x7f") == "a b [2Jc");
  CHECK(clean_requester("a\u202eb\u2028c\u0085d\u2066e\u200f") == "a b c d e");
  CHECK(clean_requester("a\xff") == "a\ufffd");
  CHECK(clean_requester("").empty());
  CHECK(clean_requester("\n \u202e").empty());
  std::string many;
  for (int i = 0; i < 1000; i++) many += "\u20ac";
  std::string cut = clean_requester("x" + many);
  CHECK(cut.size() == 256);
  CHECK(is_utf8(cut));
  CHECK(clean_requester(std::string(100'000, '\xff')).size() <= kRequesterMax);
}

TEST_CASE("a process asks as its user at its host") {
  const std::string& own = own_requester();
  CHECK(own.find('@') != std::string::npos);
  CHECK(own == clean_requester(own));
}
