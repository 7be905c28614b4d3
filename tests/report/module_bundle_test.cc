#include "engine/report/module_bundle.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

std::string bundle(const std::vector<PageAsset>& modules) {
  auto script = bundle_modules(modules, "main.js");
  return script.ok() ? *script : script.error().message;
}

}  // namespace

TEST_CASE("each module is a function, after those that it imports") {
  CHECK(bundle(
            {{"main.js",
              "// A comment.\nimport { a, b as c } from \"./one.js\";\nimport {\n  a as d,\n} from "
              "\"./one.js\";\nc(a, d);"},
             {"one.js",
              "export const a = 1;\nexport function b() {}\nexport async function e() {}\n"
              "export class F {}\nconst own = 2;\n"},
             {"unused.js", "broken"}}) ==
        "const modules = {};\n"
        "modules[\"one.js\"] = (() => {\n"
        "const a = 1;\nfunction b() {}\nasync function e() {}\nclass F {}\nconst own = 2;\n"
        "return { F, a, b, e };\n})();\n"
        "modules[\"main.js\"] = (() => {\n"
        "// A comment.\nconst { a, b: c } = modules[\"one.js\"];\nconst { a: d } = "
        "modules[\"one.js\"];\nc(a, d);\nreturn {  };\n})();\n");
}

TEST_CASE("a form that reports cannot have is an error that names it") {
  CHECK(bundle({{"main.js", "import x from \"./one.js\";\n"}}) ==
        "the page's module `main.js` has a form that reports cannot have: import x from "
        "\"./one.js\";");
  for (const char* line : {"import \"./one.js\";", "import * as one from \"./one.js\";",
                           "export default 1;", "export { a };", "export let a = 1;",
                           "export const { a } = b;", "import { a } from \"other\";"})
    CHECK(bundle({{"main.js", line}, {"one.js", "export const a = 1;\n"}})
              .ends_with(std::string("reports cannot have: ") + line));
}

TEST_CASE("missing modules, missing exports and cycles are errors") {
  CHECK(bundle({{"main.js", "import { a } from \"./none.js\";\n"}}) ==
        "the page has no module `none.js`");
  CHECK(bundle({{"main.js", "import { a } from \"./one.js\";\n"}, {"one.js", "const a = 1;\n"}}) ==
        "the page's module `main.js` imports `a` from `one.js`, which does not export it");
  CHECK(bundle({{"main.js", "import { a } from \"./one.js\";\n"},
                {"one.js", "import { b } from \"./main.js\";\n"}}) ==
        "the page's module `main.js` imports itself");
}
