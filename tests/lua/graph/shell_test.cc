// A command's placeholders: where bash's quoting allows one, and the inserted text.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "lua/graph/plain_command.hpp"
#include "lua/state/script.hpp"

using flow::fill_command;
using flow::plain_command;
using flow::Redirection;
using flow::ShellSpec;
using flow::Value;

namespace {

const Value kNamed = Value::map({
    {Value("a"), Value("one")},
    {Value("b"), Value("two words")},
    {Value("n"), Value(int64_t{7})},
    {Value("lr"), Value(0.001)},
    {Value("list"), Value::list({Value("x"), Value("y z"), Value(int64_t{3})})},
    {Value("none"), Value::list({})},
    {Value("empty"), Value("")},
    {Value("quote"), Value("it's")},
    {Value("t"), Value::map({{Value("lr"), Value(0.1)},
                             {Value("deep"), Value::map({{Value("x"), Value(true)}})}})},
    {Value("null"), Value::null()},
    {Value("tables"), Value::list({Value::map({{Value("x"), Value(1)}})})},
});

std::string fill(const std::string& command) {
  ShellSpec spec;
  spec.command = command;
  spec.outputs = {{"bam", "out.bam"}, {"parts", "part.*"}};
  auto filled = fill_command(spec, kNamed, {{"cpus", "4"}, {"seed", "99"}, {"rank", "0"}});
  return filled.ok() ? *filled : "error: " + filled.error().message;
}

struct Case {
  const char* command;
  const char* filled;
};

}  // namespace

TEST_CASE("placeholders are replaced, quoted if a word needs it") {
  const Case cases[] = {
      {"cat {a} {b}", "cat one 'two words'"},
      {"cat {list}", "cat x 'y z' 3"},
      {"cat {none}", "cat "},
      {"cat {empty}", "cat ''"},
      {"echo {quote}", "echo 'it'\\''s'"},
      {"x -t {cpus} -n {n} --lr {lr} --seed {seed} > {outputs.bam}",
       "x -t 4 -n 7 --lr 0.001 --seed 99 > out.bam"},
      {"ls {outputs.parts}", "ls 'part.*'"},
      {"x {t.lr} {t.deep.x} {list.2}", "x 0.1 true 'y z'"},
      {"x --out={a}.txt", "x --out=one.txt"},
      {"x $dir{a}", "x $dir'one'"},
      {"x {n}>f", "x '7'>f"},
      {"{a}=1", "'one'=1"},
      {"echo $(( {n} * 2 )) $((1 << {n}))\ncat {a}", "echo $(( 7 * 2 )) $((1 << 7))\ncat one"},
      {"for ((i=0; i<{n}; i++)); do cat {a}; done", "for ((i=0; i<7; i++)); do cat one; done"},
      {"if true; then cat {b}; fi", "if true; then cat 'two words'; fi"},
      {"(cd {a} && cat {b}) | sort", "(cd one && cat 'two words') | sort"},
      {"a=$(cat {b})", "a=$(cat 'two words')"},
      {"echo \"n: $(wc -l {b} | awk '{print $1}') $(echo \"$(cat {a})\")\"",
       "echo \"n: $(wc -l 'two words' | awk '{print $1}') $(echo \"$(cat one)\")\""},
      {"x <(sort {a}) >(cat {b})", "x <(sort one) >(cat 'two words')"},
      {"cat <<< {b}", "cat <<< 'two words'"},
      {"case $x in a) cat {a} ;; (b) cat {b} ;; esac",
       "case $x in a) cat one ;; (b) cat 'two words' ;; esac"},
      {"echo \"$(case $x in a) cat {a} ;; esac) {print}\"",
       "echo \"$(case $x in a) cat one ;; esac) {print}\""},
  };
  for (const Case& c : cases) CHECK(fill(c.command) == c.filled);
}

TEST_CASE("other text in braces is unchanged") {
  const char* commands[] = {
      "awk '{print}' f",
      "awk '{print $1}{x}' f",
      "echo \"{print}\" `x {y}`",
      "echo {1..3} {x,y} {} { a b } {}{",
      "f() { echo; }; f",
      "echo ${a} ${x:-{a}} ${x#\\{a\\}} \"${a}\"",
      "echo $# # {a} is a comment's {unknown}\ntrue",
      "echo a#{1}",
      "find . -exec rm {} \\;",
      "cat <<EOF\n{print} ${a} $x `y`\nEOF",
      "cat <<-'EOF'\n\t{print} $(x {y})\n\tEOF\ntrue",
      "cat <<A <<\"B C\"\n{x}\nA\n{y}\nB C\n",
      "docker ps --format '{{.Names}}' \"{{ x }}\" '{{unknown}}'",
      "echo $'a\\'{print}'",
      "echo \\{print} \\\\",
      "echo 'unclosed {print}",
      "echo \"\\\"{print}\"",
      "echo {{ }} {{a b}} {{1}}",
  };
  for (const char* command : commands) CHECK(fill(command) == command);
}

