#include "engine/crypto/redaction.hpp"

#include <algorithm>
#include <sstream>

namespace flow {

namespace {

constexpr std::string_view kShown = "***";
constexpr std::string_view kObjects = "/objects/";

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
  for (std::string& text : exempt)
    if (!text.empty()) exempt_.push_back(std::move(text));
}

std::vector<Secrets::Span> Secrets::exempt_spans(std::string_view text) const {
  std::vector<Span> spans;
  for (const std::string& each : exempt_) {
    for (size_t at = text.find(each); at != std::string::npos; at = text.find(each, at + 1)) {
      size_t end = at + each.size();
      if (text.substr(end).starts_with(kObjects))  // path of a blob in the state
        end = std::min(text.find_first_not_of("0123456789abcdef/", end + kObjects.size()),
                       text.size());
      spans.push_back({at, end});
    }
  }
  return spans;
}

std::vector<Secrets::Span> Secrets::matches(std::string_view text) const {
  std::vector<Span> found;
  for (const std::string& value : values_)
    for (size_t at = text.find(value); at != std::string::npos; at = text.find(value, at + 1))
      found.push_back({at, at + value.size()});
  if (found.empty()) return found;
  std::vector<Span> exempt = exempt_spans(text);
  std::erase_if(found, [&](const Span& match) {
    return std::any_of(exempt.begin(), exempt.end(),
                       [&](const Span& each) { return each.holds(match); });
  });
  std::sort(found.begin(), found.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return found;
}

size_t Secrets::open_end(std::string_view text) const {
  size_t open = 0;
  auto look_at = [&](std::string_view whole) {
    size_t size = std::min(whole.size() - 1, text.size());
    while (size > open && !text.ends_with(whole.substr(0, size))) size--;
    open = std::max(open, size);
  };
  for (const std::string& value : values_) look_at(value);
  for (const std::string& each : exempt_) look_at(each);
  return text.size() - open;
}

std::string Secrets::hidden(std::string text) const {
  if (values_.empty()) return text;
  std::vector<Span> found = matches(text);
  if (found.empty()) return text;
  return redacted(text, found, text.size());
}

std::string Secrets::hide_begun(std::string& text) const {
  if (values_.empty()) return "";
  std::vector<Span> found = matches(text);
  // A match that reaches the end of the text is kept whole: later text may extend it.
  size_t open = open_end(text), end = open;
  for (const Span& match : found)
    if (match.end > open) end = std::min(end, match.begin);
  std::string rest = text.substr(end);
  text = redacted(text, found, end);
  return rest;
}

}  // namespace flow
