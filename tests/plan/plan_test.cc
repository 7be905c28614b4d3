// Plans survive encoding and decoding; the check finds every kind of problem.
#include <catch2/catch.hpp>

#include <functional>

#include "engine/plan/plan.hpp"
#include "engine/plan/tag.hpp"
#include "flow/tags.hpp"

using namespace flow;

namespace {

TaskDef task(const std::string& name) {
  TaskDef def;
  def.name = name;
  def.file = "pipeline.lua";
  def.line = 3;
  return def;
}

TaskNode call(const std::string& name, std::vector<uint32_t> takes = {}) {
  TaskNode node;
  node.name = name;
  node.line = 10;
  std::vector<Value> args;
  for (uint32_t other : takes) args.push_back(Ref{other, {}});
  node.args = Value::list(std::move(args));
  return node;
}

TaskNode when(const std::string& name, uint32_t condition) {
  TaskNode node;
  node.name = name;
  node.kind = NodeKind::when;
  node.edit_detail().condition = Ref{condition, {}};
  return node;
}

Plan plan_of(std::vector<TaskNode> nodes) {
  Plan plan;
  plan.pipeline = "digits";
  plan.defs = {task("train")};
  plan.nodes = std::move(nodes);
  return plan;
}

std::string problems(const Plan& plan) {
  std::string text;
  for (const Error& error : check_plan(plan)) text += error.message + "\n";
  return text;
}

// A plan with a value in every field.
Plan full_plan() {
  Plan plan = plan_of({call("ingest"), call("train", {0}), when("when", 1), call("deploy", {1})});
  TaskDef& def = plan.defs[0];
  def.kind = TaskKind::shell;
  def.ordinal = 4;
  def.code = sha256("code");
  def.code_components = {{"upvalue rate", sha256("rate"), "0.001"}, {"module features", {}, ""}};
  def.resources = {2500, 1 << 30, 500, 7, "H200|H100", "zone=a", 4, 8, {{"fpga", 2000}}};
  def.retry = {3, 250, 1.5, 9000, 2, 2.5, 6};
  def.timeout_ms = 600'000;
  def.cache = false;
  def.cache_written = true;
  def.cache_salt = "v2";
  def.priority = -5;
  def.queue = "gpu";
  def.env = {{"TOKEN", true, "TOKEN"}, {"A", false, "b"}};
  def.seed = "\x01";
  def.stage_copy = true;
  def.shell = {"sort {x} > {outputs.y}", {"x"}, {{"y", "y.txt"}}, {"bash", "-c"}};
  def.service = {8080, 32, 2000};
  def.native_version = "v1";
  TaskNode& map = plan.nodes[1];
  map.kind = NodeKind::map;
  map.named_args = true;
  map.edit_detail().items = Ref{0, {{false, "parts"}, {true, "bam"}}};
  map.edit_detail().limit = 8;
  map.edit_detail().after = {0};
  plan.nodes[2].edit_detail().then_value = Ref{3, {}};
  plan.nodes[2].edit_detail().else_value = "none";
  plan.nodes[3].guard = {2, false};
  ParamSpec param;
  param.name = "epochs";
  param.type = "list";
  param.of = "int";
  param.has_default = true;
  param.default_value = Value::list({1, 2});
  param.help = "how many";
  param.min = 1;
  param.max = 9.5;
  param.pattern = "^x";
  param.choices = {"a", "b"};
  plan.params_schema = {param, {}};
  plan.params = Value::map({{"epochs", 3}});
  plan.result = Value::map({{"model", Ref{1, {}}}});
  plan.warnings = {"pipeline.lua:7: `if h`"};
  return plan;
}

}  // namespace

