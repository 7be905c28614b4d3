#include "engine/exports/notifier.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/failpoint.hpp"
#include "engine/base/log.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/crypto/hmac.hpp"
#include "engine/fetch/http_client.hpp"
#include "engine/fetch/retry_delay.hpp"
#include "engine/process/child.hpp"
#include "engine/store/row_keys.hpp"
#include "flow/flow.hpp"

namespace flow {

namespace {

constexpr int64_t kBackoffMs = 200, kBackoffMsMax = 30'000;
constexpr size_t kAnswerMax = 64 * 1024;  // bytes of the body of a webhook's answer
constexpr size_t kOutputShown = 300;      // bytes of what a command wrote

int64_t steady_now_ms() { return monotonic_us() / 1000; }

int64_t backoff_ms(uint32_t failures) {
  int64_t delay = kBackoffMs;
  for (uint32_t i = 1; i < failures && delay < kBackoffMsMax; i++) delay *= 2;
  return std::min(delay, kBackoffMsMax);
}

std::string failure_text(const NotifyTarget& target, const core::RunId& run,
                         const std::string& why) {
  return fmt::format("the notification of the end of the run {} failed: {}: {}", run,
                     shown_target(target), why);
}

/// A file in memory; closed at the end.
struct MemoryFile {
  explicit MemoryFile(const char* name) : descriptor(::memfd_create(name, MFD_CLOEXEC)) {}
  ~MemoryFile() {
    if (descriptor >= 0) ::close(descriptor);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  bool write(std::string_view text) const {
    while (!text.empty()) {
      ssize_t written = ::write(descriptor, text.data(), text.size());
      if (written <= 0) return false;
      text.remove_prefix(static_cast<size_t>(written));
    }
    return ::lseek(descriptor, 0, SEEK_SET) == 0;
  }
  /// Frees what is behind the part that begin() shows.
  void drop_rest() const {
    constexpr off_t kKept = 4096;
    struct stat info {};
    if (::fstat(descriptor, &info) == 0 && info.st_size > kKept)
      (void)::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kKept,
                        info.st_size - kKept);
  }
  std::string begin() const {
    std::string text(kOutputShown, '\0');
    ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text.substr(0, text.find_last_not_of('\n') + 1);
  }
  int descriptor;
};

}  // namespace

std::string notify_signature(std::string_view key, int64_t seconds, std::string_view body) {
  std::string signed_text = std::to_string(seconds) + ".";
  signed_text += body;
  return fmt::format("t={},v1={}", seconds, hmac_sha256(key, signed_text).hex());
}

// The path of many webhooks is a secret.
std::string shown_target(const NotifyTarget& target) {
  if (target.is_command) return "the command `" + target.text + "`";
  if (!target.variable.empty()) return "the webhook of the variable " + target.variable;
  auto url = parse_url(target.text);
  if (!url.ok()) return "the webhook";
  return "the webhook at " + url->scheme + "://" + host_header(*url);
}

Notifier::Notifier(const Store& store, Hooks hooks, int64_t answer_ms)
    : store_(store), hooks_(std::move(hooks)), answer_ms_(answer_ms) {}

Notifier::~Notifier() { finish(); }

Status Notifier::start() {
  FLOW_TRY(load(notification_prefix(""), nullptr));
  std::lock_guard lock(mutex_);
  bool is_begun = thread_.joinable();  // by a run that has ended meanwhile
  if (!entries_.empty() && !is_begun) thread_ = engine_thread([this] { work(); });
  return {};
}

Status Notifier::load(const std::string& prefix,
                      std::shared_ptr<const EnvironmentVariables> environment) {
  std::lock_guard lock(mutex_);
  if (is_stopping_) return {};
  return store_.scan(Family::kv, prefix, prefix, [&](std::string_view key, std::string_view row) {
    Notification found = decode_notification(row);
    if (!found.is_done())
      entries_.try_emplace(std::string(key), Entry{std::move(found), environment, 0, 0, ""});
    return true;
  });
}

void Notifier::add(const core::RunId& run,
                   std::shared_ptr<const EnvironmentVariables> environment) {
  Status loaded = load(notification_prefix(run), std::move(environment));
  if (!loaded.ok())
    log::warning("notification not read", {.run = run, .detail = loaded.error().message});
  std::lock_guard lock(mutex_);
  if (is_stopping_) return;
  if (!thread_.joinable() && !entries_.empty()) thread_ = engine_thread([this] { work(); });
  changed_.notify_all();
}

void Notifier::finish() {
  std::unique_lock lock(mutex_);
  const int64_t begin_ms = steady_now_ms();
  while (!is_stopping_ && thread_.joinable() && !entries_.empty()) {
    const int64_t until_ms = std::max(begin_ms, command_ended_ms_) + kNotifyExitMs;
    bool is_too_late = steady_now_ms() >= until_ms || next_due()->second.due_ms > until_ms;
    if (is_too_late && !runs_command_) break;
    int64_t left_ms = runs_command_ ? kNotifyCommandMs : until_ms - steady_now_ms();
    changed_.wait_for(lock, std::chrono::milliseconds(left_ms));
  }
  is_stopping_ = true;
  changed_.notify_all();
  std::thread thread = std::move(thread_);
  lock.unlock();
  if (thread.joinable()) thread.join();
  for (const auto& [key, entry] : entries_) {
    const Notification& notification = entry.notification;
    std::string why = entry.failure;
    if (why.empty())
      why = failure_text(notification.to.targets.front(), notification.run,
                         "it did not answer before flow ended");
    hooks_.warn(notification.run, why + ". The next flow that writes this state tries it again");
  }
  entries_.clear();
}

bool Notifier::is_stopping() {
  std::lock_guard lock(mutex_);
  return is_stopping_;
}

Notifier::Entries::iterator Notifier::next_due() {
  return std::ranges::min_element(
      entries_, {}, [](const Entries::value_type& each) { return each.second.due_ms; });
}

void Notifier::work() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    auto next = next_due();
    if (next == entries_.end()) {
      changed_.wait(lock);
      continue;
    }
    int64_t wait_ms = next->second.due_ms - steady_now_ms();
    if (wait_ms > 0) {
      changed_.wait_for(lock, std::chrono::milliseconds(wait_ms));
      continue;
    }
    std::string key = next->first;
    Entry entry = next->second;
    lock.unlock();
    failpoint("notify-before-send");
    std::string failure = deliver(entry);
    failpoint("notify-before-record");
    bool is_kept = hooks_.put(key, encode_notification(entry.notification));
    lock.lock();
    if (!is_kept) {  // the engine has stopped: the next process sends it again
      is_stopping_ = true;
      changed_.notify_all();
      return;
    }
    if (entry.notification.is_done()) {
      entries_.erase(key);
    } else {
      if (!failure.empty()) entry.failures++;
      if (!failure.empty()) entry.failure = std::move(failure);
      entry.due_ms = steady_now_ms() + backoff_ms(entry.failures);
      entries_[key] = std::move(entry);
    }
    changed_.notify_all();
  }
}

