#include "engine/report/report_document.hpp"

#include <zlib.h>

#include <catch2/catch.hpp>

#include "engine/crypto/base64.hpp"
#include "flow/digest.hpp"

using namespace flow;

namespace {

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  size_t at = text.find(begin);
  REQUIRE(at != std::string::npos);
  at += begin.size();
  return text.substr(at, text.find(end, at) - at);
}

std::string unpacked(const std::string& packed, size_t size) {
  std::string bytes, out(size, '\0');
  REQUIRE(base64_decode(packed, bytes));
  uLongf length = size;
  REQUIRE(uncompress(reinterpret_cast<Bytef*>(out.data()), &length,
                     reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) == Z_OK);
  out.resize(length);
  return out;
}

}  // namespace

TEST_CASE("the policy permits the document's own script and style, and nothing else") {
  std::string html = report_document("{}", 5);
  std::string script = between(html, "<script type=\"module\">", "</script>");
  std::string style = between(html, "<style>", "</style>");
  CHECK(between(html, "Content-Security-Policy\" content=\"", "\"") ==
        "default-src 'none'; script-src 'sha256-" + base64_encode(sha256(script).view()) +
            "'; style-src 'sha256-" + base64_encode(sha256(style).view()) +
            "'; img-src data:; base-uri 'none'; form-action 'none'");
  CHECK(script.find("return 5;") != std::string::npos);
  CHECK(script.find("import ") == std::string::npos);
}

TEST_CASE("data is never part of the markup") {
  std::string data = R"("</script><script>hit()</script><!-- {{data}} )"
                     "\xe2\x80\xa8\"";
  std::string html = report_document(data, 5);
  CHECK(html.find("hit()") == std::string::npos);
  CHECK(unpacked(between(html, "id=\"data\">", "</script>"), data.size()) == data);
  CHECK(html.substr(0, html.find("id=\"data\"")) ==
        report_document("1", 5).substr(0, html.find("id=\"data\"")));
}
