// How the attempt of one rank ends the waiting of the others.
#include "gang.hpp"

#include <catch2/catch.hpp>

using namespace flow;
using namespace flow::test;

namespace {

using Kind = AttemptOutcome::Kind;

Files task_of(const std::string& body) {
  return {{"gang.lua", "local flow = require 'flow'\nlocal t = flow.task('t', function(ctx)\n" +
                           body + "\nend)\nreturn flow.pipeline('p', {}, function() t() end)"}};
}

template <typename Prepare>
std::vector<RankOutcome> run_on(int ranks, const std::string& body, Prepare prepare) {
  auto built = build(task_of(body));
  REQUIRE(built.ok());
  AttemptRequest request = attempt_of(built->plan.defs.at(0));
  return run_gang(built->bundle, ranks, 1, request, prepare).at(0);
}

std::vector<RankOutcome> run_on(int ranks, const std::string& body) {
  return run_on(ranks, body, [](int, GangHost&) {});
}

}  // namespace

TEST_CASE("A rank that fails notifies the others of the reason, and its outcome is the cause") {
  auto all = run_on(3, "if ctx.rank == 1 then error('boom') end\nctx.comm:all_reduce(1)");
  for (size_t rank = 0; rank < 3; rank++) {
    const AttemptOutcome& ended = all[rank].ended;
    CHECK(ended.kind == Kind::failed);
    CHECK(ended.lost_gang == (rank != 1));
    CHECK_THAT(ended.message, Catch::StartsWith(rank == 1 ? "gang.lua:3: boom" : "gang.lua:4: "));
  }
}

TEST_CASE("After a failure no call between the ranks works, and all of them name the cause") {
  auto all = run_on(3, R"(
    print(pcall(ctx.comm.send, ctx.comm, 1, ctx.rank))
    if ctx.rank == 1 then error('boom') end
    local ok, why = pcall(ctx.comm.all_reduce, ctx.comm, flow.zeros(10))
    print(ok, why)
    print(pcall(ctx.comm.barrier, ctx.comm))
  )");
  for (size_t rank : {0, 2}) {
    CHECK(all[rank].ended.kind == Kind::succeeded);  // it caught the error
    REQUIRE(all[rank].lines.size() == 3);
    CHECK_THAT(all[rank].lines[0], Catch::Contains("is this one"));  // without effect on the others
    CHECK_THAT(all[rank].lines[1], Catch::Contains("rank 1 ended the gang: gang.lua:5: boom"));
    CHECK_THAT(all[rank].lines[2], Catch::Contains("rank 1 ended the gang: gang.lua:5: boom"));
  }
  CHECK(all[1].ended.message == "gang.lua:5: boom");
}

TEST_CASE("A failure while backward shares gradients names the rank, the call and the line") {
  auto all = run_on(3, R"(
    local model = flow.nn.data_parallel(flow.nn.linear(4, 2), ctx.comm)
    model(flow.ones(1, 4)):sum():backward()
    if ctx.rank == 1 then
      for _, rank in ipairs { 0, 2 } do ctx.comm:recv({ shape = { 1 } }, rank) end
      error('boom')
    end
    ctx.comm:send(flow.ones(1), 1, { async = true })
    model(flow.ones(1, 4)):sum():backward()
  )");
  for (int rank : {0, 2}) {
    const AttemptOutcome& ended = all[static_cast<size_t>(rank)].ended;
    CHECK(ended.lost_gang);
    CHECK(ended.message ==
          "gang.lua:11: ctx.comm:all_reduce: rank 1 ended the gang: gang.lua:8: boom");
  }
}

TEST_CASE("A rank that stops ends the ranks that wait for it") {
  bool all_stop = GENERATE(true, false);
  auto all = run_on(3, "if ctx.rank == 0 then ctx:checkpoint { 1 } end\nctx.comm:barrier()",
                    [&](int rank, GangHost& host) { host.stops = rank == 0 || all_stop; });
  CHECK(all[0].ended.kind == Kind::stopped);
  for (size_t rank : {1, 2}) {
    CHECK(all[rank].ended.kind == (all_stop ? Kind::stopped : Kind::failed));
    CHECK(all[rank].ended.lost_gang == !all_stop);
  }
}

