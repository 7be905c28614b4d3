#include "engine/fetch/s3_xml.hpp"

#include <fmt/format.h>

#include <charconv>

#include "engine/base/remote_url.hpp"

namespace flow::fetch {

namespace {

constexpr std::string_view kSpace = " \t\r\n";

Error invalid(std::string_view why) {
  return user_error(fmt::format("the answer is not XML that flow reads: {}", why));
}

bool is_name_byte(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == ':';
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

/// Appends the character that `&name;` stands for; false if it is not one of XML's own.
bool append_entity(std::string& out, std::string_view name) {
  if (name.starts_with('#')) {
    name.remove_prefix(1);
    int base = 10;
    if (name.starts_with('x')) {
      name.remove_prefix(1);
      base = 16;
    }
    uint32_t code = 0;
    auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), code, base);
    bool is_character = failed == std::errc() && end == name.data() + name.size() && code != 0 &&
                        code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    if (is_character) append_utf8(out, code);
    return is_character;
  }
  constexpr std::pair<std::string_view, char> kEntities[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  for (const auto& [entity, character] : kEntities) {
    if (name != entity) continue;
    out += character;
    return true;
  }
  return false;
}

class XmlParser {
 public:
  explicit XmlParser(std::string_view text) : text_(text) {}

  Result<XmlElement> parse() {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
    while (true) {
      FLOW_TRY(open_.empty() ? skip_space() : take_text());
      if (text_.empty()) break;
      FLOW_TRY(take_markup());
    }
    if (!open_.empty()) return invalid(fmt::format("`{}` has no end", open_.back().name));
    if (!has_root_) return invalid("it has no element");
    return std::move(root_);
  }

 private:
  Status skip_space() {
    text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size()));
    if (text_.empty() || text_.starts_with('<')) return {};
    return invalid("it has text outside of its root");
  }

  Status take_text() {
    size_t end = std::min(text_.find('<'), text_.size());
    std::string_view piece = text_.substr(0, end);
    text_.remove_prefix(end);
    std::string& out = open_.back().text;
    for (size_t i = 0; i < piece.size(); i++) {
      if (piece[i] != '&') {
        out += piece[i];
        continue;
      }
      constexpr size_t kEntityMax = 12;
      size_t semicolon = piece.substr(i, kEntityMax).find(';');
      if (semicolon == std::string_view::npos ||
          !append_entity(out, piece.substr(i + 1, semicolon - 1)))
        return invalid("it has an entity that XML does not define");
      i += semicolon;
    }
    return {};
  }

  /// Takes the text up to `end`, which is taken too.
  Result<std::string_view> take_until(std::string_view end) {
    size_t at = text_.find(end);
    if (at == std::string_view::npos) return invalid(fmt::format("`{}` is missing", end));
    std::string_view taken = text_.substr(0, at);
    text_.remove_prefix(at + end.size());
    return taken;
  }

  bool take(std::string_view begin) {
    if (!text_.starts_with(begin)) return false;
    text_.remove_prefix(begin.size());
    return true;
  }

  Status take_markup() {
    if (take("<!--")) return status_of(take_until("-->"));
    if (take("<?xml")) return status_of(take_until("?>"));
    if (take("<![CDATA[")) {
      auto data = take_until("]]>");
      FLOW_TRY(data);
      if (open_.empty()) return invalid("it has text outside of its root");
      open_.back().text += *data;
      return {};
    }
    if (text_.starts_with("<!") || text_.starts_with("<?"))
      return invalid("it has a document type or an instruction");
    if (take("</")) return take_end();
    text_.remove_prefix(1);
    return take_begin();
  }

  static Status status_of(const Result<std::string_view>& taken) {
    return taken.ok() ? Status() : Status(taken.error());
  }

  std::string take_name() {
    size_t size = 0;
    while (size < text_.size() && is_name_byte(text_[size])) size++;
    std::string_view name = text_.substr(0, size);
    text_.remove_prefix(size);
    return std::string(name.substr(name.find(':') + 1));
  }

  Status take_begin() {
    if (has_root_) return invalid("it has more than one root");
    if (open_.size() == kXmlDepthMax)
      return invalid(fmt::format("it is deeper than {} elements", kXmlDepthMax));
    XmlElement element;
    element.name = take_name();
    if (element.name.empty()) return invalid("an element has no name");
    FLOW_TRY(skip_attributes());
    bool is_empty = take("/");
    if (!take(">")) return invalid(fmt::format("the begin of `{}` has no `>`", element.name));
    open_.push_back(std::move(element));
    if (is_empty) close();
    return {};
  }