// A target leaves the notification once it was notified or given up.
std::string Notifier::deliver(Entry& entry) {
  Notification& notification = entry.notification;
  std::string body, first_failure;
  try {
    body = hooks_.run_json(notification.run);
  } catch (const Failed& failed) {  // such as a run that gc has deleted
    notification.to.targets.clear();
    log::warning("notification dropped", {.run = notification.run, .detail = failed.error.message});
    return "";
  }
  std::vector<NotifyTarget> open;
  for (const NotifyTarget& target : notification.to.targets) {
    bool is_final = false;
    Status sent = is_stopping() ? Status(Error{ErrorKind::interrupted, "flow ends"})
                                : deliver_to(target, entry, body, is_final);
    if (sent.ok()) {
      log::info("notification sent", {.run = notification.run, .detail = shown_target(target)});
      continue;
    }
    if (sent.error().kind == ErrorKind::interrupted) {  // it was cut off by finish()
      open.push_back(target);
      continue;
    }
    // Without its variables this process leaves it to another one.
    auto has = [&](const std::string& name) {
      return name.empty() || !variable(entry, name).empty();
    };
    bool has_variables =
        target.is_command || (has(target.variable) && has(notification.to.secret_variable));
    if (has_variables && notification.failed_since_ms == 0) notification.failed_since_ms = now_ms();
    bool is_late = has_variables && now_ms() - notification.failed_since_ms >= kNotifyRetryMs;
    bool gives_up = is_final || is_late;
    std::string text = failure_text(target, notification.run, sent.error().message);
    log::warning("notification failed", {.run = notification.run, .detail = text});
    if (gives_up) hooks_.warn(notification.run, text + ". It is not tried again");
    if (!gives_up) open.push_back(target);
    if (first_failure.empty()) first_failure = text;
  }
  notification.to.targets = std::move(open);
  return first_failure;
}

