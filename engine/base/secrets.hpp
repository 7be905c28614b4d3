// What a task was given to keep to itself: shown as *** in whatever is kept of its words.
#pragma once
#include <string>
#include <vector>

namespace flow {

class Secrets {
 public:
  Secrets() = default;
  /// Output is read in lines: a secret of several is shown in none of them.
  explicit Secrets(const std::vector<std::string>& texts);
  bool empty() const { return texts_.empty(); }
  std::string hidden(std::string text) const;
  /// Hides what is in `text`, whose end is yet to come, and moves off what a secret may begin with:
  /// returned, it comes before what is added.
  std::string hide_begun(std::string& text) const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace flow
