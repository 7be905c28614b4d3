#include "transports/ucx/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

extern char** environ;

namespace flow::ucx {

namespace {

constexpr const char* kLibrary = "libucp.so.0";

constexpr const char* kResource = "resource ";
// Transports within a process, or to and from GPU memory.
constexpr const char* kWithin[] = {" self/",     " cuda_copy/", " cuda_ipc/",
                                   " gdr_copy/", " rocm_copy/", " rocm_ipc/",
                                   " rocm_gdr/", " ze_copy/",   " ze_ipc/"};

constexpr std::pair<const char*, const char*> kSettings[] = {
    // Read when the library is loaded. It must not catch signals, print, or warn about variables
    // that only a newer version knows.
    {"UCX_ERROR_SIGNALS", ""},
    {"UCX_HANDLE_ERRORS", "none"},
    {"UCX_LOG_LEVEL", "fatal"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    // It would patch mmap, munmap and malloc of the whole process for its registration cache.
    {"UCX_MEM_EVENTS", "n"},
    // Its shared memory queues have many writers: one that is killed or stopped during a write
    // blocks all of them. Within a machine TCP is used instead.
    {"UCX_TLS", "^shm"},
    // Of one message, which is copied once: with 8 KiB, the default, the rate is a sixth.
    {"UCX_TCP_TX_SEG_SIZE", "64k"},
    {"UCX_TCP_RX_SEG_SIZE", "64k"},
    // If an endpoint ends during such a put, the answer to it crashes the process: UCX 1.13 finds
    // its own flag cleared (tcp_ep.c, uct_tcp_ep_handle_put_ack). Messages carry bulk data as well.
    {"UCX_TCP_PUT_ENABLE", "n"},
    // A lost machine is detected in 6 s instead of 28 s.
    {"UCX_TCP_KEEPIDLE", "3s"},
    {"UCX_TCP_KEEPINTVL", "1s"},
    {"UCX_TCP_KEEPCNT", "3"},
    {"UCX_TCP_USER_TIMEOUT", "10s"},
    {"UCX_KEEPALIVE_INTERVAL", "5s"},
};

struct LoadResult {
  UcxLibrary library;
  std::string problem;
};

void find_calls(void* handle, LoadResult& result) {
  auto find = [&](const char* name, auto& call) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(handle, name));
    if (call == nullptr && result.problem.empty())
      result.problem = fmt::format("{} has no {}: it is older than 1.13", kLibrary, name);
  };
#define FLOW_UCX_FIND(name) find(#name, result.library.name);
  FLOW_UCX_CALLS(FLOW_UCX_FIND)
#undef FLOW_UCX_FIND
}

LoadResult load_now() {
  LoadResult result;
  EnvironmentOverride environment;
  if (void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    find_calls(handle, result);
  } else {
    const char* why = ::dlerror();
    result.problem = why != nullptr ? why : kLibrary;
  }
  return result;
}

}  // namespace

std::string UcxLibrary::version() const {
  unsigned major = 0, minor = 0, patch = 0;
  ucp_get_version(&major, &minor, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

std::string printed(const std::function<void(std::FILE*)>& print) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* file = ::open_memstream(&text, &size);
  if (file == nullptr) return "";
  print(file);
  std::fclose(file);
  std::string all(text, size);
  std::free(text);
  return all;
}

// It has lines such as "resource 1  :  md 1  dev 1  flags -- tcp/lo".
bool reaches_others(std::string_view context_info) {
  size_t resources = 0, within = 0;
  for (size_t at = context_info.find(kResource); at != std::string_view::npos;
       at = context_info.find(kResource, at + 1)) {
    std::string_view line = context_info.substr(at, context_info.find('\n', at) - at);
    resources++;
    within += std::any_of(std::begin(kWithin), std::end(kWithin), [line](const char* name) {
      return line.find(name) != std::string_view::npos;
    });
  }
  return resources == 0 || within < resources;
}

Result<const UcxLibrary*> load() {
  static const LoadResult result = load_now();
  if (result.problem.empty()) return &result.library;
  return environment_error(
      fmt::format("cannot load UCX, which links between processes need: {}. Install UCX 1.13 or "
                  "newer (libucx0)",
                  result.problem));
}

namespace {

/// Environments made by EnvironmentOverride are kept: another thread, or UCX, may still read them.
struct EnvironmentStorage {
  std::deque<std::string> texts;
  std::deque<std::vector<char*>> lists;
};

EnvironmentStorage& environment_storage() {
  static EnvironmentStorage* all = new EnvironmentStorage;
  return *all;
}

std::mutex& one_at_a_time() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

}  // namespace

EnvironmentOverride::EnvironmentOverride(bool is_ipv6_first) {
  one_at_a_time().lock();
  std::vector<char*>& list = environment_storage().lists.emplace_back();
  for (char** each = environ; each != nullptr && *each != nullptr; each++) list.push_back(*each);
  auto set = [&list](const char* name, const char* value) {
    if (::getenv(name) == nullptr)
      list.push_back(
          environment_storage().texts.emplace_back(fmt::format("{}={}", name, value)).data());
  };
  for (const auto& [name, value] : kSettings) set(name, value);
  if (is_ipv6_first) set("UCX_TCP_AF_PRIO", "inet6,inet");
  list.push_back(nullptr);
  before_ = environ;
  during_ = environ = list.data();
}

EnvironmentOverride::~EnvironmentOverride() {
  if (environ == during_) environ = before_;  // otherwise another setenv has copied it
  one_at_a_time().unlock();
}

}  // namespace flow::ucx
