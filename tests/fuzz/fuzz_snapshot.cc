// Snapshots: bytes give an error or a state that survives writing and reading. If the state keeps
// the core's invariants, it also does after the engine's start.
#include "engine/store/checksum.hpp"
#include "tests/fuzz/small_plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  flow::seal(bytes);  // a correct checksum, so that the parser is reached
  auto state = flow::decode_snapshot(bytes, flow::small_plan, flow::small_fragment);
  if (!state.ok()) return 0;
  std::string again = flow::encode_snapshot(*state);
  auto back = flow::decode_snapshot(again, flow::small_plan, flow::small_fragment);
  FLOW_CHECK(back.ok() && flow::encode_snapshot(*back) == again);
  if (!flow::core::check_invariants(*state).empty()) return 0;
  flow::core::EngineStarted start{state->epoch + 1, state->workers[0].info.cpus_milli,
                                  state->workers[0].info.memory_bytes};
  std::vector<flow::core::Command> commands;
  flow::core::apply(*state, {state->sequence + 1, 0, start}, commands);
  FLOW_CHECK(flow::core::check_invariants(*state).empty());
  return 0;
}
