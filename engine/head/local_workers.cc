#include "engine/head/local_workers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/files.hpp"

namespace flow {

namespace {

constexpr int64_t kSoonMs = 5'000;  // a worker that dies this soon after its start has a problem:
constexpr int64_t kPauseMs = 200;   // it is restarted after this delay, which doubles each time,
constexpr int kDoublingsMax = 8;
constexpr int64_t kEndWithinMs = 5'000;

std::string share_of(const std::vector<std::string>& all, int32_t number, int32_t count) {
  std::string share;
  for (size_t i = static_cast<size_t>(number - 1); i < all.size(); i += static_cast<size_t>(count))
    share += (share.empty() ? "" : ",") + all[i];
  return share;
}

}  // namespace

std::string local_worker_name(int32_t number) { return fmt::format("local-{}", number); }

std::string LocalWorkers::log_of(int32_t number) const {
  return options_.folder + "/" + local_worker_name(number) + "/log";
}

Result<std::unique_ptr<LocalWorkers>> LocalWorkers::start(const LocalWorkersOptions& options) {
  std::unique_ptr<LocalWorkers> workers(new LocalWorkers(options));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return environment_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  workers->stdin_read_ = ends[0];
  workers->stdin_write_ = ends[1];
  workers->wake_ = ::eventfd(0, EFD_CLOEXEC);
  workers->processes_.resize(static_cast<size_t>(options.count));
  for (int32_t number = 1; number <= options.count; number++) FLOW_TRY(workers->spawn(number));
  workers->thread_ = engine_thread([self = workers.get()] { self->loop(); });
  return workers;
}

LocalWorkers::~LocalWorkers() {
  if (stdin_write_ >= 0) ::close(stdin_write_);
  if (thread_.joinable()) {
    uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof one);
    thread_.join();
  }
  int64_t until = monotonic_us() / 1000 + kEndWithinMs;
  for (Process& process : processes_)
    if (process.child) process.child->ends_within(until - monotonic_us() / 1000);
  processes_.clear();
  for (int descriptor : {stdin_read_, wake_}) {
    if (descriptor >= 0) ::close(descriptor);
  }
}

std::vector<std::string> LocalWorkers::arguments_of(int32_t number) const {
  int32_t jobs =
      options_.jobs / options_.count + (number <= options_.jobs % options_.count ? 1 : 0);
  std::string name = local_worker_name(number);
  std::vector<std::string> arguments{
      options_.program, "worker",
      "--join",         options_.head,
      "--secret-file",  options_.secret_file,
      "--name",         name,
      "--dir",          options_.folder + "/" + name,
      "--jobs",         std::to_string(std::max(1, jobs)),
      "--memory",       std::to_string(options_.memory_bytes / options_.count),
      "--until-eof"};
  for (std::string& each :
       flow::arguments_of(split(options_.custom_resources, number, options_.count)))
    arguments.push_back(std::move(each));
  return arguments;
}

Status LocalWorkers::spawn(int32_t number) {
  Process& process = processes_[static_cast<size_t>(number - 1)];
  FLOW_TRY(make_dirs(options_.folder + "/" + local_worker_name(number)));
  std::vector<std::string> variables;
  if (!options_.gpus.empty())
    variables.push_back("CUDA_VISIBLE_DEVICES=" + share_of(options_.gpus, number, options_.count));
  auto child = Child::spawn(arguments_of(number), {stdin_read_, -1, -1, log_of(number)}, variables);
  FLOW_TRY(child);
  process.child = std::move(*child);
  return {};
}

void LocalWorkers::loop() {
  while (true) {
    std::vector<pollfd> watched{{wake_, POLLIN, 0}};
    int64_t now = monotonic_us() / 1000, next = INT64_MAX;
    for (size_t i = 0; i < processes_.size(); i++) {
      Process& process = processes_[i];
      bool is_due = !process.child && process.start_at_ms <= now;
      if (is_due && !spawn(static_cast<int32_t>(i) + 1)) process.start_at_ms = now + kSoonMs;
      if (!process.child) next = std::min(next, process.start_at_ms);
      // poll() ignores a negative descriptor.
      watched.push_back({process.child ? process.child->descriptor() : -1, POLLIN, 0});
    }
    int timeout =
        next == INT64_MAX ? -1 : static_cast<int>(std::clamp<int64_t>(next - now, 0, 60'000));
    if (::poll(watched.data(), watched.size(), timeout) < 0 && errno != EINTR) return;
    if (watched[0].revents != 0) return;
    for (size_t i = 0; i < processes_.size(); i++) {
      Process& process = processes_[i];
      if (!process.child || watched[i + 1].revents == 0) continue;
      now = monotonic_us() / 1000;
      process.deaths = now - process.child->began_ms() < kSoonMs ? process.deaths + 1 : 0;
      process.child.reset();
      process.start_at_ms = now + (kPauseMs << std::min(process.deaths, kDoublingsMax));
    }
  }
}

}  // namespace flow
