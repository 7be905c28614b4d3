#include "engine/base/secrets.hpp"

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

}  // namespace flow
