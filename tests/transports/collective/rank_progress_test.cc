// Which rank the others of a gang wait for, derived from the progress that each rank reports.
#include <catch2/catch.hpp>

#include "flow/collective.hpp"

using namespace flow;

namespace {

using Ranks = std::vector<std::optional<RankProgress>>;

RankProgress in(uint64_t number, Collective what = Collective::all_reduce) {
  return {number, what, true, std::nullopt, 0};
}
RankProgress after(uint64_t number, Collective what = Collective::all_reduce) {
  return {number, what, false, std::nullopt, 0};
}
RankProgress in_recv(int peer, uint64_t number = 0) {
  RankProgress progress = after(number);
  progress.message = Collective::recv;
  progress.peer = peer;
  return progress;
}

}  // namespace

TEST_CASE("the rank that the others wait for in a collective is named, with its last call") {
  CHECK(hang_text({in(7), after(6), in(7)}) ==
        "rank 1 hangs: it has not reached all_reduce #7, in which ranks 0 and 2 wait; its last was "
        "all_reduce #6");
  CHECK(hang_text({after(0), in(1, Collective::barrier)}) ==
        "rank 0 hangs: it has not reached barrier #1, in which rank 1 waits; it has called no "
        "collective");
  CHECK(hang_text({in(7), std::nullopt, in(7)}) ==
        "rank 1 hangs: it has not reached all_reduce #7, in which ranks 0 and 2 wait; it does not "
        "answer");
  CHECK(hang_text({in(7), after(6), in(7), after(2)}) ==
        "ranks 1 and 3 hang: they have not reached all_reduce #7, in which ranks 0 and 2 wait; "
        "rank 1: its last was all_reduce #6; rank 3: its last was all_reduce #2");
}

TEST_CASE("a rank that has completed the collective in which others wait is not named") {
  CHECK(hang_text({after(7), in(7), after(6)}) ==
        "rank 2 hangs: it has not reached all_reduce #7, in which rank 1 waits; its last was "
        "all_reduce #6");
}

TEST_CASE("a rank that has not left is named by the ranks that have") {
  CHECK(hang_text({in(3, Collective::leave), after(2)}) ==
        "rank 1 hangs: it has not reached its end, for which rank 0 waits; its last was "
        "all_reduce #2");
}

TEST_CASE("the rank from which a message is awaited is named") {
  CHECK(hang_text({in_recv(2, 4), after(4), after(4)}) ==
        "rank 2 hangs: it has not reached recv from rank 2, in which rank 0 waits; its last was "
        "all_reduce #4");
  CHECK(hang_text({in_recv(1), in_recv(2), after(4)}) ==
        "rank 2 hangs: it has not reached recv from rank 2, in which rank 1 waits; its last was "
        "all_reduce #4");
}

TEST_CASE("without a late rank, the message says how the ranks wait, or that they do not wait") {
  CHECK(hang_text({in_recv(1), in_recv(0)}) ==
        "the ranks wait for each other: rank 1 waits in recv from rank 0, rank 0 waits in recv "
        "from rank 1");
  CHECK(hang_text({in(3), in(3)}) == "ranks 0 and 1 wait in all_reduce #3, which does not return");
  CHECK(hang_text({after(3), after(0)}) == "no rank waits for another: each runs its own code");
  CHECK(hang_text({std::nullopt, after(3)}) == "no rank waits for another: each runs its own code");
  CHECK(hang_text({std::nullopt, std::nullopt}).empty());
}

TEST_CASE("of many ranks the first are named") {
  CHECK(ranks_text({3}) == "rank 3");
  CHECK(ranks_text({0, 1, 2, 3, 4, 5, 6, 7, 8}) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 8");
  CHECK(ranks_text({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

TEST_CASE("encoded progress is decoded unchanged, and nothing else is accepted") {
  for (const RankProgress& progress : {RankProgress(), in(7), in_recv(5, 3), in(UINT64_MAX)}) {
    auto read = decode_rank_progress(encode_rank_progress(progress));
    REQUIRE(read);
    CHECK(read->number == progress.number);
    CHECK(read->what == progress.what);
    CHECK(read->is_inside == progress.is_inside);
    CHECK(read->message == progress.message);
    CHECK(read->peer == progress.peer);
  }
  for (const char* bad : {"", "7", "7 0 1 -1", "7 9 1 -1 0", "7 0 1 9 0", "7 0 1 -1 -1",
                          "7 0 1 -1 4096", "7 0 1 -1 0 ", "7 0 1 -1 0x", "a 0 1 -1 0"})
    CHECK_FALSE(decode_rank_progress(bad));
}
