// flow.data.loader and flow.data.windows: batches of a dataset in an order that a small state
// reproduces. With `prefetch` a thread gathers rows ahead of the loop; it does not use Lua.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "lua/state/arguments.hpp"
#include "lua/tensor/memory_budget.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using tensors::Tensor;

const char kLoaderKey = 0;
constexpr int64_t kPrefetchMax = 64;
constexpr int64_t kRanksMax = int64_t{1} << 20;
enum UserValue : int { kItem = 1, kTransform = 2, kSlots = 2 };  // user values: functions

// ---- rows

/// Tensors of one first size. Rows are dense; the first stride gives their starts, so windows may
/// overlap.
struct Column {
  std::string name;       // of a table; "" of a list or a single tensor
  lua_Integer index = 0;  // of a list, from 1
  Tensor rows;

  size_t row_bytes() const {
    kernels::Shape shape = rows.shape();
    size_t bytes = dtype_size(rows.dtype());
    for (int dim = 1; dim < shape.rank; dim++) bytes *= static_cast<size_t>(shape[dim]);
    return bytes;
  }
  void gather(const std::vector<int64_t>& from, const Tensor& to) const {
    size_t bytes = row_bytes();
    if (bytes == 0) return;
    int64_t stride = rows.view().strides[0] * static_cast<int64_t>(dtype_size(rows.dtype()));
    const char* first = static_cast<const char*>(rows.view().data);
    char* out = static_cast<char*>(to.view().data);
    for (int64_t row : from) {
      std::memcpy(out, first + row * stride, bytes);
      out += bytes;
    }
  }
};

/// A batch to gather: its rows, and the destination.
struct BatchJob {
  std::vector<int64_t> rows;
  std::vector<Tensor> out;  // one per column
  bool is_done = false;
  std::exception_ptr problem;
};

/// The prefetch thread. Jobs are done in the order in which they are posted.
class BatchGatherer {
 public:
  explicit BatchGatherer(const std::vector<Column>& columns) : columns_(columns) {
    thread_ = std::thread([this] { work(); });
  }
  ~BatchGatherer() {
    {
      std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  BatchGatherer(const BatchGatherer&) = delete;
  BatchGatherer& operator=(const BatchGatherer&) = delete;

  void post(const std::shared_ptr<BatchJob>& job) {
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(job);
    }
    changed_.notify_all();
  }
  void wait(const BatchJob& job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job.is_done; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_over_ || !jobs_.empty(); });
      if (is_over_) return;
      std::shared_ptr<BatchJob> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      try {
        for (size_t i = 0; i < columns_.size(); i++) columns_[i].gather(job->rows, job->out[i]);
      } catch (...) {
        job->problem = std::current_exception();
      }
      lock.lock();
      job->is_done = true;
      changed_.notify_all();
    }
  }

  const std::vector<Column>& columns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<BatchJob>> jobs_;
  bool is_over_ = false;
  std::thread thread_;
};

// ---- the loader

struct Loader;
std::set<Loader*>& live_loaders() {  // of this thread's states
  thread_local std::set<Loader*> live;
  return live;
}

