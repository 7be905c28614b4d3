#include "engine/base/user_name.hpp"

#include <pwd.h>
#include <unistd.h>

#include <vector>

namespace flow {

namespace {

std::string find_name() {
  constexpr size_t kEntryBytes = 16 << 10;  // more than any entry needs
  std::vector<char> buffer(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  bool is_known =
      ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found;
  std::string name = is_known ? found->pw_name : "";
  if (name.empty()) name = std::to_string(::geteuid());
  return name.substr(0, kUserNameMax);
}

}  // namespace

const std::string& own_user_name() {
  static const std::string name = find_name();
  return name;
}

}  // namespace flow
