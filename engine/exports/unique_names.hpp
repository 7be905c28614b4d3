// Names that are unique, each as it is wanted or with a number.
#pragma once
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace flow {

class UniqueNames {
 public:
  /// `wanted`, or the first free one of numbered(2), numbered(3), …, which depends on `wanted` and
  /// the number only. Numbers that were tried for a name are not tried again.
  template <typename Numbered>
  std::string add(const std::string& wanted, Numbered&& numbered) {
    if (taken_.insert(wanted).second) return wanted;
    int& next = next_.try_emplace(wanted, 2).first->second;
    while (true) {
      std::string name = numbered(next++);
      if (taken_.insert(name).second) return name;
    }
  }

 private:
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> next_;  // by the wanted name
};

}  // namespace flow
