#include "engine/base/remote_url.hpp"

#include <catch2/catch.hpp>

using namespace flow;
using namespace flow;

TEST_CASE("a URL has its parts, and unfit characters are encoded") {
  auto url = parse_url("HTTPS://me:pw@Example.org:443/a b/%20é?x={1}#part");
  REQUIRE(url.ok());
  CHECK(*url == Url{"https", "me:pw", "example.org", 0, "/a%20b/%20%C3%A9", "x=%7B1%7D"});
  CHECK(request_text(*url) == "https://example.org/a%20b/%20%C3%A9?x=%7B1%7D");
  CHECK(request_text(*parse_url("http://[::1]:8080")) == "http://[::1]:8080/");
  CHECK(host_header(*parse_url("http://h:81/")) == "h:81");
}

TEST_CASE("an invalid URL is an error without its secrets") {
  for (const char* text :
       {"http://", "http:///x", "http://me:secret@h:0/?token=secret", "http://h:99999/?secret",
        "http://secret@a b/", "http://[::1", "http://[zz]/", "ftp://h/x", "http://h/\nsecret@"}) {
    auto url = parse_url(text);
    REQUIRE_FALSE(url.ok());
    INFO(url.error().message);
    CHECK(url.error().message.find("token") == std::string::npos);
    CHECK(url.error().message.find("me:secret") == std::string::npos);
  }
  CHECK(parse_url("http://h:0/").error().message ==
        "the URL `http://h:0/` is not valid: its port is not a number from 1 to 65535");
}

TEST_CASE("a URL is shown without user information and query") {
  CHECK(display_url("https://me:pw@host/path?X-Amz-Signature=1#f") == "https://host/path?…");
  CHECK(display_url("https://host/p@q") == "https://host/p@q");
  CHECK(display_url("s3://bucket/what?.csv") == "s3://bucket/what?.csv");
  CHECK(url_secrets("https://host/path").empty());
  CHECK(url_secrets("https://host/path?a") != url_secrets("https://host/path?b"));
  CHECK(url_secrets("https://u@host/path") != url_secrets("https://v@host/path"));
}

TEST_CASE("a redirect is absolute or relative") {
  Url from = *parse_url("https://u:p@h:8443/a/b?q=1");
  auto target = [&](const char* location) { return request_text(*resolve_url(from, location)); };
  CHECK(target("http://other/x") == "http://other/x");
  CHECK(target("//other/x") == "https://other/x");
  CHECK(target("/x?y") == "https://h:8443/x?y");
  CHECK(target("c") == "https://h:8443/a/c");
  CHECK(target("../c/./d") == "https://h:8443/c/d");
  CHECK(target("../../../c/") == "https://h:8443/c/");
  CHECK(target("?z") == "https://h:8443/a/b?z");
  CHECK(target("/x?to=http://y") == "https://h:8443/x?to=http://y");
  CHECK_FALSE(resolve_url(from, "ftp://h/x").ok());
}

TEST_CASE("the name of a file is the last part of its URL") {
  CHECK(file_name_of("https://h/a/reads%20R1.fastq.gz?x=1/2") == "reads R1.fastq.gz");
  CHECK(file_name_of("https://h/a%2Fb") == "a_b");
  CHECK(file_name_of("https://h") == "download");
  CHECK(file_name_of("https://h/a/..") == "download");
  CHECK(file_name_of("s3://bucket/a/b%20c") == "b%20c");
}

TEST_CASE("an s3 URL is a bucket and a literal key") {
  CHECK(*parse_s3_url("s3://bucket/a b/c+d~%20?.csv") == S3Location{"bucket", "a b/c+d~%20?.csv"});
  CHECK(*parse_s3_url("S3://bucket") == S3Location{"bucket", ""});
  CHECK_FALSE(parse_s3_url("s3://b/x").ok());
  CHECK_FALSE(parse_s3_url("s3://buc ket/x").ok());
  CHECK_FALSE(parse_s3_url("s3://../x").ok());
  CHECK_FALSE(parse_s3_url("s3://bucket/" + std::string(1025, 'x')).ok());
}
