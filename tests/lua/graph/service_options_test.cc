// Options of flow.service: what the plan holds, and the error of each misuse.
#include <catch2/catch.hpp>

#include "misuse.hpp"

using namespace flow::test;

namespace {

std::string script(const std::string& options) {
  return "local flow = require 'flow'\nlocal web = flow.service('web', { " + options +
         " }, print)\nreturn flow.pipeline('p', {}, function() return { w = web() } end)\n";
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
      "listen = '[0::0]:8080', tls = { cert = 'tls/server.pem', key = './server.key', clients = "
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
       "the option `queue` is how many requests may wait, such as 1024: a service runs on the "
       "engine's own machine, so no queue of Slurm takes it"},
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
       "FP64"},
      {"inputs = { x = { 'BYTES', { 1 } } }",
       "the option `inputs.x` has the unknown datatype `BYTES`"},
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

TEST_CASE("options that services do not have yet are unknown") {
  for (const char* option :
       {"replicas", "warmup", "canary", "idempotent", "health", "rollover", "drain_delay"}) {
    INFO(option);
    CHECK_THAT(error_with(std::string(option) + " = true"),
               Catch::StartsWith(std::string("pipeline.lua:2: task `web`: unknown option `") +
                                 option + "`"));
  }
  CHECK_THAT(error_with("command = 'vllm serve'"),
             Catch::StartsWith("pipeline.lua:2: task `web`: the option `command` belongs to "
                               "flow.shell"));
  CHECK_THAT(error_with("batch = { pad = true }"),
             Catch::StartsWith("pipeline.lua:2: task `web`: the option `batch` has the unknown "
                               "entry `pad`; it has: max, wait"));
}

TEST_CASE("a task has no options of a service") {
  const Case cases[] = {
      {"listen = '127.0.0.1:1'", "the option `listen` belongs to flow.service"},
      {"inputs = {}", "the option `inputs` belongs to flow.service"},
      {"outputs = {}", "the option `outputs` belongs to flow.shell and flow.service"},
      {"queue = 7", "the option `queue` must be a queue's name, but is `7`"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_file(std::string("flow.task('t', { ") + c.lines + " }, print)"),
               Catch::StartsWith(std::string("pipeline.lua:2: task `t`: ") + c.error));
  }
}