uint64_t splitmix64(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

struct Loader {
  std::vector<Column> columns;  // empty if a function returns items
  bool is_table = false;        // a batch is a table of tensors
  int64_t count = 0;            // rows of the dataset
  int64_t batch = 1, rank = 0, ranks = 1, prefetch = 0;
  bool shuffles = false, drops_last = false;
  uint64_t seed = 0;

  int64_t epoch = 1, position = 0;  // batches that this epoch has returned
  int64_t given = 0;                // rows that another number of ranks got earlier in the epoch
  bool is_loaded = false;           // the next loop over `epoch` continues at `position`
  int64_t loop = 0;                 // number of the loop: an older loop has ended
  Tensor order;                     // of the epoch, if it is shuffled
  std::deque<std::shared_ptr<BatchJob>> ahead;
  int64_t next_ahead = 0;  // the next batch to post
  std::unique_ptr<BatchGatherer> gatherer;

  Loader() { live_loaders().insert(this); }
  ~Loader() {
    stop();
    live_loaders().erase(this);
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Every rank gets equally many of `rows`: the last are dropped, or the first repeated.
  int64_t share_of(int64_t rows) const {
    return drops_last || rows == 0 ? rows / ranks : (rows - 1) / ranks + 1;
  }
  int64_t batches_of(int64_t rows) const {
    int64_t share = share_of(rows);
    return drops_last || share == 0 ? share / batch : (share - 1) / batch + 1;
  }
  int64_t batches() const { return batches_of(count - given); }  // from `given` on
  int64_t row_at(int64_t place) const {                          // of this rank, from `given` on
    int64_t at = (given + rank + place * ranks) % count;
    return order ? order.view().at<int64_t>()[at] : at;
  }
  std::vector<int64_t> rows_of_batch(int64_t number) const {
    int64_t first = number * batch, last = std::min(first + batch, share_of(count - given));
    std::vector<int64_t> rows;
    rows.reserve(static_cast<size_t>(std::max<int64_t>(0, last - first)));
    for (int64_t place = first; place < last; place++) rows.push_back(row_at(place));
    return rows;
  }

  void stop() {
    gatherer.reset();
    ahead.clear();
    next_ahead = position;
  }
  // Throws a Failure if memory for the order is missing.
  void begin(int64_t wanted) {
    stop();
    bool resumes = std::exchange(is_loaded, false) && epoch == wanted;
    epoch = wanted;
    if (!resumes) position = given = 0;
    next_ahead = position;
    loop++;
    order = {};
    if (!shuffles || count == 0) return;
    order = Tensor::empty(DType::i64, kernels::Shape{count});
    tensors::fill_permutation(order.view().at<int64_t>(), count,
                              splitmix64(seed ^ splitmix64(static_cast<uint64_t>(epoch))));
  }
  void end_epoch() {
    stop();
    order = {};
    epoch++;
    position = given = 0;
    loop++;
  }

  // The tensors are allocated here: only the state's thread charges memory.
  std::shared_ptr<BatchJob> job_of(int64_t number) const {
    auto job = std::make_shared<BatchJob>();
    job->rows = rows_of_batch(number);
    for (const Column& column : columns) {
      kernels::Shape shape = column.rows.shape();
      shape[0] = static_cast<int64_t>(job->rows.size());
      job->out.push_back(Tensor::empty(column.rows.dtype(), shape));
    }
    return job;
  }
  // Throws a Failure if memory for the batch is missing.
  std::vector<Tensor> gather_batch() {
    if (prefetch == 0) {
      auto job = job_of(position);
      for (size_t i = 0; i < columns.size(); i++) columns[i].gather(job->rows, job->out[i]);
      return std::move(job->out);
    }
    if (!gatherer) gatherer = std::make_unique<BatchGatherer>(columns);
    int64_t last = std::min(position + prefetch + 1, batches());
    while (next_ahead < last) {
      std::shared_ptr<BatchJob> job;
      try {
        job = job_of(next_ahead);
      } catch (const tensors::TensorError&) {
        if (ahead.empty()) throw;
        break;  // existing batches are returned first, which frees memory
      }
      gatherer->post(job);
      ahead.push_back(std::move(job));
      next_ahead++;
    }
    std::shared_ptr<BatchJob> job = std::move(ahead.front());
    ahead.pop_front();
    gatherer->wait(*job);
    if (job->problem) std::rethrow_exception(job->problem);
    return std::move(job->out);
  }
};

Loader& check_loader(lua_State* L, int index, const char* method) {
  if (lua_type(L, index) == LUA_TUSERDATA && lua_getmetatable(L, index)) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoaderKey);
    bool same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    if (same) {
      auto* held = static_cast<std::unique_ptr<Loader>*>(lua_touserdata(L, index));
      if (*held != nullptr) return **held;
    }
  }
  raise(L, fmt::format("`{}` is a method of a loader: write loader:{}(…)", method, method));
}

// ---- items of a function, as one batch

