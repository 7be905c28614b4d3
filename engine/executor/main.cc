// flow-executor: runs the attempts of one slot one after the other, or builds a graph, or queries
// GPUs or watches their errors. A worker starts it and holds the other end of descriptor 3.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "engine/base/files.hpp"
#include "engine/base/profiler_range.hpp"
#include "engine/executor/attempt.hpp"
#include "engine/executor/environment.hpp"
#include "engine/executor/gang.hpp"
#include "engine/executor/nvml.hpp"
#include "engine/executor/processes.hpp"
#include "engine/executor/repl.hpp"
#include "engine/value/utf8.hpp"
#include "flow/process.hpp"

namespace flow {

namespace {

constexpr uint32_t kWholeGpuMilli = 1000;
constexpr int kUncaughtExit = 4;  // the exit code of `flow` for an environment error

/// Warm Lua VMs, one per bundle.
class Scripts {
 public:
  Result<ScriptVm*> find(const std::string& digest, WorkerLink& link) {
    auto known = vms_.find(digest);
    if (known != vms_.end()) return known->second.get();
    if (vms_.size() >= kVmsMax) vms_.clear();
    auto bundle = decode_bundle(link.bundle(digest));
    FLOW_TRY(bundle);
    std::unique_ptr<ScriptVm> vm = make_script_vm();
    FLOW_TRY(vm->load(*bundle));
    return (vms_[digest] = std::move(vm)).get();
  }

