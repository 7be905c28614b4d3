// Orders to the fronts of services, with a front that answers as it is told.
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/base/unix_socket.hpp"
#include "engine/protocol/frames.hpp"
#include "engine/protocol/front_client.hpp"
#include "engine/worker/service_fronts.hpp"
#include "tests/worker/temp_folder.hpp"

namespace flow {
namespace {

/// Answers each message but Control by a function; an empty answer closes the connection.
class ToldFront {
 public:
  using Answer = std::function<std::optional<front::FromFront>(const front::ToFront&)>;
  ToldFront(const std::string& folder, Answer answer) : answer_(std::move(answer)) {
    std::filesystem::create_directories(folder);
    auto listening = listen_unix(folder + "/front.sock");
    REQUIRE(listening.ok());
    socket_ = *listening;
    thread_ = std::thread([this] { serve(); });
  }
  ~ToldFront() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }

 private:
  void serve() {
    while (true) {
      int peer = ::accept(socket_, nullptr, nullptr);
      if (peer < 0) return;
      bool goes_on = true;
      while (goes_on) {
        uint32_t size = 0;
        if (!read_fully(peer, reinterpret_cast<char*>(&size), sizeof size)) break;
        std::string bytes(size, '\0');
        if (!read_fully(peer, bytes.data(), size)) break;
        front::ToFront message;
        if (!message.ParseFromString(bytes)) break;
        if (message.has_control()) continue;
        auto answer = answer_(message);
        goes_on = answer.has_value();
        if (!goes_on) break;
        std::string frame;
        append_frame(frame, *answer);
        goes_on = write_fully(peer, frame);
      }
      ::close(peer);
    }
  }

  const Answer answer_;
  int socket_ = -1;
  std::thread thread_;
};

/// The answers to orders.
class PostedAnswers {
 public:
  ServiceFronts::Post post() {
    return [this](core::Event event) {
      std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_all();
    };
  }
  template <typename Event>
  Event next() {
    std::unique_lock lock(mutex_);
    bool came = changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !events_.empty(); });
    REQUIRE(came);
    core::Event event = std::move(events_.front());
    events_.erase(events_.begin());
    REQUIRE(std::holds_alternative<Event>(event));
    return std::get<Event>(event);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<core::Event> events_;
};

std::optional<front::FromFront> set_without_error() {
  front::FromFront answer;
  answer.mutable_traffic_set();
  return answer;
}

TEST_CASE("the fronts of a run's services are told the weights of both versions") {
  test::TempFolder folder;
  std::string told;
  ToldFront front(folder / "a", [&](const front::ToFront& message) {
    if (!message.has_traffic()) return std::optional<front::FromFront>();
    for (const front::Weight& weight : message.traffic().weights())
      told += weight.version() + "=" + std::to_string(weight.percent()) + " ";
    told += message.traffic().measured() + "\n";
    return set_without_error();
  });
  PostedAnswers answers;
  ServiceFronts fronts(answers.post());
  fronts.give({{"r2", "r1", 3, 10}, false, {folder / "a", folder / "a"}});
  auto shifted = answers.next<core::TrafficShifted>();
  CHECK(shifted.run == "r2");
  CHECK(shifted.step == 3);
  CHECK(shifted.error == "");
  fronts.give({{"r2", "", 4, 100}, false, {folder / "a"}});
  CHECK(answers.next<core::TrafficShifted>().step == 4);
  fronts.give({{"r2", "r1", 4, 0}, false, {folder / "a"}});
  CHECK(answers.next<core::TrafficShifted>().step == 4);
  CHECK(told == "r2=10 r1=90 r2\nr2=10 r1=90 r2\nr2=100 \nr2=0 r1=100 \n");
}