/// Pops the list of items at the top and pushes the batch: tensors are stacked, numbers become one
/// tensor, tables are collated field by field, and other values stay a list.
void collate(lua_State* L, int depth = 0) {
  constexpr int kDepthMax = 20;
  luaL_checkstack(L, 8, "items nested too deep");
  int list = lua_gettop(L);
  auto size = static_cast<lua_Integer>(lua_rawlen(L, list));
  std::set<int> types;
  bool is_tensors = size > 0;
  for (lua_Integer i = 1; i <= size; i++) {
    types.insert(lua_rawgeti(L, list, i));
    is_tensors = is_tensors && test_object(L, -1) != nullptr;
    lua_pop(L, 1);
  }
  if (is_tensors) {
    std::vector<Tensor> parts;
    for (lua_Integer i = 1; i <= size; i++) {
      lua_rawgeti(L, list, i);
      parts.push_back(*test_object(L, -1));
      lua_pop(L, 1);
    }
    push_object(L, tensors::stack(parts, 0));
  } else if (types == std::set<int>{LUA_TNUMBER} || types == std::set<int>{LUA_TBOOLEAN}) {
    push_tensor_of_table(L, list, nullptr);
  } else if (types == std::set<int>{LUA_TTABLE} && depth < kDepthMax) {
    lua_newtable(L);
    int batch = lua_gettop(L);
    lua_rawgeti(L, list, 1);
    int first = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, first)) {
      lua_pop(L, 1);
      lua_createtable(L, static_cast<int>(size), 0);
      for (lua_Integer i = 1; i <= size; i++) {
        lua_rawgeti(L, list, i);
        lua_pushvalue(L, -3);
        if (lua_rawget(L, -2) == LUA_TNIL)
          raise(L, fmt::format("flow.data.loader: item {} of a batch lacks a field that the first "
                               "one has",
                               i));
        lua_rawseti(L, -3, i);
        lua_pop(L, 1);
      }
      collate(L, depth + 1);
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, batch);
    }
    lua_settop(L, batch);
  } else {
    return;
  }
  lua_replace(L, list);
  lua_settop(L, list);
}

// ---- the loop

void push_batch(lua_State* L, Loader& loader, int self) {
  if (loader.columns.empty()) {
    lua_newtable(L);
    lua_Integer at = 0;
    for (int64_t row : loader.rows_of_batch(loader.position)) {
      lua_getiuservalue(L, self, kItem);
      lua_pushinteger(L, row + 1);
      lua_call(L, 1, 1);
      if (lua_isnil(L, -1))
        raise(L, fmt::format("flow.data.loader: the dataset's function returned nothing for {}",
                             row + 1));
      lua_rawseti(L, -2, ++at);
    }
    return collate(L);
  }
  std::vector<Tensor> parts = loader.gather_batch();
  if (!loader.is_table) return push_object(L, std::move(parts[0]));
  lua_createtable(L, 0, static_cast<int>(parts.size()));
  for (size_t i = 0; i < parts.size(); i++) {
    push_object(L, std::move(parts[i]));
    if (loader.columns[i].index > 0) {
      lua_rawseti(L, -2, loader.columns[i].index);
    } else {
      lua_setfield(L, -2, loader.columns[i].name.c_str());
    }
  }
}

// Upvalues: the loader, the number of its loop.
int next_batch(lua_State* L) {
  int self = lua_upvalueindex(1);
  Loader& loader = check_loader(L, self, "epoch");
  if (lua_tointeger(L, lua_upvalueindex(2)) != loader.loop) {
    if (lua_toboolean(L, lua_upvalueindex(3))) return 0;
    raise(L, "this loop over a loader has ended: another one has begun, or a state was loaded");
  }
  if (loader.position >= loader.batches()) {
    loader.end_epoch();
    lua_pushboolean(L, true);
    lua_replace(L, lua_upvalueindex(3));
    return 0;
  }
  lua_settop(L, 0);
  lua_pushvalue(L, self);
  push_batch(L, loader, 1);
  loader.position++;
  if (lua_getiuservalue(L, 1, kTransform) == LUA_TNIL) {
    lua_pop(L, 1);
    return 1;
  }
  lua_insert(L, -2);
  lua_call(L, 1, 1);
  if (lua_isnil(L, -1)) raise(L, "flow.data.loader: `transform` returned nothing");
  return 1;
}

// for batch in loader:epoch(e) do … end
int epoch(lua_State* L) {
  Loader& loader = check_loader(L, 1, "epoch");
  lua_Integer wanted = luaL_optinteger(L, 2, loader.epoch);
  if (wanted < 1) raise(L, fmt::format("loader:epoch takes a number from 1, not {}", wanted));
  loader.begin(wanted);
  lua_pushvalue(L, 1);
  lua_pushinteger(L, loader.loop);
  lua_pushboolean(L, false);
  lua_pushcclosure(L, protected_call<next_batch>, 3);
  return 1;
}

// ---- state