 private:
  static constexpr size_t kVmsMax = 8;
  std::map<std::string, std::unique_ptr<ScriptVm>> vms_;
};

Value decoded(const std::string& bytes) {
  auto value = decode_value(bytes);
  FLOW_CHECK(value.ok());
  return std::move(*value);
}

AttemptRequest request_of(const wire::Start& start, const std::string& state_dir, Value args) {
  AttemptRequest request;
  request.ordinal = start.ordinal();
  request.run = start.id().run();
  request.task = start.task();
  request.tag = start.tag();
  request.attempt = start.id().attempt();
  request.rank = start.id().rank();
  request.ranks = std::max(1u, start.ranks());
  request.dir = start.dir();
  request.state_dir = state_dir;
  request.seed = start.seed();
  request.cpus = std::max(1u, start.cpus());
  request.memory_bytes = start.memory_bytes();
  request.gpus = static_cast<uint32_t>(start.gpus_size());
  request.shares_gpus = start.gpus_size() > 0 && start.gpus_milli() < kWholeGpuMilli;
  request.args = std::move(args);
  for (const wire::NamedValue& step : start.steps())
    request.steps[step.name()] = decoded(step.value());
  for (const wire::NamedValue& signal : start.signals())
    request.signals[signal.name()] = decoded(signal.value());
  for (const wire::Wait& wait : start.waits())
    request.waits[wait.name()] = {wait.deadline_ms(), wait.expired()};
  return request;
}

void report(Attempt& attempt, const AttemptOutcome& outcome) {
  switch (outcome.kind) {
    case AttemptOutcome::Kind::succeeded:
      attempt.finish(outcome.result, outcome.fragment ? &*outcome.fragment : nullptr,
                     outcome.waited);
      return;
    case AttemptOutcome::Kind::failed:
      attempt.fail(outcome);
      return;
    case AttemptOutcome::Kind::waiting:
      attempt.waiting(outcome.signal, outcome.wait_name, outcome.wait_timeout_ms);
      return;
    case AttemptOutcome::Kind::stopped:
      attempt.stopped();
      return;
  }
}

// The next attempt needs a process with a working GPU context. The worker takes this exit as the
// end of the attempt and gives queued attempts to another process.
[[noreturn]] void exit_after_gpu_loss(WorkerLink& link, const AttemptOutcome& outcome) {
  link.flush();
  // The worker takes the last line on stderr as the cause: the traceback goes before it.
  size_t line_end = std::min(outcome.message.find('\n'), outcome.message.size());
  if (line_end < outcome.message.size())
    write_all(STDERR_FILENO, outcome.message.substr(line_end + 1) + "\n");
  write_all(STDERR_FILENO, outcome.message.substr(0, line_end) + "\n");
  kill_children();
  ::_exit(outcome.gpu_failed ? kFailedGpuExit : kLostGpuExit);
}

/// Connects the ranks of this attempt. Returns false if that failed; the failure is reported.
bool rendezvous(Attempt& attempt, std::unique_ptr<Gang>& gang) {
  if (attempt.start().ranks() <= 1) return true;
  if (Status loaded = attempt.load_checkpoint(); !loaded.ok()) {
    attempt.fail(core::Cause::staging, loaded.error().message, "");
    return false;
  }
  auto met = Gang::rendezvous(attempt);
  if (met.ok()) {
    gang = std::move(*met);
    attempt.set_communicator(gang->communicator());
  } else if (met.error().kind == ErrorKind::interrupted) {
    attempt.stopped();
  } else {
    fail_after_peer_reports(attempt, met.error(),
                            "its ranks could not connect: " + met.error().message, "");
  }
  return met.ok();
}

/// Ends together with the other ranks. Returns false if one of them failed; the failure is
/// reported.
bool leave_gang(Attempt& attempt, Gang* gang, AttemptOutcome& outcome) {
  if (gang == nullptr || outcome.kind == AttemptOutcome::Kind::stopped) return true;
  bool has_failed = outcome.kind == AttemptOutcome::Kind::failed;
  bool waits = outcome.kind == AttemptOutcome::Kind::waiting;
  if (has_failed && !outcome.lost_gang) {
    gang->fail(outcome.message);
    return true;
  }
  Status left_gang =
      has_failed ? gang->communicator()->state() : gang->leave_together(attempt, waits);
  if (left_gang.ok()) return true;
  // If another rank waits for a hung one, this rank does not report it.
  bool is_late = left_gang.error().kind == ErrorKind::task;
  fail_after_peer_reports(attempt, left_gang.error(),
                          has_failed && !is_late ? outcome.message : left_gang.error().message,
                          outcome.traceback);
  return false;
}

void run_attempt(WorkerLink& link, Scripts& scripts, BlobFiles& blobs, Checkpoints& checkpoints,
                 UsageMeter& meter, const SlotFile& slot, const std::string& state_dir,
                 wire::Start& start) {
  blobs.clear();
  for (const wire::Blob& blob : start.blobs()) {
    Digest digest;
    if (Digest::from_bytes(blob.digest(), digest)) blobs.add_received(digest, blob.data());
  }
  Attempt attempt(link, blobs, checkpoints, meter, start, state_dir);
  ProfilerRange range([&] { return attempt.profile_name(); });
  Value args = decoded(start.args());
  auto kind = static_cast<TaskKind>(start.kind());
  if (start.memory_bytes() > 0 && !wait_for_cgroup()) {  // the limit is set on the group
    wire::FromExecutor message;
    message.set_outside_cgroup(true);
    link.send(message, true);
  }
  bool is_wrapped = kind == TaskKind::service && !start.shell().command().empty();
  if (is_wrapped) {
    attempt.wait_durable();
    attempt.begin();
    return run_wrapped_server(attempt, slot, args);
  }
  if (kind == TaskKind::shell) {
    attempt.wait_durable();
    std::unique_ptr<Gang> gang;
    if (!rendezvous(attempt, gang)) return;
    attempt.begin();
    return run_shell(attempt, slot, args, gang.get());
  }
  auto vm = scripts.find(start.bundle(), link);
  AttemptRequest request = request_of(start, state_dir, std::move(args));
  // Other tasks start to compute: they wait before their first external effect.
  if (kind == TaskKind::service) attempt.wait_durable();
  std::unique_ptr<Gang> gang;
  if (!rendezvous(attempt, gang)) return;
  attempt.begin();
  if (gang) gang->log_gpu_route(attempt);
  if (!vm.ok())
    return attempt.fail(core::Cause::internal,
                        "the script can't be loaded again: " + vm.error().message, "");
  if (kind == TaskKind::service) {
    run_service(attempt, **vm, request);
  } else {
    AttemptOutcome outcome = (*vm)->run(request, attempt);
    if (outcome.lost_gpu) exit_after_gpu_loss(link, outcome);
    if (outcome.reached_outside) kill_children();
    attempt.end_function();
    if (outcome.reached_outside) wait_until_read();
    Status inputs = attempt.check_inputs();
    bool ended = outcome.kind == AttemptOutcome::Kind::succeeded ||
                 outcome.kind == AttemptOutcome::Kind::failed;
    bool has_changed_inputs = ended && !inputs.ok();
    bool are_checkpoints_done =
        attempt.close_checkpoints(has_changed_inputs ? AttemptOutcome::Kind::failed : outcome.kind);
    if (has_changed_inputs && gang) gang->fail(inputs.error().message);
    if (!has_changed_inputs && !leave_gang(attempt, gang.get(), outcome)) return;
    // Before the report, because the engine may end this process after it.
    bool has_failed =
        has_changed_inputs || !are_checkpoints_done || outcome.kind == AttemptOutcome::Kind::failed;
    if (!has_failed) attempt.remove_scratch();
    if (has_changed_inputs) {
      attempt.fail(core::Cause::input_changed, inputs.error().message, "");
    } else if (are_checkpoints_done) {
      report(attempt, outcome);
    }
  }
}

/// `cgroup`: folder of the control group that the executor joins, or "".
int serve_attempts(const std::string& state_dir, const std::string& cgroup) {
  if (!cgroup.empty()) join_cgroup(cgroup);
  process_environment();  // reads the environment of the process
  has_profiler();         // by that environment, not by a task's
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Signals to the whole process group, such as Ctrl-C, are handled by the head, which sends stop
  // commands. Empty handlers, because ignored signals would stay ignored in a task's commands.
  for (int number : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGUSR2}) ::signal(number, [](int) {});
  WorkerLink link;
  Scripts scripts;
  BlobFiles blobs(state_dir);
  SlotFile slot(state_dir);
  Checkpoints checkpoints(state_dir);
  UsageMeter meter;
  link.set_on_kill_after_flush([&](const wire::AttemptName& id) {
    checkpoints.when_idle([&link, id] {
      wire::FromExecutor message;
      *message.mutable_flushed()->mutable_id() = id;
      link.send(message, true);
    });
  });
  wire::FromExecutor is_up;
  is_up.mutable_requeued();  // an empty message: the worker counts an attempt's time from here
  link.send(is_up, true);
  while (true) {
    wire::Start start = link.next();
    run_attempt(link, scripts, blobs, checkpoints, meter, slot, state_dir, start);
  }
}

void limit(int resource, rlim_t value) {
  rlimit limits{value, value};
  ::setrlimit(static_cast<__rlimit_resource>(resource), &limits);
}

/// The worker enforces the time limit too.
void apply_limits(const wire::Build& build) {
  limit(RLIMIT_CPU, build.cpu_seconds());
// The shadow memory takes terabytes.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  limit(RLIMIT_AS, build.memory_bytes());
#endif
  limit(RLIMIT_CORE, 0);
}

/// Ends a graph build when the process that waits for it has ended.
void end_with_head() {
  std::thread([] {
    pollfd wire{kWireDescriptor, POLLRDHUP, 0};
    while (::poll(&wire, 1, -1) < 0 && errno == EINTR) {
    }
    ::_exit(1);
  }).detach();
}

Error no_memory_to_build(const wire::Build& build) {
  return user_error(build.main() +
                    ": the script needs more memory than its graph's process may use (" +
                    std::to_string(build.memory_bytes() >> 20) +
                    " MiB): a pipeline's body only describes the work; move the work into a task");
}

/// Asks the process that submits, and waits for its answer.
Result<std::vector<std::string>> list_inputs_there(const InputPattern& wanted) {
  wire::FromExecutor question;
  wire::ListFiles& listing = *question.mutable_list_files();
  listing.set_folder(wanted.folder);
  listing.set_pattern(wanted.pattern);
  listing.set_allow_empty(wanted.allow_empty);
  std::string out;
  append_frame(out, question);
  uint32_t size = 0;
  bool ok = write_fully(kWireDescriptor, out) &&
            read_fully(kWireDescriptor, reinterpret_cast<char*>(&size), sizeof size) &&
            size <= kFrameMax;
  std::string bytes(ok ? size : 0, '\0');
  wire::ToExecutor answer;
  ok = ok && read_fully(kWireDescriptor, bytes.data(), size) && answer.ParseFromString(bytes) &&
       answer.has_files_listed();
  if (!ok) return internal_error("the process that submits the run does not list files");
  const wire::FilesListed& listed = answer.files_listed();
  if (!listed.error().empty()) return user_error(listed.error());
  return std::vector<std::string>(listed.paths().begin(), listed.paths().end());
}

void put_resources(const CallResources& from, wire::CallResources& to) {
  constexpr size_t kErrorMax = 4 << 10;
  to.set_error(cut_text(from.error, kErrorMax));
  to.set_cpus_milli(from.resources.cpus_milli);
  to.set_memory_bytes(from.resources.memory_bytes);
  to.set_gpus_milli(from.resources.gpus_milli);
  to.set_gpu_memory_bytes(from.resources.gpu_memory_bytes);
  to.set_timeout_ms(from.timeout_ms);
  for (const auto& [name, milli] : from.resources.custom_resources) {
    wire::NamedAmount& amount = *to.add_custom_resources();
    amount.set_name(name);
    amount.set_milli(milli);
  }
}

int build_graph() {
  uint32_t size = 0;
  if (!read_fully(kWireDescriptor, reinterpret_cast<char*>(&size), sizeof size) || size > kFrameMax)
    return 1;
  std::string bytes(size, '\0');
  wire::ToExecutor message;
  bool ok = read_fully(kWireDescriptor, bytes.data(), size) && message.ParseFromString(bytes) &&
            message.has_build();
  if (!ok) return 1;
  const wire::Build& build = message.build();
  apply_limits(build);
  BuildRequest request;
  request.root = build.root();
  request.main = build.main();
  request.main_text = build.main_text();
  request.working_directory = build.working_directory();
  request.describe = build.describe();
  request.list_inputs = list_inputs_there;
  auto params = decode_value(build.params());
  if (!params.ok()) return 1;
  request.params = std::move(*params);
  for (const wire::NamedValue& param : build.text_params())
    request.text_params.emplace_back(param.name(), param.value());
  Bundle pinned;
  if (!build.pinned().empty()) {
    auto bundle = decode_bundle(build.pinned());
    if (!bundle.ok()) return 1;
    pinned = std::move(*bundle);
    request.pinned = &pinned;
  }
  if (build.has_tags()) {
    TagRequest& tags = request.tags.emplace();
    tags.node = build.tag_node();
    for (const std::string& bytes_of_item : build.tag_items()) {
      auto item = decode_value(bytes_of_item);
      if (!item.ok()) return 1;
      tags.items.push_back(std::move(*item));
    }
  }
  for (const wire::ResourceCall& call : build.resource_calls()) {
    auto args = decode_value(call.args());
    if (!args.ok() || args->kind() != Value::Kind::table) return 1;
    request.resource_calls.push_back({call.def(), std::move(*args), call.named_args(),
                                      call.attempt(),
                                      static_cast<uint8_t>(call.functions() & kResourceFunctions)});
  }
  wire::FromExecutor reply;
  end_with_head();
  Result<BuildResult> built = user_error("");
  try {
    built = make_script_vm()->build(request);
  } catch (const std::bad_alloc&) {
    built = no_memory_to_build(build);
  }
  if (!built.ok() && built.error().message.ends_with("not enough memory"))
    built = no_memory_to_build(build);
  if (built.ok() && request.tags) {
    for (std::string& tag : built->tags) reply.mutable_built()->add_tags(std::move(tag));
  } else if (built.ok() && !request.resource_calls.empty()) {
    for (const CallResources& each : built->resources)
      put_resources(each, *reply.mutable_built()->add_resources());
  } else if (built.ok()) {
    for (const auto& [path, text] : built->bundle.files)
      for (std::string& warning : lint_source(path, text))
        built->plan.warnings.push_back(std::move(warning));
    reply.mutable_built()->set_plan(encode_plan(built->plan));
    reply.mutable_built()->set_bundle(encode_bundle(built->bundle));
  } else {
    constexpr size_t kErrorMax = 64 << 10;
    reply.mutable_built()->add_errors(cut_text(built.error().message, kErrorMax));
  }
  std::string out;
  append_frame(out, reply);
  return write_fully(kWireDescriptor, out) ? 0 : 1;
}

int report_gpus() {
  end_with_head();
  MachineGpus machine = nvml_gpus();
  wire::FromExecutor reply;
  wire::Gpus& gpus = *reply.mutable_gpus();
  gpus.set_why_none(machine.why_none);
  for (const std::string& problem : machine.problems) gpus.add_problems(problem);
  for (const Gpu& gpu : machine.gpus) put_gpu(gpu, *gpus.add_found());
  std::string out;
  append_frame(out, reply);
  return write_fully(kWireDescriptor, out) ? 0 : 1;
}

void put_sample(const GpuSample& from, wire::GpuSample& to) {
  to.set_index(from.index);
  to.set_uuid(from.uuid);
  if (from.utilization_percent) to.set_utilization_percent(*from.utilization_percent);
  if (from.memory_used_bytes) to.set_memory_used(*from.memory_used_bytes);
  if (from.memory_bytes) to.set_memory(*from.memory_bytes);
  if (from.temperature_celsius) to.set_temperature_celsius(*from.temperature_celsius);
  if (from.power_milliwatts) to.set_power_milliwatts(*from.power_milliwatts);
  if (from.energy_millijoules) to.set_energy_millijoules(*from.energy_millijoules);
}

/// Measures GPUs whenever the worker asks, until it closes the connection.
int measure_gpus() {
  end_with_head();
  FrameCutter cutter;
  auto next = [&]() -> std::optional<std::vector<std::string>> {
    char chunk[4096];
    std::string_view frame;
    bool broken = false;
    while (!cutter.next(frame, broken)) {
      ssize_t got = ::read(kWireDescriptor, chunk, sizeof chunk);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0 || broken) return std::nullopt;
      cutter.add({chunk, static_cast<size_t>(got)});
    }
    wire::ToExecutor message;
    if (!message.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return std::nullopt;
    const auto& uuids = message.measure_gpus().uuids();
    return std::vector<std::string>(uuids.begin(), uuids.end());
  };
  nvml_measure(next, [](const std::vector<GpuSample>& samples) {
    wire::FromExecutor message;
    message.mutable_gpu_samples();
    for (const GpuSample& sample : samples)
      put_sample(sample, *message.mutable_gpu_samples()->add_samples());
    std::string out;
    append_frame(out, message);
    if (!write_fully(kWireDescriptor, out)) ::_exit(1);
  });
  return 0;
}

/// The arguments are UUIDs, after `--samples` if the GPUs are to be measured.
int watch_gpus(std::vector<std::string> uuids) {
  end_with_head();
  auto send = [](const wire::FromExecutor& message) {
    std::string out;
    append_frame(out, message);
    return write_fully(kWireDescriptor, out);
  };
  NvmlListeners listeners;
  listeners.on_xid = [&](const std::string& uuid, uint32_t xid) {
    wire::FromExecutor message;
    message.mutable_xid()->set_uuid(uuid);
    message.mutable_xid()->set_number(xid);
    if (!send(message)) ::_exit(1);
  };
  if (!uuids.empty() && uuids.front() == "--samples") {
    uuids.erase(uuids.begin());
    listeners.on_sample = [&](const GpuSample& sample) {
      wire::FromExecutor message;
      put_sample(sample, *message.mutable_gpu_sample());
      if (!send(message)) ::_exit(1);
    };
  }
  wire::FromExecutor unwatched;
  unwatched.set_unwatched(nvml_watch(uuids, listeners));
  return send(unwatched) ? 0 : 1;
}

/// Opens closed standard streams, because the next opened file would get their numbers.
void open_missing_streams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != stream) ::_exit(1);
  }
}

