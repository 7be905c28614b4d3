#include "engine/base/secrets.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace flow {

namespace {

constexpr size_t kLineMin = 4;  // bytes: a shorter line of a secret may be anything

}  // namespace

Secrets::Secrets(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (!text.empty()) texts_.push_back(text);
    if (text.find('\n') == std::string::npos) continue;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.size() >= kLineMin) texts_.push_back(line);
    }
  }
}

std::string Secrets::hidden(std::string text) const {
  constexpr std::string_view kShown = "***";
  for (const std::string& secret : texts_) {
    for (size_t at = text.find(secret); at != std::string::npos;
         at = text.find(secret, at + kShown.size()))
      text.replace(at, secret.size(), kShown);
  }
  return text;
}

std::string Secrets::hide_begun(std::string& text) const {
  text = hidden(std::move(text));
  size_t begun = 0;
  for (const std::string& secret : texts_) {
    std::string_view whole = secret;
    size_t size = std::min(whole.size() - 1, text.size());
    while (size > begun && !text.ends_with(whole.substr(0, size))) size--;
    begun = std::max(begun, size);
  }
  std::string rest = text.substr(text.size() - begun);
  text.resize(text.size() - begun);
  return rest;
}

}  // namespace flow
