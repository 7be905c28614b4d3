// Digests, ids, files, units, base64, UTF-8 and secrets.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/size_units.hpp"
#include "engine/crypto/base64.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/crypto/redaction.hpp"
#include "engine/value/utf8.hpp"

using namespace flow;

namespace {

struct Folder {
  std::string path = "/tmp/flow-base-test-" + random_name();
  Folder() { REQUIRE(make_dirs(path).ok()); }
  ~Folder() {
    std::string command = "rm -rf " + quote_shell(path);
    if (std::system(command.c_str()) != 0) WARN("left behind: " << path);
  }
};

int64_t bytes_of(const char* text) {
  auto bytes = parse_bytes(text);
  return bytes.ok() ? *bytes : -1;
}

int64_t ms_of(const char* text) {
  auto time = parse_duration_ms(text);
  return time.ok() ? *time : -1;
}

}  // namespace

TEST_CASE("SHA-256 equals the examples of FIPS 180-4, whole and in parts") {
  CHECK(sha256("").hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  hash.update("abcdbcdecdefdefgefghfghi");
  hash.update("ghijhijkijkljklmklmnlmnomnopnopq");
  CHECK(hash.finish().hex() == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("digests are parsed from hex and from bytes, or rejected") {
  Digest digest = sha256("abc"), back;
  REQUIRE(Digest::parse_hex(digest.hex(), back));
  CHECK(back == digest);
  CHECK_FALSE(Digest::parse_hex(digest.hex().substr(1), back));
  CHECK_FALSE(Digest::parse_hex(std::string(64, 'g'), back));
  REQUIRE(Digest::from_bytes(digest.view(), back));
  CHECK_FALSE(Digest::from_bytes("short", back));
  CHECK(Digest{}.is_zero());
}

TEST_CASE("run ids of one process sort in the order of their creation") {
  int64_t time_ms = 1795238220123;  // 2026-11-21T05:17:00.123Z
  std::string previous = make_run_id(time_ms);
  CHECK(previous.substr(0, 16) == "20261121-051700-");
  CHECK(previous.size() == 23);
  CHECK(previous.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz-") == std::string::npos);
  for (int i = 0; i < 20'000; i++) {
    std::string id = make_run_id(time_ms + i / 5000 - (i % 3));
    REQUIRE(previous < id);
    previous = id;
  }
  CHECK(make_run_id(time_ms + 1000) > previous);
}

TEST_CASE("a run id contains its time") {
  for (int64_t time_ms : {int64_t{0}, int64_t{1795238220123}, int64_t{4102444799999}})
    CHECK(run_id_ms(run_id_start(time_ms) + "00000") == time_ms);
}

TEST_CASE("random names differ") {
  std::set<std::string> names;
  for (int i = 0; i < 1000; i++) names.insert(random_name());
  CHECK(names.size() == 1000);
  CHECK(random_name(30).size() == 30);
}

TEST_CASE("times are printed in UTC") {
  CHECK(format_time(1795238220123) == "2026-11-21T05:17:00.123Z");
  CHECK(format_time(0) == "1970-01-01T00:00:00.000Z");
}

TEST_CASE("a file is written whole and read back") {
  Folder folder;
  std::string path = folder.path + "/a";
  std::string content(1'000'000, 'x');
  REQUIRE(write_file_atomic(path, "old").ok());
  REQUIRE(write_file_atomic(path, content).ok());
  CHECK(*read_file(path) == content);
  auto digest = sha256_file(path);
  REQUIRE(digest.ok());
  CHECK(digest->digest == sha256(content));
  CHECK(digest->size == content.size());
  CHECK(*read_file(path, content.size()) == content);
  CHECK_FALSE(read_file(path, content.size() - 1).ok());
  REQUIRE(write_file_atomic(path, "").ok());
  CHECK(read_file(path)->empty());
  CHECK(read_file("/proc/self/status").ok());  // no size known beforehand
}

TEST_CASE("an error of reading or writing names the path and the reason") {
  Folder folder;
  CHECK(read_file(folder.path + "/none").error().message ==
        "cannot open `" + folder.path + "/none`: No such file or directory");
  CHECK_THAT(read_file(folder.path).error().message, Catch::Contains("it is a folder"));
  CHECK_THAT(write_file_atomic(folder.path + "/no/x", "").error().message,
             Catch::Contains("No such file or directory"));
  REQUIRE(write_file_atomic(folder.path + "/file", "").ok());
  CHECK_THAT(make_dirs(folder.path + "/file/below").error().message,
             Catch::Contains("Not a directory"));
}

TEST_CASE("folders are created with their parents, accessible only to the owner") {
  Folder folder;
  std::string deep = folder.path + "/a/b//c/";
  REQUIRE(make_dirs(deep).ok());
  REQUIRE(make_dirs(deep).ok());
  struct stat info;
  REQUIRE(stat(deep.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
}

TEST_CASE("words are quoted for a shell if necessary") {
  CHECK(quote_shell("plain-1.0/x=") == "'plain-1.0/x='");
  CHECK(quote_shell("plain-1.0/x") == "plain-1.0/x");
  CHECK(quote_shell("") == "''");
  CHECK(quote_shell("it's $HOME") == "'it'\\''s $HOME'");
}

TEST_CASE("sizes are parsed") {
  CHECK(bytes_of("4096") == 4096);
  CHECK(bytes_of("512M") == 512 << 20);
  CHECK(bytes_of("2GiB") == int64_t{2} << 30);
  CHECK(bytes_of("2 gib") == int64_t{2} << 30);
  CHECK(bytes_of("1.5G") == int64_t{3} << 29);
  CHECK(bytes_of("100KB") == 100'000);
  CHECK(bytes_of("0") == 0);
  for (const char* wrong : {"", "G", "-1G", "1X", "1GG", "1e3", "1.5.G", "0x10", "9999999999T",
                            "1 2", "+1", "nan", "inf", ".5G"})
    CHECK(bytes_of(wrong) == -1);
  CHECK(
      parse_bytes("8Q").error().message ==
      "`8Q` is not a size: `q` is not a unit; write a number and a unit of K, M, G, T: 512M, 1.5G, "
      "2GiB");
}

TEST_CASE("durations are parsed") {
  CHECK(ms_of("10m") == 600'000);
  CHECK(ms_of("2d") == 2 * 86'400'000);
  CHECK(ms_of("2ms") == 2);
  CHECK(ms_of("1.5s") == 1500);
  CHECK(ms_of("0.29s") == 290);
  CHECK(ms_of("1h30m") == 5'400'000);
  CHECK(ms_of("1h 30m") == 5'400'000);
  CHECK(ms_of("0") == 0);
  CHECK(ms_of("500us") == 1);
  CHECK(*parse_duration_us("500us") == 500);
  CHECK(*parse_duration_us("2ms") == 2000);
  CHECK(*parse_duration_us("1.1m") == 66'000'000);
  CHECK(ms_of("0.3us") == 1);
  for (const char* wrong :
       {"", "10", "s", "-1s", "1x", "1s1m", "1m1m", "1000000d", "1 s s", "1e3s"})
    CHECK(ms_of(wrong) == -1);
  CHECK(
      parse_duration_ms("10").error().message ==
      "`10` is not a duration: the unit is missing; write a number and a unit of us, ms, s, m, h, "
      "d: 10m, 1.5s, 1h30m");
}

TEST_CASE("sizes and durations are printed") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1 KiB");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes((1 << 20) - 1) == "1 MiB");
  CHECK(format_bytes(UINT64_MAX) == "16 EiB");
  CHECK(format_duration(0) == "0ms");
  CHECK(format_duration(999) == "999ms");
  CHECK(format_duration(1250) == "1.25s");
  CHECK(format_duration(2000) == "2s");
  CHECK(format_duration(123'000) == "2m 3s");
  CHECK(format_duration(3'900'000) == "1h 5m");
  CHECK(format_duration(7'200'000) == "2h");
  CHECK(format_duration(273'600'000) == "3d 4h");
  CHECK(format_duration(-5) == "-5ms");
}

TEST_CASE("base64 follows RFC 4648, and only its canonical form is decoded") {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  std::string back;
  for (auto [bytes, text] : vectors) {
    CHECK(base64_encode(bytes) == text);
    REQUIRE(base64_decode(text, back));
    CHECK(back == bytes);
  }
  for (const char* wrong : {"Z", "Zg=", "Zh==", "Zm9=", "Zg==Zg==", "Z===", "====", "Zm 8", "=Zg="})
    CHECK_FALSE(base64_decode(wrong, back));
}

TEST_CASE("all bytes of any length survive base64 encoding and decoding") {
  std::string bytes, back;
  for (int i = 0; i < 1000; i++) {
    REQUIRE(base64_decode(base64_encode(bytes), back));
    REQUIRE(back == bytes);
    bytes += static_cast<char>(i * 37);
  }
}

TEST_CASE("base64 accepts 64 characters and no other byte, at any position") {
  const std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t at = 0; at < 8; at++) {
    for (int byte = 0; byte < 256; byte++) {
      std::string text = "AAAAAAAA", back = "as it was";
      text[at] = static_cast<char>(byte);
      bool is_padding = at == 7 && byte == '=';
      INFO(at << " " << byte);
      REQUIRE(base64_decode(text, back) ==
              (is_padding || digits.find(text[at]) != std::string_view::npos));
      REQUIRE((back == "as it was") ==
              (!is_padding && digits.find(text[at]) == std::string_view::npos));
    }
  }
}

TEST_CASE("UTF-8 is distinguished from other bytes") {
  for (const char* good : {"", "plain text of many words", "é", "日本語", "😀", "\xf4\x8f\xbf\xbf"})
    CHECK(is_utf8(good));
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xff", "12345678\xc3", "\xf8\x88\x80\x80\x80"})
    CHECK_FALSE(is_utf8(bad));
}

TEST_CASE("invalid bytes become U+FFFD, and text stays") {
  CHECK(to_utf8("aé\xff\xc3") == "aé\xef\xbf\xbd\xef\xbf\xbd");
  CHECK(to_utf8("日本語") == "日本語");
}

TEST_CASE("a file with a name of the maximum length is written and replaced") {
  Folder folder;
  const std::string path = folder.path + "/" + std::string(255, 'n');
  REQUIRE(write_file_atomic(path, "one").ok());
  REQUIRE(replace_file(path, {"two"}, true).ok());
  CHECK(*read_file(path) == "two");
}

TEST_CASE("a secret that arrives in parts is redacted") {
  Secrets secrets({"s3cret", "creature", "aaaa"});
  auto pieces = [&](std::string text) {
    std::string rest = secrets.hide_begun(text);
    return text + "|" + rest;
  };
  CHECK(pieces("a s3cr") == "a |s3cr");
  CHECK(pieces("a s3crea") == "a s3|crea");  // the longest prefix that may continue
  CHECK(pieces("a s3cret.") == "a ***.|");
  CHECK(pieces("s3cret s3cret s") == "*** *** |s");
  CHECK(pieces("a s3cret") == "a ***|");
  CHECK(pieces("s3cre.") == "s3cre.|");
  CHECK(pieces("") == "|");
  CHECK(pieces("aaaaaaa.") == "***.|");
  CHECK(pieces("baaaa") == "b|aaaa");        // the next one may be another `a`
  CHECK(pieces("baaaaaaaa") == "b|aaaaaa");  // bytes that are already covered are not kept

  Secrets none;
  std::string text = "s3c";
  CHECK(none.hide_begun(text).empty());
  CHECK(text == "s3c");
}

TEST_CASE("overlapping secrets are one redaction, in any order of their names") {
  std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"hunter22", "hunter22-suffix-XYZ"}, {"z is hunter22-suffix-XYZ", "z is ***"}},
      {{"bob-1", "left-bob-1-right"}, {"left-bob-1-right", "***"}},
      {{"ABCDEF", "DEFGHI"}, {"ABCDEFGHI DEFGHI ABCDEF", "*** *** ***"}},
      {{"abcd", "efgh"}, {"abcdefgh", "******"}},
      {{"one\r\ntwo four\nsix", "two "}, {"two four\none\nsix", "***\none\nsix"}}};
  for (auto& [values, texts] : cases) {
    CHECK(Secrets(values).hidden(texts[0]) == texts[1]);
    std::reverse(values.begin(), values.end());
    CHECK(Secrets(values).hidden(texts[0]) == texts[1]);
  }
}

TEST_CASE("values under 4 bytes, ids and paths of the state are not redacted") {
  Secrets secrets({"abc", "flow", "cafe", "run-1"}, {"/home/me/.flow", "20260101-run-1"});
  CHECK(secrets.hidden("abc flow") == "abc ***");
  CHECK(secrets.hidden("cd /home/me/.flow/x && flow") == "cd /home/me/.flow/x && ***");
  CHECK(secrets.hidden("/home/me/.flow/objects/ca/fe01cafe cafe") ==
        "/home/me/.flow/objects/ca/fe01cafe ***");
  CHECK(secrets.hidden("run 20260101-run-1, run-1") == "run 20260101-run-1, ***");
  CHECK(secrets.hidden("/home/me/flow") == "/home/me/***");
  std::string text = "in /home/me/.flow";
  CHECK(secrets.hide_begun(text) == "");
  CHECK(text == "in /home/me/.flow");
  text = "in /home/me/.flo";
  CHECK(secrets.hide_begun(text) == "/home/me/.flo");
}

TEST_CASE("text in parts is redacted like the whole text") {
  std::mt19937 random(7);
  auto word = [&](size_t size) {
    std::string text;
    for (size_t i = 0; i < size; i++) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 2000; round++) {
    std::vector<std::string> values;
    for (size_t i = random() % 4; i > 0; i--) values.push_back(word(4 + random() % 5));
    Secrets secrets(values);
    std::string whole = word(random() % 60), out, partial;
    // A byte of the whole is redacted exactly if an occurrence covers it.
    std::string expected;
    std::vector<int> covered(whole.size() + 1, 0);  // by which merged match; 0: not covered
    int match = 0;
    size_t until = 0;
    for (size_t at = 0; at < whole.size(); at++) {
      for (const std::string& value : values) {
        if (whole.compare(at, value.size(), value) != 0) continue;
        if (at >= until) match++;
        until = std::max(until, at + value.size());
      }
      covered[at] = at < until ? match : 0;
    }
    for (size_t at = 0; at < whole.size(); at++) {
      if (covered[at] == 0) expected += whole[at];
      if (covered[at] != 0 && (at == 0 || covered[at] != covered[at - 1])) expected += "***";
    }
    REQUIRE(secrets.hidden(whole) == expected);
    for (size_t at = 0; at < whole.size();) {
      size_t size = 1 + random() % 5;
      partial += whole.substr(at, size);
      at += size;
      std::string rest = secrets.hide_begun(partial);
      REQUIRE(rest.size() < 16);
      out += partial;
      partial = rest;
    }
    REQUIRE(out + secrets.hidden(partial) == expected);
  }
}

TEST_CASE("a secret is redacted in each form in which JSON, a shell or a URL writes it") {
  // Of 23 bytes: pa"ss\w/é😀<TAB>LF'a b+%
  const std::string secret = "pa\"ss\\w/\u00e9\U0001F600\t\n'a b+%";
  Secrets secrets({secret});
  for (const char* form : {
           R"(pa\"ss\\w/é😀\t\n'a b+%)",                   // JSON
           R"(pa\"ss\\w\/\u00e9\ud83d\ude00\t\n'a b+%)",  // in ASCII, with `/` escaped
           R"(pa\u0022ss\u005Cw/\u00E9\uD83D\uDE00\u0009\u000a\u0027a b+%)",
           R"(pa\\\"ss\\\\w/é😀\\t\\n'a b+%)",  // JSON in JSON
           R"(pa\\\"ss\\\\w/\\u00e9\\ud83d\\ude00\\t\\n'a b+%)",
           R"(pa\\\\\\\"ss\\\\\\\\w/é😀\\\\t\\\\n'a b+%)",       // in JSON again
           R"(pa\"ss\\w/\xc3\xa9\xf0\x9f\x98\x80\t\n\'a b+%)",  // bytes as Python shows them
           "pa\"ss\\w/é😀\t\n'\\''a b+%",                        // a word of a shell
           "pa\"ss\\w/é😀\t\n'\"'\"'a b+%",
           R"(pa\"ss\\w/é😀\t\n'\\''a b+%)",  // that word in JSON
           R"(pa\"ss\\w/é😀\t\n'\''a b+%)",   // JSON as a word of a shell
           "pa%22ss%5Cw%2F%C3%A9%F0%9F%98%80%09%0A%27a%20b%2B%25",
           "pa%22ss%5cw/%c3%a9%f0%9f%98%80%09%0a'a+b%2b%25",
       }) {
    std::string text = std::string("{\"a\":\"") + form + "\"}";
    CAPTURE(text);
    CHECK(secrets.hidden(text) == "{\"a\":\"***\"}");
    // At each place a part of the text may end.
    for (size_t at = 0; at <= text.size(); at++) {
      std::string begin = text.substr(0, at);
      std::string rest = secrets.hide_begun(begin);
      REQUIRE(begin + secrets.hidden(rest + text.substr(at)) == "{\"a\":\"***\"}");
    }
  }
  // Text that only looks like an escape stays.
  for (std::string text : {R"(C:\new \u00 \ud83d. \xg 100% %2 it'\''s \)", "pa%22ss a+b '"}) {
    CHECK(secrets.hidden(text) == text);
    std::string begin = text;
    std::string rest = secrets.hide_begun(begin);
    CHECK(begin + rest == text);
  }
}

TEST_CASE("escaped text in parts shows nothing that the whole text hides") {
  std::mt19937 random(11);
  auto words = [&](const std::vector<std::string>& from, size_t count) {
    std::string text;
    for (; count > 0; count--) text += from[random() % from.size()];
    return text;
  };
  for (int round = 0; round < 3000; round++) {
    Secrets secrets({words({"a", "b", "\"", "\\", "'", "\n"}, 4 + random() % 3)});
    std::string whole =
        words({"a", "b", "\\\"", "\\\\", "\\n", "'\\''", "\\u0061", "%22"}, random() % 30);
    std::string out, partial;
    for (size_t at = 0; at < whole.size();) {
      size_t size = 1 + random() % 5;
      partial += whole.substr(at, size);
      at += size;
      std::string rest = secrets.hide_begun(partial);
      out += partial;
      partial = rest;
    }
    out += secrets.hidden(partial);
    std::string hidden = secrets.hidden(whole);
    CAPTURE(whole, out, hidden);
    std::erase(out, '*');
    size_t found = 0;  // bytes of `out`, in their order in `hidden`
    for (char c : hidden)
      if (found < out.size() && c == out[found]) found++;
    REQUIRE(found == out.size());
  }
}

TEST_CASE("the begin of a secret is redacted where a text was cut") {
  Secrets secrets({"right-s3cret", "say \"please\""});
  CHECK(secrets.hidden("`right-s3c…`") == "`***…`");
  CHECK(secrets.hidden("righ… (8 bytes more)") == "***… (8 bytes more)");
  CHECK(secrets.hidden("rig… upright-s3cret…") == "rig… up***…");
  CHECK(secrets.hidden("{\"a\":\"say \\\"ple…\"}") == "{\"a\":\"***…\"}");
  CHECK(secrets.hidden("copyright. …") == "copyright. …");
  Secrets periodic({"aaab…aaab", std::string(4096, 'a')});
  CHECK(periodic.hidden("aaaaaab…aaa…") == "aaa***…");
  CHECK(periodic.hidden("aab…aaab…aaa…aaaa…") == "aab…***…***…");
}

TEST_CASE("a long text is cut between two characters, with a note") {
  CHECK(cut_text("short", 5) == "short");
  CHECK(cut_text("longer", 4) == "long… (2 bytes more)");
  CHECK(cut_text("aé", 2) == "a… (2 bytes more)");
  CHECK(cut_text("日本語", 5) == "日… (6 bytes more)");
}
