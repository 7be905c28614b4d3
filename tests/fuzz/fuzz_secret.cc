// The file of a cluster's secret: one of the right form gives the key of its digits, and any other
// is rejected with its path.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/cluster/session/secret.hpp"

namespace {

const std::string& file() {
  static const struct File {
    std::string path = "/dev/shm/flow-fuzz-secret-" + flow::random_name();
    ~File() { std::filesystem::remove(path); }
  } own;
  return own.path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  int descriptor = ::open(file().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  FLOW_CHECK(descriptor >= 0 && flow::write_all(descriptor, text));
  ::close(descriptor);
  auto secret = flow::cluster::read_secret(file());
  // The newline is optional, and may have a carriage return.
  std::string_view end = text.substr(std::min<size_t>(text.size(), 64));
  bool has_end = text.size() == 64 || end == "\n" || end == "\r" || end == "\r\n";
  size_t other = text.find_first_not_of("0123456789abcdefABCDEF");
  bool has_form = has_end && other == (text.size() == 64 ? std::string_view::npos : 64);
  FLOW_CHECK(secret.ok() == has_form);
  if (!secret.ok()) {
    FLOW_CHECK(secret.error().message.find(file()) != std::string::npos);
    return 0;
  }
  for (size_t i = 0; i < flow::kKeyBytes; i++)
    FLOW_CHECK(std::stoi(std::string(text.substr(2 * i, 2)), nullptr, 16) == secret->bytes[i]);
  return 0;
}
