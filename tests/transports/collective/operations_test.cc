// Every collective against its expected result: types, sizes, numbers of ranks, placements.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/shared/types.hpp"
#include "tests/transports/collective/gang.hpp"

using namespace flow;
using kernels::Bool;
using kernels::Brain;
using kernels::Half;

namespace {

template <typename T>
struct Of;
#define FLOW_OF(TYPE, DTYPE)                     \
  template <>                                    \
  struct Of<TYPE> {                              \
    static constexpr DType dtype = DType::DTYPE; \
  };
FLOW_OF(float, f32)
FLOW_OF(double, f64)
FLOW_OF(Half, f16)
FLOW_OF(Brain, bf16)
FLOW_OF(int64_t, i64)
FLOW_OF(int32_t, i32)
FLOW_OF(uint8_t, u8)
FLOW_OF(Bool, boolean)

/// The value of rank `rank` at index `i`: quarters, so that f32 sums are exact in any order.
double value(int rank, int64_t i) {
  auto mixed = static_cast<uint32_t>(i * 2654435761u + static_cast<uint32_t>(rank) * 40503u);
  return (static_cast<double>(mixed >> 7 & 63u) - 31.0) / 4.0;
}

template <typename T>
T element(double number) {
  if constexpr (std::is_same_v<T, Bool>)
    return Bool{static_cast<uint8_t>(number > 6.0)};
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<int64_t>(number * 4));
  else
    return kernels::convert<T>(number);
}

template <typename T>
std::vector<T> filled(int rank, int64_t from, int64_t count) {
  std::vector<T> data(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i++)
    data[static_cast<size_t>(i)] = element<T>(value(rank, from + i));
  return data;
}

/// Rounded once, in the type of the computation.
template <typename T>
T expected(ReduceOp op, int ranks, int64_t i) {
  using C = kernels::Compute<T>;
  auto of = [&](int rank) { return kernels::convert<C>(element<T>(value(rank, i))); };
  C result = of(0);
  for (int rank = 1; rank < ranks; rank++) {
    if (op == ReduceOp::max)
      result = std::max(result, of(rank));
    else if (op == ReduceOp::min)
      result = std::min(result, of(rank));
    else
      result = static_cast<C>(result + of(rank));
  }
  if constexpr (std::is_floating_point_v<C>)
    if (op == ReduceOp::mean) result = result / static_cast<C>(ranks);
  if constexpr (std::is_same_v<T, Bool>)
    return Bool{result};
  else
    return kernels::convert<T>(result);
}

template <typename T>
std::string compare(const std::vector<T>& got, const std::vector<T>& wanted,
                    const std::string& what) {
  if (got.size() == wanted.size() &&
      (got.empty() || std::memcmp(got.data(), wanted.data(), got.size() * sizeof(T)) == 0))
    return "";
  size_t i = 0;
  while (i < got.size() && std::memcmp(&got[i], &wanted[i], sizeof(T)) == 0) i++;
  return what + " differs at " + std::to_string(i) + " of " + std::to_string(wanted.size());
}

#define STEP(STATUS)                                             \
  do {                                                           \
    if (std::string said = (STATUS); !said.empty()) return said; \
  } while (0)

template <typename T>
std::string reduces(Communicator& comm, ReduceOp op, int64_t count) {
  int n = comm.ranks(), rank = comm.rank();
  std::vector<T> wanted;
  for (int64_t i = 0; i < count; i++) wanted.push_back(expected<T>(op, n, i));
  std::vector<T> from = filled<T>(rank, 0, count), to(from.size());
  CollectiveCall call = all_reduce(from.data(), to.data(), count, Of<T>::dtype, op);
  std::string what = collective_text(call);
  STEP(text_of(comm.run(call)));
  STEP(compare(to, wanted, what));
  STEP(compare(from, filled<T>(rank, 0, count), what + ": its source"));
  STEP(text_of(comm.run(all_reduce(from.data(), from.data(), count, Of<T>::dtype, op))));
  STEP(compare(from, wanted, what + " in place"));

  std::vector<T> all = filled<T>(rank, 0, count * n), own(static_cast<size_t>(count));
  STEP(text_of(comm.run(reduce_scatter(all.data(), own.data(), count, Of<T>::dtype, op))));
  wanted.clear();
  for (int64_t i = 0; i < count; i++) wanted.push_back(expected<T>(op, n, rank * count + i));
  STEP(compare(own, wanted, "reduce_scatter of " + what));
  return compare(all, filled<T>(rank, 0, count * n), "the source of reduce_scatter of " + what);
}

