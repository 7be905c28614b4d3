// Metrics for people: the best value, differing parameters, and the records of TensorBoard.
#include "engine/query/run_metrics.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "engine/query/tensorboard.hpp"

using namespace flow;

TEST_CASE("the name of a metric says whether less is better") {
  for (const char* name : {"loss", "val_loss", "train/Loss", "valloss", "error_rate", "RMSE",
                           "step time", "ppl", "loss2"})
    CHECK(is_lower_better(name));
  for (const char* name : {"accuracy", "reward", "terrain", "f1", "", "timeline", "glossy"})
    CHECK_FALSE(is_lower_better(name));
}

TEST_CASE("a NaN is neither the least nor the best") {
  double nan = std::numeric_limits<double>::quiet_NaN();
  MetricSeries series;
  series.metric = "accuracy";
  series.points = {{1, nan, 0}, {2, 0.25, 0}, {3, 0.5, 0}, {4, nan, 0}};
  summarize(series);
  CHECK(series.min == 0.25);
  CHECK(series.max == 0.5);
  CHECK(series.best == 0.5);
  series.points.resize(1);
  summarize(series);
  CHECK(std::isnan(series.best));
}

TEST_CASE("only parameters that differ are left") {
  std::vector<ComparedRun> runs(3);
  runs[0].run.params = Value::map({{"rate", 1}, {"seed", 7}, {"only", 1}});
  runs[1].run.params = Value::map({{"rate", 2}, {"seed", 7}, {"only", 1}});
  runs[2].run.params = Value::map({{"rate", 2}, {"seed", 7}});
  keep_differing_params(runs);
  CHECK(to_json(runs[0].params) == R"({"only":1,"rate":1})");
  CHECK(to_json(runs[2].params) == R"({"rate":2})");
}

TEST_CASE("a record has its length and masked checksums around its content") {
  // As TensorFlow's own writer makes it of "abc".
  std::string record = tensorboard_record("abc");
  REQUIRE(record.size() == 19);
  CHECK(record.substr(0, 8) == std::string("\3\0\0\0\0\0\0\0", 8));
  CHECK(record.substr(12, 3) == "abc");
}