TEST_CASE(
    "policies, tags and listings of a plan survive, and a plan without them has none of their "
    "bytes") {
  Plan plan = full_plan();
  const std::string plain = encode_plan(plan);
  plan.defs[0].ignores_failure = true;
  std::string ignoring = encode_plan(plan);
  CHECK(ignoring.starts_with(plain));
  CHECK(encode_plan(*decode_plan(ignoring)) == ignoring);
  plan.nodes[0].edit_detail().tag = "s1";
  plan.nodes[1].edit_detail().tags_items = true;
  plan.listings = {{"/p", "in/*", {"/p/in/a", "/p/in/b"}}, {"/p", "none", {}}};
  std::string bytes = encode_plan(plan);
  auto back = decode_plan(bytes);
  REQUIRE(back.ok());
  CHECK(encode_plan(*back) == bytes);
  CHECK(back->defs[0].ignores_failure);
  CHECK(back->nodes[0].detail().tag == "s1");
  CHECK(back->nodes[1].detail().tags_items);
  REQUIRE(back->listings.size() == 2);
  CHECK(back->listings[0].paths == plan.listings[0].paths);
  CHECK(back->listings[1].pattern == "none");
  plan.nodes[1].edit_detail().items = Value::list({1, 2});
  plan.nodes[1].edit_detail().tags_items = false;
  plan.nodes[1].edit_detail().item_tags = {"a", "b"};
  back = decode_plan(encode_plan(plan));
  REQUIRE(back.ok());
  CHECK(back->nodes[1].detail().item_tags == std::vector<std::string>{"a", "b"});
  plan.nodes[1].edit_detail().item_tags = {"a"};
  CHECK_FALSE(decode_plan(encode_plan(plan)).ok());
  for (size_t size = plain.size() + 1; size < bytes.size(); size++)
    (void)decode_plan(bytes.substr(0, size));
}

TEST_CASE("parameters and places of functions survive, and a plan without them has no such bytes") {
  Plan plan = full_plan();
  const std::string plain = encode_plan(plan);
  plan.defs[0].parameters = {"ctx", "samples"};
  plan.defs[0].code_components[1].source = "features.lua:12-20";
  std::string bytes = encode_plan(plan);
  CHECK(bytes.starts_with(plain));
  auto back = decode_plan(bytes);
  REQUIRE(back.ok());
  CHECK(back->defs[0].parameters == plan.defs[0].parameters);
  CHECK(back->defs[0].code_components[0].source.empty());
  CHECK(back->defs[0].code_components[1].source == "features.lua:12-20");
  CHECK(encode_plan(*back) == bytes);
  for (size_t cut = plain.size() + 1; cut < bytes.size(); cut++)
    CHECK_FALSE(decode_plan(std::string_view(bytes).substr(0, cut)).ok());
  // No kernels, the section, one task: its index, its parameters, places with their components.
  using namespace std::string_literals;
  CHECK(decode_plan(plain + "\0\12\1\0\1\1x\0"s).ok());
  CHECK_FALSE(decode_plan(plain + "\0\12\0"s).ok());
  CHECK_FALSE(decode_plan(plain + "\0\12\1\0\0\0"s).ok());
  CHECK_FALSE(decode_plan(plain + "\0\12\1\1\1\1x\0"s).ok());
  CHECK_FALSE(decode_plan(plain + "\0\12\1\0\0\1\1x\4"s).ok());
  CHECK_FALSE(decode_plan(plain + "\0\12\1\0\0\1\0\0"s).ok());
}

TEST_CASE("tags of calls survive in a fragment") {
  PlanFragment fragment{{call("search/train"), call("search/train#2", {0})}, Ref{1, {}}};
  std::string plain = encode_fragment(fragment);
  fragment.nodes[1].edit_detail().tag = "b";
  std::string bytes = encode_fragment(fragment);
  CHECK(bytes.starts_with(plain));
  auto back = decode_fragment(bytes);
  REQUIRE(back.ok());
  CHECK(back->nodes[1].detail().tag == "b");
  CHECK(encode_fragment(*back) == bytes);
}

