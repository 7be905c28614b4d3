#include "engine/cluster/session/secret.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "engine/base/file_descriptor.hpp"
#include "engine/base/files.hpp"

namespace flow::cluster {

namespace {

constexpr size_t kTextBytes = 2 * kKeyBytes + 1;
constexpr std::string_view kForm = "64 hexadecimal digits, as `openssl rand -hex 32` prints";

Error cannot(const char* what, const std::string& path, int error) {
  return environment_error(std::string("cannot ") + what + " the cluster's secret `" + path +
                           "`: " + std::strerror(error));
}

// Holds a secret as text.
struct Text {
  char bytes[kTextBytes + 2];  // with a line's end of two bytes, and one more for a longer file
  size_t size = 0;
  ~Text() { wipe(bytes, sizeof bytes); }
};

Status check_file(int descriptor, const std::string& path) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return cannot("look at", path, errno);
  if (!S_ISREG(info.st_mode))
    return environment_error("the cluster's secret `" + path + "` is not a file");
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    return environment_error("the cluster's secret `" + path +
                             "` belongs to another user, who can read it: make your own");
  // A Kubernetes volume makes files readable by the pod's group in this way.
  bool is_group_volume = (info.st_mode & 0777) == 0440;
  if ((info.st_mode & 077) != 0 && !is_group_volume)
    return environment_error("the cluster's secret `" + path +
                             "` may be read or written by others: `chmod 600 " + quote_shell(path) +
                             "`, and make a new one if another user may have read it");
  return {};
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::optional<Secret> parse(const Text& text) {
  std::string_view line(text.bytes, text.size);
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.size() != 2 * kKeyBytes) return std::nullopt;
  Secret secret;
  for (size_t i = 0; i < kKeyBytes; i++) {
    int high = digit_of(text.bytes[2 * i]), low = digit_of(text.bytes[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    secret.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return secret;
}

Error wrong_form(const std::string& path, const Text& text) {
  std::string seen = std::to_string(text.size) + " bytes";
  if (text.size > kTextBytes) seen = "more than " + std::to_string(kTextBytes) + " bytes";
  if (text.size == kTextBytes || text.size == kTextBytes - 1) seen = "other characters";
  if (text.size == kKeyBytes) seen = "32 raw bytes";
  if (text.size == 0) seen = "nothing";
  return environment_error("`" + path + "` is not a secret of a cluster: it has " + seen +
                           ", not " + std::string(kForm));
}

// Creates the file atomically, also when several processes do so at the same time.
Status make_secret(const std::string& path) {
  Text text;
  Key secret = random_key();
  for (uint8_t byte : secret.bytes) {
    text.bytes[text.size++] = "0123456789abcdef"[byte >> 4];
    text.bytes[text.size++] = "0123456789abcdef"[byte & 15];
  }
  text.bytes[text.size++] = '\n';
  std::string name = path + ".XXXXXX";
  FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));  // mode 0600
  if (file.number < 0) return cannot("make", path, errno);
  bool made = write_all(file.number, {text.bytes, text.size}) && ::fsync(file.number) == 0 &&
              (::link(name.c_str(), path.c_str()) == 0 || errno == EEXIST);
  int error = errno;
  ::unlink(name.c_str());
  if (!made) return cannot("make", path, error);
  size_t slash = path.rfind('/');
  return sync_dir(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace

Result<Secret> read_secret(const std::string& path) {
  // O_NONBLOCK, because opening a pipe without a writer would block.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number < 0) {
    int number = errno;
    Error error = cannot("read", path, number);
    if (number == ENOENT) error.message += ". The head makes one; copy that file to each worker";
    return error;
  }
  FLOW_TRY(check_file(file.number, path));
  Text text;
  while (text.size < sizeof text.bytes) {
    ssize_t count = ::read(file.number, text.bytes + text.size, sizeof text.bytes - text.size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return cannot("read", path, errno);
    if (count == 0) break;
    text.size += static_cast<size_t>(count);
  }
  if (auto secret = parse(text)) return *secret;
  return wrong_form(path, text);
}

Result<Secret> read_or_make_secret(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) FLOW_TRY(make_secret(path));
  return read_secret(path);
}

}  // namespace flow::cluster
