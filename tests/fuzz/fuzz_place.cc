// What another rank says of how it is reached: of any bytes it is read or refused, and what was
// read says the same again.
#include <string>

#include "engine/base/address.hpp"
#include "flow/result.hpp"
#include "transports/collective/rank_address.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flow::collective;
  Place place, again;
  if (!read_place({reinterpret_cast<const char*>(data), size}, place)) return 0;
  FLOW_CHECK(place.rank >= 0 && place.ranks >= 0 && place.pid >= 0 && place.descriptor >= 0);
  std::string text = text_of(place);
  FLOW_CHECK(read_place(text, again) && text_of(again) == text);
  auto address = flow::parse_address(place.link);
  if (address.ok()) (void)flow::is_loopback(address->host);
  return 0;
}
