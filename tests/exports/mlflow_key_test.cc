#include <catch2/catch.hpp>

#include "engine/exports/mlflow_run.hpp"

using namespace flow;

TEST_CASE("names become keys that MLflow takes") {
  CHECK(mlflow_key("train/loss") == "train/loss");
  CHECK(mlflow_key("train[2]/loss") == "train.2/loss");
  CHECK(mlflow_key("qc/align#2[s 1]/val-loss_5") == "qc/align_2.s 1/val-loss_5");
  CHECK(mlflow_key("a%b\n\xc3\xa9") == "a_b___");
  CHECK(mlflow_key("/a//b/../.") == "_/a/_/b/_/_");
  CHECK(mlflow_key("") == "_");
}

TEST_CASE("a key that is too long keeps its end, which tells instances apart") {
  std::string key = mlflow_key(std::string(300, 'a') + "[17]/loss");
  CHECK(key.size() == kMlflowKeyMax);
  CHECK(key.starts_with("_aaa"));
  CHECK(key.ends_with("a.17/loss"));
}