int state(lua_State* L) {
  const Loader& loader = check_loader(L, 1, "state");
  lua_createtable(L, 0, 7);
  auto set = [&](const char* name, int64_t value) {
    lua_pushinteger(L, value);
    lua_setfield(L, -2, name);
  };
  set("epoch", loader.epoch);
  set("position", loader.position);
  set("batch", loader.batch);
  set("ranks", loader.ranks);
  set("count", loader.count);
  if (loader.given > 0) set("given", loader.given);
  if (loader.shuffles) set("seed", static_cast<int64_t>(loader.seed));
  return 1;
}

int64_t state_field(lua_State* L, const char* name) {
  int exact = 0;
  lua_getfield(L, 2, name);
  lua_Integer value = lua_tointegerx(L, -1, &exact);
  if (!exact || lua_type(L, -1) != LUA_TNUMBER)
    raise(L, fmt::format("loader:load takes a result of loader:state(); its `{}` is {}", name,
                         describe(L, -1)));
  lua_pop(L, 1);
  return value;
}

/// The position of a state in an epoch.
struct LoaderPosition {
  int64_t batch, ranks, position, given;

  // Ranks take rows in turn, so together they have taken the beginning of the order.
  int64_t rows(int64_t count) const {
    int64_t rows = 0;
    bool is_more = __builtin_mul_overflow(batch, ranks, &rows) ||
                   __builtin_mul_overflow(rows, position, &rows) ||
                   __builtin_add_overflow(rows, given, &rows) || rows > count;
    return is_more ? count : rows;
  }
};

LoaderPosition position_of_state(lua_State* L, int64_t count) {
  LoaderPosition place = {state_field(L, "batch"), state_field(L, "ranks"),
                          state_field(L, "position"), 0};
  if (lua_getfield(L, 2, "given") != LUA_TNIL) place.given = state_field(L, "given");
  lua_pop(L, 1);
  bool fits = place.batch >= 1 && place.ranks >= 1 && place.position >= 0 && place.given >= 0 &&
              place.given <= count;
  if (!fits)
    raise(L, "loader:load takes a result of loader:state(), and this position is not valid");
  return place;
}

int load(lua_State* L) {
  Loader& loader = check_loader(L, 1, "load");
  if (lua_type(L, 2) != LUA_TTABLE)
    raise(L, fmt::format("loader:load takes a result of loader:state(), not {}", describe(L, 2)));
  auto same = [&](const char* name, int64_t own) {
    int64_t theirs = state_field(L, name);
    if (theirs != own)
      raise(L, fmt::format("loader:load: the state is of a loader whose `{}` is {}, and here it is "
                           "{}: the remaining batches would differ",
                           name, theirs, own));
  };
  same("count", loader.count);
  LoaderPosition place = position_of_state(L, loader.count);
  if (place.ranks !=
      loader.ranks) {  // the remaining rows are distributed to the current number of ranks
    place.given = place.rows(loader.count);
    place.position = 0;
  } else {
    same("batch", loader.batch);
  }
  int64_t epoch_of = state_field(L, "epoch");
  if (epoch_of < 1 || place.position > loader.batches_of(loader.count - place.given))
    raise(L, fmt::format("loader:load: epoch {} has no batch {}", epoch_of, place.position));
  bool has_seed = lua_getfield(L, 2, "seed") != LUA_TNIL;
  lua_pop(L, 1);
  if (has_seed != loader.shuffles)
    raise(L, fmt::format("loader:load: the state is of a loader that {}, and this one {}",
                         has_seed ? "shuffles" : "does not shuffle",
                         loader.shuffles ? "shuffles" : "does not"));
  if (has_seed) loader.seed = static_cast<uint64_t>(state_field(L, "seed"));
  loader.stop();
  loader.loop++;
  loader.order = {};
  loader.epoch = epoch_of;
  loader.position = place.position;
  loader.given = place.given;
  loader.is_loaded = true;
  return 0;
}

// ---- making one

int64_t option(lua_State* L, const char* name, int64_t otherwise, int64_t low, int64_t high) {
  if (!lua_istable(L, 2)) return otherwise;
  if (lua_getfield(L, 2, name) == LUA_TNIL) {
    lua_pop(L, 1);
    return otherwise;
  }
  int exact = 0;
  lua_Integer value = lua_tointegerx(L, -1, &exact);
  if (!exact || lua_type(L, -1) != LUA_TNUMBER || value < low || value > high)
    raise(L, fmt::format("the option `{}` of flow.data.loader is a whole number of {}..{}, not {}",
                         name, low, high, exact ? std::to_string(value) : describe(L, -1)));
  lua_pop(L, 1);
  return value;
}

