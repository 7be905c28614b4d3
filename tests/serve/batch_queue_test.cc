// Which requests become one batch, and when. The time is a number of the test.
#include "engine/serve/batch_queue.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

using namespace flow;
using namespace std::chrono_literals;

namespace {

using Clock = BatchQueue::Clock;

const Clock::time_point kStart = Clock::time_point(1h);

Tensor zeros(std::vector<int64_t> shape) {
  size_t count = 1;
  for (int64_t extent : shape) count *= static_cast<size_t>(extent);
  Tensor tensor;
  tensor.shape = std::move(shape);
  tensor.data = std::make_shared<const std::string>(count * sizeof(float), '\0');
  return tensor;
}

std::unique_ptr<PendingRequest> request(const std::string& id, std::vector<int64_t> shape,
                                        Clock::duration arrived = 0ms,
                                        Clock::duration deadline = 1h) {
  auto made = std::make_unique<PendingRequest>();
  made->request.id = id;
  made->request.inputs["x"] = zeros(std::move(shape));
  made->arrived = kStart + arrived;
  made->deadline = kStart + deadline;
  return made;
}

/// Of a client that may leave.
class QueuedResponder final : public InferResponder {
 public:
  explicit QueuedResponder(const bool& is_gone) : is_gone_(is_gone) {}
  bool is_abandoned() const override { return is_gone_; }
  uint64_t inline_bytes_max() const override { return 0; }
  Status encode(const std::string&, const InferRequest&, const Tensors&) override { return {}; }
  void send() override {}
  void fail(int, const std::string&) override {}

 private:
  const bool& is_gone_;
};

std::string ids(const BatchQueue::Requests& requests) {
  std::string all;
  for (const auto& each : requests) all += (all.empty() ? "" : " ") + each->request.id;
  return all;
}

}  // namespace

TEST_CASE("a batch is due when its oldest request has waited") {
  BatchQueue queue(8, 10ms);
  CHECK(queue.next_event() == Clock::time_point::max());
  queue.push(request("a", {1, 2}));
  queue.push(request("b", {2, 2}, 5ms));
  CHECK(queue.size() == 2);
  CHECK(queue.next_event() == kStart + 10ms);
  CHECK(queue.next_deadline() == kStart + 1h);
  CHECK(queue.take_batch(kStart + 9ms).empty());
  auto batch = queue.take_batch(kStart + 10ms);
  CHECK(ids(batch) == "a b");
  CHECK(batch[1]->rows == 2);
  CHECK(queue.size() == 0);
  CHECK(queue.next_event() == Clock::time_point::max());
  CHECK(queue.next_deadline() == Clock::time_point::max());
  CHECK(queue.take_batch(kStart + 1h).empty());
}

TEST_CASE("a full batch is due at once, and takes no more rows than it may") {
  BatchQueue queue(4, 10ms);
  queue.push(request("a", {2, 2}));
  queue.push(request("b", {1, 2}));
  CHECK(queue.take_batch(kStart).empty());
  queue.push(request("c", {3, 2}));
  queue.push(request("d", {1, 2}));
  CHECK(queue.next_event() <= kStart);
  CHECK(ids(queue.take_batch(kStart)) == "a b");
  CHECK(ids(queue.take_batch(kStart)) == "c d");
  CHECK(queue.take_batch(kStart).empty());
}

TEST_CASE("the rest of a full batch waits for its own time") {
  BatchQueue queue(2, 10ms);
  for (const char* id : {"a", "b", "c"}) queue.push(request(id, {1}, id[0] == 'c' ? 3ms : 0ms));
  CHECK(ids(queue.take_batch(kStart + 3ms)) == "a b");
  CHECK(queue.take_batch(kStart + 3ms).empty());
  CHECK(queue.next_event() == kStart + 13ms);
  CHECK(ids(queue.take_batch(kStart + 13ms)) == "c");
}

TEST_CASE("a request with more rows than a batch may have is a batch alone") {
  BatchQueue queue(4, 10ms);
  queue.push(request("small", {1, 2}));
  queue.push(request("large", {9, 2}));
  CHECK(ids(queue.take_batch(kStart)) == "small");
  CHECK(ids(queue.take_batch(kStart)) == "large");
}

