// The memory of tensors on a GPU, emulated: what is released when, which copies and waits an
// operation costs, and what a thread that ends leaves behind.
#include <catch2/catch.hpp>
#include <optional>
#include <thread>

#include "kernels/cuda/device.hpp"
#include "kernels/tensor/ops.hpp"
#include "kernels/tensor/runtime.hpp"
#include "kernels/tensor/tensor.hpp"
#include "tests/kernels/emulator/device_control.hpp"

namespace flow::tensors {
namespace {

using emulator::device_control;

const Device kGpu{Device::cuda, 0};
constexpr size_t kMegabyte = size_t{1} << 20;
constexpr int64_t kCount = int64_t{1} << 20;  // elements

Tensor sum(const Tensor& x) { return reduce(Reduce::sum, x, all_dims(x)); }
Tensor twice(const Tensor& x) { return binary(Binary::add, x, x); }
Tensor on_gpu(int64_t megabytes) { return Tensor::empty(DType::u8, {megabytes * kCount}, kGpu); }

cuda::PoolUse pool() {
  wait_for(kGpu);
  return *cuda::pool_use(0);
}

TEST_CASE("x:item() is one copy of the element, one of the fault, and one wait") {
  Tensor x = Tensor::full(DType::bf16, {}, Number::of(3.0), kGpu);
  CHECK(item_of(x) == 3);  // allocates the pinned buffers
  int copies = device_control().copies, waits = device_control().waits;
  CHECK(item_of(x) == 3);
  CHECK(device_control().copies == copies + 2);
  CHECK(device_control().waits == waits + 1);
}

TEST_CASE("a full GPU is asked again after the pool's cache was returned") {
  { Tensor large = on_gpu(600); }
  REQUIRE(pool().reserved >= 600 * kMegabyte);
  device_control().is_cache_in_pieces = true;
  int trims = device_control().trims;
  CHECK_NOTHROW(on_gpu(700));
  CHECK(device_control().trims == trims + 1);
  device_control().is_cache_in_pieces = false;
}

TEST_CASE("the parts of a full GPU's memory add up to the whole") {
  pool();
  REQUIRE(cuda::trim_pool(0).ok());
  device_control().others_hold = 100 * kMegabyte;
  Tensor held = on_gpu(300);
  size_t own = device_bytes_held();
  std::string message;
  try {
    on_gpu(900);
  } catch (const TensorError& failure) {
    message = failure.what();
  }
  device_control().others_hold = 0;
  size_t all = size_t{1} << 30, others = 100 * kMegabyte, cached = pool().reserved - own;
  CHECK(message ==
        "out of memory on cuda:0: 943718400 bytes were requested; of its 1073741824 bytes, this "
        "process's tensors hold " +
            std::to_string(own) + ", its memory pool caches " + std::to_string(cached) +
            ", other processes and libraries hold " + std::to_string(others) + ", and " +
            std::to_string(all - own - cached - others) +
            " are free (the GPU cannot allocate 943718400 bytes: out of memory)");
}

TEST_CASE("an attempt on a shared GPU returns what it caches, and any attempt large scratch") {
  kernels::Scratch& scratch = stream_of(kGpu).scratch;
  scratch.needed = kScratchKept / 2;
  grow_scratch(kGpu);
  size_t small = scratch.bytes;
  release_cached_memory(false);
  CHECK(scratch.bytes == small);
  scratch.needed = 2 * kScratchKept;
  grow_scratch(kGpu);
  { Tensor large = on_gpu(300); }
  size_t used = pool().used;
  release_cached_memory(false);
  CHECK(scratch.data == nullptr);
  cuda::PoolUse after = pool();
  CHECK(after.used + 2 * kScratchKept <= used);
  CHECK(after.reserved >= 300 * kMegabyte);
  release_cached_memory(true);
  after = pool();
  CHECK(after.reserved == after.used);
}

TEST_CASE("a prepared GPU needs no pinned memory and no library later") {
  std::thread([] {
    prepare_device(kGpu);
    CHECK(device_control().product_libraries == 1);
    int pinned = device_control().pinned;
    Tensor x = Tensor::full(DType::f32, {3 * kCount}, Number::of(1.0), kGpu);
    CHECK(item_of(sum(move(move(x, {}), kGpu))) == 3 * kCount);
    CHECK(device_control().pinned == pinned);
  }).join();
}

TEST_CASE("a copy between GPUs is in the order of both streams and waits for neither") {
  device_control().devices = 2;
  std::thread([] {
    const Device other{Device::cuda, 1};
    Tensor x = Tensor::full(DType::f32, {kCount}, Number::of(1.0), kGpu);
    CHECK(item_of(sum(Tensor::full(DType::f32, {kCount}, Number::of(1.0), other))) == kCount);
    int waits = device_control().waits, copies = device_control().peer_copies;
    Tensor there = move(twice(x), other);  // the source is freed at once
    Tensor back = move(there, kGpu);
    there = Tensor::full(DType::f32, {kCount}, Number::of(7.0), other);
    CHECK(device_control().waits == waits);
    CHECK(device_control().peer_copies == copies + 2);
    CHECK(back.device() == kGpu);
    CHECK(item_of(sum(back)) == 2 * kCount);
  }).join();
  device_control().devices = 1;
}

TEST_CASE("a thread that ends frees its stream, its scratch and its tensors' memory") {
  size_t used = pool().used, held = device_bytes_held();
  int streams = device_control().kernels_streams, idle = device_control().idle_releases;
  std::optional<Tensor> left;
  std::thread([&] {
    Tensor x = Tensor::full(DType::f32, {kCount}, Number::of(1.0), kGpu);
    stream_of(kGpu).scratch.needed = kMegabyte;
    grow_scratch(kGpu);
    left = twice(x);
  }).join();
  CHECK(device_control().kernels_streams == streams);
  CHECK(pool().used == used + 4 * kMegabyte);
  left.reset();
  CHECK(device_control().idle_releases == idle + 1);
  CHECK(pool().used == used);
  CHECK(device_bytes_held() == held);
}

TEST_CASE("memory that another thread drops is released in the order of its own stream") {
  item_of(sum(Tensor::full(DType::f32, {kCount}, Number::of(1.0), kGpu)));  // takes scratch
  size_t used = pool().used;
  int streams = device_control().kernels_streams, idle = device_control().idle_releases;
  std::optional<Tensor> x = Tensor::full(DType::f32, {kCount}, Number::of(1.0), kGpu);
  Tensor y = twice(*x);
  std::thread([&] {
    x.reset();
    CHECK(device_control().kernels_streams == streams);  // none for this thread
  }).join();
  CHECK(item_of(sum(y)) == 2 * kCount);
  CHECK(device_control().idle_releases == idle);
  y = Tensor();
  CHECK(pool().used == used);
}

}  // namespace
}  // namespace flow::tensors
