// Options of flow.service: what the plan holds, and the error of each misuse.
#include <catch2/catch.hpp>

#include "misuse.hpp"

using namespace flow::test;

namespace {

std::string script(const std::string& options) {
  return "local flow = require 'flow'\nlocal web = flow.service('web', { " + options +
         " }, print)\nreturn flow.pipeline('p', {}, function() return { w = web() } end)\n";
}

// A service without a function.
std::string wrapped_script(const std::string& options, const std::string& arguments) {
  return "local flow = require 'flow'\nlocal web = flow.service('web', { " + options +
         " })\nreturn flow.pipeline('p', {}, function() return { w = web(" + arguments +
         ") } end)\n";
}

std::string error_with(const std::string& options) {
  return error_of({script(options), {}, {}, {}});
}

flow::ServiceSpec service_with(const std::string& options, const Folder& folder) {
  auto built = build({script(options), {}, {}, {}}, folder);
  INFO((built.ok() ? "" : built.error().message));
  REQUIRE(built.ok());
  CHECK(flow::check_plan(built->plan).empty());
  return built->plan.defs.at(0).service;
}

}  // namespace

TEST_CASE("a service without options has the defaults") {
  Folder folder;
  CHECK(service_with("", folder) == flow::ServiceSpec{});
}

TEST_CASE("the options of a service are in the plan, with its files as absolute paths") {
  Folder folder;
  flow::ServiceSpec service = service_with(
      "listen = '[0::0]:8080', grpc = 8081, tls = { cert = 'tls/server.pem', key = './server.key', "
      "clients = "
      "'/etc/ca.pem' }, keys = flow.env('API_KEYS'), hosts = { 'Models.Example', 'b.example', "
      "'models.example' }, queue = 7, outputs = { scores = { 'FP32', { -1, 10 } } }, inputs = { "
      "pixels = { 'UINT8', { -1, 8, 8 } }, mask = { 'BOOL', { 1 } } }, batch = { max = 8 }",
      folder);
  flow::ServiceSpec expected{8080, 8, 0};
  expected.address = "::";
  expected.tls = {folder.path + "/tls/server.pem", folder.path + "/server.key", "/etc/ca.pem"};
  expected.keys.variable = "API_KEYS";
  expected.hosts = {"models.example", "b.example"};
  expected.queue_max = 7;
  expected.grpc_port = 8081;
  expected.inputs = {{"mask", "BOOL", {1}}, {"pixels", "UINT8", {-1, 8, 8}}};
  expected.outputs = {{"scores", "FP32", {-1, 10}}};
  CHECK(service == expected);
}

TEST_CASE("keys can be in a file, and a service may be insecure") {
  Folder folder;
  flow::ServiceSpec service =
      service_with("listen = '0.0.0.0:0', keys = flow.file('keys.txt'), insecure = true", folder);
  CHECK(service.keys.file == folder.path + "/keys.txt");
  CHECK(service.keys.variable == "");
  CHECK(service.is_insecure);
}

TEST_CASE("`with` changes how many requests of a service may wait") {
  Folder folder;
  auto built = build({"local flow = require 'flow'\n"
                      "local web = flow.service('web', { queue = 5 }, print)\n"
                      "return flow.pipeline('p', {}, function()\n"
                      "  return { a = web(), b = web:with { queue = 6 }() }\n"
                      "end)",
                      {},
                      {},
                      {}},
                     folder);
  REQUIRE(built.ok());
  REQUIRE(built->plan.defs.size() == 2);
  CHECK(built->plan.defs[0].service.queue_max == 5);
  CHECK(built->plan.defs[1].service.queue_max == 6);
  CHECK(built->plan.defs[1].queue == "default");
}

