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

TEST_CASE("a client on another machine asks with the address from which it came") {
  CHECK(requester_from("ann@node1", "10.0.0.9") == "ann@node1 from 10.0.0.9");
  CHECK(requester_from("ann@node1", "fd00::9") == "ann@node1 from fd00::9");
  CHECK(requester_from("", "10.0.0.9") == "unknown from 10.0.0.9");
  CHECK(requester_from(" \n", "10.0.0.9") == "unknown from 10.0.0.9");
  CHECK(requester_from("ann@node1", "") == "ann@node1 from unknown");
}

TEST_CASE("a client cannot write what stands behind its name") {
  auto from = [](std::string_view said) { return requester_from(said, "10.0.0.9"); };
  CHECK(from("x from 1.2.3.4") == "\"x from 1.2.3.4\" from 10.0.0.9");
  CHECK(from("x\nfrom\t1.2.3.4") == "\"x from 1.2.3.4\" from 10.0.0.9");
  CHECK(from("x\u00a0from\u00a01.2.3.4") == "\"x\u00a0from\u00a01.2.3.4\" from 10.0.0.9");
  CHECK(from("team@1.2.3.4 (page, key 3f2a9c1b)") ==
        "\"team@1.2.3.4 (page, key 3f2a9c1b)\" from 10.0.0.9");
  CHECK(from("x\" from 1.2.3.4") == "\"x' from 1.2.3.4\" from 10.0.0.9");
  CHECK(from("\"x\"") == "\"'x'\" from 10.0.0.9");
  CHECK(from("Jos\u00e9@h\u00f4te") == "\"Jos\u00e9@h\u00f4te\" from 10.0.0.9");
}

TEST_CASE("the name of a client is cut, and never its address") {
  const std::string host = "fe80::1234:5678:9abc:def0%interface-0";
  std::string longest = requester_from(std::string(100'000, 'x'), host);
  CHECK(longest.size() <= kRequesterMax);
  CHECK(longest.ends_with("x from " + host));
  std::string text = "x";
  for (int i = 0; i < 1000; i++) text += "\u20ac";
  std::string quoted = requester_from(text, host);
  CHECK(quoted.size() <= kRequesterMax);
  CHECK(quoted.ends_with("\u20ac\" from " + host));
  CHECK(is_utf8(quoted));
  CHECK(clean_requester(quoted) == quoted);
  CHECK(requester_from("x", std::string(100'000, 'h')).size() <= kRequesterMax);
}

TEST_CASE("the page asks for the owner of its link or of a key") {
  CHECK(page_requester("team", "10.0.0.7", "") == "team@10.0.0.7 (page)");
  CHECK(page_requester("team", "10.0.0.7", "3f2a9c1b") == "team@10.0.0.7 (page, key 3f2a9c1b)");
}

TEST_CASE("a process asks as its user at its host") {
  const std::string& own = own_requester();
  CHECK(own.find('@') != std::string::npos);
  CHECK(own == clean_requester(own));
}
