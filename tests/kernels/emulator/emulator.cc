// Fibers for the threads of a block, and the rules of a device.
#include "tests/kernels/emulator/emulator.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace flow::emulator {

Place place;
bool reversed = false;
int64_t launches = 0;
size_t shared_memory_max = 227 * 1024;
thread_local std::function<void(std::function<int()>)>* recorder = nullptr;
thread_local bool is_repeating = false;
size_t library_memory_max = SIZE_MAX;  // kernels/cuda/cudnn_device.hpp
void (*device_memory)(bool open) = nullptr;

namespace {

constexpr int kThreadsMax = 1024, kLanes = 32;
constexpr size_t kStaticShared = 48 * 1024;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStack = 256 * 1024;
#else
constexpr size_t kStack = 128 * 1024;
#endif

std::string failure;

// A stack that holds a suspended fiber.
struct Context {
  char* stack = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
#if defined(__x86_64__)
  void* pointer = nullptr;
#else
  ucontext_t context;
#endif
  [[maybe_unused]] void* fake = nullptr;  // the sanitizer's fake stack
  [[maybe_unused]] void* tsan = nullptr;

  ~Context() { std::free(stack); }
};

#if defined(__x86_64__)
extern "C" void flow_emulator_switch(void** keep, void* pointer);
asm(R"(
.text
.globl flow_emulator_switch
.type flow_emulator_switch,@function
flow_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size flow_emulator_switch,.-flow_emulator_switch
)");
#endif

void switch_to(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.size);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.tsan, 0);
#endif
#if defined(__x86_64__)
  flow_emulator_switch(&from.pointer, to.pointer);
#else
  swapcontext(&from.context, &to.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
}

// Runs the threads of the block one after another, and yields to another fiber when one waits.
struct Fiber {
  Context context;
  int thread = 0;  // the running thread
};

struct Warp {
  int arrived = 0, parity = 0;
  const char* file = nullptr;
  int line = 0;
  alignas(16) char pieces[2][kLanes][16];
  std::vector<Fiber*> waiting;
};

struct Room {
  const char* key;
  size_t bytes;
  std::unique_ptr<char[]> data;
};

struct Block {
  void (*kernel)(void*) = nullptr;
  void* object = nullptr;
  int threads = 0, started = 0, done = 0;
  std::deque<Fiber*> ready;
  std::vector<Fiber*> idle;
  std::vector<Warp> warps;
  std::vector<Fiber*> at_barrier;
  const char* barrier_file = nullptr;
  int barrier_line = 0;
  std::vector<Room> rooms;
  size_t static_bytes = 0, dynamic_bytes = 0;
  std::unique_ptr<char[]> dynamic;
  bool failed = false;
} block;

Context host;
std::vector<std::unique_ptr<Fiber>> fibers;
Fiber* running = nullptr;

void enter(Fiber& fiber) {
  int thread = fiber.thread;
  place.thread = dim3(static_cast<unsigned>(thread), 0, 0);
  running = &fiber;
}

void work() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &host.bottom, &host.size);
#endif
  Fiber& self = *running;
  for (;;) {
    while (block.started < block.threads && !block.failed) {
      int number = block.started++;
      self.thread = reversed ? block.threads - 1 - number : number;
      enter(self);
      block.kernel(block.object);
      block.done++;
    }
    block.idle.push_back(&self);
    switch_to(self.context, host);
    running = &self;
  }
}

#if !defined(__x86_64__)
void work_context() { work(); }
#endif

Fiber* new_fiber() {
  fibers.push_back(std::make_unique<Fiber>());
  Context& context = fibers.back()->context;
  context.stack = static_cast<char*>(std::aligned_alloc(64, kStack));
  context.bottom = context.stack;
  context.size = kStack;
#if defined(__SANITIZE_THREAD__)
  context.tsan = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
  // As if `work` had been called: the switch pops six registers and returns into it.
  auto* top = reinterpret_cast<void**>(context.stack + kStack);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&work);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  context.pointer = top;
#else
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = context.stack;
  context.context.uc_stack.ss_size = kStack;
  makecontext(&context.context, work_context, 0);
#endif
  return fibers.back().get();
}

void drop_fibers() {
#if defined(__SANITIZE_THREAD__)
  for (auto& fiber : fibers) __tsan_destroy_fiber(fiber->context.tsan);
#endif
  fibers.clear();
  block.idle.clear();
}

// Runs other threads until one of them makes this one ready again.
void give_way() {
  Fiber& self = *running;
  switch_to(self.context, host);
  enter(self);
}

std::string at(const char* file, int line) {
  return std::string(file) + ":" + std::to_string(line);
}

void run_block() {
  block.started = block.done = 0;
  block.ready.clear();
  block.at_barrier.clear();
  block.rooms.clear();
  block.static_bytes = 0;
  block.warps.resize(static_cast<size_t>((block.threads + kLanes - 1) / kLanes));
  for (Warp& warp : block.warps) {
    warp.arrived = 0;
    warp.waiting.clear();
  }
  block.dynamic.reset(new char[block.dynamic_bytes]);
  std::memset(block.dynamic.get(), 0xff, block.dynamic_bytes);
  while (block.done < block.threads && !block.failed) {
    Fiber* next = nullptr;
    if (!block.ready.empty()) {
      next = block.ready.front();
      block.ready.pop_front();
    } else if (block.started < block.threads) {
      if (block.idle.empty()) {
        next = new_fiber();
      } else {
        next = block.idle.back();
        block.idle.pop_back();
      }
    } else {
      std::string text = "threads wait for others that never come:";
      if (!block.at_barrier.empty())
        text += " " + std::to_string(block.at_barrier.size()) + " of " +
                std::to_string(block.threads) + " at " + at(block.barrier_file, block.barrier_line);
      for (Warp& warp : block.warps)
        if (warp.arrived > 0)
          text += " " + std::to_string(warp.arrived) + " lanes at " + at(warp.file, warp.line);
      fail(text);
      break;
    }
    running = next;
    switch_to(host, next->context);
  }
  if (!end_copies()) fail("a block ended before its copies were waited for");
}

}  // namespace

