#include "engine/crypto/redaction.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace flow {

namespace {

constexpr std::string_view kShown = "***";
constexpr std::string_view kObjects = "/objects/";
constexpr std::string_view kCut = "…";

/// Reads a text byte by byte and knows the longest prefix of `value`, shorter than `value`, with
/// which the bytes read so far end. The method is that of Knuth, Morris and Pratt: the time is
/// linear in the text, whatever it repeats.
class PrefixMatcher {
 public:
  explicit PrefixMatcher(std::string_view value) : value_(value), border_(value.size(), 0) {
    for (size_t i = 1; i < value.size(); i++) border_[i] = longer(border_[i - 1], value[i]);
  }
  void add(char byte) {
    size_ = longer(size_, byte);
    if (size_ == value_.size()) size_ = border_[size_ - 1];
  }
  size_t size() const { return size_; }

 private:
  size_t longer(size_t size, char byte) const {
    while (size > 0 && value_[size] != byte) size = border_[size - 1];
    return value_[size] == byte ? size + 1 : size;
  }

  std::string_view value_;      // not empty
  std::vector<size_t> border_;  // at i: of the first i + 1 bytes, the longest prefix that ends them
  size_t size_ = 0;
};

/// `text` up to `end`, redacted. A match that extends beyond `end` prints nothing here: the text
/// after `end` begins with a match, whose redaction stands for both.
template <typename Spans>
std::string redacted(std::string_view text, const Spans& matches, size_t end) {
  std::string shown;
  size_t at = 0;
  for (auto match = matches.begin(); match != matches.end() && match->begin < end;) {
    size_t begin = match->begin, match_end = match->end;
    for (++match; match != matches.end() && match->begin < match_end; ++match)
      match_end = std::max(match_end, match->end);
    shown.append(text.substr(at, begin - at));
    if (match_end <= end) shown.append(kShown);
    at = std::min(match_end, end);
  }
  return shown.append(text.substr(at, end - at));
}

}  // namespace

Secrets::Secrets(const std::vector<std::string>& values, std::vector<std::string> exempt) {
  auto add = [this](std::string value) {
    if (value.size() >= kSecretMin) values_.push_back(std::move(value));
  };
  for (const std::string& value : values) {
    add(value);
    if (value.find('\n') == std::string::npos) continue;
    std::istringstream lines(value);
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      add(std::move(line));
    }
  }
  if (values_.empty()) return;
  std::copy_if(values_.begin(), values_.end(), std::back_inserter(escaped_), may_be_escaped);
  for (std::string& text : exempt)
    if (!text.empty()) exempt_.push_back(std::move(text));
}

void Secrets::each_text(std::string_view text,
                        const std::function<void(const DecodedText&)>& visit) const {
  if (escaped_.empty()) return visit({std::string(text), {}});
  each_decoded_text(text, visit);
}

const std::vector<std::string>& Secrets::values_in(const DecodedText& text) const {
  return text.is_original() ? values_ : escaped_;
}

void Secrets::add_matches(const DecodedText& in, std::vector<Span>& found) const {
  const std::string& text = in.text;
  for (const std::string& value : values_in(in))
    for (size_t at = text.find(value); at != std::string::npos; at = text.find(value, at + 1))
      found.push_back({in.begin_of(at), in.end_of(at + value.size())});
}

void Secrets::add_cut_values(const DecodedText& in, std::vector<Span>& found) const {
  const std::string& text = in.text;
  size_t last_cut = text.rfind(kCut);
  if (last_cut == std::string::npos) return;
  for (const std::string& value : values_in(in)) {
    PrefixMatcher prefix(value);
    for (size_t at = 0; at <= last_cut; at++) {
      if (prefix.size() >= kSecretMin && text.compare(at, kCut.size(), kCut) == 0)
        found.push_back({in.begin_of(at - prefix.size()), in.end_of(at)});
      prefix.add(text[at]);
    }
  }
}

void Secrets::add_exempt(const DecodedText& in, std::vector<Span>& found) const {
  std::string_view text = in.text;
  for (const std::string& each : exempt_) {
    for (size_t at = text.find(each); at != text.npos; at = text.find(each, at + 1)) {
      size_t end = at + each.size();
      if (text.substr(end).starts_with(kObjects))  // path of a blob in the state
        end = std::min(text.find_first_not_of("0123456789abcdef/", end + kObjects.size()),
                       text.size());
      found.push_back({in.begin_of(at), in.end_of(end)});
    }
  }
}

std::vector<Secrets::Span> Secrets::matches(std::string_view text, bool with_cut) const {
  std::vector<Span> found, exempt;
  each_text(text, [&](const DecodedText& decoded) {
    add_matches(decoded, found);
    if (with_cut) add_cut_values(decoded, found);
  });
  if (found.empty()) return found;
  each_text(text, [&](const DecodedText& decoded) { add_exempt(decoded, exempt); });
  std::erase_if(found, [&](const Span& match) {
    return std::any_of(exempt.begin(), exempt.end(),
                       [&](const Span& each) { return each.holds(match); });
  });
  std::sort(found.begin(), found.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return found;
}

size_t Secrets::open_end_in(const DecodedText& in) const {
  std::string_view text = in.text;
  size_t open = 0;
  auto look_at = [&](std::string_view whole) {
    size_t size = std::min(whole.size() - 1, text.size());
    while (size > open && !text.ends_with(whole.substr(0, size))) size--;
    open = std::max(open, size);
  };
  for (const std::string& value : values_in(in)) look_at(value);
  for (const std::string& each : exempt_) look_at(each);
  return in.begin_of(text.size() - open);
}

size_t Secrets::open_end(std::string_view text) const {
  size_t open = text.size();
  each_text(text, [&](const DecodedText& decoded) { open = std::min(open, open_end_in(decoded)); });
  // The text must not be parted within an escape: what follows would be read differently.
  for (size_t before = text.size(); open < before && !escaped_.empty();) {
    before = open;
    each_text(text, [&](const DecodedText& decoded) { open = decoded.escape_begin(open); });
  }
  return open;
}

std::string Secrets::hidden(std::string text) const {
  if (values_.empty()) return text;
  std::vector<Span> found = matches(text, true);
  if (found.empty()) return text;
  return redacted(text, found, text.size());
}

std::string Secrets::hide_begun(std::string& text) const {
  if (values_.empty()) return "";
  std::vector<Span> found = matches(text, false);
  // A match that reaches the end of the text is kept whole: later text may extend it.
  size_t open = open_end(text), end = open;
  for (const Span& match : found)
    if (match.end > open) end = std::min(end, match.begin);
  std::string rest = text.substr(end);
  text = redacted(text, found, end);
  return rest;
}

}  // namespace flow
