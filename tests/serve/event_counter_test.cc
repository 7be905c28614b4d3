// How many events a stream has, however its bytes are cut.
#include "engine/serve/http/event_counter.hpp"

#include <catch2/catch.hpp>
#include <string_view>

using namespace flow;

namespace {

/// Of the text as a whole, which is the same byte by byte.
uint64_t events_in(std::string_view text) {
  EventCounter whole, bytes;
  uint64_t sum = 0;
  for (size_t i = 0; i < text.size(); i++) sum += bytes.count(text.substr(i, 1));
  CHECK(whole.count(text) == sum);
  return sum;
}

}  // namespace

TEST_CASE("an event ends with an empty line") {
  CHECK(events_in("") == 0);
  CHECK(events_in("data: 1\n") == 0);
  CHECK(events_in("data: 1\n\n") == 1);
  CHECK(events_in("event: a\ndata: 1\ndata: 2\n\ndata: 3\n\ndata: 4") == 2);
  CHECK(events_in("data: 1\r\n\r\ndata: 2\r\rdata: 3\n\n") == 3);
  CHECK(events_in("data\n\n\n\n\n") == 1);
}

TEST_CASE("comments that keep a connection open are no events") {
  CHECK(events_in(": ping\n\n: ping\n\n") == 0);
  CHECK(events_in(": ping\ndata: 1\n\n") == 1);
}
