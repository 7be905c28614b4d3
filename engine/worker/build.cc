// Builds graphs in a child process. It runs user code, so CPU time, memory and wall-clock time are
// limited.
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/blobs/input_listing.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/protocol/executor.pb.h"
#include "engine/protocol/frames.hpp"
#include "engine/worker/spawn.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

/// A child process that ends with its owner.
class BuildChild {
 public:
  explicit BuildChild(ExecutorProcess process) : process_(process) {}
  ~BuildChild() {
    ::kill(-process_.pid, SIGKILL);
    if (!reaped_) ::waitpid(process_.pid, nullptr, 0);
    ::close(process_.wire);
    ::close(process_.errors);
    ::close(process_.pidfd);
  }
  const ExecutorProcess& process() const { return process_; }
  bool has_ended() const {
    pollfd ended{process_.pidfd, POLLIN, 0};
    return ::poll(&ended, 1, 0) > 0;
  }
  struct End {
    int status = 0;
    int64_t cpu_ms = 0;
  };
  End reap() {
    End end;
    rusage used{};
    ::wait4(process_.pid, &end.status, 0, &used);
    for (const timeval& part : {used.ru_utime, used.ru_stime})
      end.cpu_ms += part.tv_sec * 1000 + part.tv_usec / 1000;
    reaped_ = true;
    return end;
  }

 private:
  ExecutorProcess process_;
  bool reaped_ = false;
};

