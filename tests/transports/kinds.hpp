// The transports that the suite runs over, and the helpers of its tests.
#pragma once
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flow/transport.hpp"
#include "transports/inproc/inproc.hpp"
#include "transports/ucx/ucx.hpp"

namespace flow {

struct Inproc {
  static std::unique_ptr<Transport> make(const TransportOptions& options = {}) {
    return make_inproc_transport(options);
  }
};

template <UcxPuts kPuts>
struct OverUcx {
  static std::unique_ptr<Transport> make(const TransportOptions& options = {}) {
    auto made = make_ucx_transport(options, true, kPuts);
    INFO((made.ok() ? "" : made.error().message));
    REQUIRE(made.ok());
    return std::move(*made);
  }
};

using Ucx = OverUcx<UcxPuts::messages>;
using UcxRendezvous = OverUcx<UcxPuts::rendezvous>;

#if FLOW_TEST_UCX
#define FLOW_TRANSPORTS Inproc, Ucx
#define FLOW_TRANSPORTS_PUTTING Inproc, Ucx, UcxRendezvous
#else
#define FLOW_TRANSPORTS Inproc
#define FLOW_TRANSPORTS_PUTTING Inproc
#endif

/// Generous: a test that waits this long has failed.
constexpr auto kLong = std::chrono::seconds(60);

/// A flag that threads wait for.
class Signal {
 public:
  template <typename Change>
  auto with(Change change) {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
    return change();
  }
  template <typename Condition>
  bool wait(Condition condition, std::chrono::milliseconds most = kLong) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, condition);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// Records what its link reports.
class Recorder : public LinkHandler {
 public:
  void on_up() override {
    signal_.with([&] { ups_++; });
  }
  void on_frame(std::string_view frame) override {
    if (on_frame_) return on_frame_(frame);
    signal_.with([&] { frames_.emplace_back(frame); });
  }
  void on_down(const Error& why) override {
    signal_.with([&] { downs_.push_back(why.message); });
  }

  /// Calls `on_frame` instead of recording frames. Set it before the link exists.
  void answer(std::function<void(std::string_view)> on_frame) { on_frame_ = std::move(on_frame); }

  bool wait_up() {
    return signal_.wait([&] { return ups_ == 1; });
  }
  bool wait_frames(size_t count) {
    return signal_.wait([&] { return frames_.size() >= count; });
  }
  /// The reason, or "" if the link stays up.
  std::string wait_down(std::chrono::milliseconds most = kLong) {
    signal_.wait([&] { return !downs_.empty(); }, most);
    return signal_.with([&] { return downs_.empty() ? "" : downs_.front(); });
  }
  std::vector<std::string> frames() {
    return signal_.with([&] { return frames_; });
  }
  size_t downs() {
    return signal_.with([&] { return downs_.size(); });
  }
  int ups() {
    return signal_.with([&] { return ups_; });
  }

 private:
  Signal signal_;
  std::function<void(std::string_view)> on_frame_;
  std::vector<std::string> frames_, downs_;
  int ups_ = 0;
};

/// The outcome that was passed to `done` of a put or a receive.
template <typename Outcome>
class Outcomes {
 public:
  std::function<void(Outcome)> done() {
    return
        [this](Outcome outcome) { signal_.with([&] { outcomes_.push_back(std::move(outcome)); }); };
  }
  bool wait(size_t count) {
    return signal_.wait([&] { return outcomes_.size() >= count; });
  }
  std::vector<Outcome> all() {
    return signal_.with([&] { return outcomes_; });
  }

 private:
  Signal signal_;
  std::vector<Outcome> outcomes_;
};
using Arrivals = Outcomes<Result<size_t>>;
using Departures = Outcomes<Status>;

/// Two transports, as of two processes; one of them has a listener.
template <typename Kind>
class Two {
 public:
  explicit Two(const TransportOptions& options = {})
      : server(Kind::make(options)), client(Kind::make(options)) {
    auto opened = server->listen("127.0.0.1:0", [this](std::shared_ptr<Link> link) {
      return accepted_.with([&] {
        links_.push_back(std::move(link));
        handlers_.push_back(make_handler ? make_handler() : std::make_shared<Recorder>());
        return handlers_.back();
      });
    });
    REQUIRE(opened.ok());
    listener = std::move(*opened);
  }
  ~Two() {
    links_.clear();
    listener.reset();
  }

  std::shared_ptr<Link> connect(std::shared_ptr<LinkHandler> handler) {
    auto link = client->connect(listener->address(), std::move(handler));
    REQUIRE(link.ok());
    return *link;
  }
  /// The server's side of the link that was accepted as number `index`.
  std::shared_ptr<Link> link(size_t index = 0) {
    REQUIRE(accepted_.wait([&] { return links_.size() > index; }));
    return accepted_.with([&] { return links_[index]; });
  }
  std::shared_ptr<Recorder> handler(size_t index = 0) {
    REQUIRE(accepted_.wait([&] { return handlers_.size() > index; }));
    return accepted_.with([&] { return handlers_[index]; });
  }
  void drop_links() {
    std::vector<std::shared_ptr<Link>> links;
    accepted_.with([&] { links.swap(links_); });
  }

  /// Set it before a client connects.
  std::function<std::shared_ptr<Recorder>()> make_handler;
  std::unique_ptr<Transport> server, client;
  std::unique_ptr<Listener> listener;

 private:
  Signal accepted_;
  std::vector<std::shared_ptr<Link>> links_;
  std::vector<std::shared_ptr<Recorder>> handlers_;
};

/// Bytes that reveal a wrong position or length.
inline std::string pattern(size_t size, uint64_t seed) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<char>(seed >> 56);
  }
  return bytes;
}

inline Region region(std::string& bytes) { return {bytes.data(), bytes.size(), false}; }

}  // namespace flow
