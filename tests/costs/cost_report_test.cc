// Reports of costs.
#include "engine/costs/cost_report.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

constexpr double kHour = 3'600'000;

Prices dollars() {
  Prices prices;
  prices.currency = "USD";
  prices.base.cpu_hour = kNano;
  prices.base.memory_gb_hour = kNano / 10;
  prices.base.gpu_hour = {{"H200", 3 * kNano}};
  return prices;
}

Consumption hours(double hours, int32_t cpus_milli,
                  AttemptEnding outcome = AttemptEnding::succeeded) {
  Consumption used;
  used.outcome = outcome;
  used.attempts = 1;
  used.rank_ms = hours * kHour;
  used.cpu_milli_ms = cpus_milli * hours * kHour;
  used.cpu_used_us = hours * kHour * 500;  // half a CPU
  return used;
}

TaskConsumption task(const std::string& name, std::vector<Consumption> used) {
  TaskConsumption task;
  task.task = name;
  task.user = "ada";
  task.queue = "default";
  task.cpus_milli = 2000;
  task.used = std::move(used);
  return task;
}

}  // namespace

TEST_CASE("a report has a row per task, the most expensive first, and their sum") {
  CostTable table("task");
  table.add(task("small", {hours(1, 1000)}), dollars());
  table.add(task("large", {hours(2, 2000)}), dollars());
  table.add(task("large", {hours(3, 2000)}), dollars());
  CostReport report = std::move(table).report({"r1"});
  REQUIRE(report.rows.size() == 2);
  CHECK(report.currency == "USD");
  CHECK(report.rows[0].name == "large");
  CHECK(report.rows[0].tasks == 2);
  CHECK(report.rows[0].all.cpu_hours == Approx(10));
  CHECK(*report.rows[0].all.amount() == Approx(10));
  CHECK(*report.rows[0].cpu_hours_used == Approx(2.5));
  CHECK(report.rows[1].cpu_hours_asked == Approx(2));  // it asks for 2 and held 1
  CHECK(*report.total.all.amount() == Approx(11));
}

TEST_CASE("failed, lost and stopped attempts are shown within the whole") {
  CostTable table("task");
  table.add(task("t", {hours(1, 1000, AttemptEnding::failed), hours(2, 1000, AttemptEnding::lost),
                       hours(4, 1000, AttemptEnding::stopped), hours(8, 1000)}),
            dollars());
  CostReport report = std::move(table).report({});
  const CostRow& row = report.rows.at(0);
  CHECK(*row.all.amount() == Approx(15));
  CHECK(*row.failed.amount() == Approx(1));
  CHECK(*row.lost.amount() == Approx(2));
  CHECK(*row.stopped.amount() == Approx(4));
}

TEST_CASE("cached tasks cost nothing and show what they saved") {
  CostTable table("task");
  TaskConsumption cached = task("t", {});
  cached.is_cached = true;
  cached.saved = {hours(3, 1000)};
  table.add(cached, dollars());
  CostReport report = std::move(table).report({});
  CHECK(report.rows.at(0).cached == 1);
  CHECK(*report.rows.at(0).all.amount() == 0);
  CHECK(*report.rows.at(0).saved.amount() == Approx(3));
}

TEST_CASE("by gpu the rows are models, and GPUs that wait for data are counted") {
  CostTable table("gpu");
  Consumption used = hours(1, 1000);
  add_gpu_time(used.gpus, "NVIDIA H200", 1000 * kHour);
  used.gpu_stage_milli_ms = 250 * kHour;
  table.add(task("train", {used}), dollars());
  table.add(task("prepare", {hours(1, 1000)}), dollars());
  CostReport report = std::move(table).report({});
  REQUIRE(report.rows.size() == 2);
  CHECK(report.rows[0].name == "NVIDIA H200");
  CHECK(report.rows[0].all.gpu_hours == Approx(1));
  CHECK(report.rows[0].gpu_hours_staging == Approx(0.25));
  CHECK(*report.rows[0].all.gpu_amount == Approx(3));
  CHECK(report.rows[1].name == "");
}