TEST_CASE("the error of an option of a service says what it must be") {
  const Case cases[] = {
      {"listen = 'localhost:80'",
       "the option `listen` must be a numeric address and a port, \"127.0.0.1:8080\", "
       "\"[::1]:8080\" or \"0.0.0.0:8080\", but is `localhost:80`"},
      {"listen = 8080", "the option `listen` must be a numeric address and a port, "},
      {"listen = '127.0.0.1:80', port = 80",
       "the option `listen` has the port, so `port` can't be given too: remove it"},
      {"port = -1", "the option `port` must be a port from 0 (any) to 65535, but is `-1`"},
      {"grpc = 65536", "the option `grpc` must be a port from 0 (any) to 65535, but is `65536`"},
      {"grpc = true", "the option `grpc` must be a port from 0 (any) to 65535"},
      {"grpc = 80, port = 80",
       "the option `grpc` has port 80, at which the service listens for HTTP: write another port, "
       "or 0 for a free one"},
      {"tls = 'server.pem'",
       "the option `tls` must be a table such as { cert = \"server.pem\", key = \"server.key\" }, "
       "but is `server.pem`"},
      {"tls = {}",
       "the option `tls` has no `cert`: write { cert = \"server.pem\", key = \"server.key\" }, and "
       "`clients = \"ca.pem\"` if clients must have certificates too"},
      {"tls = { cert = 'a' }", "the option `tls` has no `key`: write"},
      {"tls = { clients = 'a', key = 'b' }", "the option `tls` has no `cert`: write"},
      {"tls = { cert = '', key = 'b' }",
       "the option `tls.cert` must be the path of a PEM file, but is ``"},
      {"tls = { cert = 'a', key = 3 }",
       "the option `tls.key` must be the path of a PEM file, but is `3`"},
      {"tls = { ca = 'a' }",
       "the option `tls` has the unknown entry `ca`; it has: cert, clients, key"},
      {"tls = { certs = 'a' }",
       "the option `tls` has the unknown entry `certs` (did you mean `cert`?); it has: "},
      {"keys = 'hunter2'",
       "the option `keys` must be flow.env(\"API_KEYS\") or flow.file(\"keys.txt\"): a key that "
       "the script contains is stored with each run"},
      {"keys = { 'hunter2' }",
       "the option `keys` must be flow.env(\"API_KEYS\") or flow.file(\"keys.txt\"), but is a "
       "table"},
      {"hosts = 'models.example'",
       "the option `hosts` must be a list of at most 64 DNS names, { \"models.example\" }, but is "
       "`models.example`"},
      {"hosts = { 'https://a' }",
       "`https://a` in the option `hosts` is not a DNS name: write one such as "
       "\"models.example\", without scheme, port and `*`. Addresses need no entry"},
      {"hosts = { '10.0.0.7' }", "`10.0.0.7` in the option `hosts` is not a DNS name"},
      {"hosts = { a = 'b' }", "the option `hosts` must be a list of at most 64 DNS names"},
      {"hosts = (function() local t = {} for i = 1, 65 do t[i] = 'h' .. i end return t end)()",
       "the option `hosts` must be a list of at most 64 DNS names"},
      {"insecure = 'yes'", "the option `insecure` must be true or false, but is `yes`"},
      {"queue = 'gpu'",
       "the option `queue` is how many requests may wait, such as 1024: a service is not "
       "submitted to a queue of Slurm"},
      {"queue = 0",
       "the option `queue` must be how many requests may wait, a whole number of 1..1000000, but "
       "is `0`"},
      {"queue = 1000001", "the option `queue` must be how many requests may wait, "},
      {"queue = 1.5", "the option `queue` must be how many requests may wait, "},
      {"inputs = {}",
       "the option `inputs` is empty: it must be a table of 1 to 64 tensors, { pixels = { "
       "\"FP32\", { -1, 64 } } }, or not be given"},
      {"inputs = 3", "the option `inputs` must be a table of 1 to 64 tensors, "},
      {"inputs = { { 'FP32', { 1 } } }", "the option `inputs` has the unknown entry `[1]`"},
      {"inputs = { [''] = { 'FP32', { 1 } } }",
       "the option `inputs` has a tensor whose name is not 1 to 256 bytes of UTF-8 without control "
       "characters"},
      {"inputs = { x = 'FP32' }",
       "the option `inputs.x` must be a datatype and a shape, { \"FP32\", { -1, 64 } }, but is "
       "`FP32`"},
      {"inputs = { x = { 'FP32' } }",
       "the option `inputs.x` has no shape, which is a table of sizes: write for example { "
       "\"FP32\", { -1, 64 } }, in which -1 is any size"},
      {"inputs = { x = { 'FP32', 64 } }", "the option `inputs.x` has no shape, "},
      {"inputs = { x = {} }", "the option `inputs.x` must be a datatype and a shape, "},
      {"inputs = { x = { 'FP32', { 1 }, 3 } }",
       "the option `inputs.x` must be a datatype and a shape, "},
      {"inputs = { x = { 'F32', { 1 } } }",
       "the option `inputs.x` has the unknown datatype `F32` (did you mean `FP32`?); the datatypes "
       "are: BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, "
       "FP64, BYTES"},
      {"inputs = { x = { 'FP32', {} } }",
       "the option `inputs.x` must have a datatype and a shape of 1 to 8 sizes, { \"FP32\", { -1, "
       "64 } }, in which -1 is any size"},
      {"inputs = { x = { 'FP32', { 0 } } }",
       "the option `inputs.x` must have a datatype and a shape of 1 to 8 sizes, "},
      {"inputs = { x = { 'FP32', { -2 } } }",
       "the option `inputs.x` must have a datatype and a shape of 1 to 8 sizes, "},
      {"inputs = { x = { 'FP32', { 1.5 } } }",
       "the option `inputs.x` must have a datatype and a shape of 1 to 8 sizes, "},
      {"inputs = { x = { 'FP32', { 1, rows = 2 } } }",
       "the option `inputs.x` must have a datatype and a shape of 1 to 8 sizes, "},
      {"inputs = { x = { 'FP32', { 1, 1, 1, 1, 1, 1, 1, 1, 1 } } }",
       "the option `inputs.x` must have a datatype and a shape of 1 to 8 sizes, "},
      {"outputs = { bam = 'out.bam' }",
       "the option `outputs.bam` must be a datatype and a shape, { \"FP32\", { -1, 64 } }, but is "
       "`out.bam`"},
      {"outputs = (function() local t = {} for i = 1, 65 do t['t' .. i] = { 'FP32', { 1 } } end "
       "return t end)()",
       "the option `outputs` must be a table of 1 to 64 tensors, "},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    std::string expected = std::string("pipeline.lua:2: task `web`: ") + c.error;
    CHECK_THAT(error_with(c.lines), Catch::StartsWith(expected));
  }
  CHECK(error_with("keys = 'hunter2'").find("hunter2") == std::string::npos);
}

