// Posts to webhooks and runs commands when runs have ended. Pending notifications are in the store,
// so that the next process with the state sends those that this one could not.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/base/environment_variables.hpp"
#include "engine/runs/notifications.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// For how long a failing webhook is retried after its first failure. A process that finds an older
/// one tries it once more.
constexpr int64_t kNotifyRetryMs = 600'000;
/// How long finish() waits for webhooks, and how long a command may run.
constexpr int64_t kNotifyExitMs = 5'000, kNotifyCommandMs = 60'000;
constexpr int64_t kNotifyAnswerMs = 10'000;

/// The value of X-Flow-Signature: "t=SECONDS,v1=HEX", the HMAC-SHA256 of "SECONDS.BODY".
std::string notify_signature(std::string_view key, int64_t seconds, std::string_view body);
/// The target in messages: of a URL only scheme and host, because its path may be a secret.
std::string shown_target(const NotifyTarget& target);

/// Delivers notifications one at a time, on its own thread.
class Notifier {
 public:
  struct Hooks {
    /// The run as JSON. Throws Failed.
    std::function<std::string(const core::RunId& run)> run_json;
    /// Blocks until the row is durable. False: the engine has stopped.
    std::function<bool(std::string key, std::string value)> put;
    /// An attempt failed: a sentence for people.
    std::function<void(const core::RunId& run, const std::string& text)> warn;
  };
  /// `answer_ms`: how long a webhook may take to answer.
  Notifier(const Store& store, Hooks hooks, int64_t answer_ms = kNotifyAnswerMs);
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  /// Delivers first what earlier processes left undelivered.
  Status start();
  /// A run has ended, and the rows of its end are durable. `environment`: of its submission; null:
  /// that of this process. Any thread.
  void add(const core::RunId& run, std::shared_ptr<const EnvironmentVariables> environment);
  /// Waits until all notifications are sent: for webhooks at most kNotifyExitMs after the last
  /// command has ended. Then ends the thread.
  void finish();

 private:
  struct Entry {
    Notification notification;
    std::shared_ptr<const EnvironmentVariables> environment;  // null: the process's
    int64_t due_ms = 0;                                       // by the monotonic clock
    uint32_t failures = 0;                                    // in this process
    std::string failure;                                      // the newest of them
  };
  using Entries = std::map<std::string, Entry>;  // by the key of the row

  Status load(const std::string& prefix, std::shared_ptr<const EnvironmentVariables> environment);
  void work();
  Entries::iterator next_due();
  /// Notifies each target once. Returns why the first that failed did; "" if none did.
  std::string deliver(Entry& entry);
  Status deliver_to(const NotifyTarget& target, const Entry& entry, const std::string& body,
                    bool& is_final);
  Status post(const std::string& url, const Entry& entry, const std::string& body, bool& is_final);
  Status run_command(const std::string& command, const Notification& notification,
                     const std::string& body);
  Status run_program(const std::string& command, const Notification& notification,
                     const std::string& body);
  std::string variable(const Entry& entry, const std::string& name) const;
  bool is_stopping();

  const Store& store_;
  const Hooks hooks_;
  const int64_t answer_ms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Entries entries_;  // guarded by mutex_, as the rest; those that are done leave
  bool is_stopping_ = false, runs_command_ = false;
  int64_t command_ended_ms_ = 0;  // the newest; by the monotonic clock
  std::thread thread_;
};

}  // namespace flow
