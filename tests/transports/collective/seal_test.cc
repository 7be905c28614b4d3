// What an attacker on the network between a gang's nodes can see, and the effect of changes made
// there.
#include <array>
#include <cstring>
#include <map>

#include "tests/transports/collective/gang.hpp"
#include "tests/transports/collective/tap.hpp"
#include "transports/collective/gang_seal.hpp"

using namespace flow;
using namespace flow::collective;

namespace {

constexpr const char* kCanary = "the canary sings";

std::string text_of_size(size_t size) {
  std::string text;
  while (text.size() < size) text += kCanary;
  text.resize(size);
  return text;
}

GangSpec spec_over(const std::shared_ptr<Network>& network, bool encrypts = false) {
  GangSpec spec{"ab"};
  spec.transport = [network] { return std::make_unique<TapTransport>(inproc(), network); };
  spec.encrypts = {encrypts};
  return spec;
}

CollectiveCall say(std::string& text) {
  return broadcast(text.data(), static_cast<int64_t>(text.size()), DType::u8, 0);
}

RankIdentity identity_of(int rank) { return {sha256("a gang"), "its key", rank, 3, false}; }

/// Both ends of an undisturbed link.
struct Pair {
  explicit Pair(const RankIdentity& one = identity_of(0),
                const RankIdentity& other = identity_of(1))
      : first(one, other.rank), second(other, -1) {
    REQUIRE(second.receive_hello(first.hello()).ok());
    REQUIRE(first.receive_hello(second.hello()).ok());
    proofs = {first.proof(), second.proof()};
  }
  void prove() {
    REQUIRE(second.receive_proof(proofs[0]).ok());
    REQUIRE(first.receive_proof(proofs[1]).ok());
  }
  GangSeal first, second;
  std::array<std::string, 2> proofs;
};

std::string control(FrameKind kind) {
  FrameHead head;
  head.kind = kind;
  return std::string(bytes_of(head));
}

const std::string kChanged =
    "its data was changed, cut, repeated or dropped on the way, or is not from that rank";

std::string opened(GangSeal& seal, const std::string& frame) {
  UnsealedFrame out;
  Status is_open = seal.open(frame, out);
  return is_open.ok() ? out.control + std::string(out.bulk) : is_open.error().message;
}

}  // namespace

TEST_CASE("Short data is never readable between nodes, long data only without encryption") {
  bool encrypts = GENERATE(false, true);
  size_t size = GENERATE(size_t{16}, kSealedBytes, kSealedBytes + 1, size_t{128} << 10,
                         (size_t{128} << 10) + 1, size_t{6} << 20);
  CAPTURE(encrypts, size);
  auto network = std::make_shared<Network>();
  Gang gang(spec_over(network, encrypts));
  gang.check([&](Communicator& comm) -> std::string {
    std::string text = comm.rank() == 0 ? text_of_size(size) : std::string(size, ' ');
    Status said = comm.run(say(text));
    if (!said.ok()) return text_of(said);
    return text == text_of_size(size) ? "" : "what came is not what was said";
  });
  CHECK(network->has_seen(kCanary) == (size > kSealedBytes && !encrypts));
}