TEST_CASE("requests are batched with their like, the oldest batch first") {
  BatchQueue queue(3, 10ms);
  queue.push(request("a1", {1, 2}, 0ms));
  queue.push(request("b1", {1, 3}, 1ms));
  queue.push(request("a2", {1, 2}, 2ms));
  queue.push(request("b2", {1, 3}, 3ms));
  queue.push(request("b3", {1, 3}, 4ms));  // full
  CHECK(ids(queue.take_batch(kStart + 4ms)) == "b1 b2 b3");
  CHECK(queue.take_batch(kStart + 4ms).empty());
  queue.push(request("b4", {1, 3}, 5ms));
  queue.push(request("b5", {1, 3}, 5ms));
  queue.push(request("b6", {1, 3}, 5ms));
  CHECK(ids(queue.take_batch(kStart + 10ms)) == "a1 a2");  // older than the full one
  CHECK(ids(queue.take_batch(kStart + 10ms)) == "b4 b5 b6");
}

TEST_CASE("a request that cannot be joined is alone and does not wait") {
  BatchQueue queue(8, 10ms);
  queue.push(request("empty", {0, 2}, 0ms));
  queue.push(request("scalar", {}, 1ms));
  queue.push(request("other", {}, 2ms));
  auto unequal = request("unequal", {1}, 3ms);
  unequal->request.inputs["y"] = zeros({2});
  queue.push(std::move(unequal));
  CHECK(queue.next_event() <= kStart);
  for (const char* id : {"empty", "scalar", "other", "unequal"}) {
    auto batch = queue.take_batch(kStart + 3ms);
    CHECK(ids(batch) == id);
    CHECK(batch[0]->rows == 0);
  }
  CHECK(queue.size() == 0);
}

TEST_CASE("requests whose deadline has passed are taken out, the others stay in order") {
  BatchQueue queue(3, 10ms);
  queue.push(request("a", {1}, 0ms, 20ms));
  queue.push(request("b", {1}, 0ms, 5ms));
  queue.push(request("c", {1}, 0ms, 6ms));  // full
  queue.push(request("alone", {}, 0ms, 5ms));
  CHECK(queue.take_lapsed(kStart + 4ms).empty());
  CHECK(ids(queue.take_lapsed(kStart + 5ms)) == "b alone");
  CHECK(queue.size() == 2);
  CHECK(queue.next_event() == kStart + 6ms);
  CHECK(queue.take_batch(kStart + 5ms).empty());  // it is not full any more
  queue.push(request("d", {1}, 5ms));
  CHECK(ids(queue.take_batch(kStart + 5ms)) == "a c d");
}

TEST_CASE("without batches each request is due in the order of arrival") {
  BatchQueue queue(1, 0ms);
  for (const char* id : {"a", "b", "c"}) queue.push(request(id, {1}));
  for (const char* id : {"a", "b", "c"}) CHECK(ids(queue.take_batch(kStart)) == id);
}

TEST_CASE("requests whose client has left are taken out, as soon as the queue looks again") {
  bool is_gone = false;
  BatchQueue queue(8, 10ms);
  queue.push(request("stays", {1}));
  auto leaving = request("leaves", {1});
  leaving->responder = std::make_unique<QueuedResponder>(is_gone);
  queue.push(std::move(leaving));
  CHECK(queue.take_lapsed(kStart).empty());
  is_gone = true;
  CHECK(queue.next_look() == kStart + 100ms);
  CHECK(queue.take_lapsed(kStart + 99ms).empty());
  CHECK(ids(queue.take_lapsed(kStart + 100ms)) == "leaves");
  CHECK(ids(queue.take_batch(kStart + 100ms)) == "stays");
}

TEST_CASE("requests that are put back are due at once, in their former order") {
  BatchQueue queue(3, 1h);
  for (const char* id : {"a", "b", "c"}) queue.push(request(id, {1}));
  auto batch = queue.take_batch(kStart);
  REQUIRE(ids(batch) == "a b c");
  queue.push(request("d", {1}, 1ms));
  queue.put_back(std::move(batch[2]));
  queue.put_back(std::move(batch[0]));  // `b` was rejected
  CHECK(queue.next_event() <= kStart);
  CHECK(ids(queue.take_batch(kStart + 1ms)) == "a c d");
  queue.push(request("e", {1}, 2ms));
  CHECK(queue.take_batch(kStart + 2ms).empty());
}

TEST_CASE("a request that must be alone is not joined when it is put back") {
  BatchQueue queue(3, 0ms);
  for (const char* id : {"a", "b", "c"}) queue.push(request(id, {1}));
  auto batch = queue.take_batch(kStart);
  batch[1]->is_alone = true;
  for (auto& each : batch) queue.put_back(std::move(each));
  CHECK(ids(queue.take_batch(kStart)) == "a c");
  CHECK(ids(queue.take_batch(kStart)) == "b");
}

