// The attempt of a service whose server is a program: started by the task's command at a port of
// loopback, and asked over HTTP whether it is ready and well.
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <optional>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/size_units.hpp"
#include "engine/executor/attempt.hpp"
#include "engine/executor/service_lease.hpp"
#include "engine/executor/service_options.hpp"
#include "engine/executor/shell_command.hpp"
#include "engine/executor/wrapped/health_probe.hpp"
#include "engine/executor/wrapped/port_owner.hpp"
#include "engine/executor/wrapped/served_address.hpp"

namespace flow {

namespace {

constexpr int kPortsMax = 3;               // ports that are tried
constexpr int64_t kPortTakenMs = 10'000;   // within which a server finds that its port is taken
constexpr int64_t kFirstPauseMs = 100;     // before the first question, and after it
constexpr int64_t kPauseMsMax = 1'000;     // between two questions whether the server is ready
constexpr int64_t kHealthPauseMs = 5'000;  // between two whether it is well
constexpr int64_t kAnswerMs = 2'000;       // for an answer
constexpr int kBadAnswersMax = 3;          // in a row
constexpr int64_t kEndMs = 500;            // between the end of the server and that of the grace,
                                           // and for the server after its last request

/// Wakes a poll when the attempt is asked to stop, or continued by another engine.
class Notice {
 public:
  explicit Notice(WorkerLink& link) : link_(link) {
    link_.set_on_stop([this] { tell(); });
  }
  ~Notice() {
    link_.set_on_stop(nullptr);
    ::close(descriptor_);
  }
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;
  /// Any thread.
  void tell() const {
    uint64_t one = 1;
    (void)!::write(descriptor_, &one, sizeof one);
  }
  /// Readable until clear().
  int descriptor() const { return descriptor_; }
  void clear() const {
    uint64_t drained;
    (void)!::read(descriptor_, &drained, sizeof drained);
  }

 private:
  WorkerLink& link_;
  const int descriptor_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
};

/// One process of the server, at one port.
class ServerProcess {
 public:
  ServerProcess(Attempt& attempt, const ServiceAccess& access, const FilledCommand& command,
                const OpenEnvironment& environment, AttemptContainer& container,
                ChildProcess& child, uint16_t port)
      : attempt_(attempt),
        access_(access),
        command_(command),
        environment_(environment),
        container_(container),
        child_(child),
        port_(port),
        out_(attempt, 1),
        err_(attempt, 2),
        running_(attempt.link(), child, out_, err_),
        notice_(attempt.link()),
        probe_(port),
        owner_(port, environment.runtime.has_value()) {}

  /// Follows the server to its end and reports, unless `may_try_again` and its port was taken
  /// before it was ready: then returns true.
  bool run(const SlotFile& slot, bool may_try_again) {
    int64_t began_us = monotonic_us();
    Ending ending = become_ready();
    bool was_ready = ending == Ending::none;
    if (was_ready) ending = serve();
    if (ending != Ending::exited) terminate(ending == Ending::stopped);
    CommandEnd end = running_.follow(attempt_.start().dir(), 0);
    end.status = shell_status(child_, end.status);
    slot.clear();
    container_.end(end.status);
    bool is_early = !was_ready && monotonic_us() - began_us < kPortTakenMs * 1000;
    if (ending == Ending::exited && attempt_.stopping()) ending = Ending::stopped;
    if (ending == Ending::exited && is_early && has_listener(port_)) ending = Ending::taken;
    if (ending == Ending::taken && !was_ready && may_try_again) return true;
    report(ending, end.status);
    return false;
  }

 private:
  // taken: another process listens at the port
  enum class Ending : uint8_t { none, exited, stopped, failed, taken };

  const WrappedServer& spec() const { return access_.spec.wrapped; }
  const std::string& health() const { return spec().health.empty() ? spec().ready : spec().health; }

  /// Waits for output, an answer, a stop or the time. Returns true if the process has ended.
  bool wait(int64_t until_us, const ServedAddress* served) {
    if (probe_.has_begun()) until_us = std::min(until_us, probe_.until_us());
    int64_t left_us = std::max<int64_t>(0, until_us - monotonic_us());
    std::vector<pollfd> others = {{notice_.descriptor(), POLLIN, 0},
                                  probe_.waits_for(),
                                  {served == nullptr ? -1 : served->descriptor(), POLLIN, 0}};
    bool has_ended = running_.wait(others, static_cast<int>((left_us + 999) / 1000));
    notice_.clear();
    if (attempt_.stopping()) begin_grace();
    return has_ended;
  }

  void begin_grace() {
    if (kill_at_us_ != 0) return;
    int64_t grace_ms = attempt_.link().stop_grace_ms(attempt_.start().grace_ms());
    kill_at_us_ = monotonic_us() + (grace_ms - std::min(kEndMs, grace_ms / 4)) * 1000;
  }