TEST_CASE("batches may be padded") {
  Folder folder;
  CHECK(service_with("batch = { max = 8, pad = true }", folder).is_padded);
  CHECK_FALSE(service_with("batch = { max = 8, pad = false }", folder).is_padded);
  CHECK_THAT(error_with("batch = { pad = 1 }"),
             Catch::StartsWith("pipeline.lua:2: task `web`: the option `batch.pad` must be true or "
                               "false, but is `1`"));
}

TEST_CASE("the options of a service's replicas and of its rollover are in the plan") {
  Folder folder;
  flow::ServiceSpec service = service_with(
      "replicas = 3, idempotent = false, rollover = 'replace', drain_delay = '2s', canary = { 10, "
      "50, every = '90s', max_error_rate = 0.01, max_p99 = '20ms', min_requests = 5 }, warmup = { "
      "x = flow.zeros { 1, 2 }, mask = flow.tensor({ 1, 2 }, 'u8') }",
      folder);
  flow::ServiceSpec expected;
  expected.replicas = 3;
  expected.is_idempotent = false;
  expected.rolls_by_replacing = true;
  expected.drain_delay_ms = 2000;
  expected.canary = {{10, 50, 100}, 90'000, 0.01, 20'000, 5, ""};
  expected.warmup = {{"mask", "u8", {2}, "\1\2"}, {"x", "f32", {1, 2}, std::string(8, '\0')}};
  CHECK(service == expected);
}

TEST_CASE("the warm-up request may have strings") {
  Folder folder;
  CHECK(service_with("inputs = { x = { 'BYTES', { -1, 2 } } }, warmup = { x = { '', 'ab', shape = "
                     "{ 1, 2 } } }",
                     folder)
            .warmup == std::vector<flow::WarmupTensor>{
                           {"x", "BYTES", {1, 2}, std::string("\0\0\0\0\2\0\0\0ab", 10)}});
}

TEST_CASE("replicas are a number, or a table with one number") {
  Folder folder;
  auto replicas_of = [&](const std::string& written) {
    return service_with("replicas = " + written, folder).replicas;
  };
  CHECK(replicas_of("1") == 1);
  CHECK(replicas_of("256") == 256);
  CHECK(replicas_of("{ min = 2 }") == 2);
  CHECK(replicas_of("{ min = 4, max = 4, target_queue = '5ms' }") == 4);
}

