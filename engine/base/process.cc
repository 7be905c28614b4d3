#include "flow/process.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>
#include <thread>

#include "engine/base/files.hpp"
#include "engine/base/open_files.hpp"

namespace flow {

namespace {

constexpr rlim_t kOpenFilesMax = 1 << 20;  // some hard limits are a billion
constexpr rlim_t kNotRaised = 0;

std::atomic<rlim_t> soft_at_start{kNotRaised};
std::atomic<int> uncaught_code{0};

/// Runs in an undefined state: no unwinding, no destructors, no exit handlers.
[[noreturn]] void on_terminate() {
  std::string text =
      "a limit of this process was reached while it could not be handled. `ulimit -a` shows the "
      "limits.";
  if (std::current_exception()) {
    try {
      throw;
    } catch (...) {
      text = exception_text();
    }
  }
  write_all(STDERR_FILENO, "error: " + text + "\n");
  ::_exit(uncaught_code);
}

}  // namespace

void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(limit.rlim_max, kOpenFilesMax);
  if (limit.rlim_cur <= before) return;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) soft_at_start = before;
}

void restore_open_files(pid_t child) {
  rlimit limit{};
  rlim_t soft = soft_at_start;
  if (soft == kNotRaised || ::prlimit(child, RLIMIT_NOFILE, nullptr, &limit) != 0) return;
  limit.rlim_cur = std::min(soft, limit.rlim_max);
  ::prlimit(child, RLIMIT_NOFILE, &limit, nullptr);
}

void restore_open_files() { restore_open_files(::getpid()); }

int call_with_stack(const std::function<int()>& work) {
  constexpr rlim_t kStackMin =
      2 << 20;  // the size that glibc uses for threads if there is no limit
  constexpr size_t kStack = 8 << 20;
  rlimit limit{};
  bool is_enough = ::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStackMin;
  if (is_enough) return work();
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStack);
  ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
  int code = 0;
  std::thread thread([&] { code = work(); });
  thread.join();
  return code;
}

void end_on_uncaught(int exit_code) {
  uncaught_code = exit_code;
  std::set_terminate(on_terminate);
}

std::string exception_text() {
  constexpr const char* kLimits =
      ". The limits of this process may be too low (`ulimit -a` shows them), or the machine has "
      "too little memory; a smaller `--jobs` runs fewer tasks at once.";
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return std::string("there is not enough memory") + kLimits;
  } catch (const std::filesystem::filesystem_error& error) {
    std::string path = error.path1().string();
    return "cannot use " + (path.empty() ? "a file" : "`" + path + "`") + ": " +
           error.code().message() + " (" + error.what() + ").";
  } catch (const std::system_error& error) {
    return "the system refused a thread or another resource: " + error.code().message() + kLimits;
  } catch (const std::exception& error) {
    return std::string("an unexpected failure: ") + error.what();
  } catch (...) {
    return "an unexpected failure of an unknown kind";
  }
}

}  // namespace flow