TEST_CASE("If one rank requires encryption of long data, both encrypt it") {
  auto network = std::make_shared<Network>();
  GangSpec spec = spec_over(network);
  spec.encrypts = GENERATE(std::vector<bool>{true, false}, std::vector<bool>{false, true});
  Gang gang(spec);
  for (size_t size : {size_t{100'000}, size_t{1'000'000}})
    gang.check([&](Communicator& comm) {
      std::string sent = text_of_size(size), came(size, ' ');
      auto count = static_cast<int64_t>(size);
      auto there = comm.start(send(sent.data(), count, DType::u8, 1 - comm.rank()));
      Status here = comm.run(recv(came.data(), count, DType::u8, 1 - comm.rank()));
      CHECK((came == sent));
      return text_of(there->wait()) + text_of(here);
    });
  CHECK_FALSE(network->has_seen(kCanary));
}

TEST_CASE("The cause of a gang's end is not readable between nodes") {
  auto network = std::make_shared<Network>();
  Gang gang(spec_over(network));
  gang.check([](Communicator& comm) { return text_of(comm.run(barrier())); });
  gang[1].abort(kCanary);
  CHECK_THAT(text_of(gang[0].run(barrier())), Catch::EndsWith(kCanary));
  CHECK_FALSE(network->has_seen(kCanary));
}

TEST_CASE("A frame that was changed on the network ends the gang, and all ranks report it") {
  size_t size = GENERATE(size_t{16}, size_t{20'000});
  std::string what = GENERATE(as<std::string>(), "changed", "cut", "longer", "empty", "repeated",
                              "left out", "swapped", "another kind", "its own", "made up");
  CAPTURE(size, what);
  auto network = std::make_shared<Network>();
  Gang gang(spec_over(network));
  gang.check([](Communicator& comm) { return text_of(comm.run(barrier())); });
  std::string held;
  int came = 0;
  {
    std::lock_guard lock(network->mutex);
    network->on_frame = [&](bool is_first, std::string frame,
                            const std::vector<std::string>& own) -> std::vector<std::string> {
      if (!is_first || ++came > 2) return {frame};
      if (came == 2) return what == "swapped" ? std::vector{frame, held} : std::vector{frame};
      held = frame;
      if (what == "changed") frame[20] ^= 1;
      if (what == "cut") frame.pop_back();
      if (what == "longer") frame.push_back('x');
      if (what == "empty") frame.clear();
      if (what == "another kind") frame[0] ^= 7;
      if (what == "its own") frame = own.back();
      if (what == "made up") frame = std::string(200, frame[0]);
      if (what == "repeated") return {frame, frame};
      if (what == "left out" || what == "swapped") return {};
      return {frame};
    };
  }
  auto told = gang.run([&](Communicator& comm) {
    std::string text(size, 'x');
    auto count = static_cast<int64_t>(size);
    for (int i = 0; i < 3; i++) {
      Status done = comm.run(comm.rank() == 1 ? send(text.data(), count, DType::u8, 0)
                                              : recv(text.data(), count, DType::u8, 1));
      if (!done.ok()) return text_of(done);
    }
    return text_of(comm.run(barrier()));
  });
  bool is_bulk = size > kSealedBytes && (what == "cut" || what == "longer");
  for (const std::string& one : told)
    CHECK(one == "rank 1 is lost: " + (is_bulk ? "its data is damaged" : kChanged) +
                     "; it was last in barrier #1");
}

TEST_CASE("Encrypted data that was changed on the network ends the gang, and all ranks report it") {
  auto network = std::make_shared<Network>();
  Gang gang(spec_over(network, true));
  gang.check([](Communicator& comm) { return text_of(comm.run(barrier())); });
  {
    std::lock_guard lock(network->mutex);
    network->on_put = [](char* data, size_t size) { data[size / 2] ^= 1; };
  }
  auto told = gang.run([&](Communicator& comm) {
    std::string text(1'000'000, 'x');
    Status said = comm.run(say(text));
    return said.ok() ? text_of(comm.run(barrier())) : text_of(said);
  });
  // Rank 0, whose part is done, may have announced the next call before the data was checked.
  for (const std::string& one : told)
    CHECK_THAT(one, Catch::Matches("rank 0 is lost: its data was changed on the way; it was last "
                                   "in (broadcast #2|barrier #3)"));
}

TEST_CASE("Data of one link is rejected on any other, even with the same ranks, key and gang") {
  Pair earlier;
  earlier.prove();
  std::string frame = earlier.first.seal(control(FrameKind::goodbye));
  Pair later;
  CHECK(later.second.receive_proof(earlier.proofs[0]).error().message ==
        "it does not hold the gang's key");
  later.prove();
  CHECK(opened(later.second, frame) == kChanged);
  CHECK(opened(earlier.second, frame) == control(FrameKind::goodbye));
}

TEST_CASE("A side's own messages do not authenticate its peer, and cannot be decrypted") {
  Pair pair;
  CHECK_FALSE(pair.first.receive_proof(pair.proofs[0]).ok());
  CHECK_FALSE(pair.second.receive_proof(pair.proofs[1]).ok());
  pair.prove();
  CHECK(opened(pair.first, pair.first.seal(control(FrameKind::goodbye))) == kChanged);
  GangSeal alone(identity_of(0), 1);
  CHECK(alone.receive_hello(alone.hello()).error().message == "it is not a rank of this gang");
}

TEST_CASE("A greeting or proof with a changed bit or a missing end is rejected") {
  for (size_t bit = 0; bit < 8 * sizeof(RankHello); bit++) {
    GangSeal first(identity_of(0), 1), second(identity_of(1), -1);
    std::string hello = first.hello();
    hello[bit / 8] = static_cast<char>(hello[bit / 8] ^ 1 << bit % 8);
    if (!second.receive_hello(hello).ok()) continue;
    if (!first.receive_hello(second.hello()).ok()) continue;
    CHECK_FALSE(second.receive_proof(first.proof()).ok());
    CHECK_FALSE(first.receive_proof(second.proof()).ok());
  }
  Pair pair;
  for (size_t bit = 0; bit < 8 * sizeof(Proof); bit++) {
    std::string proof = pair.proofs[0];
    proof[bit / 8] = static_cast<char>(proof[bit / 8] ^ 1 << bit % 8);
    CHECK_FALSE(pair.second.receive_proof(proof).ok());
  }
  for (size_t size = 0; size < sizeof(Proof); size++)
    CHECK_FALSE(pair.second.receive_proof(pair.proofs[0].substr(0, size)).ok());
  for (size_t size = 0; size < sizeof(RankHello); size++)
    CHECK_FALSE(
        GangSeal(identity_of(1), -1).receive_hello(pair.first.hello().substr(0, size)).ok());
  pair.prove();
}

TEST_CASE("A client that is not a rank of the gang, or that addresses another rank, is rejected") {
  auto greets = [](const RankIdentity& one, int to, const RankIdentity& other) {
    return GangSeal(other, -1).receive_hello(GangSeal(one, to).hello()).ok();
  };
  CHECK(greets(identity_of(0), 1, identity_of(1)));
  CHECK_FALSE(greets(identity_of(0), 2, identity_of(1)));
  CHECK_FALSE(greets(identity_of(1), 1, identity_of(1)));
  RankIdentity stranger = identity_of(0);
  stranger.gang = sha256("another gang");
  CHECK_FALSE(greets(stranger, 1, identity_of(1)));
  stranger = identity_of(0);
  stranger.rank = 3;
  CHECK_FALSE(greets(stranger, 1, identity_of(1)));
}

TEST_CASE("An authenticated peer that sends less than the header of long data is rejected") {
  constexpr std::string_view kPurpose = "flow gang link, 2";
  GangSeal greets(identity_of(0), 1), here(identity_of(1), -1);
  REQUIRE(here.receive_hello(greets.hello()).ok());
  Key secret = keyed_hash(Key{}, {kPurpose, identity_of(0).key});
  LinkKeys keys = link_keys(keyed_hash(secret, {kPurpose, greets.hello(), here.hello()}), true);
  Sealer peer(keys.seal_out);
  Proof proof;
  Key digest = keyed_hash(keys.proof_out, {peer.header()});
  std::memcpy(proof.header, peer.header().data(), sizeof proof.header);
  std::memcpy(proof.digest, digest.bytes.data(), sizeof proof.digest);
  REQUIRE(here.receive_proof(bytes_of(proof)).ok());
  CHECK(opened(here, peer.seal(static_cast<uint8_t>(FrameKind::with_bulk), "a")) == kChanged);
}