TEST_CASE("the only escape is two braces") {
  CHECK(fill("echo {{a}} {{print}} '{{a}}' \"{{a}}\" '{{print}}'") ==
        "echo {a} {print} '{a}' \"{a}\" '{{print}}'");
  CHECK(fill("cat <<EOF\n{{a}} {{print}}\nEOF") == "cat <<EOF\n{a} {{print}}\nEOF");
}

TEST_CASE("$( ) in a here-document starts unquoted again") {
  CHECK(fill("cat <<EOF\nx $(cat {b}) y\nEOF\ncat {a}") ==
        "cat <<EOF\nx $(cat 'two words') y\nEOF\ncat one");
  CHECK(fill("x=$(cat <<EOF\n{print}\nEOF\n); cat {a}") ==
        "x=$(cat <<EOF\n{print}\nEOF\n); cat one");
}

TEST_CASE("a known name inside quotes is an error with the correction") {
  const Case cases[] = {
      {"cat '{a}'", "error: line 1 of the command: `{a}` is inside quotes: remove the quotes"},
      {"x\ncat \"pre {b}\"", "error: line 2 of the command: `{b}` is inside quotes"},
      {"cat '{t.lr}'", "error: line 1 of the command: `{t.lr}` is inside quotes"},
      {"cat '{cpus}'", "error: line 1 of the command: `{cpus}` is inside quotes"},
      {"cat $'{a}'", "error: line 1 of the command: `{a}` is inside quotes"},
      {"x `cat {a}`", "error: line 1 of the command: `{a}` is inside backquotes: write $( )"},
      {"x \"`cat $(echo {a})`\"", "error: line 1 of the command: `{a}` is inside backquotes"},
      {"cat <<EOF\n{a}\nEOF", "error: line 2 of the command: `{a}` is inside a here-document"},
      {"cat <<'EOF'\n$(cat {a})\nEOF",
       "error: line 2 of the command: `{a}` is inside a here-document"},
      {"echo \\{a}",
       "error: line 1 of the command: `{a}` is inside an escape: remove the backslash"},
      {"echo \"$(echo '{a}')\"", "error: line 1 of the command: `{a}` is inside quotes"},
      {"cat {aa}",
       "error: line 1 of the command: `{aa}` is not an argument of this call: did you mean `{a}`?"},
      {"cat {output}", "error: line 1 of the command: `{output}` is not an argument of this call"},
      {"cat {outputs.bum}",
       "error: line 1 of the command: `{outputs.bum}` names no output of this task: did you mean "
       "`{outputs.bam}`?"},
      {"cat {outputs}", "error: line 1 of the command: `{outputs}` names no output of this task"},
      {"cat {cpus.x}", "error: line 1 of the command: `{cpus.x}`: `cpus` has no fields"},
      {"cat {t}", "error: the placeholder `{t}` is a table with fields: name one, `{t.deep}`"},
      {"cat {t.rl}", "error: the placeholder `{t.rl}`: `t` has no field `rl` (did you mean `lr`?)"},
      {"cat {null}", "error: the placeholder `{null}` is without a value"},
      {"cat {tables}", "error: the placeholder `{tables}` is a list of tables"},
      {"echo $(( {b} ))",
       "error: the placeholder `{b}` is within $(( )), which allows only a number"},
      {"cat {memory}",
       "error: the placeholder `{memory}` has no value: give the task the option `memory`"},
  };
  for (const Case& c : cases) CHECK_THAT(fill(c.command), Catch::StartsWith(c.filled));
}

using Words = std::vector<std::string>;

TEST_CASE("one line of plain words is executed directly") {
  CHECK(plain_command("\n  bwa mem -t 4 a.fa b@c,d:e%+_/f \n").words ==
        Words{"bwa", "mem", "-t", "4", "a.fa", "b@c,d:e%+_/f"});
  CHECK(plain_command("cat 'two words' 'it'\\''s' ''").words ==
        Words{"cat", "two words", "it's", ""});
  CHECK(plain_command("/bin/true").words == Words{"/bin/true"});
  for (const char* command :
       {"",          "  ",      "cd x", "echo hi", "if",      "time ls",   "true",
        "a; b",      "a | b",   "a\nb", "A=1 x",   "cat *.x", "cat ~/x",   "cat $x",
        "cat \"x\"", "cat {x}", "'' x", "%1",      "[ a",     "cat x # y", "cat 'x",
        "cat \\x",   "a&",      "!x",   "\ra",     "> x"})
    CHECK(plain_command(command).words.empty());
}