namespace {

constexpr int64_t kUsPerMs = 1000;
constexpr size_t kPrintedMax = size_t{1} << 20;  // bytes that a script may print while it loads

/// Appends available output, up to a bound. Returns false at end of file.
bool read_some(int descriptor, std::string& out) {
  constexpr size_t kReadMax = size_t{64} << 20;
  char chunk[64 * 1024];
  size_t start = out.size();
  while (out.size() - start < kReadMax) {
    ssize_t got = ::read(descriptor, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    out.append(chunk, static_cast<size_t>(got));
  }
  return true;
}

std::string limit_words(const BuildOrder& order) {
  return fmt::format("{} s of time and {} GiB of memory", order.time_limit_ms / 1000,
                     order.memory_limit_bytes >> 30);
}

/// Whether the signal came from outside: a script can crash its process but cannot send these
/// signals.
bool is_killed_from_outside(int status) {
  constexpr int kSent[] = {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM};
  return WIFSIGNALED(status) && std::ranges::find(kSent, WTERMSIG(status)) != std::end(kSent);
}

Error build_failure(const BuildOrder& order, const BuildChild::End& end, const std::string& output,
                    bool is_ours, bool had_memory) {
  int status = end.status;
  std::string script = order.root + "/" + order.main;
  std::string tail = output.size() > 2000 ? output.substr(output.size() - 2000) : output;
  bool is_late = end.cpu_ms >= order.time_limit_ms;  // the signal of either limit may arrive first
  bool cpu = WIFSIGNALED(status) &&
             (WTERMSIG(status) == SIGXCPU || (WTERMSIG(status) == SIGKILL && is_late));
  if (cpu) {
    return user_error(
        fmt::format("{}: the script did not finish loading within its limits ({}): a pipeline's "
                    "body only describes the work; move the work into a task",
                    script, limit_words(order)));
  }
  if (!is_ours && is_killed_from_outside(status)) {
    std::string by =
        had_memory ? "" : " because no memory was left on this machine or in its container";
    return environment_error(fmt::format(
        "{}: the process that builds the graph was killed from outside by signal {} ({}){}: the "
        "script is not the cause. Find out what kills processes here (`dmesg` lists those that the "
        "kernel kills for lack of memory), and start again. {}",
        script, WTERMSIG(status), ::strsignal(WTERMSIG(status)), by, tail));
  }
  if (WIFSIGNALED(status)) {
    return user_error(fmt::format(
        "{}: the script ended the process that builds its graph by signal {} ({}); its limits are "
        "{}. {}",
        script, WTERMSIG(status), ::strsignal(WTERMSIG(status)), limit_words(order), tail));
  }
  return user_error(fmt::format("{}: the process that builds the graph ended with exit code {}. {}",
                                script, WEXITSTATUS(status), tail));
}

std::string request_of(const BuildOrder& order) {
  wire::ToExecutor message;
  wire::Build& build = *message.mutable_build();
  build.set_root(order.root);
  build.set_main(order.main);
  build.set_main_text(order.main_text);
  build.set_params(order.params);
  for (const auto& [name, value] : order.text_params) {
    wire::NamedValue& param = *build.add_text_params();
    param.set_name(name);
    param.set_value(value);
  }
  build.set_working_directory(order.working_directory);
  build.set_pinned(order.pinned);
  build.set_describe(order.describe);
  build.set_cpu_seconds(static_cast<uint64_t>(order.time_limit_ms / 1000 + 1));
  build.set_memory_bytes(static_cast<uint64_t>(order.memory_limit_bytes));
  if (order.tags) {
    build.set_has_tags(true);
    build.set_tag_node(order.tags->node);
    for (const std::string& item : order.tags->items) build.add_tag_items(item);
  }
  for (const BuildOrder::ResourceCall& each : order.resource_calls) {
    wire::ResourceCall& call = *build.add_resource_calls();
    call.set_def(each.def);
    call.set_args(each.args);
    call.set_named_args(each.named_args);
    call.set_attempt(each.attempt);
    call.set_functions(each.functions);
  }
  std::string request;
  append_frame(request, message);
  return request;
}

BuildReply::CallResources resources_of(const wire::CallResources& from) {
  BuildReply::CallResources out;
  out.error = from.error();
  out.resources.cpus_milli = from.cpus_milli();
  out.resources.memory_bytes = from.memory_bytes();
  out.resources.gpus_milli = from.gpus_milli();
  out.resources.gpu_memory_bytes = from.gpu_memory_bytes();
  out.timeout_ms = from.timeout_ms();
  for (const wire::NamedAmount& amount : from.custom_resources())
    out.resources.custom_resources.emplace_back(amount.name(), amount.milli());
  return out;
}

/// Appends the answer to the child's request to `out`.
void answer_listing(const BuildOrder& order, const wire::ListFiles& wanted, std::string& out) {
  wire::ToExecutor message;
  wire::FilesListed& answer = *message.mutable_files_listed();
  InputPattern pattern{wanted.folder(), wanted.pattern(), wanted.allow_empty()};
  auto paths = order.list_inputs ? order.list_inputs(pattern) : list_inputs(pattern);
  size_t bytes = 0;
  if (paths.ok())
    for (const std::string& path : *paths) bytes += path.size() + 8;  // with its length
  if (!paths.ok()) {
    answer.set_error(paths.error().message);
  } else if (bytes > kFrameMax / 2) {
    answer.set_error(
        fmt::format("`{}` matches {} files, whose paths have more than {} MiB: write "
                    "a narrower pattern, or pass the folder",
                    wanted.pattern(), paths->size(), kFrameMax / 2 >> 20));
  } else {
    for (std::string& path : *paths) answer.add_paths(std::move(path));
  }
  append_frame(out, message);
}

Result<BuildReply> build_in(BuildChild& child, const BuildOrder& order) {
  auto cgroups = own_cgroups();
  int64_t oom_kills = cgroup_oom_kills(cgroups);
  std::string request = request_of(order);
  int64_t deadline = monotonic_us() + order.time_limit_ms * kUsPerMs;
  FrameCutter cutter;
  std::string output;
  wire::FromExecutor reply;
  size_t sent = 0;
  bool open = true;
  while (open) {
    int64_t left_ms = (deadline - monotonic_us()) / kUsPerMs;
    if (left_ms <= 0) {
      return user_error(
          fmt::format("{}/{}: the script did not finish loading within {} s: a pipeline's body "
                      "only describes the work; move the work into a task",
                      order.root, order.main, order.time_limit_ms / 1000));
    }
    pollfd descriptors[2] = {
        {child.process().wire, static_cast<short>(POLLIN | (sent < request.size() ? POLLOUT : 0)),
         0},
        {child.process().errors, POLLIN, 0}};
    if (::poll(descriptors, 2, static_cast<int>(left_ms)) < 0 && errno != EINTR) break;
    if ((descriptors[0].revents & POLLOUT) != 0) {
      ssize_t written = ::send(child.process().wire, request.data() + sent, request.size() - sent,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (written > 0) sent += static_cast<size_t>(written);
    }
    if (descriptors[1].revents != 0) read_some(child.process().errors, output);
    if (output.size() > kPrintedMax) {
      return user_error(
          fmt::format("{}/{}: the script printed more than {} KiB while its graph was built: print "
                      "in a task, whose log keeps it",
                      order.root, order.main, kPrintedMax >> 10));
    }
    if ((descriptors[0].revents & (POLLIN | POLLHUP)) != 0) {
      std::string bytes;
      open = read_some(child.process().wire, bytes);
      cutter.add(bytes);
      std::string_view frame;
      bool broken = false;
      if (cutter.next(frame, broken)) {
        if (!reply.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) reply.Clear();
        if (!reply.has_list_files()) break;
        int64_t started = monotonic_us();
        answer_listing(order, reply.list_files(), request);
        deadline += monotonic_us() - started;  // listing is not the script's time
        reply.Clear();
      }
      if (broken) break;
    }
  }
  if (!reply.has_built()) {
    if (open) ::kill(child.process().pid, SIGKILL);
    BuildChild::End end = child.reap();
    read_some(child.process().errors, output);
    bool is_ours = open;
    return build_failure(order, end, output, is_ours, cgroup_oom_kills(cgroups) == oom_kills);
  }
  read_some(child.process().errors, output);
  BuildReply out;
  out.printed = std::move(output);
  out.plan = std::move(*reply.mutable_built()->mutable_plan());
  out.bundle = std::move(*reply.mutable_built()->mutable_bundle());
  out.tags.assign(reply.built().tags().begin(), reply.built().tags().end());
  for (const wire::CallResources& each : reply.built().resources())
    out.resources.push_back(resources_of(each));
  out.errors.assign(reply.built().errors().begin(), reply.built().errors().end());
  return out;
}

}  // namespace

Builder::Builder(std::string executor) : executor_(std::move(executor)) {}

Builder::~Builder() { wait_idle(); }

Result<std::unique_ptr<BuildChild>> Builder::start() const {
  auto process = spawn_executor(executor_, {"--build"}, {});
  FLOW_TRY(process);
  return std::make_unique<BuildChild>(*process);
}

void Builder::prefork() {
  auto child = start();
  if (!child.ok()) return;  // the next build retries and reports the error
  std::lock_guard lock(mutex_);
  preforked_ = std::move(*child);
}

void Builder::wait_idle() {
  std::lock_guard lock(cleanup_mutex_);
  if (cleanup_.joinable()) cleanup_.join();
}

/// Ends and starts processes in the background, because each takes milliseconds and the caller
/// already has the graph.
void Builder::clean_up_in_background(std::unique_ptr<BuildChild> ended, bool builds_often) {
  std::lock_guard lock(cleanup_mutex_);
  if (cleanup_.joinable()) cleanup_.join();
  cleanup_ = engine_thread([this, ended = std::move(ended), builds_often]() mutable {
    ended.reset();
    if (builds_often) prefork();
  });
}

Result<BuildReply> Builder::build(const BuildOrder& order) {
  wait_idle();
  std::unique_ptr<BuildChild> child;
  bool builds_often = false;
  {
    std::lock_guard lock(mutex_);
    child = std::move(preforked_);
    builds_often = ++builds_ > 1;
  }
  if (child == nullptr || child->has_ended()) {
    auto started = start();
    FLOW_TRY(started);
    child = std::move(*started);
  }
  auto result = build_in(*child, order);
  clean_up_in_background(std::move(child), builds_often);
  return result;
}

}  // namespace flow