TEST_CASE("replicas that scale have two limits, a target and two times") {
  Folder folder;
  flow::ServiceSpec expected;
  expected.replicas = 2;
  expected.scaling.max = 8;
  CHECK(service_with("replicas = { min = 2, max = 8 }", folder) == expected);
  expected.scaling = {8, 500, 1000, 30'000};
  CHECK(service_with("replicas = { min = 2, max = 8, target_queue = '500us', up_after = '1s', "
                     "down_after = '30s' }",
                     folder) == expected);
}

TEST_CASE("the percents of a canary end with 100") {
  Folder folder;
  auto percents_of = [&](const std::string& written) {
    return service_with("canary = " + written, folder).canary.percents;
  };
  CHECK(percents_of("{ 1 }") == std::vector<uint32_t>{1, 100});
  CHECK(percents_of("{ 10, 100 }") == std::vector<uint32_t>{10, 100});
  CHECK(percents_of("{ every = '5s' }") == std::vector<uint32_t>{100});
  CHECK(service_with("canary = {}", folder).canary == flow::CanarySpec{{100}});
}

TEST_CASE("the error of an option of replicas or of the rollover says what it must be") {
  const Case cases[] = {
      {"replicas = 0", "the option `replicas` must be a whole number of 1..256, but is `0`"},
      {"replicas = 257", "the option `replicas` must be a whole number of 1..256, but is `257`"},
      {"replicas = 1.5", "the option `replicas` must be a whole number of 1..256, but is `1.5`"},
      {"replicas = '2'",
       "the option `replicas` must be a whole number of 1..256, but is the string \"2\": write it "
       "without quotes"},
      {"replicas = 'two'", "the option `replicas` must be a whole number of 1..256, but is `two`"},
      {"replicas = { min = '1' }",
       "the option `replicas.min` must be a whole number of 1..256, but is the string \"1\": write "
       "it without quotes"},
      {"replicas = { min = 1, max = '4' }",
       "the option `replicas.max` must be a whole number of 1..256, but is the string \"4\": write "
       "it without quotes"},
      {"replicas = { min = 1, max = 2, up_after = 3 }",
       "the option `replicas.up_after` must be a duration such as \"5s\", but is the number 3: "
       "write a string with the unit"},
      {"batch = { max = '8' }",
       "the option `batch.max` must be a whole number from 1, but is the string \"8\": write it "
       "without quotes"},
      {"batch = { pad = 'true' }",
       "the option `batch.pad` must be true or false, but is the string \"true\": write it without "
       "quotes"},
      {"batch = { wait = 2 }",
       "the option `batch.wait` must be a duration such as \"2ms\", but is the number 2: write a "
       "string with the unit"},
      {"port = '8080'",
       "the option `port` must be a port from 0 (any) to 65535, but is the string \"8080\": write "
       "it without quotes"},
      {"replicas = { min = 3, max = 2 }",
       "the option `replicas` has the min 3 and the max 2, which must not be lower"},
      {"replicas = { min = 1, max = 257 }",
       "the option `replicas.max` must be a whole number of 1..256, but is `257`"},
      {"replicas = { min = 1, max = 2, up_after = '0s' }",
       "the option `replicas.up_after` must be a duration above 0, but is `0s`"},
      {"replicas = { min = 1, max = 2, target_queue = '0ms' }",
       "the option `replicas.target_queue` must be a duration above 0, but is `0ms`"},
      {"replicas = { max = 2 }",
       "the option `replicas` has no `min`, how many processes there are at least: write a number"},
      {"replicas = { min = 0 }",
       "the option `replicas.min` must be a whole number of 1..256, but is `0`"},
      {"replicas = { 2 }",
       "the option `replicas` has the unknown entry `[1]`; it has: down_after, max, min, "
       "target_queue, up_after"},
      {"replicas = { min = 1, target_queue = 5 }",
       "the option `replicas.target_queue` must be a duration such as \"5ms\", but is the "
       "number 5: write a string with the unit"},
      {"replicas = { min = 1, target_queue = '5' }", "the option `replicas.target_queue`: `5`"},
      {"idempotent = 1", "the option `idempotent` must be true or false, but is `1`"},
      {"rollover = 'canary'",
       "the option `rollover` must be \"replace\", which stops the version before first; without "
       "the option both run meanwhile, but is `canary`"},
      {"rollover = true", "the option `rollover` must be \"replace\", "},
      {"drain_delay = 2",
       "the option `drain_delay` must be a duration such as \"2s\", but is the "
       "number 2: write a string with the unit"},
      {"drain_delay = '2x'", "the option `drain_delay`: `2x`"},
      {"canary = 10",
       "the option `canary` must be a table such as { 10, 50, 100, every = \"1m\" }, but is `10`"},
      {"canary = { 50, 10 }",
       "the option `canary` must be { 10, 50, 100, every = \"1m\", … }, whose percents are whole "
       "numbers of 1..100, each above the one before it"},
      {"canary = { 0 }", "the option `canary` must be { 10, 50, 100, "},
      {"canary = { 101 }", "the option `canary` must be { 10, 50, 100, "},
      {"canary = { 10, 10 }", "the option `canary` must be { 10, 50, 100, "},
      {"canary = { 12.5 }", "the option `canary` must be { 10, 50, 100, "},
      {"canary = { '10' }", "the option `canary` must be { 10, 50, 100, "},
      {"canary = { 10, evry = '1m' }",
       "the option `canary` has the unknown entry `evry` (did you mean `every`?); it has: every, "
       "gate, max_error_rate, max_p99, min_requests"},
      {"canary = { [3] = 10 }", "the option `canary` has the unknown entry `[3]`"},
      {"canary = { 10, every = '0s' }",
       "the option `canary.every` must be a duration above 0, but is `0s`"},
      {"canary = { 10, max_error_rate = 2 }",
       "the option `canary.max_error_rate` must be a part of the requests, 0 to 1, but is `2`"},
      {"canary = { 10, max_error_rate = 0/0 }",
       "the option `canary.max_error_rate` must be a part of the requests, 0 to 1, but is `"},
      {"canary = { 10, max_p99 = '0ms' }",
       "the option `canary.max_p99` must be a duration above 0, but is `0ms`"},
      {"canary = { 10, min_requests = 0 }",
       "the option `canary.min_requests` must be a whole number of 1..1000000, but is `0`"},
      {"canary = { 10, max_error_rate = '0.01' }",
       "the option `canary.max_error_rate` must be a part of the requests, 0 to 1, but is the "
       "string \"0.01\": write it without quotes"},
      {"canary = { 10, max_p99 = 20 }",
       "the option `canary.max_p99` must be a duration such as \"20ms\", but is the number 20: "
       "write a string with the unit"},
      {"canary = { 10, gate = print }",
       "the option `canary.gate` must be a task, which is called with { version, step, requests, "
       "errors, p50, p99 }, but is a function: write flow.task(\"check\", function(ctx, measured) "
       "… "
       "end), and give that task"},
      {"canary = { 10, gate = 'check' }",
       "the option `canary.gate` must be a task, which is called with { version, step, requests, "
       "errors, p50, p99 }, but is the string \"check\": give the task itself, gate = check, not "
       "its name"},
      {"canary = { 10, gate = true }",
       "the option `canary.gate` must be a task, which is called with { version, step, requests, "
       "errors, p50, p99 }, but is `true`"},
      {"warmup = flow.zeros(1)",
       "the option `warmup` must be a table of tensors, { pixels = flow.zeros { 1, 64 } }, but "
       "is "},
      {"warmup = {}",
       "the option `warmup` is empty: it must be a table of tensors, { pixels = flow.zeros { 1, 64 "
       "} }, or not be given"},
      {"warmup = { x = 1 }",
       "the option `warmup.x` must be a tensor such as flow.zeros { 1, 64 }, or a list of strings "
       "for BYTES, but is `1`"},
      {"warmup = { x = { 1 } }",
       "the option `warmup.x` has the entry [1], which is not a string: a table in place of a "
       "tensor is a list of strings, for the datatype BYTES"},
      {"warmup = { x = { 'a', shape = { 2 } } }",
       "the option `warmup.x` has 1 strings, and its `shape` needs 2"},
      {"warmup = { flow.zeros(1) }", "the option `warmup` has the unknown entry `[1]`"},
      {"warmup = { a = flow.zeros(131072), b = flow.zeros(131073) }",
       "the option `warmup` has tensors of more than 1 MiB in all: write a smaller request"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    std::string expected = std::string("pipeline.lua:2: task `web`: ") + c.error;
    CHECK_THAT(error_with(c.lines), Catch::StartsWith(expected));
  }
}

TEST_CASE("the warm-up request has the declared inputs") {
  auto problem_with = [](const std::string& warmup) {
    Folder folder;
    auto built = build({script("inputs = { x = { 'FP32', { -1, 2 } }, n = { 'INT8', { 1 } } }, "
                               "warmup = { " +
                               warmup + " }"),
                        {},
                        {},
                        {}},
                       folder);
    REQUIRE(built.ok());
    auto errors = flow::check_plan(built->plan);
    return errors.empty() ? std::string() : errors.front().message;
  };
  CHECK(problem_with("x = flow.zeros { 1, 2 }, n = flow.zeros({ 1 }, 'i32')") == "");
  const std::string task = "pipeline.lua:2: task `web` ";
  CHECK(problem_with("x = flow.zeros { 1, 3 }, n = flow.zeros({ 1 }, 'i32')") ==
        task + "has the `warmup` tensor `x` of shape { 1, 3 }, but `inputs` declares { -1, 2 }");
  CHECK(problem_with("x = flow.zeros { 1, 2 }, n = flow.zeros { 1 }") ==
        task + "has the `warmup` tensor `n` of f32, but `inputs` declares INT8, which is i32");
  CHECK(problem_with("x = flow.zeros { 1, 2 }") ==
        task + "has a `warmup` without `n`, which `inputs` declares");
  CHECK(problem_with("y = flow.zeros { 1, 2 }") ==
        task + "has the `warmup` tensor `y`, which `inputs` does not declare");
  CHECK_THAT(
      problem_with("x = flow.zeros { 0, 2 }"),
      Catch::StartsWith(task + "has the `warmup` tensor `x`, which is not one that a request "
                               "can have: "));
}

TEST_CASE("a command starts the server of a service") {
  Folder folder;
  auto built = build({wrapped_script("command = 'serve {model} --port {port}', args = { 'model' }, "
                                     "ready = '/health', health = '/live', start_timeout = '90s', "
                                     "env = { A = 'b' }, before = 'true', port = 8080",
                                     "'small'"),
                      {},
                      {},
                      {}},
                     folder);
  INFO((built.ok() ? "" : built.error().message));
  REQUIRE(built.ok());
  CHECK(flow::check_plan(built->plan).empty());
  const flow::TaskDef& def = built->plan.defs.at(0);
  CHECK(def.kind == flow::TaskKind::service);
  CHECK(def.shell.command == "serve {model} --port {port}");
  CHECK(def.shell.args == std::vector<std::string>{"model"});
  CHECK(def.shell.shell == std::vector<std::string>{"bash", "-euo", "pipefail", "-c"});
  CHECK(def.shell.environment.before == "true");
  CHECK(def.service.wrapped == flow::WrappedServer{"/health", "/live", 90'000});
  CHECK(def.service.port == 8080);
  CHECK_FALSE(def.service.is_idempotent);
  CHECK(def.code_components.at(0).name == "command");
  CHECK(flow::decode_plan(flow::encode_plan(built->plan)).ok());
}

TEST_CASE("the server of a command repeats requests if it says so, and takes named arguments") {
  Folder folder;
  auto built =
      build({wrapped_script("command = 'serve {model} {port}', ready = '/', idempotent = true",
                            "{ model = 'small' }"),
             {},
             {},
             {}},
            folder);
  REQUIRE(built.ok());
  CHECK(built->plan.defs.at(0).service.is_idempotent);
  CHECK(built->plan.nodes.at(0).named_args);
}

TEST_CASE("the error of a service with a command says what to change") {
  const char* kCommand = "command = 'serve {port}', ready = '/health'";
  auto error = [](const std::string& options, const std::string& arguments = "") {
    return error_of({wrapped_script(options, arguments), {}, {}, {}});
  };
  const Case cases[] = {
      {"ready = '/health'",
       "flow.service of `web` has no function: write flow.service(\"name\", { options }, "
       "function(ctx, …) … end), or flow.service(\"name\", { command = [[…]], ready = \"/health\" "
       "}) for a server"},
      {"command = 'serve {port}'",
       "task `web`: a service with `command` needs the option `ready`, the path that its server "
       "answers with a status of 200 to 299 once it can serve: ready = \"/health\""},
      {"command = ' ', ready = '/'",
       "task `web`: the option `command` must be a command that is not empty"},
      {"command = 'serve {port}', ready = 'health'",
       "task `web`: the option `ready` must be the path of a request such as \"/health\", but is "
       "`health`"},
      {"command = 'serve {port}', ready = '/', health = '/a b'",
       "task `web`: the option `health` must be the path of a request such as \"/health\", but is "
       "`/a b`"},
      {"command = 'serve {port}', ready = '/', start_timeout = '0s'",
       "task `web`: the option `start_timeout` must be a duration above 0, but is `0s`"},
      {"command = 'serve {port}', ready = '/', batch = { max = 2 }",
       "task `web`: the option `batch` is for a service with `predict`: requests to a server that "
       "a "
       "command starts are passed on as they are. Remove it"},
      {"command = 'serve {port}', ready = '/', grpc = 0",
       "task `web`: the option `grpc` is for a service with `predict`"},
      {"command = 'serve {port}', ready = '/', outputs = { y = { 'FP32', { 1 } } }",
       "task `web`: the option `outputs` is for a service with `predict`"},
      {"command = 'serve {port}', ready = '/', args = { 'port' }",
       "task `web`: in `args`, no argument can be named `port`, which is the port that flow gives "
       "to "
       "the server"},
      {"command = 'serve', ready = '/', args = { 'model' }",
       "task `web`: the command does not name `{port}`, the port at which its server must listen "
       "on "
       "127.0.0.1: write for example [[server --port {port}]]"},
      {"command = 'serve {prt}', ready = '/', args = { 'model' }",
       "task `web`, line 1 of the command: `{prt}` is not an argument of this call: did you mean "
       "`{port}`?"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(error(c.lines), Catch::StartsWith(std::string("pipeline.lua:2: ") + c.error));
  }
  CHECK(error(kCommand) == "built");
  CHECK_THAT(error("command = 'serve', ready = '/'"),
             Catch::Contains("the command does not name `{port}`"));
  CHECK_THAT(error(kCommand, "{ port = 1 }"),
             Catch::Contains("`web`: no argument can be named `port`"));
  CHECK_THAT(error(kCommand, "1"), Catch::Contains("is called with positional arguments"));
  CHECK_THAT(
      error_with("command = 'serve {port}', ready = '/health'"),
      Catch::StartsWith("pipeline.lua:2: flow.service of `web` has a function and the option "
                        "`command`: it is served by one of them; remove the other"));
  for (const char* option : {"ready = '/'", "args = { 'a' }", "venv = 'x'", "start_timeout = '1s'"})
    CHECK_THAT(error_with(option),
               Catch::Contains(" is for a server that a command starts, and there is no `command`: "
                               "remove it"));
}

TEST_CASE("a task has no options of a service") {
  const Case cases[] = {
      {"listen = '127.0.0.1:1'", "the option `listen` belongs to flow.service"},
      {"inputs = {}", "the option `inputs` belongs to flow.service"},
      {"replicas = 2", "the option `replicas` belongs to flow.service"},
      {"canary = { 10 }", "the option `canary` belongs to flow.service"},
      {"outputs = {}", "the option `outputs` belongs to flow.shell and flow.service"},
      {"queue = 7", "the option `queue` must be a queue's name, but is `7`"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_file(std::string("flow.task('t', { ") + c.lines + " }, print)"),
               Catch::StartsWith(std::string("pipeline.lua:2: task `t`: ") + c.error));
  }
}

TEST_CASE("a service logs all of its requests, a part or none") {
  Folder folder;
  CHECK(service_with("access_log = true", folder).access_log == 1);
  CHECK(service_with("access_log = false", folder).access_log == 0);
  CHECK(service_with("access_log = 0.25", folder).access_log == 0.25);
  for (const char* wrong : {"'yes'", "2", "-0.5", "{}", "0/0"})
    CHECK(error_with(std::string("access_log = ") + wrong)
              .find("true, false, or the part of the requests that is logged, 0 to 1") !=
          std::string::npos);
}

TEST_CASE("a service is not cached") {
  Folder folder;
  service_with("cache = false", folder);
  for (const char* wrong : {"true", "'salt'", "3"})
    CHECK(error_with(std::string("cache = ") + wrong).find("a service never counts as cached") !=
          std::string::npos);
}
