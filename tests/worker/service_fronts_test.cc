// Orders to the fronts of services, with a front that gives prepared answers.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
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

TEST_CASE("the fronts of a run's services get the weights of both versions") {
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

TEST_CASE("fronts get to know which runs have ended, also at the end of the engine") {
  test::TempFolder folder;
  std::mutex mutex;
  std::string told;
  auto note = [&](const front::ToFront& message) -> std::optional<front::FromFront> {
    std::lock_guard lock(mutex);
    if (message.has_forget()) told += message.forget().version() + " ";
    return std::nullopt;
  };
  {
    ToldFront front(folder / "a", note);
    PostedAnswers answers;
    ServiceFronts fronts(answers.post());
    for (const char* run : {"r1", "r2", "r3"}) fronts.forget(run, {folder / "none", folder / "a"});
    fronts.quit();
    fronts.forget("r4", {folder / "a"});
    auto now = [&] {
      std::lock_guard lock(mutex);
      return told;
    };
    while (now() != "r1 r2 r3 ") std::this_thread::yield();
  }
  CHECK(told == "r1 r2 r3 ");
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

TEST_CASE("refused requests are errors of a step, and only many of them make it complete") {
  test::TempFolder folder;
  uint64_t accepted = 19, refused = 20;
  ToldFront front(folder / "a", [&](const front::ToFront& message) {
    if (!message.has_status()) return std::optional<front::FromFront>();
    front::FromFront answer;
    front::VersionStatus& own = *answer.mutable_status()->add_versions();
    own.set_version("r2");
    own.set_percent(10);
    own.set_step_requests(accepted);
    own.set_step_errors(1);
    own.set_step_refused(refused);
    own.set_step_p99_us(9000);
    accepted++;
    return std::optional(answer);
  });
  PostedAnswers answers;
  ServiceFronts fronts(answers.post());
  const FrontOrder order{{"r2", "r1", 0, 10}, true, {folder / "a"}, 20};
  fronts.give(order);
  CHECK(answers.next<core::TrafficMeasured>().requests == 19);
  fronts.give(order);
  auto complete = answers.next<core::TrafficMeasured>();
  CHECK(complete.requests == 40);
  CHECK(complete.errors == 21);
  CHECK(complete.p99_us == 9000);
  // Otherwise the step of a version that refuses all would not end.
  accepted = 0;
  refused = 21;
  fronts.give(order);
  CHECK(answers.next<core::TrafficMeasured>().requests == 0);
  FrontOrder with_limit = order;
  with_limit.limits_errors = true;
  fronts.give(with_limit);
  auto overloaded = answers.next<core::TrafficMeasured>();
  CHECK(overloaded.requests == 22);  // one was accepted
  CHECK(overloaded.errors == 22);
}

TEST_CASE("a front that was started again gets the weights, and counts from then on") {
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

/// What a front says of the load, which a test changes.
class SaidLoad {
 public:
  void say(int64_t queue_us, uint64_t rejected, int replicas) {
    std::lock_guard lock(mutex_);
    queue_us_ = queue_us;
    rejected_ = rejected;
    replicas_ = replicas;
  }
  ToldFront::Answer answer() {
    return [this](const front::ToFront& message) -> std::optional<front::FromFront> {
      if (!message.has_status()) return std::nullopt;
      std::lock_guard lock(mutex_);
      asked++;
      front::FromFront answer;
      answer.mutable_status()->add_versions()->set_version("r0");
      front::VersionStatus& own = *answer.mutable_status()->add_versions();
      own.set_version("r1");
      own.set_queue_us(queue_us_);
      own.set_rejected(rejected_);
      own.add_replicas()->set_is_leaving(true);
      for (int i = 0; i < replicas_; i++) own.add_replicas();
      return answer;
    };
  }
  std::atomic<int> asked = 0;

 private:
  std::mutex mutex_;
  int64_t queue_us_ = 0;
  uint64_t rejected_ = 0;
  int replicas_ = 1;
};

void until(const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_CASE(
    "a service grows and shrinks as its front measures its load, and else nothing is posted") {
  test::TempFolder folder;
  SaidLoad load;
  ToldFront front(folder / "a", load.answer());
  std::atomic<int> posted = 0;
  PostedAnswers answers;
  ReplicaScaler scaler(
      [&, post = answers.post()](core::Event event) {
        posted++;
        post(std::move(event));
      },
      std::chrono::milliseconds(1));
  ScaledService service{3, folder / "a", {1, 2, 5000, 2, 2}};
  scaler.watch("r1", {service});
  until([&] { return load.asked > 20; });
  CHECK(posted == 0);
  load.say(6000, 0, 1);
  auto scaled = answers.next<core::ReplicasScaled>();
  CHECK(scaled.run == "r1");
  CHECK(scaled.unit == 3);
  CHECK(scaled.replicas == 2);
  load.say(6000, 0, 2);
  until([&, before = load.asked.load()] { return load.asked > before + 20; });
  CHECK(posted == 1);
  load.say(0, 0, 2);
  CHECK(answers.next<core::ReplicasScaled>().replicas == 1);
  load.say(0, 7, 1);
  CHECK(answers.next<core::ReplicasScaled>().replicas == 2);
}

TEST_CASE(
    "a front whose services are watched no more is not asked, and nothing is connected to it") {
  test::TempFolder folder;
  SaidLoad load;
  ToldFront front(folder / "a", load.answer());
  PostedAnswers answers;
  ReplicaScaler scaler(answers.post(), std::chrono::milliseconds(1));
  scaler.watch("r1", {{3, folder / "a", {1, 2, 5000, 2, 2}}});
  until([&] { return load.asked > 0; });
  scaler.watch("r1", {});
  // The front answers one connection at a time.
  CHECK(front_status(folder / "a").ok());
}

TEST_CASE("a version that a front does not have, or a front that is not there, has no load") {
  front::Status status;
  status.add_versions()->set_version("r1");
  CHECK_FALSE(load_of(status, "r1", 1).has_value());
  CHECK_FALSE(load_of(status, "r2", 1).has_value());
  test::TempFolder folder;
  PostedAnswers answers;
  ReplicaScaler scaler(answers.post(), std::chrono::milliseconds(1));
  scaler.watch("r1", {{3, folder / "none", {1, 2, 5000, 2, 2}}});
  scaler.quit();
}

}  // namespace
}  // namespace flow