TEST_CASE("a tag is text without control characters, slashes, brackets and @") {
  for (const char* good : {"s3", "a b", "é", "3a", "...", "a#2", "x.y-z_1", "{x}"}) {
    INFO(good);
    CHECK(tag_problem(good) == "");
  }
  std::string long_tag(kTagMax, 'x'), wide;
  for (int i = 0; i < 33; i++) wide += "\u20ac";
  CHECK(tag_problem(long_tag) == "");
  CHECK(tag_problem(wide) == "");
  CHECK(tag_problem(long_tag + "x") == "it has 101 bytes, and a tag has 1 to 100");
  CHECK(tag_problem("") == "it is empty, and a tag has 1 to 100 bytes");
  CHECK(tag_problem("a/b") == "it has `/`, and a tag has none of `/ [ ] @`");
  CHECK(tag_problem("a[1") == "it has `[`, and a tag has none of `/ [ ] @`");
  CHECK(tag_problem("a]") == "it has `]`, and a tag has none of `/ [ ] @`");
  CHECK(tag_problem("a@2") == "it has `@`, and a tag has none of `/ [ ] @`");
  CHECK(tag_problem("a\n") == "it has the control character 0x0a");
  CHECK(tag_problem("a\x7f") == "it has the control character 0x7f");
  CHECK(tag_problem("a\xc2\x85") == "it has a control character");
  CHECK(tag_problem("\xff") == "it is not UTF-8");
  for (const char* folder : {".", ".."})
    CHECK(tag_problem(folder) == "it would be the name of a folder that exists");
  CHECK(tag_problem("30") == "it has only digits, as an index of a map: put a letter before them");
  CHECK(task_path("align#2[3]") == "align");
  CHECK(task_path("sub#2/align#3") == "sub#2/align");
  CHECK(tagged_name("sub/align[2]", "s3") == "sub/align[s3]");
  CHECK(tagged_name("align#2", "") == "align#2");
}

TEST_CASE("a plan survives encoding and decoding") {
  Plan plan = full_plan();
  std::string bytes = encode_plan(plan);
  auto back = decode_plan(bytes);
  REQUIRE(back.ok());
  CHECK(encode_plan(*back) == bytes);
  CHECK(problems(*back) == "");

  const TaskDef& def = back->defs.at(0);
  CHECK(def.kind == TaskKind::shell);
  CHECK(def.ordinal == 4);
  CHECK(def.code_components.at(0).text == "0.001");
  CHECK(def.resources.cpus_milli == 2500);
  CHECK(def.resources.gpu_model == "H200|H100");
  CHECK(def.resources.ranks == 4);
  CHECK(def.resources.ranks_max == 8);
  CHECK(def.retry.factor == 1.5);
  CHECK(def.retry.infra == 6);
  CHECK(def.priority == -5);
  CHECK(def.env.at(0).from_submitter);
  CHECK(def.shell.outputs.at(0).second == "y.txt");
  CHECK(def.service.port == 8080);
  const TaskNode& map = back->nodes.at(1);
  CHECK(map.kind == NodeKind::map);
  CHECK(map.detail().items == plan.nodes[1].detail().items);
  CHECK(map.detail().after == std::vector<uint32_t>{0});
  CHECK(back->nodes.at(3).guard.when == 2);
  CHECK_FALSE(back->nodes.at(3).guard.then_branch);
  CHECK(back->nodes.at(0).guard.when == kNoNode);
  CHECK(back->params_schema.at(0).max == 9.5);
  CHECK_FALSE(back->params_schema.at(1).min.has_value());
  CHECK(back->result == plan.result);
}

TEST_CASE("every field of a plan changes its bytes") {
  const std::string bytes = encode_plan(full_plan());
  const std::function<void(Plan&)> changes[] = {
      [](Plan& p) { p.pipeline = "x"; },
      [](Plan& p) { p.params = Value(); },
      [](Plan& p) { p.result = Value(); },
      [](Plan& p) { p.warnings.clear(); },
      [](Plan& p) { p.params_schema[0].help = "x"; },
      [](Plan& p) { p.params_schema[0].choices.pop_back(); },
      [](Plan& p) { p.params_schema[0].min = std::nullopt; },
      [](Plan& p) { p.params_schema[0].default_value = Value(); },
      [](Plan& p) { p.defs[0].line++; },
      [](Plan& p) { p.defs[0].code = Digest{}; },
      [](Plan& p) { p.defs[0].code_components[1].name = "x"; },
      [](Plan& p) { p.defs[0].resources.gpus_milli++; },
      [](Plan& p) { p.defs[0].resources.gpu_memory_bytes++; },
      [](Plan& p) { p.defs[0].resources.where = ""; },
      [](Plan& p) { p.defs[0].retry.oom_memory_factor++; },
      [](Plan& p) { p.defs[0].timeout_ms++; },
      [](Plan& p) { p.defs[0].cache_salt = ""; },
      [](Plan& p) { p.defs[0].cache_written = false; },
      [](Plan& p) { p.defs[0].queue = ""; },
      [](Plan& p) { p.defs[0].seed = ""; },
      [](Plan& p) { p.defs[0].stage_copy = false; },
      [](Plan& p) { p.defs[0].shell.command = ""; },
      [](Plan& p) { p.defs[0].shell.shell.clear(); },
      [](Plan& p) { p.defs[0].service.batch_wait_us++; },
      [](Plan& p) { p.defs[0].native_version = ""; },
      [](Plan& p) { p.nodes[1].named_args = false; },
      [](Plan& p) { p.nodes[1].edit_detail().limit++; },
      [](Plan& p) { p.nodes[1].line++; },
      [](Plan& p) { p.nodes[2].edit_detail().else_value = Value(); },
      [](Plan& p) { p.nodes[3].guard.then_branch = true; },
  };
  for (size_t i = 0; i < std::size(changes); i++) {
    Plan plan = full_plan();
    changes[i](plan);
    INFO("change " << i);
    CHECK(encode_plan(plan) != bytes);
  }
}