  Status skip_attributes() {
    while (true) {
      text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size()));
      if (text_.empty() || text_.front() == '>' || text_.front() == '/') return {};
      if (take_name().empty()) return invalid("an attribute has no name");
      text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size()));
      if (!take("=")) return invalid("an attribute has no value");
      text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size()));
      std::string_view quote = take("\"") ? "\"" : take("'") ? "'" : "";
      if (quote.empty()) return invalid("an attribute's value has no quotes");
      FLOW_TRY(take_until(quote));
    }
  }

  Status take_end() {
    std::string name = take_name();
    text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size()));
    if (!take(">") || open_.empty() || open_.back().name != name)
      return invalid(fmt::format("`</{}>` ends no element", name));
    close();
    return {};
  }

  void close() {
    XmlElement done = std::move(open_.back());
    open_.pop_back();
    if (!open_.empty()) {
      open_.back().children.push_back(std::move(done));
    } else {
      root_ = std::move(done);
      has_root_ = true;
    }
  }

  std::string_view text_;
  std::vector<XmlElement> open_;  // at most kXmlDepthMax
  XmlElement root_;
  bool has_root_ = false;
};

bool parse_number(std::string_view text, uint64_t& out) {
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  return failed == std::errc() && end == text.data() + text.size();
}

}  // namespace

const XmlElement* XmlElement::find(std::string_view child) const {
  for (const XmlElement& each : children) {
    if (each.name == child) return &each;
  }
  return nullptr;
}

std::string XmlElement::text_of(std::string_view child) const {
  const XmlElement* found = find(child);
  return found == nullptr ? "" : found->text;
}

Result<XmlElement> parse_xml(std::string_view text) {
  if (text.size() > kXmlMax) return invalid(fmt::format("it has more than {} bytes", kXmlMax));
  return XmlParser(text).parse();
}

Result<S3Listing> parse_listing(std::string_view text) {
  auto root = parse_xml(text);
  FLOW_TRY(root);
  if (root->name != "ListBucketResult") return invalid("it is not a list of objects");
  bool is_encoded = root->text_of("EncodingType") == "url";
  S3Listing listing;
  for (const XmlElement& each : root->children) {
    if (each.name != "Contents") continue;
    S3Object object{each.text_of("Key"), each.text_of("ETag"), 0};
    if (is_encoded) {
      for (char& c : object.key) {
        if (c == '+') c = ' ';
      }
      object.key = percent_decode(object.key);
    }
    if (object.key.empty()) return invalid("an object has no key");
    if (!parse_number(each.text_of("Size"), object.size)) return invalid("an object has no size");
    listing.objects.push_back(std::move(object));
  }
  if (root->text_of("IsTruncated") == "true") {
    listing.next = root->text_of("NextContinuationToken");
    if (listing.next.empty()) return invalid("it is cut and has no continuation token");
  }
  return listing;
}

S3Failure parse_s3_failure(std::string_view text) {
  auto root = parse_xml(text);
  if (!root.ok() || root->name != "Error") return {};
  return {root->text_of("Code"), root->text_of("Message")};
}

Result<S3PartListing> parse_parts(std::string_view text) {
  auto root = parse_xml(text);
  FLOW_TRY(root);
  // Servers differ in the end of the name.
  if (!root->name.starts_with("ListParts")) return invalid("it is not a list of parts");
  constexpr uint64_t kPartsMax = 10'000;
  S3PartListing listing;
  for (const XmlElement& each : root->children) {
    if (each.name != "Part") continue;
    S3Part part{0, each.text_of("ETag"), 0};
    uint64_t number = 0;
    bool is_part = parse_number(each.text_of("PartNumber"), number) && number >= 1 &&
                   number <= kPartsMax && parse_number(each.text_of("Size"), part.size);
    if (!is_part) return invalid("a part has no number or no size");
    part.number = static_cast<uint32_t>(number);
    listing.parts.push_back(std::move(part));
  }
  uint64_t next = 0;
  if (root->text_of("IsTruncated") == "true") {
    if (!parse_number(root->text_of("NextPartNumberMarker"), next) || next == 0 || next > kPartsMax)
      return invalid("it is cut and has no marker");
  }
  listing.next = static_cast<uint32_t>(next);
  return listing;
}

}  // namespace flow::fetch