/// The redirections of a command: "1>x" (create and truncate), "1>>x" (append), "0<x", "2>&1".
Words redirections_of(const std::string& command) {
  Words found;
  for (const Redirection& each : plain_command(command).redirections) {
    std::string text = std::to_string(each.descriptor);
    if (each.from >= 0) {
      found.push_back(text + ">&" + std::to_string(each.from));
      continue;
    }
    bool is_input = (each.flags & O_ACCMODE) == O_RDONLY;
    CHECK((is_input || (each.flags & O_CREAT) != 0));
    bool appends = (each.flags & O_APPEND) != 0;
    CHECK(((each.flags & O_TRUNC) != 0) == (!is_input && !appends));
    found.push_back(text + (is_input ? "<" : appends ? ">>" : ">") + each.path);
  }
  return found;
}

TEST_CASE("a command with redirections is executed directly") {
  CHECK(redirections_of("cat x > y") == Words{"1>y"});
  CHECK(redirections_of("cat x>y") == Words{"1>y"});
  CHECK(redirections_of("cat<'a b'>>y 2>e") == Words{"0<a b", "1>>y", "2>e"});
  CHECK(redirections_of("> y cat x") == Words{"1>y"});
  CHECK(redirections_of("cat x >y 2>&1") == Words{"1>y", "2>&1"});
  CHECK(redirections_of("cat x 2>&1 >y") == Words{"2>&1", "1>y"});
  CHECK(redirections_of("cat x >&2 0</dev/null") == Words{"1>&2", "0</dev/null"});
  // Only digits that touch the operator name a descriptor, and only without quotes.
  CHECK(plain_command("cat 2 > y").words == Words{"cat", "2"});
  CHECK(redirections_of("cat 2 > y") == Words{"1>y"});
  CHECK(plain_command("cat '2'> y").words == Words{"cat", "2"});
  CHECK(plain_command("cat a2> y").words == Words{"cat", "a2"});
  for (const char* command : {"cat x >",        "cat x > ''",    "cat x >| y", "cat <<E",
                              "cat <> x",       "cat x &> y",    "cat x >& y", "cat x 2>&-",
                              "cat x 2>&3",     "cat x 3> y",    "cat 12>y",   "cat x 2>&1y",
                              "cat x >&1>y",    "cat > *",       "cat > $x",   "cat > \"x\"",
                              "cat > ~/x",      "cat < x y; z",  "cat <<< x",  "cat <(x)",
                              "cat >> > x",     "cat x > 2>err", "cat >>1>2",  "cat > /dev/tcp/h/1",
                              "cat < /dev/fd/0"}) {
    CHECK(plain_command(command).words.empty());
    CHECK(redirections_of(command).empty());
  }
}

TEST_CASE("bash reads an inserted value as one word, wherever it is") {
  const std::string wild = "a'b \"c\" $HOME `x` \\ * {a} #d\n!e";
  ShellSpec spec;
  Value named = Value::map({{Value("w"), Value(wild)}});
  for (const char* command :
       {"printf %s {w}", "printf %s \"$(printf %s {w})\"", "cat <<EOF\n$(printf %s {w})\nEOF",
        "x=$(cat <<EOF\n$(printf %s {w})\nEOF\n); printf %s \"$x\"",
        "printf %s \"$(case x in x) printf %s {w} ;; esac)\"", "f() { printf %s \"$1\"; }; f {w}",
        "cat <(printf %s {w})", "a=({w} 2); printf %s \"${a[0]}\"", "cat <<< {w}",
        "( (printf %s {w}) )", "for i in {w}; do printf %s \"$i\"; done # {w}",
        "printf %s \"\"{w}''"}) {
    spec.command = command;
    auto filled = fill_command(spec, named, {});
    REQUIRE(filled.ok());
    char path[] = "/tmp/flow-command-XXXXXX";
    int file = mkstemp(path);
    REQUIRE(write(file, filled->data(), filled->size()) == static_cast<ssize_t>(filled->size()));
    close(file);
    FILE* pipe = popen((std::string("bash -eu -o pipefail ") + path).c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string out;
    char buffer[512];
    while (size_t count = fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, count);
    pclose(pipe);
    unlink(path);
    while (out.ends_with('\n')) out.pop_back();
    INFO(command);
    CHECK(out == wild);
  }
}

TEST_CASE("arguments get their names by the rule of the call") {
  ShellSpec spec;
  spec.args = {"reads", "ref"};
  auto two = flow::name_arguments(spec, "align", Value::list({Value("r"), Value("f")}), false);
  REQUIRE(two.ok());
  CHECK(to_json(*two) == R"({"reads":"r","ref":"f"})");
  Value table = Value::map({{Value("reads"), Value("r")}, {Value("ref"), Value("f")}});
  auto named = flow::name_arguments(spec, "align", Value::list({table}), true);
  REQUIRE(named.ok());
  CHECK(*named == table);
  CHECK(!flow::name_arguments(spec, "align", Value::list({table}), false).ok());
  CHECK(!flow::name_arguments(spec, "align", Value::list({Value("r")}), true).ok());
  spec.args = {"file"};
  auto item = flow::name_arguments(spec, "cat", Value::list({Value("f")}), true);
  REQUIRE(item.ok());
  CHECK(to_json(*item) == R"({"file":"f"})");
}