TEST_CASE("Unfinished calls use no tensors after the end of the attempt") {
  bool fails = GENERATE(true, false);
  auto all = run_on(3, std::string("local h = ctx.comm:all_reduce(flow.zeros(2000000), "
                                   "{ async = true })\nif ctx.rank == 0 then ") +
                           (fails ? "error('gone')" : "return 1") + " end\nh:wait()");
  CHECK(all[0].ended.kind == (fails ? Kind::failed : Kind::succeeded));
  CHECK_FALSE(all[0].ended.lost_gang);
  for (size_t rank : {1, 2})
    CHECK((all[rank].ended.kind == Kind::succeeded || (fails && all[rank].ended.lost_gang)));
}

TEST_CASE("Tensors of equal size but different shapes are not reduced") {
  auto all = run_on(2, "ctx.comm:all_reduce(flow.zeros(2 + ctx.rank, 3 - ctx.rank))");
  for (const RankOutcome& one : all)
    CHECK_THAT(one.ended.message,
               Catch::StartsWith("gang.lua:3: ctx.comm:all_reduce: collective #1: ") &&
                   Catch::Contains("6 f32 with another shape: all ranks must call the same"));
}

TEST_CASE("A tensor on one rank and a list of it on another is an error on both") {
  std::string what = GENERATE("all_reduce", "broadcast");
  auto all =
      run_on(2, "local x = flow.zeros(6)\nctx.comm:" + what + "(ctx.rank == 0 and x or { x })");
  for (const RankOutcome& one : all)
    CHECK_THAT(one.ended.message, Catch::Contains("6 f32") && Catch::Contains("under other keys"));
}

TEST_CASE("Tensors under different keys are not reduced") {
  std::string what = GENERATE("all_reduce", "broadcast");
  std::string size = GENERATE("2", "70000");  // sent together, or alone
  auto all = run_on(2, "local x = function() return flow.ones(" + size + ") end\nctx.comm:" + what +
                           "({ weight = x(), [ctx.rank == 0 and 'bias' or 'scale'] = x() })");
  for (const RankOutcome& one : all)
    CHECK_THAT(one.ended.message,
               Catch::StartsWith("gang.lua:4: ctx.comm:" + what + ": collective #1: rank ") &&
                   Catch::Contains(" under other keys: all ranks must"));
  auto alike =
      run_on(2, "local t = { weight = flow.ones(2), bias = flow.ones(3) }\nctx.comm:" + what +
                    "(t)\nreturn t.bias:sum()");
  for (const RankOutcome& one : alike) CHECK(one.ended.kind == Kind::succeeded);
}

TEST_CASE("The target of an unfinished call cannot be passed on before it was waited for") {
  std::string gives =
      GENERATE("return x", "ctx:checkpoint { x }", "ctx:step('s', function() return x end)",
               "ctx.comm:broadcast(x:narrow(1, 1, 2))", "ctx.comm:all_gather { x }",
               "ctx.comm:send(x, 1 - ctx.rank)", "return { deep = { x } }");
  std::string size = GENERATE("4", "70000");
  CAPTURE(gives, size);
  auto all = run_on(2, "local x = flow.ones(" + size +
                           ")\nlocal h = ctx.comm:all_reduce(x, { async = true })\n" + gives);
  for (const RankOutcome& one : all)
    CHECK_THAT(one.ended.message, Catch::Contains("ctx.comm:all_reduce is writing to"));
}

TEST_CASE("The source of an unfinished call cannot be the target of another one") {
  std::string reads =
      GENERATE("send(x, 1 - ctx.rank, { async = true })", "all_gather(x, { async = true })");
  auto all = run_on(
      2, "local x = flow.ones(70000)\nlocal h = ctx.comm:" + reads + "\nctx.comm:all_reduce(x)");
  for (const RankOutcome& one : all) CHECK_THAT(one.ended.message, Catch::Contains(" is reading "));
}

TEST_CASE("Parts that no unfinished call writes to, or that were waited for, may be passed on") {
  auto all = run_on(2,
                    "local all = flow.ones(8)\n"
                    "local h = ctx.comm:all_reduce(all:narrow(1, 1, 4), { async = true })\n"
                    "ctx:checkpoint { all:narrow(1, 5, 4) }\n"
                    "h:wait()\n"
                    "return all:sum()");
  for (const RankOutcome& one : all) {
    CHECK(one.ended.message == "");
    CHECK(one.ended.kind == Kind::succeeded);
  }
}

