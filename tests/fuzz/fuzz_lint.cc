// Lint reads any text, whether it is valid Lua or not.
#include "lua/state/script.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& warning : flow::lint_source("p.lua", text))
    FLOW_CHECK(warning.starts_with("p.lua:"));
  return 0;
}