template <typename T>
std::string moves(Communicator& comm, int64_t count) {
  int n = comm.ranks(), rank = comm.rank();
  DType dtype = Of<T>::dtype;
  std::string what = " of " + std::to_string(count) + " " + dtype_name(dtype);
  std::vector<T> from = filled<T>(rank, 0, count), gathered(static_cast<size_t>(count * n)), wanted;
  for (int other = 0; other < n; other++) {
    auto theirs = filled<T>(other, 0, count);
    wanted.insert(wanted.end(), theirs.begin(), theirs.end());
  }
  STEP(text_of(comm.run(all_gather(from.data(), gathered.data(), count, dtype))));
  STEP(compare(gathered, wanted, "all_gather" + what));

  for (int root : {0, n - 1, n / 2}) {
    auto data = filled<T>(rank, 0, count);
    STEP(text_of(comm.run(broadcast(data.data(), count, dtype, root))));
    STEP(compare(data, filled<T>(root, 0, count), "broadcast" + what));
  }

  std::vector<T> pieces = filled<T>(rank, 0, count * n), come(pieces.size());
  wanted.clear();
  for (int other = 0; other < n; other++) {
    auto theirs = filled<T>(other, rank * count, count);
    wanted.insert(wanted.end(), theirs.begin(), theirs.end());
  }
  STEP(text_of(comm.run(all_to_all(pieces.data(), come.data(), count, dtype))));
  STEP(compare(come, wanted, "all_to_all" + what));
  STEP(text_of(comm.run(all_to_all(pieces.data(), pieces.data(), count, dtype))));
  STEP(compare(pieces, wanted, "all_to_all in place" + what));
  return text_of(comm.run(barrier()));
}

/// Every rank sends to the next and to the previous one at the same time.
template <typename T>
std::string passes(Communicator& comm, int64_t count) {
  int n = comm.ranks(), rank = comm.rank(), next = (rank + 1) % n, before = (rank + n - 1) % n;
  if (n == 1) return "";
  auto out = filled<T>(rank, 0, count);
  std::vector<T> in(out.size()), back(out.size());
  DType dtype = Of<T>::dtype;
  auto sent = comm.start(send(out.data(), count, dtype, next));
  auto sent_back = comm.start(send(out.data(), count, dtype, before));
  STEP(text_of(comm.run(recv(in.data(), count, dtype, before))));
  STEP(text_of(comm.run(recv(back.data(), count, dtype, next))));
  STEP(text_of(sent->wait()));
  STEP(text_of(sent_back->wait()));
  STEP(compare(in, filled<T>(before, 0, count), "a message"));
  return compare(back, filled<T>(next, 0, count), "a message back");
}

const std::vector<ReduceOp> kOps = {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min};

template <typename T>
std::string all_of(Communicator& comm, const std::vector<int64_t>& counts,
                   const std::vector<ReduceOp>& ops = kOps) {
  for (int64_t count : counts) {
    for (ReduceOp op : ops) {
      if (!check(all_reduce(nullptr, nullptr, 1, Of<T>::dtype, op), comm.rank(), comm.ranks()).ok())
        continue;
      STEP(reduces<T>(comm, op, count));
    }
    STEP(moves<T>(comm, count));
    STEP(passes<T>(comm, count));
  }
  return "";
}

std::string of_all_types(Communicator& comm, const std::vector<int64_t>& counts) {
  STEP(all_of<float>(comm, counts));
  STEP(all_of<double>(comm, counts));
  STEP(all_of<Half>(comm, counts));
  STEP(all_of<Brain>(comm, counts));
  STEP(all_of<int64_t>(comm, counts));
  STEP(all_of<int32_t>(comm, counts));
  STEP(all_of<uint8_t>(comm, counts));
  return all_of<Bool>(comm, counts);
}

const std::vector<int64_t> kCounts = {0, 1, 7, 1000};

/// Two ranks per node; with an odd number, one node has a single rank.
std::string in_twos(int ranks) {
  std::string nodes;
  for (int rank = 0; rank < ranks; rank++) nodes += static_cast<char>('a' + rank / 2);
  return nodes;
}

}  // namespace

TEST_CASE("Collectives in shared memory give the expected results, for 1 to 9 ranks") {
  int ranks = GENERATE(1, 2, 3, 4, 5, 6, 7, 8, 9);
  CAPTURE(ranks);
  Gang gang({one_node(ranks)});
  gang.check([](Communicator& comm) { return of_all_types(comm, kCounts); });
}

TEST_CASE("Collectives over links give the expected results, for 2 to 9 nodes") {
  int ranks = GENERATE(2, 3, 4, 5, 6, 7, 8, 9);
  CAPTURE(ranks);
  Gang gang({own_nodes(ranks)});
  gang.check([](Communicator& comm) { return of_all_types(comm, kCounts); });
}

TEST_CASE("Collectives with several ranks on several nodes give the expected results") {
  auto nodes = GENERATE(as<std::string>(), "aab", "abb", "aabb", "abab", "aaab", in_twos(5),
                        "abcabcabc", in_twos(9));
  CAPTURE(nodes);
  Gang gang({nodes});
  gang.check([](Communicator& comm) { return of_all_types(comm, kCounts); });
}