TEST_CASE("the names of the options that the script sets survive, sorted") {
  Plan plan = full_plan();
  const std::string plain = encode_plan(plan);
  plan.defs[0].written_options = {"cpus", "memory"};
  std::string bytes = encode_plan(plan);
  CHECK(bytes.starts_with(plain));
  auto back = decode_plan(bytes);
  REQUIRE(back.ok());
  CHECK(back->defs[0].written_options == plan.defs[0].written_options);
  CHECK(encode_plan(*back) == bytes);
  plan.defs[0].written_options = {"memory", "cpus"};
  CHECK_FALSE(decode_plan(encode_plan(plan)).ok());
  for (size_t cut = plain.size() + 1; cut < bytes.size(); cut++)
    CHECK_FALSE(decode_plan(std::string_view(bytes).substr(0, cut)).ok());
}

TEST_CASE("the options that functions compute survive") {
  Plan plan = full_plan();
  const std::string plain = encode_plan(plan);
  plan.defs[0].resource_functions = kMemoryFunction | kTimeoutFunction;
  std::string bytes = encode_plan(plan);
  CHECK(bytes.starts_with(plain));
  auto back = decode_plan(bytes);
  REQUIRE(back.ok());
  CHECK(back->defs[0].resource_functions == plan.defs[0].resource_functions);
  CHECK(encode_plan(*back) == bytes);
  plan.defs[0].resource_functions = 64;
  CHECK_FALSE(decode_plan(encode_plan(plan)).ok());
}

TEST_CASE("what a command runs in survives, and a plan without it has none of its bytes") {
  Plan plan = full_plan();
  const std::string plain = encode_plan(plan);
  CommandEnvironment& environment = plan.defs[0].shell.environment;
  environment.before = "source setup.sh";
  environment.modules = {"gcc/12.3", "cuda/12"};
  environment.venv = {"r.txt", "/p/r.txt", "numpy\n", true};
  environment.conda = {"/opt/conda", "/opt/conda", "", false};
  environment.python_version = "3.11.2";
  environment.container = "docker://debian:12";
  environment.image_path = "/p/debian.sif";
  environment.image = "0123";
  std::string bytes = encode_plan(plan);
  CHECK(bytes.substr(0, plain.size()) == plain);
  auto back = decode_plan(bytes);
  REQUIRE(back.ok());
  CHECK(encode_plan(*back) == bytes);
  CHECK(back->defs[0].shell.environment.modules == environment.modules);
  CHECK(back->defs[0].shell.environment.venv.content == "numpy\n");
  for (size_t cut = plain.size() + 1; cut < bytes.size(); cut++)
    CHECK_FALSE(decode_plan(std::string_view(bytes).substr(0, cut)).ok());
  auto alone = decode_command_environment(encode_command_environment(environment));
  REQUIRE(alone.ok());
  CHECK(encode_command_environment(*alone) == encode_command_environment(environment));
  CHECK_FALSE(decode_command_environment("flow-envs\1").ok());
}