  Ending become_ready() {
    int64_t until_us = monotonic_us() + spec().start_timeout_ms * 1000;
    int64_t pause_ms = kFirstPauseMs, next_us = monotonic_us() + pause_ms * 1000;
    std::string last = "it was not asked yet";
    while (true) {
      int64_t now_us = monotonic_us();
      if (now_us >= until_us) return fail_start(last);
      if (!probe_.has_begun() && now_us >= next_us)
        probe_.begin(spec().ready, std::min(until_us, now_us + kAnswerMs * 1000));
      if (wait(std::min(until_us, probe_.has_begun() ? until_us : next_us), nullptr))
        return Ending::exited;
      if (attempt_.stopping()) return Ending::stopped;
      auto answer = probe_.step();
      if (!answer) continue;
      PortOwner::Owner owner = owner_.look();
      if (owner == PortOwner::Owner::other) return Ending::taken;
      if (answer->is_good() && owner != PortOwner::Owner::nobody) return Ending::none;
      last = answer->text;
      next_us = monotonic_us() + pause_ms * 1000;
      pause_ms = std::min(pause_ms * 3 / 2, kPauseMsMax);
    }
  }

  Ending fail_start(const std::string& last) {
    failure_.cause = core::Cause::timeout;
    failure_.message = fmt::format(
        "{}: the server of `{}` was not ready within {}, its `start_timeout` ({}): raise it, or "
        "look for the reason in the log{}",
        attempt_.start().shell().defined_at(), attempt_.shown_task(),
        format_duration(spec().start_timeout_ms), last, command_.again);
    return Ending::failed;
  }

  front::Join own_join(const ServiceAccess& access) const {
    front::Join join = join_of(attempt_.start(), access);
    join.set_wraps_server(true);
    join.set_server(fmt::format("127.0.0.1:{}", port_));
    join.set_server_socket(owner_.socket());
    return join;
  }

  Ending serve() {
    warn_of_port();
    ServedAddress served(attempt_.start().front(), own_join(access_));
    Ending ending = serve_at(served);
    for (const std::string& line : served.end().lines) attempt_.log(line);
    return ending;
  }

  Ending serve_at(ServedAddress& served) {
    ServiceAccess access = access_;
    std::optional<ServiceLease> lease;
    std::string url;
    int64_t next_us = monotonic_us() + kHealthPauseMs * 1000;
    bool is_leaving = false;
    int bad_answers = 0;
    while (true) {
      int64_t now_us = monotonic_us();
      if (is_leaving && now_us >= kill_at_us_) return Ending::stopped;
      if (!is_leaving && !probe_.has_begun() && now_us >= next_us)
        probe_.begin(health(), now_us + kAnswerMs * 1000);
      // A request has a limit of its own.
      int64_t question_us = probe_.has_begun() ? INT64_MAX : next_us;
      if (wait(is_leaving ? kill_at_us_ : question_us, &served)) {
        if (attempt_.stopping()) served.leave(0);
        return Ending::exited;
      }
      ServedAddress::News news = served.take_news();
      for (const std::string& line : news.lines) attempt_.log(line);
      if (news.has_ended) return end_of(news);
      if (!news.url.empty()) {
        url = news.url;
        attempt_.service_ready(url);
        if (!lease) lease.emplace(attempt_, [this] { notice_.tell(); });
      }
      if (auto order = attempt_.link().take_adoption()) {
        attempt_.adopt(*order);
        if (lease) lease->renew();
        // The keys are those of the process that resumes the run.
        if (auto renewed = read_service_access(attempt_.start()); renewed.ok()) {
          access = std::move(*renewed);
          attempt_.hide(access.keys);
          served.renew(own_join(access));
        }
        attempt_.service_ready(url);
      }
      if (!is_leaving && attempt_.stopping()) {
        is_leaving = true;
        served.leave(std::max<int64_t>(0, (kill_at_us_ - monotonic_us()) / 1000 - kEndMs),
                     attempt_.link().is_drained());
      }
      auto answer = probe_.step();
      if (!answer || is_leaving) continue;
      uint64_t socket = owner_.socket();
      if (owner_.look() == PortOwner::Owner::other) return Ending::taken;
      if (owner_.socket() != socket) served.renew(own_join(access));
      next_us = monotonic_us() + kHealthPauseMs * 1000;
      bad_answers = answer->is_good() ? 0 : bad_answers + 1;
      if (bad_answers == kBadAnswersMax) return fail_health(answer->text);
    }
  }

  void warn_of_port() {
    if (owner_.socket() == 0)
      return attempt_.warn(fmt::format(
          "this system does not tell which process listens at 127.0.0.1:{}: another user "
          "of the machine could have taken the port of the server",
          port_));
    if (owner_.is_public())
      attempt_.warn(fmt::format(
          "the server listens at all addresses of the machine: at its port {} it can be "
          "reached from outside, without TLS and keys. Let it listen on 127.0.0.1",
          port_));
  }

