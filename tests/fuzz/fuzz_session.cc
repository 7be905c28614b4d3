// A head's session during and after its handshake. The worker's frames are delivered, changed,
// repeated, lost, delayed or invented. The head receives only what the worker sent, in order and
// from the first; nothing arrives after an end; time is arbitrary.
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/cluster/session/session.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/randomness.hpp"

namespace {

using namespace flow::cluster;
using flow::fuzz::Input;
using flow::fuzz::random_state;
using flow::fuzz::use_fixed_randomness;

const bool kReady = use_fixed_randomness();

std::shared_ptr<const Secret> secret_of(uint8_t byte) {
  auto secret = std::make_shared<Secret>();
  secret->bytes.fill(byte);
  return secret;
}

class Story {
 public:
  explicit Story(uint8_t kind) {
    SessionOptions options;
    options.version = "0.1.0";
    options.name = "h1";
    bool is_of_workers = (kind & 32) != 0;
    Role first = is_of_workers ? Role::worker : Role::head;
    options.role = first;
    if ((kind & 1) == 0) options.secret = secret_of(7);
    SessionOutput out;
    head_ = std::make_unique<Session>(options, "10.0.0.7:41 (tcp)", 0, out);
    take(std::move(out), to_worker_);
    options.name = "w1";
    Role other = (kind & 64) == 0 ? Role::worker : Role::client;
    Role second = is_of_workers ? Role::peer : other;
    options.role = (kind & 2) == 0 ? second : first;
    if ((kind & 4) != 0) options.secret = secret_of(8);
    if ((kind & 8) != 0) options.schema = 1;
    out = {};
    worker_ = std::make_unique<Session>(options, "10.0.0.1:77 (tcp)", 0, out);
    keep(std::move(out), to_head_);
    is_like_ = (kind & 14) == 0;
    if ((kind & 16) != 0) open();
  }

  void play(Input& in) {
    switch (in.byte() % 12) {
      case 0:
        return to_head(next());
      case 1:
        return worker_frame();
      case 2:
        return change_next(in);
      case 3: {
        if (to_head_.size() > 1) std::swap(to_head_[0], to_head_[1]);
        return;
      }
      case 4: {
        if (!past_.empty()) to_head(past_[in.byte() % past_.size()]);
        return;
      }
      case 5:
        return to_head(in.bytes(in.byte()));
      case 6: {
        if (!to_worker_.empty()) to_head(to_worker_.front());
        return;
      }
      case 7:
        return send(in.bytes(in.byte()));
      case 8:
        return tick(in);
      case 9: {
        next();  // lost
        return;
      }
      case 10: {
        if (in.byte() == 0) end(in.bytes(in.byte()));
        return;
      }
      case 11:
        return to_head(std::string(size_t{in.byte()} << 10, static_cast<char>(in.byte())));
    }
  }

  /// Whatever arrived, opened data opens only for the right peers.
  void check() const {
    if (!head_->is_open()) return;
    FLOW_CHECK(is_like_);
  }

 private:
  void open() {
    for (int i = 0; i < 2; i++) {
      worker_frame();
      to_head(next());
    }
    to_worker_.clear();
    past_.clear();
  }
  std::string next() {
    if (to_head_.empty()) return {};
    std::string frame = std::move(to_head_.front());
    to_head_.pop_front();
    return frame;
  }
  void change_next(Input& in) {
    if (to_head_.empty()) return;
    std::string& frame = to_head_.front();
    size_t at = in.byte() | in.byte() << 8;
    uint8_t how = in.byte();
    if (frame.empty() || how == 0) return frame.resize(at % 2048);
    at %= frame.size();
    frame[at] = static_cast<char>(frame[at] ^ how);
  }
  void to_head(const std::string& frame) {
    SessionOutput out;
    head_->on_frame(frame, now_us_, out);
    take(std::move(out), to_worker_);
  }
  void worker_frame() {
    if (to_worker_.empty()) return;
    std::string frame = std::move(to_worker_.front());
    to_worker_.pop_front();
    SessionOutput out;
    worker_->on_frame(frame, now_us_, out);
    keep(std::move(out), to_head_);
  }
  void send(const std::string& message) {
    SessionOutput out;
    if (worker_->send(message, out).ok()) sent_.push_back(message);
    keep(std::move(out), to_head_);
    out = {};
    (void)head_->send(message, out);
    take(std::move(out), to_worker_);
  }
  void end(const std::string& reason) {
    SessionOutput out;
    worker_->end(reason, out);
    keep(std::move(out), to_head_);
  }
  void tick(Input& in) {
    uint8_t step = in.byte();
    now_us_ = step == 255 ? static_cast<int64_t>(in.number(8))
                          : static_cast<int64_t>(static_cast<uint64_t>(now_us_) + step * 10'000u);
    SessionOutput out;
    head_->tick(now_us_, out);
    take(std::move(out), to_worker_);
    out = {};
    worker_->tick(now_us_, out);
    keep(std::move(out), to_head_);
  }

  // Checks everything that the head reports against what the worker sent.
  void take(SessionOutput out, std::deque<std::string>& queue) {
    for (std::string& frame : out.frames) queue.push_back(std::move(frame));
    for (SessionEvent& event : out.events) {
      FLOW_CHECK(!has_ended_);
      if (std::holds_alternative<SessionOpened>(event)) {
        FLOW_CHECK(!was_opened_ && is_like_);
        was_opened_ = true;
      } else if (auto* message = std::get_if<MessageReceived>(&event)) {
        FLOW_CHECK(was_opened_ && taken_ < sent_.size() && message->bytes == sent_[taken_]);
        taken_++;
      } else if (auto* ended = std::get_if<SessionEnded>(&event)) {
        has_ended_ = true;
        FLOW_CHECK(ended->why.message.find("10.0.0.7:41 (tcp)") != std::string::npos);
      } else {
        FLOW_CHECK(was_opened_);
      }
    }
  }
  void keep(SessionOutput out, std::deque<std::string>& queue) {
    for (std::string& frame : out.frames) {
      past_.push_back(frame);
      queue.push_back(std::move(frame));
    }
  }

  std::unique_ptr<Session> head_, worker_;
  std::deque<std::string> to_head_, to_worker_;
  std::vector<std::string> past_;  // all that the worker ever sent
  std::vector<std::string> sent_;  // its messages
  size_t taken_ = 0;
  int64_t now_us_ = 0;
  bool is_like_ = false, was_opened_ = false, has_ended_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FLOW_CHECK(kReady);
  random_state = 1;
  Input in(data, size);
  Story story(in.byte());
  while (!in.is_empty()) {
    story.play(in);
    story.check();
  }
  return 0;
}