TEST_CASE("a command's environment is one of a shell task, and a container has no other") {
  Plan plan = plan_of({call("train")});
  plan.defs[0].shell.environment.before = "true";
  CHECK_THAT(problems(plan), Catch::Contains("runs no command: only tasks with one have `before`"));
  plan.defs[0].kind = TaskKind::shell;
  CHECK(problems(plan) == "");
  plan.defs[0].shell.environment.container = "docker://debian:12";
  CHECK(problems(plan) == "");
  plan.defs[0].shell.environment.modules = {"gcc"};
  CHECK_THAT(problems(plan), Catch::Contains("has `container` and also `modules`, `venv` or"));
}

TEST_CASE("a truncated, extended or unknown version of a plan is rejected") {
  std::string bytes = encode_plan(full_plan());
  for (size_t cut = 0; cut < bytes.size(); cut++)
    REQUIRE_FALSE(decode_plan(std::string_view(bytes).substr(0, cut)).ok());
  CHECK_THAT(decode_plan(bytes + "x").error().message, Catch::Contains("it ends early"));
  bytes[9] = 2;
  CHECK_THAT(decode_plan(bytes).error().message, Catch::Contains("another version of flow"));
  CHECK_FALSE(decode_plan("").ok());
}

TEST_CASE("the GPU requirement of a kernel is encoded after all older fields") {
  Plan plan = full_plan();
  plan.defs.push_back(task("infer"));
  std::string before = encode_plan(plan);
  plan.defs[1].gpu_kernel = "saxpy";
  std::string bytes = encode_plan(plan);
  REQUIRE(bytes.starts_with(before));
  auto old = decode_plan(before), back = decode_plan(bytes);
  REQUIRE(old.ok());
  CHECK(old->defs[1].gpu_kernel.empty());
  REQUIRE(back.ok());
  CHECK(back->defs[0].gpu_kernel.empty());
  CHECK(back->defs[1].gpu_kernel == "saxpy");
  CHECK(encode_plan(*back) == bytes);
  for (size_t cut = before.size() + 1; cut < bytes.size(); cut++)
    CHECK_FALSE(decode_plan(std::string_view(bytes).substr(0, cut)).ok());
  // Count, task index, kernel.
  using namespace std::string_literals;
  CHECK_FALSE(decode_plan(before + "\0"s).ok());
  CHECK_FALSE(decode_plan(before + "\1\2\1x"s).ok());
  CHECK_FALSE(decode_plan(before + "\1\0\0"s).ok());
  CHECK_FALSE(decode_plan(before + "\2\1\1x\0\1x"s).ok());
  CHECK_FALSE(decode_plan(before + "\2\1\1x\1\1x"s).ok());
  CHECK(decode_plan(before + "\2\0\1x\1\1x"s).ok());
}

