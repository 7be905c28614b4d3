// Stored points: those that a later attempt replaces, and thinning.
#include "engine/runs/metric_series.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

/// Points of attempts, each with its steps.
std::vector<StoredPoint> points_of(const std::vector<std::vector<int64_t>>& attempts) {
  std::vector<StoredPoint> points;
  for (size_t attempt = 0; attempt < attempts.size(); attempt++) {
    for (int64_t step : attempts[attempt]) {
      MetricRow row;
      row.step = step;
      row.assigned = 1000;
      row.attempt = static_cast<uint32_t>(attempt + 1);
      points.push_back({points.size(), row});
    }
  }
  return points;
}

/// "attempt:step" of each point that is left.
std::string left_of(std::vector<StoredPoint> points) {
  drop_replaced(points);
  std::string text;
  for (const StoredPoint& point : points)
    text += (text.empty() ? "" : " ") + std::to_string(point.row.attempt) + ":" +
            std::to_string(point.row.step);
  return text;
}

}  // namespace

TEST_CASE("a point of a later attempt replaces those of earlier ones from its step on") {
  CHECK(left_of({}).empty());
  CHECK(left_of(points_of({{1, 2, 3, 4}})) == "1:1 1:2 1:3 1:4");
  CHECK(left_of(points_of({{1, 2, 3, 4}, {3, 4, 5}})) == "1:1 1:2 2:3 2:4 2:5");
  CHECK(left_of(points_of({{1, 2, 3}, {1}})) == "2:1");
  CHECK(left_of(points_of({{1, 2, 3}, {9}})) == "1:1 1:2 1:3 2:9");
  CHECK(left_of(points_of({{1, 5}, {4}, {2, 3}})) == "1:1 3:2 3:3");
  CHECK(left_of(points_of({{1, 2, 1, 2}, {2, 1, 2}})) == "2:2 2:1 2:2");
}

TEST_CASE("steps that come again in one attempt replace nothing") {
  CHECK(left_of(points_of({{1, 2, 1, 2}})) == "1:1 1:2 1:1 1:2");
}

TEST_CASE("every second point is dropped, but neither the first nor the last") {
  for (size_t count : {0, 1, 2, 3, 4, 7}) {
    std::vector<int64_t> steps(count);
    std::vector<StoredPoint> points = points_of({steps});
    drop_every_second(points);
    std::string numbers;
    for (const StoredPoint& point : points) numbers += std::to_string(point.number);
    const std::string expected[] = {"", "0", "01", "02", "023", "", "", "0246"};
    CHECK(numbers == expected[count]);
  }
}

TEST_CASE("series are found by their task, and their rows are read in order") {
  auto store = make_memory_store();
  Batch batch;
  const std::string task = metric_prefix("run", sha256("key"), "train");
  const std::string names[] = {"loss", std::string("a\0b", 3), "los"};
  for (const std::string& name : names) {
    for (uint64_t number : {uint64_t{1}, uint64_t{300}, uint64_t{1} << 60}) {
      MetricRow row;
      row.step = static_cast<int64_t>(number);
      batch.put(Family::metrics, metric_point_key(metric_series_key(task, name), number),
                encode_metric(row));
    }
  }
  batch.put(Family::metrics, metric_series_key(task, "loss"), encode_metric_stride(4));
  batch.put(
      Family::metrics,
      metric_point_key(metric_series_key(metric_prefix("run", sha256("key"), "other"), "x"), 1),
      encode_metric({}));
  REQUIRE(store->commit(batch).ok());

  auto found = find_series(*store, task);
  REQUIRE(found.ok());
  std::vector<std::string> metrics;
  for (const MetricKey& key : *found) {
    CHECK(key.task == "train");
    metrics.push_back(key.metric);
  }
  CHECK(metrics == std::vector<std::string>{std::string("a\0b", 3), "los", "loss"});
  CHECK(find_series(*store, metric_prefix("run"))->size() == 4);
  CHECK(find_series(*store, metric_prefix("ru"))->empty());

  auto series = read_series(*store, metric_series_key(task, "loss"));
  REQUIRE(series.ok());
  CHECK(series->stride == 4);
  REQUIRE(series->points.size() == 3);
  CHECK(series->points[1].number == 300);
  CHECK(series->points[2].row.step == int64_t{1} << 60);
  CHECK(run_of_key(Family::metrics, metric_series_key(task, "loss")) == "run");
}

TEST_CASE("a damaged point is an error") {
  auto store = make_memory_store();
  std::string key = metric_series_key(metric_prefix("run", sha256("key"), "train"), "loss");
  Batch batch;
  batch.put(Family::metrics, metric_point_key(key, 1), "\xff\xff");
  REQUIRE(store->commit(batch).ok());
  CHECK_FALSE(read_series(*store, key).ok());
}
