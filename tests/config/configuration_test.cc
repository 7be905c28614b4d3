// flow.toml: names, types, origins and precedence.
#include "engine/config/configuration.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

using Texts = std::vector<std::string>;

/// "option = value at origin" of each setting, highest precedence first.
Texts settings_of(const std::vector<ConfigFile>& files, const std::string& profile = "") {
  auto configuration = read_configuration({files, profile});
  if (!configuration.ok()) return {"error: " + configuration.error().message};
  Texts lines;
  for (const ConfigSetting& each : configuration->settings)
    lines.push_back(each.option + " = " + to_json(each.value) + " at " + each.origin());
  return lines;
}

std::string error_of(const std::string& text) {
  auto configuration = read_configuration({{{"flow.toml", text}}, ""});
  if (configuration.ok()) return "";
  CHECK(configuration.error().kind == ErrorKind::user);
  return configuration.error().message;
}

}  // namespace

TEST_CASE("each option has the line and the table that set it") {
  CHECK(settings_of({{"flow.toml",
                      "[defaults]\njobs = 2\n\n[tasks.\"align*\"]\nenv = { MODE = \"fast\" }\n"
                      "cpus = 0.5\n[prices]\ngpu_hour.\"H200\" = 3\n"}}) ==
        Texts{"cpus = 0.5 at flow.toml:6 [tasks.\"align*\"]",
              "env.MODE = \"fast\" at flow.toml:5 [tasks.\"align*\"]",
              "jobs = 2 at flow.toml:2 [defaults]", "gpu_hour.H200 = 3 at flow.toml:8 [prices]"});
}

TEST_CASE("a profile comes before the files, and a longer pattern before a shorter one") {
  std::vector<ConfigFile> files = {
      {"flow.toml",
       "[tasks.\"*\"]\ncpus = 1\n[tasks.align]\ncpus = 2\n[profile.big.tasks.\"*\"]\ncpus = 3\n"},
      {"home.toml", "[tasks.align_long]\ncpus = 4\n[profile.big.tasks.align]\ncpus = 5\n"}};
  Texts base = {"cpus = 2 at flow.toml:4 [tasks.align]", "cpus = 1 at flow.toml:2 [tasks.\"*\"]",
                "cpus = 4 at home.toml:2 [tasks.align_long]"};
  CHECK(settings_of(files) == base);
  Texts of_profile = {"cpus = 3 at flow.toml:6 [profile.big.tasks.\"*\"]",
                      "cpus = 5 at home.toml:4 [profile.big.tasks.align]"};
  of_profile.insert(of_profile.end(), base.begin(), base.end());
  CHECK(settings_of(files, "big") == of_profile);
}

TEST_CASE("of equal patterns the later wins") {
  auto lines = settings_of(
      {{"flow.toml", "[tasks.\"a*\"]\ncpus = 1\n[tasks.\"*a\"]\ncpus = 2\n[tasks.b]\ncpus = 3\n"}});
  CHECK(lines == Texts{"cpus = 2 at flow.toml:4 [tasks.\"*a\"]",
                       "cpus = 1 at flow.toml:2 [tasks.\"a*\"]",
                       "cpus = 3 at flow.toml:6 [tasks.b]"});
}

TEST_CASE("unknown names and wrong types are errors with file, line and the nearest name") {
  CHECK(error_of("[defualts]\njobs = 1\n") ==
        "flow.toml:1: unknown table `defualts`; the tables are: tasks, defaults, slurm, head, "
        "prices, notify, profile. Did you mean `defaults`?");
  CHECK_THAT(error_of("\njobs = 1\n"), Catch::StartsWith("flow.toml:2: unknown key `jobs`"));
  CHECK_THAT(error_of("[tasks.a]\ncpu = 1\n"),
             Catch::StartsWith("flow.toml:2: [tasks.a] has no option `cpu`") &&
                 Catch::EndsWith("Did you mean `cpus`?"));
  CHECK(error_of("[tasks.a]\n\ncpus = \"two\"\n") ==
        "flow.toml:3: [tasks.a] `cpus` must be a number, but is a string");
  CHECK(error_of("[profile.x.tasks.a]\nenv = { A = [1] }\n") ==
        "flow.toml:2: [profile.x.tasks.a] `env.A` must be a string, or { env = \"NAME\" } for a "
        "secret, "
        "but is a list");
  CHECK(error_of("[defaults]\nbudget = 50\n") ==
        "flow.toml:2: [defaults] `budget` must be a string, but is a whole number");
  CHECK(error_of("[tasks]\nalign = 1\n") ==
        "flow.toml:2: `tasks.align` must be a table, [tasks.align], but is a whole number");
  CHECK(error_of("[prices]\ncpu_hour = -1\n") ==
        "flow.toml:2: [prices] `cpu_hour` is a price, and it is below 0");
  CHECK(error_of("[notify]\nsecret = \"abc\"\n") ==
        "flow.toml:2: [notify] `secret` must be { env = \"NAME\" }, a variable of the environment, "
        "but is a string");
  CHECK_THAT(error_of("[tasks.a]\nmodules = \"gcc\"\n"),
             Catch::Contains("flow.toml:2: [tasks.a] `modules` must be a list of strings"));
  CHECK_THAT(error_of("[defaults]\njobs = \n"), Catch::StartsWith("flow.toml:2: the file is not"));
  CHECK_THAT(error_of("[defaults]\njobs = 1\njobs = 2\n"), Catch::StartsWith("flow.toml:3:"));
  CHECK_THAT(error_of(std::string((1 << 20) + 1, '\n')), Catch::Contains("more than 1048576"));
  CHECK(error_of("[defaults]\nstate = \"\"\n") ==
        "flow.toml:2: [defaults] `state` is empty: give it a value, or remove it");
}

TEST_CASE("a label's prices have the same keys, except for other labels and files") {
  CHECK(settings_of({{"flow.toml", "[prices.label.\"pool=spot\"]\ncpu_hour = 0.01\n"}}) ==
        Texts{"label.\"pool=spot\".cpu_hour = 0.01 at flow.toml:2 [prices.label.\"pool=spot\"]"});
  CHECK(error_of("[prices.label.a]\ninclude = \"b\"\n") ==
        "flow.toml:2: [prices.label.a] has no option `include`: only [prices] has it");
}

TEST_CASE("a profile that no file has is an error with the nearest name") {
  std::vector<ConfigFile> files = {{"flow.toml", "[profile.gpu.defaults]\njobs = 1\n"}};
  CHECK(settings_of(files, "gpu") == Texts{"jobs = 1 at flow.toml:2 [profile.gpu.defaults]"});
  CHECK(settings_of(files).empty());
  CHECK(settings_of(files, "gpus") ==
        Texts{"error: there is no profile `gpus`; the profiles are: gpu. Did you mean `gpu`?"});
  CHECK(settings_of({}, "gpu") ==
        Texts{"error: there is no profile `gpu`: no flow.toml was found"});
}

TEST_CASE("patterns match the names of tasks") {
  CHECK(matches_task("align*", "align"));
  CHECK(matches_task("{align,sort}_[0-9]", "sort_1"));
  CHECK(matches_task("?", "a"));
  CHECK_FALSE(matches_task("align", "align2"));
  CHECK_FALSE(matches_task("Align", "align"));
}