TEST_CASE("Values in the list of all ranks' values are not nil") {
  std::string given = GENERATE("nil", "");
  auto all = run_on(1, "ctx.comm:all_gather(" + given + ")");
  CHECK_THAT(all[0].ended.message,
             Catch::Contains("ctx.comm:all_gather takes a tensor or a plain value, not nil"));
}

TEST_CASE("A tensor on one rank and a plain value on another is an error on both") {
  auto all = run_on(2, "ctx.comm:broadcast(ctx.rank == 0 and flow.zeros({ 512 }, 'u8') or nil)");
  for (const RankOutcome& one : all)
    CHECK_THAT(one.ended.message, Catch::Contains("collective #1: rank "));
}

TEST_CASE("Numbers and values that ranks reduce or move differently are an error on all") {
  struct Case {
    std::string body, has, has_too;
  };
  for (const Case& each : std::vector<Case>{
           {"return ctx.comm:all_reduce(1, ctx.rank == 0 and 'sum' or 'max')",
            "rank 0 called all_reduce(sum) of a number, rank 1 called all_reduce(max) of a number",
            "rank 1 called all_reduce(max) of a number, rank 0 called all_reduce(sum) of a number"},
           {"if ctx.rank == 0 then ctx.comm:all_reduce(1) else ctx.comm:all_gather(1) end",
            "rank 0 called all_reduce(sum) of a number, rank 1 called all_gather of a value",
            "rank 1 called all_gather of a value, rank 0 called all_reduce(sum) of a number"},
           {"ctx.comm:all_gather(ctx.rank == 0 and 'x' or flow.zeros({ 512 }, 'u8'))",
            "rank 0 called all_gather of a value, rank 1 called all_gather of 512 u8",
            "rank 1 called all_gather of 512 u8, rank 0 called all_gather of a value"},
           {"if ctx.rank == 0 then ctx.comm:send('hi', 1) ctx.comm:barrier()\n"
            "else ctx.comm:recv({ shape = { 512 }, dtype = 'u8' }, 0) end",
            "rank 0 sends a value, rank 1 receives 512 u8", ""}}) {
    auto all = run_on(2, each.body);
    for (const RankOutcome& one : all) {
      INFO(one.ended.message);
      bool is_reported =
          one.ended.message.find(each.has) != std::string::npos ||
          (!each.has_too.empty() && one.ended.message.find(each.has_too) != std::string::npos);
      CHECK(is_reported);
    }
  }
}

TEST_CASE("A rank without a gang reports that") {
  auto lone = run_on(2, "print(ctx.comm.ranks)\nctx.comm:barrier()",
                     [](int, GangHost& host) { host.joined = nullptr; });
  for (const RankOutcome& one : lone) {
    CHECK(one.lines == std::vector<std::string>{"2"});
    CHECK(one.ended.message ==
          "gang.lua:4: ctx.comm: the 2 ranks of this task have no communicator");
  }
}

TEST_CASE("An input file can be sent between ranks, and one that a rank made cannot") {
  File file;
  file.name = "in.txt";
  file.digest = sha256("in");
  auto run = [&](const std::string& body) {
    auto built =
        build({{"gang.lua",
                "local flow = require 'flow'\n"
                "local t = flow.task('t', function(ctx, given)\n" +
                    body + "\nend)\nreturn flow.pipeline('p', {}, function() t('') end)"}});
    REQUIRE(built.ok());
    AttemptRequest request = attempt_of(built->plan.defs.at(0), {Value(file)});
    return run_gang(built->bundle, 2, 1, request, [](int, GangHost&) {}).at(0);
  };
  for (const RankOutcome& one :
       run("for _, each in ipairs(ctx.comm:all_gather { given }) do print(each[1]) end"))
    CHECK(one.lines == std::vector<std::string>{"/inputs/in.txt", "/inputs/in.txt"});
  for (const char* call :
       {"ctx.comm:all_gather { x = { made } }", "ctx.comm:broadcast(made)",
        "if ctx.rank == 0 then ctx.comm:send(made, 1) else ctx.comm:barrier() end"}) {
    auto all = run(std::string("local made = ctx:file('.')\n") + call);
    INFO(all[0].ended.message);
    CHECK(all[0].ended.kind == Kind::failed);
    CHECK_FALSE(all[0].ended.lost_gang);
    CHECK_THAT(
        all[0].ended.message,
        Catch::StartsWith("gang.lua:4: ctx.comm:") &&
            Catch::Contains(": the file `tmp` was made on this rank and exists on no other"));
  }
}