TEST_CASE("the use of GPUs and their energy are known as far as they were measured") {
  CostTable table("task");
  Consumption measured = hours(2, 1000), not_measured = hours(1, 1000);
  add_gpu_time(measured.gpus, "NVIDIA H200", 2000 * kHour);
  measured.gpu_used_milli_ms = 500 * kHour;
  measured.gpu_measured_milli_ms = 1900 * kHour;
  measured.gpu_energy_mj = 3.6e9;
  add_gpu_time(not_measured.gpus, "NVIDIA H200", 1000 * kHour);
  table.add(task("train", {measured, not_measured}), dollars());
  table.add(task("prepare", {hours(1, 1000)}), dollars());
  CostReport report = std::move(table).report({});
  const CostRow& row = report.rows.at(0);
  CHECK(row.all.gpu_hours == Approx(3));
  CHECK(*row.gpu_hours_used == Approx(0.5));
  CHECK(*row.gpu_hours_idle == Approx(1.4));
  CHECK(row.gpu_hours_unmeasured == Approx(1.1));
  CHECK(*row.energy_j == Approx(3.6e6));
  CHECK(!report.rows.at(1).gpu_hours_used);
  CHECK(!report.rows.at(1).energy_j);
  CHECK(*report.total.energy_j == Approx(3.6e6));
}

TEST_CASE("without prices and in a second currency amounts are not known") {
  CostTable table("user");
  table.add(task("t", {hours(1, 1000)}), {});
  CHECK(!std::move(table).report({}).total.all.amount());
  Prices euros = dollars();
  euros.currency = "EUR";
  CostTable both("user");
  both.add(task("t", {hours(1, 1000)}), dollars());
  both.add(task("u", {hours(1, 1000)}), euros);
  CostReport report = std::move(both).report({});
  CHECK(report.currency == "USD");
  CHECK(!report.total.all.amount());
  CHECK(report.total.all.cpu_hours == Approx(2));
}

TEST_CASE("the memory in use is known if that of every attempt is") {
  TaskConsumption known = task("t", {hours(1, 1000)});
  known.peak_memory_byte_ms = 2e9 * kHour;
  CostTable table("task");
  table.add(known, dollars());
  table.add(known, dollars());
  CHECK(*std::move(table).report({}).total.memory_gb_hours_used == Approx(4));
  CostTable partly("task");
  partly.add(known, dollars());
  partly.add(task("t", {hours(1, 1000)}), dollars());
  partly.add(known, dollars());
  CHECK(!std::move(partly).report({}).total.memory_gb_hours_used);
}

TEST_CASE("the time in which ranks waited and traffic are known as far as they were recorded") {
  CostTable table("task");
  Consumption gang = hours(1, 1000), older = hours(1, 1000);
  add_gpu_time(gang.gpus, "NVIDIA H200", 4000 * kHour);
  gang.gpu_rank_milli_ms = 500 * kHour;
  gang.moved_bytes = 2e9;
  add_gpu_time(older.gpus, "NVIDIA H200", 1000 * kHour);
  Prices prices = dollars();
  prices.base.egress_gb = kNano / 20;
  TaskConsumption trained = task("train", {gang, older});
  trained.knows_traffic = true;
  table.add(trained, prices);
  table.add(task("before", {older}), prices);
  CostReport report = std::move(table).report({});
  const CostRow& row = report.rows.at(0);
  CHECK(row.name == "train");
  CHECK(*row.gpu_hours_rank == Approx(0.5));
  CHECK(*row.egress_gb == Approx(2));
  CHECK(row.all.egress_amount == Approx(0.1));
  CHECK(*row.all.amount() == Approx(2 + 5 * 3 + 0.1));
  CHECK(!report.rows.at(1).gpu_hours_rank);
  CHECK(!report.rows.at(1).egress_gb);
  CHECK(*report.total.egress_gb == Approx(2));
}
