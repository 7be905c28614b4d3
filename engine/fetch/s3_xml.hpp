// Answers of S3: a small part of XML, without document types, so that no entity expands.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow::fetch {

constexpr size_t kXmlMax = 16 << 20;  // bytes of one answer
constexpr size_t kXmlDepthMax = 16;

struct XmlElement {
  std::string name, text;  // without a namespace's prefix; the text directly below it
  std::vector<XmlElement> children;

  const XmlElement* find(std::string_view child) const;
  std::string text_of(std::string_view child) const;  // "" if there is none
};
Result<XmlElement> parse_xml(std::string_view text);

struct S3Object {
  std::string key, etag;
  uint64_t size = 0;
  bool operator==(const S3Object&) const = default;
};
/// One page of ListObjectsV2.
struct S3Listing {
  std::vector<S3Object> objects;
  std::string next;  // continuation token; "" for the last page
};
/// Keys are decoded if the answer says that they are encoded.
Result<S3Listing> parse_listing(std::string_view text);

struct S3Failure {
  std::string code, message;  // "" if the text is not an error of S3
};
S3Failure parse_s3_failure(std::string_view text);

struct S3Part {
  uint32_t number = 0;
  std::string etag;
  uint64_t size = 0;
};
struct S3PartListing {
  std::vector<S3Part> parts;
  uint32_t next = 0;  // marker of the next page; 0 for the last page
};
Result<S3PartListing> parse_parts(std::string_view text);

}  // namespace flow::fetch
