// Captures in patterns of paths.
#include "lua/graph/path_captures.hpp"

#include <catch2/catch.hpp>
#include <random>

using namespace flow;
using namespace flow::lua;

namespace {

using Texts = std::vector<std::string>;

std::optional<Texts> captured(const std::string& pattern, const std::string& path) {
  auto captures = PathCaptures::parse(pattern);
  REQUIRE(captures.ok());
  return captures->match(path);
}

std::string problem(const std::string& pattern) {
  auto captures = PathCaptures::parse(pattern);
  return captures.ok() ? "" : captures.error().message;
}

}  // namespace

TEST_CASE("captures take as much of a name as they can, the first one first") {
  CHECK(captured("{sample}_R{n}.fq", "s1_R2.fq") == Texts{"s1", "2"});
  CHECK(captured("{sample}_R{n}.fq", "a_R1_R2.fq") == Texts{"a_R1", "2"});
  CHECK(captured("r/{a}/{b}.txt", "r/x/y.z.txt") == Texts{"x", "y.z"});
  CHECK_FALSE(captured("{a}.txt", "x/y.txt"));
  CHECK_FALSE(captured("{a}.txt", ".txt"));
  CHECK_FALSE(captured("{a}.txt", "a.txt.gz"));
}

TEST_CASE("a capture that occurs twice has one text") {
  CHECK(captured("{s}/{s}_{n}.fq", "a/a_1.fq") == Texts{"a", "1"});
  CHECK_FALSE(captured("{s}/{s}_{n}.fq", "a/b_1.fq"));
  CHECK(captured("{a}-{b}-{a}", "x-y-z-x-y") == Texts{"x-y", "z"});
}

TEST_CASE("captures stand beside wildcards, braces and escapes") {
  CHECK(captured("**/{s}.{fq,fastq}", "a/b/c.fastq") == Texts{"c"});
  CHECK(captured("**/{s}.{fq,fastq}", "c.fq") == Texts{"c"});
  CHECK(captured("*_{n}", "a_b_3") == Texts{"3"});
  CHECK(captured("x[0-9]?{n}", "x7yz") == Texts{"z"});
  CHECK_FALSE(captured("x[!0-9]{n}", "x7z"));
  CHECK(captured("\\{a}{n}", "{a}b") == Texts{"b"});
  CHECK(captured("{{a},x/{b}}", "q") == Texts{"q", ""});
  CHECK(captured("a{1}{n}", "a{1}b") == Texts{"b"});  // `1` is no name
  CHECK(PathCaptures::parse("r/{a}_{b}/\\*.{x,y}")->glob() == "r/*_*/\\*.{x,y}");
  CHECK(PathCaptures::parse("{b}{a}{b}")->names() == Texts{"b", "a"});
}

TEST_CASE("a pattern without captures, or with too many, is an error") {
  CHECK(problem("*.txt").find("`*.txt` has no capture") == 0);
  CHECK(problem("{a,b}.txt").find("has no capture") != std::string::npos);
  std::string many;
  for (char c = 'a'; c <= 'q'; c++) many += std::string("{") + c + "}";
  CHECK(problem(many).find("more than 16 captures") != std::string::npos);
  CHECK(problem(std::string(5000, 'a') + "{n}").find("at most 4096 bytes") != std::string::npos);
}

TEST_CASE("what captures matched gives the path again") {
  std::mt19937 random(5);
  auto word = [&](const std::string& letters, size_t size) {
    std::string text;
    for (size_t i = 0; i < size; i++) text += letters[random() % letters.size()];
    return text;
  };
  for (int round = 0; round < 5'000; round++) {
    std::string pattern = word("ab_", random() % 3) + "{x}" + word("ab_", random() % 3) + "{y}" +
                          word("ab_", random() % 2);
    std::string path = word("ab_", 2 + random() % 8);
    auto texts = captured(pattern, path);
    if (!texts) continue;
    std::string again = pattern;
    again.replace(again.find("{x}"), 3, (*texts)[0]);
    again.replace(again.find("{y}"), 3, (*texts)[1]);
    CHECK(again == path);
    CHECK_FALSE(((*texts)[0].empty() || (*texts)[1].empty()));
  }
}