  Ending end_of(const ServedAddress::News& news) {
    if (attempt_.stopping() || !news.has_failed) return Ending::stopped;
    bool is_ours = news.problem.kind == ErrorKind::user;
    failure_.cause = is_ours ? core::Cause::user_error : core::Cause::staging;
    failure_.message =
        fmt::format("{}: {}", attempt_.start().shell().defined_at(), news.problem.message);
    return Ending::failed;
  }

  Ending fail_health(const std::string& last) {
    failure_.cause = core::Cause::timeout;
    failure_.message = fmt::format(
        "{}: the server of `{}` did not answer {} times in a row with a status of 200 to 299, and "
        "was ended ({})",
        attempt_.start().shell().defined_at(), attempt_.shown_task(), kBadAnswersMax, last);
    return Ending::failed;
  }

  /// Ends the server, at once or within the grace.
  void terminate(bool gently) {
    probe_.cancel();
    if (gently) {
      begin_grace();
      ::kill(-child_.pid, SIGTERM);
      while (monotonic_us() < kill_at_us_)
        if (wait(kill_at_us_, nullptr)) return;
    }
    ::kill(-child_.pid, SIGKILL);
  }

  void report(Ending ending, int status) {
    std::string evidence = err_.tail().empty() ? out_.tail() : err_.tail();
    if (ending == Ending::stopped) {
      remove_command_scratch(attempt_, attempt_.start().dir());
      return attempt_.stopped(evidence);
    }
    if (ending == Ending::taken) failure_ = taken();
    if (ending == Ending::exited) {
      auto failure = failure_of(attempt_, command_, environment_, container_, status, evidence);
      failure_ = failure ? std::move(*failure) : early_end();
    }
    attempt_.fail(failure_.cause, failure_.message, evidence, failure_.code);
  }

  core::Failure taken() {
    owner_.look();
    core::Failure failure;
    failure.cause = core::Cause::staging;
    std::string who =
        owner_.intruder().empty() ? "another process" : "a process of " + owner_.intruder();
    failure.message = fmt::format(
        "{}: {} listens at 127.0.0.1:{}, the port of the server of `{}`, which has to listen there "
        "itself{}",
        attempt_.start().shell().defined_at(), who, port_, attempt_.shown_task(), command_.again);
    return failure;
  }

  core::Failure early_end() const {
    core::Failure failure;
    failure.cause = core::Cause::exit_code;
    failure.message = fmt::format(
        "{}: the server of `{}` ended by itself, with exit code 0: the command must run for as "
        "long as the service lasts, in the foreground{}",
        attempt_.start().shell().defined_at(), attempt_.shown_task(), command_.again);
    return failure;
  }

  Attempt& attempt_;
  const ServiceAccess& access_;
  const FilledCommand& command_;
  const OpenEnvironment& environment_;
  AttemptContainer& container_;
  ChildProcess& child_;
  const uint16_t port_;
  CommandOutput out_, err_;
  RunningCommand running_;
  Notice notice_;
  HealthProbe probe_;
  PortOwner owner_;
  int64_t kill_at_us_ = 0;  // when a server that was asked to end is killed; 0: it was not
  core::Failure failure_;   // of Ending::failed
};

/// Runs the server at a free port. Returns true if the port was taken meanwhile, which is not
/// reported then.
bool run_at_port(Attempt& attempt, const SlotFile& slot, const Value& args,
                 const ServiceAccess& access, const OpenEnvironment& environment,
                 bool may_try_again) {
  ReservedPort port;
  if (port.number() == 0) {
    attempt.fail(core::Cause::staging,
                 fmt::format("{}: no port of 127.0.0.1 is free for the server of `{}`",
                             attempt.start().shell().defined_at(), attempt.shown_task()),
                 "");
    return false;
  }
  auto command = fill(attempt, args, port.number());
  if (!command) return false;
  AttemptContainer container(attempt, environment);
  auto child = start(attempt, slot, *command, environment, container, nullptr);
  if (!child.ok()) {
    attempt.fail(cause_of(child.error()), child.error().message + command->again, "");
    return false;
  }
  return ServerProcess(attempt, access, *command, environment, container, *child, port.number())
      .run(slot, may_try_again);
}

}  // namespace

void run_wrapped_server(Attempt& attempt, const SlotFile& slot, const Value& args) {
  auto access = read_service_access(attempt.start());
  if (!access.ok())
    return attempt.fail(
        core::Cause::user_error,
        fmt::format("{}: {}", attempt.start().shell().defined_at(), access.error().message), "");
  attempt.hide(access->keys);
  if (Status made = make_command_scratch(attempt.start().dir()); !made.ok())
    return attempt.fail(core::Cause::staging, made.error().message, "");
  auto environment = open_environment(attempt);
  if (!environment.ok()) return fail_environment(attempt, environment.error(), "");
  for (int ports = 1; run_at_port(attempt, slot, args, *access, *environment, ports < kPortsMax);
       ports++)
    attempt.warn("the port of the server was taken meanwhile: it starts again at another one");
}

}  // namespace flow