const std::string& error_text() { return failure; }
int lane() { return static_cast<int>(place.thread.x) % kLanes; }

void fail(const std::string& what) {
  if (!block.failed) failure = what;
  block.failed = true;
}
// Abandons the block with all its fibers, whose stacks own nothing.
void abort_emulation() {
  switch_to(running->context, host);
  std::abort();
}

bool is_shared(const void* at, size_t bytes) {
  auto first = reinterpret_cast<uintptr_t>(at);
  auto holds = [&](const std::unique_ptr<char[]>& room, size_t size) {
    auto start = reinterpret_cast<uintptr_t>(room.get());
    return first >= start && first + bytes <= start + size;
  };
  for (const Room& room : block.rooms)
    if (holds(room.data, room.bytes)) return true;
  return holds(block.dynamic, block.dynamic_bytes);
}

void* shared_room(const char* key, size_t bytes) {
  for (Room& room : block.rooms)
    if (room.key == key) return room.data.get();
  block.static_bytes += bytes;
  if (block.static_bytes > kStaticShared) {
    fail("a kernel has " + std::to_string(block.static_bytes) + " bytes of __shared__");
    abort_emulation();
  }
  block.rooms.push_back({key, bytes, std::unique_ptr<char[]>(new char[bytes])});
  std::memset(block.rooms.back().data.get(), 0xff, bytes);
  return block.rooms.back().data.get();
}

char* dynamic_room() { return block.dynamic.get(); }

void wait_for_block(const char* file, int line) {
  if (block.at_barrier.empty()) {
    block.barrier_file = file;
    block.barrier_line = line;
  } else if (block.barrier_line != line || std::strcmp(block.barrier_file, file) != 0) {
    {
      fail("threads of a block wait at " + at(block.barrier_file, block.barrier_line) + " and at " +
           at(file, line));
      abort_emulation();
    }
  }
  block.at_barrier.push_back(running);
  if (static_cast<int>(block.at_barrier.size()) == block.threads) {
    block.at_barrier.pop_back();
    for (Fiber* fiber : block.at_barrier) block.ready.push_back(fiber);
    block.at_barrier.clear();
    return;
  }
  give_way();
}

const char* exchange(const void* mine, size_t bytes, const char* file, int line) {
  Warp& warp = block.warps[place.thread.x / kLanes];
  if (block.threads % kLanes != 0) {
    fail("a warp is not whole at " + at(file, line));
    abort_emulation();
  }
  if (warp.arrived == 0) {
    warp.file = file;
    warp.line = line;
  } else if (warp.line != line || std::strcmp(warp.file, file) != 0) {
    {
      fail("lanes of a warp meet at " + at(warp.file, warp.line) + " and at " + at(file, line));
      abort_emulation();
    }
  }
  auto& pieces = warp.pieces[warp.parity];
  std::memcpy(pieces[lane()], mine, bytes);
  if (++warp.arrived == kLanes) {
    warp.arrived = 0;
    // The next exchange writes the other half: no thread reaches the one after it before all have
    // read this one.
    warp.parity ^= 1;
    // In front of the queue: a warp runs as far ahead as barriers allow, so that a missing barrier
    // shows.
    block.ready.insert(block.ready.begin(), warp.waiting.begin(), warp.waiting.end());
    warp.waiting.clear();
  } else {
    warp.waiting.push_back(running);
    give_way();
  }
  return &pieces[0][0];
}

unsigned ballot(bool holds, const char* file, int line) {
  char mine = holds;
  const char* pieces = exchange(&mine, 1, file, line);
  unsigned bits = 0;
  for (int i = 0; i < kLanes; i++) bits |= static_cast<unsigned>(pieces[16 * i]) << i;
  return bits;
}

int run(dim3 grid, int threads, size_t bytes, void (*kernel)(void*), void* object) {
  if (!is_repeating) launches++;
  failure.clear();
  if (threads < 1 || threads > kThreadsMax)
    failure = std::to_string(threads) + " threads in a block";
  else if (grid.x < 1 || grid.x > 0x7fffffffu || grid.y < 1 || grid.y > 65535 || grid.z < 1 ||
           grid.z > 65535)
    failure = "a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
              std::to_string(grid.z);
  else if (bytes > shared_memory_max)
    failure = std::to_string(bytes) + " bytes of shared memory";
  if (!failure.empty()) return 9;  // cudaErrorInvalidConfiguration
#if defined(__SANITIZE_THREAD__)
  host.tsan = __tsan_get_current_fiber();
#endif
  if (device_memory != nullptr) device_memory(true);  // may run a graph's kernels
  block.kernel = kernel;
  block.object = object;
  block.threads = threads;
  block.dynamic_bytes = bytes;
  block.failed = false;
  place.grid = grid;
  place.block_size = dim3(static_cast<unsigned>(threads));
  uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  for (uint64_t i = 0; i < blocks && !block.failed; i++) {
    uint64_t number = reversed ? blocks - 1 - i : i;
    place.block = dim3(static_cast<unsigned>(number % grid.x),
                       static_cast<unsigned>(number / grid.x % grid.y),
                       static_cast<unsigned>(number / grid.x / grid.y));
    run_block();
  }
  if (device_memory != nullptr) device_memory(false);
  if (!block.failed) return 0;
  drop_fibers();
  return kFault;
}

}  // namespace flow::emulator