TEST_CASE("a false count allocates no memory") {
  std::string bytes = encode_plan(Plan{});
  std::string head = bytes.substr(0, 10) + '\0';  // magic, and a pipeline without a name
  CHECK_FALSE(decode_plan(head + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").ok());
  CHECK_FALSE(decode_plan(head + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f").ok());
}

TEST_CASE("a fragment survives encoding and decoding") {
  PlanFragment fragment{{call("search/train"), call("search/train#2", {0})}, Ref{1, {}}};
  std::string bytes = encode_fragment(fragment);
  auto back = decode_fragment(bytes);
  REQUIRE(back.ok());
  CHECK(encode_fragment(*back) == bytes);
  CHECK(back->nodes.at(1).name == "search/train#2");
  CHECK(back->result == Value(Ref{1, {}}));
  CHECK_FALSE(decode_fragment(encode_plan(Plan{})).ok());
}

TEST_CASE("a bundle survives encoding and decoding, and its digest excludes its location") {
  Bundle bundle{"pipeline.lua", "/home/a", {{"pipeline.lua", "return 1"}, {"m.lua", ""}}};
  auto back = decode_bundle(encode_bundle(bundle));
  REQUIRE(back.ok());
  CHECK(back->main == "pipeline.lua");
  CHECK(back->root == "/home/a");
  CHECK(back->files == bundle.files);
  Bundle moved = bundle;
  moved.root = "/home/b";
  CHECK(moved.digest() == bundle.digest());
  moved.files[0].second = "return 2";
  CHECK(moved.digest() != bundle.digest());
}

TEST_CASE("dependencies are the nodes that a value names, without duplicates") {
  TaskNode node = call("x", {5, 3, 5});
  node.edit_detail().items = Value::map({{"deep", Value::list({Value(Ref{9, {{false, "a"}}})})}});
  node.edit_detail().condition = Ref{1, {}};
  node.edit_detail().then_value = Ref{7, {}};
  node.edit_detail().after = {8};
  CHECK(data_dependencies(node) == std::vector<uint32_t>{1, 3, 5, 9});
  CHECK(refs_of(Value(5)).empty());
}

TEST_CASE("names must be unique") {
  CHECK(problems(plan_of({call("a"), call("b")})) == "");
  CHECK(problems(plan_of({call("a"), call("a")})) ==
        "pipeline.lua:10: `a` has the name of another node, made at line 10: names are unique "
        "within a run\n");
  CHECK_THAT(problems(plan_of({call("")})), Catch::Contains("has a name of 0 bytes"));
}

TEST_CASE("a cycle is reported with its names") {
  Plan plan = plan_of({call("a"), call("b", {0}), call("c", {1})});
  plan.nodes[0].edit_detail().after = {2};
  CHECK(problems(plan) ==
        "pipeline.lua:10: `a` is part of a cycle, so none of it could ever start: `a` waits for "
        "`c` waits for `b` waits for `a`. Remove one of these edges, most likely an `:after`\n");
  Plan self = plan_of({call("a")});
  self.nodes[0].edit_detail().after = {0};
  CHECK(problems(self) == "pipeline.lua:10: `a` waits for itself: remove that edge\n");
}

TEST_CASE("a when and its branches are not a cycle, unless a branch waits for the join") {
  Plan plan = plan_of({call("a"), when("when", 0), call("b"), call("c", {1})});
  plan.nodes[2].guard = {1, true};
  plan.nodes[1].edit_detail().then_value = Ref{2, {}};
  CHECK(problems(plan) == "");
  plan.nodes[2].edit_detail().after = {3};  // `c` waits for the join, and the join for `b`
  CHECK_THAT(problems(plan), Catch::Contains("is part of a cycle"));
  plan.nodes[2].edit_detail().after = {1};
  CHECK_THAT(problems(plan), Catch::Contains("`when` waits for `b` waits for `when`"));
}

TEST_CASE("indices must stay within the plan") {
  Plan plan = plan_of({call("a", {7}), call("b"), call("c"), call("d")});
  plan.nodes[1].def = 5;
  plan.nodes[2].edit_detail().after = {9};
  plan.nodes[3].guard.when = 0;
  plan.result = Ref{4, {}};
  std::string text = problems(plan);
  CHECK_THAT(text, Catch::Contains("`a` takes a handle to no node"));
  CHECK_THAT(text, Catch::Contains("`b` is a call of task 5, and there are 1"));
  CHECK_THAT(text, Catch::Contains("`c` comes after no node"));
  CHECK_THAT(text, Catch::Contains("`d` is in the branch of a node that is not a flow.when"));
  CHECK_THAT(text, Catch::Contains("the pipeline's result holds a handle to no node"));
}

TEST_CASE("invalid requirements are reported by name") {
  Plan plan = plan_of({});
  plan.defs = {task("ok"),   task("bad name"), task(std::string(101, 'x')),
               task("cpus"), task("ranks"),    task("factor"),
               task("time"), task("elastic"),  task("..")};
  plan.defs[3].resources.cpus_milli = 0;
  plan.defs[4].resources.ranks = 0;
  plan.defs[5].retry.factor = 0.5;
  plan.defs[6].timeout_ms = -1;
  plan.defs[7].resources.ranks = 3;
  plan.defs[7].resources.ranks_max = 2;
  std::string text = problems(plan);
  CHECK(check_plan(plan).size() == 8);
  CHECK_THAT(text, Catch::Contains("pipeline.lua:3: task `..` has a name that is not valid"));
  CHECK_THAT(text, Catch::Contains("pipeline.lua:3: task `bad name` has a name that is not valid"));
  CHECK_THAT(text, Catch::Contains("task `cpus` asks for no CPU"));
  CHECK_THAT(text, Catch::Contains("task `ranks` asks for 0 ranks"));
  CHECK_THAT(text, Catch::Contains("task `elastic` asks for at most 2 ranks: `ranks.max` is 3 to"));
  CHECK_THAT(text, Catch::Contains("task `factor` has a factor below 1"));
  CHECK_THAT(text, Catch::Contains("task `time` has a negative `timeout`"));
}

TEST_CASE("a service with replicas is not mapped") {
  Plan plan = plan_of({call("digits")});
  plan.defs[0].kind = TaskKind::service;
  plan.nodes[0].kind = NodeKind::map;
  plan.nodes[0].edit_detail().items = Value::list({int64_t{1}});
  CHECK(problems(plan).empty());
  plan.defs[0].service.replicas = 3;
  CHECK_THAT(problems(plan),
             Catch::Contains("`digits` is a flow.map of a service with `replicas = 3`") &&
                 Catch::Contains("call it without flow.map"));
  plan.defs[0].service.replicas = 1;
  plan.defs[0].service.scaling.max = 2;
  CHECK_THAT(problems(plan),
             Catch::Contains("`digits` is a flow.map of a service with `replicas.max = 2`"));
  plan.nodes[0].kind = NodeKind::task;
  CHECK(problems(plan).empty());
}

TEST_CASE("the gate of a canary is one task that can return true") {
  Plan plan = plan_of({call("digits")});
  plan.defs = {task("digits"), task("check")};
  plan.defs[0].kind = TaskKind::service;
  CanarySpec& canary = plan.defs[0].service.canary;
  canary.percents = {10, 100};
  canary.gate = "check";
  plan.defs[1].parameters = {"ctx", "measured"};
  CHECK(problems(plan).empty());
  canary.gate = "chek";
  CHECK(problems(plan) ==
        "pipeline.lua:3: task `digits` has a `canary` with the gate `chek`, which is no task of "
        "the script\n");
  canary.gate = "check";
  plan.defs[1].parameters = {"ctx", "measured", "more"};
  CHECK_THAT(problems(plan), Catch::Contains("the gate `check`, which takes 2 arguments: a gate is "
                                             "called with one table, { version, step, "));
  plan.defs[1].parameters.clear();
  for (TaskKind kind : {TaskKind::shell, TaskKind::dynamic, TaskKind::service}) {
    plan.defs[1].kind = kind;
    CHECK_THAT(problems(plan), Catch::Contains("the gate `check`, which can't return true: write a "
                                               "task of `flow.task`"));
  }
  plan.defs[1].kind = TaskKind::native;
  CHECK(problems(plan).empty());
  plan.defs.push_back(plan.defs[1]);
  CHECK_THAT(problems(plan), Catch::Contains("the gate `check`, and there are 2 tasks of that "
                                             "name, or some made with `with`"));
  plan.defs[2].name = "other";
  plan.defs.push_back(plan.defs[0]);
  plan.defs[3].name = "words";
  plan.defs[3].service.canary.gate = "other";
  plan.nodes.push_back(call("words"));
  plan.nodes[1].def = 3;
  CHECK(problems(plan) ==
        "pipeline.lua:3: task `words` has a `canary` with the gate `other`, and `digits` has "
        "`check`: one gate decides for all services of a run\n");
}

TEST_CASE("a task whose kernel needs a GPU requests one") {
  Plan plan = plan_of({call("train")});
  plan.defs[0].gpu_kernel = "saxpy";
  CHECK(
      problems(plan) ==
      "pipeline.lua:3: task `train` has the kernel `saxpy`, which needs a GPU, and asks for none: "
      "write `gpus = 1` in its options, or give the kernel a `fallback`, a function that does the "
      "same on the CPU\n");
  plan.defs[0].resources.gpus_milli = 250;
  CHECK(problems(plan) == "");
}

TEST_CASE("a chain of a hundred thousand nodes is checked without deep recursion") {
  std::vector<TaskNode> nodes;
  for (uint32_t i = 0; i < 100'000; i++) {
    nodes.push_back(call("n" + std::to_string(i)));
    if (i > 0) nodes[i - 1].args = Value::list({Ref{i, {}}});  // each waits for the next
  }
  Plan plan = plan_of(std::move(nodes));
  CHECK(problems(plan) == "");
  plan.nodes.back().edit_detail().after = {0};
  CHECK_THAT(problems(plan), Catch::Contains("(99988 more)"));
  auto back = decode_plan(encode_plan(plan));
  REQUIRE(back.ok());
  CHECK(back->nodes.size() == 100'000);
}