TEST_CASE("Collectives of large data give the expected results") {
  auto nodes =
      GENERATE(as<std::string>(), "a", "aa", "aaa", "aaaaa", "ab", "abc", "abcde", "aabb", "aabba");
  CAPTURE(nodes);
  Gang gang({nodes});
  gang.check([](Communicator& comm) {
    STEP(all_of<float>(comm, {65'536, 200'003}, {ReduceOp::mean}));
    return all_of<Half>(comm, {150'001}, {ReduceOp::sum});
  });
}

TEST_CASE("Slices of megabytes give the expected results") {
  auto nodes = GENERATE(as<std::string>(), "ab", "abc");
  Gang gang({nodes});
  gang.check([](Communicator& comm) { return reduces<float>(comm, ReduceOp::sum, 1'700'001); });
}

#if FLOW_TEST_UCX
TEST_CASE("Collectives over UCX give the expected results") {
  auto nodes = GENERATE(as<std::string>(), "ab", "abc", "aab", "aabb");
  CAPTURE(nodes);
  Gang gang({nodes, ucx});
  gang.check([](Communicator& comm) {
    STEP(of_all_types(comm, {0, 1, 1000}));
    return all_of<float>(comm, {100'003, 1'200'001}, {ReduceOp::sum});
  });
}
#endif

TEST_CASE("Rounded sums have the same bits on every rank and in every run") {
  auto nodes = GENERATE(as<std::string>(), "aaa", "aaaaaaa", "abc", "abcdefg", "aabbc");
  int64_t count = GENERATE(5, 3'000, 100'000);
  CAPTURE(nodes, count);
  int ranks = static_cast<int>(nodes.size());
  std::vector<std::vector<float>> in(nodes.size()), out(nodes.size());
  std::vector<double> sums(static_cast<size_t>(count)), sizes(sums.size());
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (auto& one : in) {
    for (int64_t i = 0; i < count; i++) one.push_back(normal(random));
    for (size_t i = 0; i < one.size(); i++) {
      sums[i] += one[i];
      sizes[i] += std::fabs(one[i]);
    }
  }
  for (auto& one : out) one.resize(static_cast<size_t>(count));
  std::vector<float> first;
  for (int run = 0; run < 3; run++) {
    Gang gang({nodes});
    gang.check([&](Communicator& comm) {
      auto rank = static_cast<size_t>(comm.rank());
      std::this_thread::sleep_for(std::chrono::milliseconds((comm.rank() * 7 + run * 3) % 5));
      return text_of(comm.run(
          all_reduce(in[rank].data(), out[rank].data(), count, DType::f32, ReduceOp::sum)));
    });
    if (first.empty()) first = out[0];
    for (auto& one : out)
      CHECK(std::memcmp(one.data(), first.data(), first.size() * sizeof(float)) == 0);
  }
  size_t wrong = 0;
  for (size_t i = 0; i < first.size(); i++)
    if (std::fabs(first[i] - sums[i]) > ranks * 6e-8 * sizes[i]) wrong++;
  CHECK(wrong == 0);
}

TEST_CASE("Many sums of small f16 and bf16 numbers are rounded once") {
  // 1 + 2^-11 three times: if each sum were rounded, nothing would be added.
  auto nodes = GENERATE(as<std::string>(), "aaaa", "abcd", "aabb");
  Gang gang({nodes});
  gang.check([](Communicator& comm) -> std::string {
    for (int64_t count : {3, 100'000}) {
      Half small = Half::from(0x1p-11f), one = Half::from(1.0f);
      std::vector<Half> data(static_cast<size_t>(count), comm.rank() == 0 ? one : small);
      STEP(text_of(
          comm.run(all_reduce(data.data(), data.data(), count, DType::f16, ReduceOp::sum))));
      STEP(compare(data, std::vector<Half>(data.size(), Half::from(1.0f + 3 * 0x1p-11f)), "f16"));
      Brain tiny = Brain::from(0x1p-8f), whole = Brain::from(1.0f);
      std::vector<Brain> brains(static_cast<size_t>(count), comm.rank() == 0 ? whole : tiny);
      STEP(text_of(
          comm.run(all_reduce(brains.data(), brains.data(), count, DType::bf16, ReduceOp::sum))));
      STEP(compare(brains, std::vector<Brain>(brains.size(), Brain::from(1.0f + 3 * 0x1p-8f)),
                   "bf16"));
    }
    return "";
  });
}

TEST_CASE("Every f16 survives a round trip through f32, and NaN survives max and min") {
  Gang gang({"aa"});
  gang.check([](Communicator& comm) -> std::string {
    std::vector<Half> all(65'536), to(all.size());
    for (size_t i = 0; i < all.size(); i++) all[i].bits = static_cast<uint16_t>(i);
    STEP(text_of(comm.run(all_reduce(all.data(), to.data(), 65'536, DType::f16, ReduceOp::max))));
    for (size_t i = 0; i < all.size(); i++) {
      float was = all[i].to_float(), is = to[i].to_float();
      if (std::isnan(was) ? !std::isnan(is) : all[i].bits != to[i].bits)
        return "f16 " + std::to_string(i) + " came back as " + std::to_string(to[i].bits);
    }
    for (ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
      float data[2] = {comm.rank() == 0 ? NAN : 1.0f, comm.rank() == 1 ? NAN : 1.0f};
      STEP(text_of(comm.run(all_reduce(data, data, 2, DType::f32, op))));
      if (!std::isnan(data[0]) || !std::isnan(data[1]))
        return std::string("NaN was lost by ") + reduce_op_name(op);
    }
    return "";
  });
}