bool flag(lua_State* L, const char* name) {
  if (!lua_istable(L, 2)) return false;
  int type = lua_getfield(L, 2, name);
  if (type != LUA_TNIL && type != LUA_TBOOLEAN)
    raise(L, fmt::format("the option `{}` of flow.data.loader is true or false, not {}", name,
                         describe(L, -1)));
  bool is_set = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return is_set;
}

bool rows_are_dense(const Tensor& x) {
  kernels::View row = kernels::select(x.view(), 0, 0);
  return kernels::is_dense(row);
}

void add_column(lua_State* L, Loader& loader, Column column, const Tensor& x) {
  std::string which = column.index > 0      ? fmt::format("dataset[{}]", column.index)
                      : column.name.empty() ? std::string("the dataset")
                                            : "dataset." + column.name;
  if (x.device().kind != tensors::Device::cpu)
    raise(L,
          fmt::format("flow.data.loader reads the CPU's memory, and {} is {}: keep the dataset "
                      "there and move batches, transform = function(b) return b:to(\"cuda\") end",
                      which, tensors::text_of(x)));
  if (x.rank() == 0)
    raise(L, fmt::format("{} has no dimension to take rows of: {}", which, tensors::text_of(x)));
  if (!loader.columns.empty() && x.size(0) != loader.count)
    raise(L, fmt::format("flow.data.loader: {} has {} rows, and others of the dataset have {}",
                         which, x.size(0), loader.count));
  loader.count = x.size(0);
  tensors::NoRecord off;
  column.rows = x.detached();
  if (loader.count > 0 && !rows_are_dense(x)) column.rows = tensors::contiguous(column.rows);
  loader.columns.push_back(std::move(column));
}

void read_dataset(lua_State* L, Loader& loader) {
  if (const Tensor* x = test_object(L, 1)) return add_column(L, loader, {}, *x);
  if (lua_type(L, 1) == LUA_TFUNCTION) {
    loader.count = option(L, "length", -1, 0, INT64_MAX);
    if (loader.count < 0)
      raise(L,
            "flow.data.loader: a function as dataset needs the option `length`: how many items "
            "there are");
    return;
  }
  check_list(L, 1, "flow.data.loader");
  loader.is_table = true;
  lua_pushnil(L);
  while (lua_next(L, 1)) {
    Column column;
    bool is_name = lua_type(L, -2) == LUA_TSTRING;
    if (is_name) column.name = lua_tostring(L, -2);
    if (lua_isinteger(L, -2)) column.index = lua_tointeger(L, -2);
    const Tensor* x = test_object(L, -1);
    if (x == nullptr || (!is_name && column.index < 1))
      raise(L, fmt::format("flow.data.loader takes a tensor, a table of tensors or a function, and "
                           "an entry of the table is {}",
                           describe(L, -1)));
    add_column(L, loader, std::move(column), *x);
    lua_pop(L, 1);
  }
  if (loader.columns.empty()) raise(L, "flow.data.loader: the table has no tensors in it");
}

int drop_loader(lua_State* L) {
  static_cast<std::unique_ptr<Loader>*>(lua_touserdata(L, 1))->reset();
  return 0;
}

int length(lua_State* L) {
  const Loader& loader = check_loader(L, 1, "epoch");
  lua_pushinteger(L, loader.batches_of(loader.count));
  return 1;
}

int reject_assignment(lua_State* L) {
  raise(L, "a loader can't be written to; its position is changed by loader:load(state)");
}

void set_loader_metatable(lua_State* L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoaderKey) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_newtable(L);
    luaL_Reg own[] = {{"__gc", drop_loader},
                      {"__len", length},
                      {"__newindex", reject_assignment},
                      {nullptr, nullptr}};
    luaL_setfuncs(L, own, 0);
    luaL_Reg methods[] = {{"epoch", protected_call<epoch>},
                          {"state", state},
                          {"load", protected_call<load>},
                          {nullptr, nullptr}};
    luaL_newlib(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pushliteral(L, "loader");
    lua_setfield(L, -2, "__name");
    lua_pushboolean(L, false);
    lua_setfield(L, -2, "__metatable");
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kLoaderKey);
  }
  lua_setmetatable(L, -2);
}

