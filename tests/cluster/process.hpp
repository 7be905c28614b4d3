// A head, and its worker in another process, over UCX.
#pragma once
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <optional>

#include "engine/base/files.hpp"
#include "engine/cluster/session/sessions.hpp"
#include "tests/cluster/log.hpp"
#include "transports/ucx/ucx.hpp"

namespace flow::cluster {

/// Runs the program `session_peer` and kills it at the end. `dir`: a folder whose blobs it serves.
class Process {
 public:
  Process(const std::string& address, const std::string& secret_file, std::string dir = "") {
    std::string program = FLOW_TEST_PEER, place = address, file = secret_file;
    char* last = dir.empty() ? nullptr : dir.data();
    char* argv[] = {program.data(), place.data(), file.data(), last, nullptr};
    REQUIRE(::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, argv, environ) == 0);
  }
  ~Process() {
    if (pid_ != 0) signal(SIGKILL), exit_code();
  }
  void signal(int number) const { ::kill(pid_, number); }
  /// Returns when all its threads have stopped.
  void stop() const {
    signal(SIGSTOP);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  /// Waits for the end; below 0 if a signal ended it.
  int exit_code() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
};

/// On a busy machine a process may be silent for some time without being stopped.
constexpr int64_t kNeverMs = 60'000, kSoonMs = 1'500;

struct PeerHead {
  explicit PeerHead(int64_t suspect_after_ms = kNeverMs) {
    std::string name = std::filesystem::temp_directory_path() / "flow-session-XXXXXX";
    folder = ::mkdtemp(name.data());
    auto made = make_ucx_transport({}, true);
    REQUIRE(made.ok());
    transport = std::move(*made);
    auto secret = read_or_make_secret(secret_file());
    REQUIRE(secret.ok());
    SessionOptions options = options_of(Role::head, std::make_shared<const Secret>(*secret));
    options.schema = 0;
    options.heartbeat_ms = 100;
    options.suspect_after_ms = suspect_after_ms;
    options.lost_after_ms = 2 * suspect_after_ms;
    sessions.emplace(*transport, options, [this](std::string note) { notes.add(note); });
    auto opened = sessions->listen("127.0.0.1:0", [this](const SessionPeer&, auto session) {
      link = session;
      std::lock_guard lock(mutex_);
      return other_user_ ? other_user_ : user;
    });
    REQUIRE(opened.ok());
    listener = std::move(*opened);
  }
  ~PeerHead() {
    listener.reset();
    sessions.reset();
    link.reset();
    transport.reset();
    std::filesystem::remove_all(folder);
  }
  /// For sessions that open from now on, instead of `user`.
  void give_to(std::shared_ptr<SessionUser> other) {
    std::lock_guard lock(mutex_);
    other_user_ = std::move(other);
  }
  std::string secret_file() const { return folder + "/secret"; }
  std::string address() const { return listener->address(); }

  std::string folder;
  Log notes;
  std::shared_ptr<RecordingSessionUser> user = std::make_shared<RecordingSessionUser>();
  std::shared_ptr<SessionLink> link;
  std::unique_ptr<Transport> transport;
  std::optional<Sessions> sessions;
  std::unique_ptr<Listener> listener;

 private:
  std::mutex mutex_;
  std::shared_ptr<SessionUser> other_user_;
};

}  // namespace flow::cluster