int run_mode(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--repl") == 0) return run_repl();
  bool started_by_worker = ::fcntl(kWireDescriptor, F_GETFD) >= 0;
  if (started_by_worker) ::fcntl(kWireDescriptor, F_SETFD, FD_CLOEXEC);
  if (started_by_worker && argc == 2 && std::strcmp(argv[1], "--build") == 0) return build_graph();
  if (started_by_worker && argc == 2 && std::strcmp(argv[1], "--gpus") == 0) return report_gpus();
  if (started_by_worker && argc >= 2 && std::strcmp(argv[1], "--watch-gpus") == 0)
    return watch_gpus({argv + 2, argv + argc});
  if (started_by_worker && argc == 2 && std::strcmp(argv[1], "--measure-gpus") == 0)
    return measure_gpus();
  bool serves = argc >= 3 && std::strcmp(argv[1], "--state") == 0;
  if (started_by_worker && serves && argc == 3) return serve_attempts(argv[2], "");
  if (started_by_worker && serves && argc == 5 && std::strcmp(argv[3], "--cgroup") == 0)
    return serve_attempts(argv[2], argv[4]);
  std::fprintf(stderr, "flow-executor is started by flow, never by hand: use `flow run`\n");
  return 2;
}

}  // namespace

}  // namespace flow

int main(int argc, char** argv) {
  flow::open_missing_streams();
  flow::end_on_uncaught(flow::kUncaughtExit);
  return flow::call_with_stack([&] {
    try {
      return flow::run_mode(argc, argv);
    } catch (...) {
      flow::write_all(STDERR_FILENO, "error: " + flow::exception_text() + "\n");
      ::_exit(flow::kUncaughtExit);
    }
  });
}