Status Notifier::deliver_to(const NotifyTarget& target, const Entry& entry, const std::string& body,
                            bool& is_final) {
  if (target.is_command) {
    is_final = true;  // it may have done a part of its work
    return run_command(target.text, entry.notification, body);
  }
  if (target.variable.empty()) return post(target.text, entry, body, is_final);
  std::string url = variable(entry, target.variable);
  log::hide({url});
  if (url.empty()) return user_error(fmt::format("the variable {} is not set", target.variable));
  return post(url, entry, body, is_final);
}

Status Notifier::post(const std::string& url, const Entry& entry, const std::string& body,
                      bool& is_final) {
  const Notification& notification = entry.notification;
  fetch::HttpRequest request;
  auto parsed = parse_url(url);
  if (!parsed.ok()) {
    is_final = true;
    return user_error("its URL is not valid");
  }
  request.url = std::move(*parsed);
  request.method = "POST";
  request.body = body;
  request.follows_redirects = false;
  request.body_max = kAnswerMax;
  request.shown = "the webhook";
  request.headers = {{"Content-Type", "application/json"},
                     {"X-Flow-Delivery", notification.delivery}};
  if (!notification.to.secret_variable.empty()) {
    std::string key = variable(entry, notification.to.secret_variable);
    if (key.empty())
      return user_error(
          fmt::format("the variable {} of its secret is not set", notification.to.secret_variable));
    log::hide({key});
    constexpr int64_t kMsPerSecond = 1000;
    request.headers.emplace_back("X-Flow-Signature",
                                 notify_signature(key, now_ms() / kMsPerSecond, body));
  }
  auto options = fetch::read_fetch_options({{"SSL_CERT_FILE", variable(entry, "SSL_CERT_FILE")}});
  FLOW_TRY(options);
  options->exchange_ms = answer_ms_;
  options->check_running = [this]() -> Status {
    if (is_stopping()) return Error{ErrorKind::interrupted, "flow ends"};
    return {};
  };
  fetch::HttpClient client(*options);
  auto response = client.send(request);
  FLOW_TRY(response);
  // Its status decides, not what follows it.
  constexpr int kOk = 200, kRedirect = 300;
  if (kOk <= response->status && response->status < kRedirect) return {};
  if (response->status >= kOk) response->failure.clear();
  is_final = !fetch::is_transient(*response);
  return environment_error(fetch::failure_text(*response));
}

Status Notifier::run_command(const std::string& command, const Notification& notification,
                             const std::string& body) {
  {
    std::lock_guard lock(mutex_);
    runs_command_ = true;
  }
  Status ran = run_program(command, notification, body);
  std::lock_guard lock(mutex_);
  runs_command_ = false;
  command_ended_ms_ = steady_now_ms();
  return ran;
}

Status Notifier::run_program(const std::string& command, const Notification& notification,
                             const std::string& body) {
  MemoryFile input("flow-notification"), output("flow-notification-output");
  if (input.descriptor < 0 || output.descriptor < 0 || !input.write(body))
    return environment_error("there is no memory for its input");
  // The shell of the command is in the folder of the run, so that a relative path means the same.
  auto child =
      Child::spawn({"/bin/sh", "-c", "cd \"$1\" && exec /bin/sh -c \"$2\"", "flow",
                    notification.to.directory.empty() ? "/" : notification.to.directory, command},
                   {input.descriptor, output.descriptor, output.descriptor},
                   {"FLOW_RUN=" + notification.run, "FLOW_STATUS=" + notification.status,
                    "FLOW_DELIVERY=" + notification.delivery});
  FLOW_TRY(child);
  constexpr int64_t kPollMs = 100;
  const int64_t until_ms = steady_now_ms() + kNotifyCommandMs;
  bool has_ended = false;
  while (!has_ended && steady_now_ms() < until_ms) {
    has_ended = (*child)->ends_within(kPollMs);
    output.drop_rest();
  }
  if (!has_ended) {
    (*child)->kill_group();
    (void)(*child)->reap();
    return environment_error(
        fmt::format("it ran longer than {} s and was killed", kNotifyCommandMs / 1000));
  }
  int code = (*child)->reap();
  if (code == 0) return {};
  std::string wrote = output.begin();
  return environment_error(
      fmt::format("its exit code is {}{}", code, wrote.empty() ? "" : ": " + wrote));
}

std::string Notifier::variable(const Entry& entry, const std::string& name) const {
  if (entry.environment) {
    for (const auto& [each, value] : *entry.environment)
      if (each == name) return value;
  }
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

}  // namespace flow