// flow.data.loader(dataset, { batch, shuffle, drop_last, rank, ranks, prefetch, transform, length
// })
int make_loader(lua_State* L) {
  lua_settop(L, 2);
  if (context(L).phase != ScriptPhase::task)
    raise(L, "flow.data.loader is for tasks: make the loader in the task that reads batches");
  check_options(
      L, 2, "flow.data.loader",
      {"batch", "shuffle", "drop_last", "rank", "ranks", "prefetch", "transform", "length"});
  auto& held = *new (lua_newuserdatauv(L, sizeof(std::unique_ptr<Loader>), kSlots))
                   std::unique_ptr<Loader>();
  set_loader_metatable(L);
  held = std::make_unique<Loader>();
  Loader& loader = *held;
  read_dataset(L, loader);
  loader.batch = option(L, "batch", 1, 1, INT64_MAX / 2);
  loader.ranks = option(L, "ranks", 1, 1, kRanksMax);
  loader.rank = option(L, "rank", 0, 0, loader.ranks - 1);
  loader.prefetch = option(L, "prefetch", 0, 0, kPrefetchMax);
  loader.drops_last = flag(L, "drop_last");
  if (loader.prefetch > 0 && loader.columns.empty())
    raise(L,
          "flow.data.loader: `prefetch` is for datasets of tensors: a function is Lua, which one "
          "thread runs");
  if (lua_istable(L, 2)) {
    int type = lua_getfield(L, 2, "shuffle");
    if (type != LUA_TNIL && type != LUA_TBOOLEAN && !lua_isinteger(L, -1))
      raise(L, fmt::format("the option `shuffle` of flow.data.loader is a seed, an integer, or "
                           "false, not {}",
                           describe(L, -1)));
    loader.shuffles = type == LUA_TNUMBER || lua_toboolean(L, -1);
    if (loader.shuffles)
      loader.seed =
          type == LUA_TNUMBER ? static_cast<uint64_t>(lua_tointeger(L, -1)) : next_seed(L).value;
    lua_pop(L, 1);
    type = lua_getfield(L, 2, "transform");
    if (type != LUA_TNIL && type != LUA_TFUNCTION)
      raise(L, fmt::format("the option `transform` of flow.data.loader is a function of a batch, "
                           "not {}",
                           describe(L, -1)));
    lua_setiuservalue(L, 3, kTransform);
  }
  if (loader.columns.empty()) {
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, 3, kItem);
  }
  return 1;
}

// ---- windows

// flow.data.windows(tokens, length [, { stride }]) -> { x, y }: views; y is x one token later.
int windows(lua_State* L) {
  lua_settop(L, 3);
  Tensor tokens = check_object(L, 1, "the first argument of flow.data.windows");
  lua_Integer length = luaL_checkinteger(L, 2);
  check_options(L, 3, "flow.data.windows", {"stride"});
  lua_Integer stride = length;
  if (lua_istable(L, 3) && lua_getfield(L, 3, "stride") != LUA_TNIL)
    stride = luaL_checkinteger(L, -1);
  if (tokens.rank() != 1)
    raise(L, fmt::format("flow.data.windows takes tokens of one dimension, not {}",
                         tensors::text_of(tokens)));
  if (length < 1 || stride < 1)
    raise(L,
          fmt::format("flow.data.windows takes a length and a stride of 1 or more, not {} and {}",
                      length, stride));
  int64_t count = tokens.size(0);
  if (count <= length)
    raise(L, fmt::format("flow.data.windows: {} tokens hold no window of {} and the token after it",
                         count, length));
  tokens = tensors::contiguous(tokens.detached());
  lua_createtable(L, 0, 2);
  for (int64_t shift : {0, 1}) {
    kernels::View view =
        kernels::dense(tokens.dtype(), kernels::Shape{(count - length - 1) / stride + 1, length},
                       static_cast<char*>(tokens.view().data) +
                           shift * static_cast<int64_t>(dtype_size(tokens.dtype())));
    view.strides[0] = stride;
    push_object(L, Tensor(view, tokens.storage()));
    lua_setfield(L, -2, shift == 0 ? "x" : "y");
  }
  return 1;
}

}  // namespace

void end_loaders() {
  for (Loader* loader : live_loaders()) loader->stop();
}

const luaL_Reg kLoaderFunctions[] = {{"loader", protected_call<make_loader>},
                                     {"windows", protected_call<windows>},
                                     {nullptr, nullptr}};

}  // namespace flow::lua
