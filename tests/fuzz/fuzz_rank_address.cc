// The address of another rank: any bytes are parsed or rejected, and a parsed address is printed as
// an equal one.
#include <string>

#include "engine/base/address.hpp"
#include "flow/result.hpp"
#include "transports/collective/rank_address.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flow::collective;
  RankAddress rank_address, again;
  if (!parse_rank_address({reinterpret_cast<const char*>(data), size}, rank_address)) return 0;
  FLOW_CHECK(rank_address.rank >= 0 && rank_address.ranks >= 0 && rank_address.pid >= 0 &&
             rank_address.descriptor >= 0);
  std::string text = text_of(rank_address);
  FLOW_CHECK(parse_rank_address(text, again) && text_of(again) == text);
  auto address = flow::parse_address(rank_address.link);
  if (address.ok()) (void)flow::is_loopback(address->host);
  return 0;
}