TEST_CASE("what the fronts counted since the step began is added up") {
  test::TempFolder folder;
  auto counted = [](uint32_t percent, uint64_t requests, uint64_t errors, int64_t p99_us) {
    return [=](const front::ToFront& message) -> std::optional<front::FromFront> {
      if (!message.has_status()) return std::nullopt;
      front::FromFront answer;
      answer.mutable_status()->add_versions()->set_version("r1");
      front::VersionStatus& own = *answer.mutable_status()->add_versions();
      own.set_version("r2");
      own.set_percent(percent);
      own.set_requests(9999);
      own.set_step_requests(requests);
      own.set_step_errors(errors);
      own.set_step_p50_us(p99_us / 2);
      own.set_step_p99_us(p99_us);
      return answer;
    };
  };
  ToldFront first(folder / "a", counted(10, 100, 2, 3000));
  ToldFront second(folder / "b", counted(10, 50, 1, 8000));
  PostedAnswers answers;
  ServiceFronts fronts(answers.post());
  fronts.give({{"r2", "r1", 0, 10}, true, {folder / "a", folder / "b"}});
  auto measured = answers.next<core::TrafficMeasured>();
  CHECK(measured.run == "r2");
  CHECK(measured.error == "");
  CHECK(measured.requests == 150);
  CHECK(measured.errors == 3);
  CHECK(measured.p50_us == 4000);
  CHECK(measured.p99_us == 8000);
  CHECK(front_status(folder / "a").ok());
}

TEST_CASE("a front that was started again is told the weights, and counts from now on") {
  test::TempFolder folder;
  int told = 0;
  ToldFront front(folder / "a", [&](const front::ToFront& message) {
    if (message.has_traffic()) {
      told++;
      return set_without_error();
    }
    front::FromFront answer;
    front::VersionStatus& own = *answer.mutable_status()->add_versions();
    own.set_version("r2");
    own.set_percent(100);
    own.set_step_requests(70);
    return std::optional(answer);
  });
  PostedAnswers answers;
  ServiceFronts fronts(answers.post());
  fronts.give({{"r2", "r1", 0, 10}, true, {folder / "a"}});
  auto measured = answers.next<core::TrafficMeasured>();
  CHECK(measured.error == "");
  CHECK(measured.requests == 0);
  CHECK(told == 1);
}

TEST_CASE("a front that is not there, closes the connection or refuses is an error after a while") {
  test::TempFolder folder;
  int asked = 0;
  ToldFront closing(folder / "a", [&](const front::ToFront&) {
    asked++;
    return std::nullopt;
  });
  ToldFront refusing(folder / "b", [&](const front::ToFront&) {
    auto answer = set_without_error();
    answer->mutable_traffic_set()->set_error("no such version");
    return answer;
  });
  PostedAnswers answers;
  ServiceFronts fronts(answers.post(), std::chrono::milliseconds(300));
  fronts.give({{"r2", "r1", 0, 10}, false, {folder / "none"}});
  CHECK_THAT(answers.next<core::TrafficShifted>().error, Catch::Contains("cannot connect to"));
  fronts.give({{"r2", "r1", 0, 10}, true, {folder / "a"}});
  CHECK_THAT(answers.next<core::TrafficMeasured>().error,
             Catch::Contains("it closed the connection"));
  CHECK(asked > 1);
  fronts.give({{"r2", "r1", 0, 10}, false, {folder / "b"}});
  CHECK_THAT(answers.next<core::TrafficShifted>().error, Catch::Contains("no such version"));
}

TEST_CASE("an order that a later one of its run replaces is not answered") {
  test::TempFolder folder;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_asked = false, may_answer = false;
  ToldFront front(folder / "a", [&](const front::ToFront&) {
    std::unique_lock lock(mutex);
    is_asked = true;
    changed.notify_all();
    changed.wait(lock, [&] { return may_answer; });
    return set_without_error();
  });
  PostedAnswers answers;
  ServiceFronts fronts(answers.post());
  fronts.give({{"r2", "r1", 0, 10}, false, {folder / "a"}});
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_asked; });
  }
  fronts.give({{"r2", "r1", 1, 0}, false, {folder / "a"}});
  {
    std::lock_guard lock(mutex);
    may_answer = true;
    changed.notify_all();
  }
  CHECK(answers.next<core::TrafficShifted>().step == 1);
}

}  // namespace
}  // namespace flow