TEST_CASE("all requests are taken in the order of their arrival") {
  BatchQueue queue(3, 10ms);
  queue.push(request("a", {1, 2}));
  queue.push(request("b", {1, 3}));
  queue.push(request("c", {1, 2}));
  CHECK(ids(queue.take_all()) == "a b c");
  CHECK(queue.size() == 0);
  CHECK(queue.next_event() == Clock::time_point::max());
  queue.push(request("d", {1, 2}, 20ms));
  CHECK(ids(queue.take_batch(kStart + 30ms)) == "d");
}

TEST_CASE("a batch has at most so many bytes") {
  BatchQueue queue(1000, 0ms);
  const int64_t floats = kBatchBytesMax / sizeof(float) / 2;
  for (const char* id : {"a", "b", "c"}) queue.push(request(id, {1, floats}));
  CHECK(ids(queue.take_batch(kStart)) == "a b");
  CHECK(ids(queue.take_batch(kStart)) == "c");
}

namespace {

// The rules again, as a list that is searched from its begin.
class Model {
 public:
  struct Waiting {
    std::string id;
    std::vector<int64_t> shape;
    Clock::time_point arrived, deadline;
  };
  std::vector<Waiting> waiting;

  std::string take_lapsed(Clock::time_point now) {
    std::string taken;
    auto lapsed = [&](const Waiting& each) { return each.deadline <= now; };
    for (const Waiting& each : waiting)
      if (lapsed(each)) taken += each.id + " ";
    std::erase_if(waiting, lapsed);
    return taken;
  }
  std::string take_batch(Clock::time_point now, int64_t rows_max, Clock::duration wait) {
    for (const Waiting& oldest : waiting) {
      std::vector<Waiting> like;
      int64_t rows = 0;
      for (const Waiting& each : waiting)
        if (joins(oldest, each))
          like.push_back(each), rows += each.shape.empty() ? 0 : each.shape[0];
      bool is_due = oldest.shape.empty() || rows >= rows_max || oldest.arrived + wait <= now;
      if (!is_due) continue;
      std::string taken;
      rows = 0;
      for (const Waiting& each : like) {
        rows += each.shape.empty() ? 0 : each.shape[0];
        if (!taken.empty() && rows > rows_max) break;
        taken += each.id + " ";
        std::erase_if(waiting, [&](const Waiting& other) { return other.id == each.id; });
      }
      return taken;
    }
    return "";
  }

 private:
  static bool joins(const Waiting& a, const Waiting& b) {
    if (a.id == b.id) return true;
    return !a.shape.empty() && a.shape.size() == b.shape.size() &&
           std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
  }
};

std::string sorted(const BatchQueue::Requests& requests) {
  std::vector<int> numbers;
  for (const auto& each : requests) numbers.push_back(std::stoi(each->request.id));
  std::sort(numbers.begin(), numbers.end());
  std::string all;
  for (int number : numbers) all += std::to_string(number) + " ";
  return all;
}

}  // namespace

TEST_CASE("a mix of requests is batched as the simple rules say") {
  for (unsigned seed = 0; seed < 50; seed++) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    auto below = [&](unsigned n) { return static_cast<int64_t>(random() % n); };
    int64_t rows_max = 1 + below(6);
    auto wait = std::chrono::milliseconds(below(8));
    BatchQueue queue(rows_max, wait);
    Model model;
    Clock::time_point now = kStart;
    int pushed = 0;
    for (int step = 0; step < 400; step++) {
      now += std::chrono::milliseconds(below(3));
      if (below(3) > 0) {
        std::string id = std::to_string(pushed++);
        std::vector<int64_t> shape;
        for (int64_t i = below(4); i > 0; i--) shape.push_back(1 + below(2));
        auto deadline = std::chrono::milliseconds(1 + below(30));
        auto made = request(id, shape, now - kStart, now - kStart + deadline);
        model.waiting.push_back({id, shape, made->arrived, made->deadline});
        queue.push(std::move(made));
      } else {
        REQUIRE(sorted(queue.take_lapsed(now)) == model.take_lapsed(now));
        auto batch = queue.take_batch(now);
        std::string taken = ids(batch);
        REQUIRE((taken.empty() ? "" : taken + " ") == model.take_batch(now, rows_max, wait));
      }
      REQUIRE(queue.size() == model.waiting.size());
      // What is due or lapsed now was announced.
      Model after = model;
      bool is_due =
          !after.take_lapsed(now).empty() || !after.take_batch(now, rows_max, wait).empty();
      REQUIRE((queue.next_event() <= now) == is_due);
    }
  }
}
