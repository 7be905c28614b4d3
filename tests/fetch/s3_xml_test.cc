#include "engine/fetch/s3_xml.hpp"

#include <catch2/catch.hpp>

using namespace flow;
using namespace flow::fetch;

TEST_CASE("a page of objects has their decoded keys and the token of the next page") {
  auto page = parse_listing(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult "
      "xmlns='http://s3'><EncodingType>url</EncodingType>"
      "<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b&#x41;</NextContinuationToken>"
      "<Contents><Key>a+b%2Bc/%C3%A9</Key><ETag>&quot;1&quot;</ETag><Size>7</Size></Contents>"
      "<!-- none "
      "--><Contents><Key><![CDATA[x<y]]></Key><Size>0</Size><Owner/></Contents></"
      "ListBucketResult>\n");
  REQUIRE(page.ok());
  CHECK(page->objects == std::vector<S3Object>{{"a b+c/é", "\"1\"", 7}, {"x<y", "", 0}});
  CHECK(page->next == "a&bA");
}

TEST_CASE("an answer that is not a complete list is an error") {
  for (const char* text :
       {"", "text", "<a>", "<a></b>", "<a/><a/>", "<a>&unknown;</a>", "<a>&#0;</a>", "<a x=1/>",
        "<a x='1/>", "<!DOCTYPE a [<!ENTITY x 'y'>]><a/>", "<?other ?><a/>",
        "<Error><Code>NoSuchBucket</Code></Error>",
        "<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"})
    CHECK_FALSE(parse_listing(text).ok());
  std::string deep;
  for (int i = 0; i < 100; i++) deep += "<a>";
  CHECK_FALSE(parse_xml(deep).ok());
}

TEST_CASE("an error of S3 has its code") {
  CHECK(parse_s3_failure("<Error><Code>NoSuchKey</Code><Message>m</Message></Error>").code ==
        "NoSuchKey");
  CHECK(parse_s3_failure("<html></html>").code.empty());
}
