#include "engine/submission/service_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/crypto/redaction.hpp"
#include "engine/plan/service_keys.hpp"
#include "engine/serve/http/tls.hpp"

namespace flow {

namespace {

/// Why the file can't be read, or "".
std::string file_problem(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::strerror(errno);
  if (!S_ISREG(info.st_mode)) return "it is not a file";
  return ::access(path.c_str(), R_OK) == 0 ? "" : std::strerror(errno);
}

/// As the front will load them.
void check_tls(const TlsPaths& paths, const std::string& where, std::vector<Error>& errors,
               std::vector<std::string>& warnings) {
  auto loaded = TlsContext::open({paths.certificate, paths.key, paths.clients});
  if (!loaded.ok()) {
    errors.push_back(user_error(fmt::format("{} has `tls`: {}", where, loaded.error().message)));
    return;
  }
  for (const std::string& warning : (*loaded)->warnings())
    warnings.push_back(fmt::format("{} has `tls`: {}", where, warning));
}

}  // namespace

void check_service_files(const ServiceSpec& service, const std::string& where,
                         const EnvironmentVariables& environment, std::vector<Error>& errors,
                         std::vector<std::string>& warnings) {
  auto is_readable = [&](const char* option, const std::string& path) {
    std::string problem = path.empty() ? "" : file_problem(path);
    if (!problem.empty())
      errors.push_back(user_error(fmt::format(
          "{} needs the file `{}` (`{}`) on the machine of the engine, and it cannot be read: {}",
          where, path, option, problem)));
    return problem.empty();
  };
  bool has_certificate = is_readable("tls.cert", service.tls.certificate);
  bool has_key = is_readable("tls.key", service.tls.key);
  bool has_clients = is_readable("tls.clients", service.tls.clients);
  if (!service.tls.is_empty() && has_certificate && has_key && has_clients)
    check_tls(service.tls, where, errors, warnings);
  const ServiceKeySource& source = service.keys;
  if (!is_readable("keys", source.file)) return;
  auto variable =
      std::ranges::find(environment, source.variable, &EnvironmentVariables::value_type::first);
  if (!source.variable.empty() && variable == environment.end()) {
    errors.push_back(user_error(fmt::format(
        "{} needs the environment variable {} (`keys`), which is not set: export {}=… with keys "
        "between commas, and start again",
        where, source.variable, source.variable)));
    return;
  }
  auto keys = service_keys(source, variable == environment.end() ? "" : variable->second);
  if (!keys.ok()) {
    errors.push_back(user_error(fmt::format("{} has `keys`: {}", where, keys.error().message)));
    return;
  }
  bool has_short =
      std::ranges::any_of(*keys, [](const std::string& key) { return key.size() < kSecretMin; });
  if (has_short)
    warnings.push_back(
        fmt::format("{} has a key of fewer than {} bytes in `keys`: it is easy to guess, and it is "
                    "not redacted "
                    "in logs and errors",
                    where, kSecretMin));
}

}  // namespace flow
