// Tensors as the communicator takes them: dense, in host memory, or in GPU memory if the
// communicator supports it. Other tensors are copied there and back, and small ones are sent
// together, which is faster than one message each.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "lua/context/comm.hpp"
#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

constexpr size_t kSmallBytes = size_t{256} << 10;  // smaller tensors are sent together
constexpr size_t kBucketBytes = size_t{8} << 20;   // bytes of small tensors in one call

// Small tensors of one type, sent together.
struct TensorBucket {
  std::vector<tensors::Tensor> tensors;
  int64_t count = 0;
};

// FNV-1a. 0 for empty input.
class CallDigest {
 public:
  void add(const kernels::Shape& shape) {
    add(static_cast<uint64_t>(shape.rank));
    for (int dim = 0; dim < shape.rank; dim++) add(static_cast<uint64_t>(shape[dim]));
  }
  void add(uint64_t number) {
    for (int byte = 0; byte < 8; byte++) update(static_cast<uint8_t>(number >> (8 * byte)));
  }
  void add(std::string_view text) {
    add(text.size());
    for (char byte : text) update(static_cast<uint8_t>(byte));
  }
  uint64_t value() const { return value_; }

 private:
  void update(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3; }
  uint64_t value_ = 0xcbf29ce484222325;
};

void add_one(Exchange& out, const tensors::Tensor& x, bool takes_device, const InPlace& make) {
  tensors::Tensor copy = as_communicated(x, takes_device);
  out.calls.push_back(make(copy.view().data, copy.count(), copy.dtype()));
  out.calls.back().is_device = is_on_gpu(copy);
  out.calls.back().shape = shape_digest(x);
  out.held.push_back(copy);
  copy_back(out, x, copy);
}

// The device of all tensors; the host if they are on several.
tensors::Device device_of(const std::vector<tensors::Tensor>& list) {
  const tensors::Device& first = list.front().device();
  bool is_one = std::all_of(list.begin(), list.end(),
                            [&](const tensors::Tensor& x) { return x.device() == first; });
  return is_one ? first : tensors::Device{};
}

void add_bucket(Exchange& out, const TensorBucket& bucket, bool takes_device, const InPlace& make) {
  if (bucket.tensors.size() == 1) return add_one(out, bucket.tensors[0], takes_device, make);
  tensors::Tensor all =
      tensors::Tensor::empty(bucket.tensors[0].dtype(), {bucket.count}, device_of(bucket.tensors));
  std::vector<tensors::Tensor> pieces;
  int64_t at = 0;
  CallDigest digest;
  for (const tensors::Tensor& x : bucket.tensors) {
    pieces.push_back(tensors::reshape(tensors::narrow(all, 0, at, x.count()), x.shape()));
    at += x.count();
    digest.add(x.shape());
    tensors::copy_in_place(pieces.back(), tensors::move(x.detached(), all.device()));
  }
  add_one(out, all, takes_device, make);
  out.calls.back().shape = digest.value();
  for (size_t i = 0; i < pieces.size(); i++) copy_back(out, bucket.tensors[i], pieces[i]);
}

struct Extent {
  const char* from;
  const char* to;  // past its last byte
};

Extent extent_of(const tensors::Tensor& x) {
  const kernels::View& view = x.view();
  auto size = static_cast<int64_t>(dtype_size(view.dtype));
  Extent extent{static_cast<const char*>(view.data), static_cast<const char*>(view.data) + size};
  for (int dim = 0; dim < x.rank(); dim++) {
    int64_t reach = (x.size(dim) - 1) * view.strides[dim] * size;
    (reach < 0 ? extent.from : extent.to) += reach;
  }
  return extent;
}

// Calls visit(address) for each element; false as soon as that returns false.
template <typename Visit>
bool each_element(const kernels::View& view, const char* at, int dim, const Visit& visit) {
  if (dim == view.shape.rank) return visit(at);
  auto step = view.strides[dim] * static_cast<int64_t>(dtype_size(view.dtype));
  for (int64_t i = 0; i < view.shape[dim]; i++)
    if (!each_element(view, at + i * step, dim + 1, visit)) return false;
  return true;
}

}  // namespace

// Views such as columns may interleave without a common element: possible overlaps are checked
// element by element.
bool share_memory(const tensors::Tensor& a, const tensors::Tensor& b) {
  if (a.count() == 0 || b.count() == 0 || a.storage() != b.storage()) return false;
  Extent one = extent_of(a), other = extent_of(b);
  if (one.to <= other.from || other.to <= one.from) return false;
  std::vector<bool> is_used(static_cast<size_t>(one.to - one.from));
  each_element(a.view(), static_cast<const char*>(a.view().data), 0, [&](const char* at) {
    is_used[static_cast<size_t>(at - one.from)] = true;
    return true;
  });
  return !each_element(b.view(), static_cast<const char*>(b.view().data), 0, [&](const char* at) {
    return at < one.from || at >= one.to || !is_used[static_cast<size_t>(at - one.from)];
  });
}

bool holds_tensors(lua_State* L, int index) {
  if (test_object(L, index) != nullptr) return true;
  if (!lua_istable(L, index)) return false;
  bool any = false;
  index = lua_absindex(L, index);
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    any = test_object(L, -1) != nullptr;
    if (any) continue;
    lua_pop(L, 2);
    return false;
  }
  return any;
}

std::vector<tensors::Tensor> check_tensors(lua_State* L, int index, const char* method) {
  if (const tensors::Tensor* x = test_object(L, index)) return {*x};
  if (!lua_istable(L, index))
    raise(L, fmt::format("ctx.comm:{} takes a tensor or a table of tensors, not {}", method,
                         describe(L, index)));
  index = lua_absindex(L, index);
  std::vector<tensors::Tensor> list;
  size_t count = push_ordered_keys(L, index);
  int keys = lua_gettop(L);
  for (size_t i = 1; i <= count; i++) {
    lua_rawgeti(L, keys, static_cast<lua_Integer>(i));
    std::string key = luaL_tolstring(L, -1, nullptr);
    lua_pop(L, 1);
    lua_rawget(L, index);
    const tensors::Tensor* x = test_object(L, -1);
    if (x == nullptr)
      raise(L, fmt::format("ctx.comm:{} takes a table of tensors, and its entry `{}` is {}", method,
                           key, describe(L, -1)));
    list.push_back(*x);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return list;
}

uint64_t shape_digest(const tensors::Tensor& x) {
  CallDigest digest;
  digest.add(x.shape());
  return digest.value();
}

uint64_t names_digest(lua_State* L, int index) {
  if (!lua_istable(L, index)) return 0;
  CallDigest digest;
  size_t count = push_ordered_keys(L, lua_absindex(L, index));
  for (size_t i = 1; i <= count; i++) {
    lua_rawgeti(L, -1, static_cast<lua_Integer>(i));
    digest.add(static_cast<uint64_t>(lua_type(L, -1)));
    size_t size = 0;
    const char* text = luaL_tolstring(L, -1, &size);
    digest.add(std::string_view(text, size));
    lua_pop(L, 2);
  }
  lua_pop(L, 1);
  return digest.value();
}

bool is_on_gpu(const tensors::Tensor& x) { return x.device().kind == tensors::Device::cuda; }

tensors::Tensor as_communicated(const tensors::Tensor& x, bool takes_device) {
  tensors::NoRecord off;
  tensors::Device there;
  if (takes_device && is_on_gpu(x)) there.kind = tensors::Device::cuda;
  return tensors::contiguous(tensors::move(x.detached(), there));
}

void copy_back(Exchange& exchange, const tensors::Tensor& x, const tensors::Tensor& copy) {
  if (copy.view().data == x.view().data) return;
  exchange.after.push_back([x = x.detached(), copy] {
    tensors::NoRecord off;
    tensors::copy_in_place(x, tensors::move(copy, x.device()));
  });
}

void reject_overlaps(const char* method, const std::vector<tensors::Tensor>& list) {
  std::map<const tensors::Storage*, std::vector<size_t>> places;  // tensors by their memory
  for (size_t i = 0; i < list.size(); i++) {
    std::vector<size_t>& others = places[list[i].storage().get()];
    for (size_t other : others) {
      if (share_memory(list[other], list[i]))
        throw tensors::TensorError(
            fmt::format("ctx.comm:{}: tensor {} of the list shares elements with tensor {}; "
                        "they would be combined twice",
                        method, i + 1, other + 1));
    }
    others.push_back(i);
  }
}

Exchange exchange_in_place(const char* method, const std::vector<tensors::Tensor>& list,
                           bool takes_device, const InPlace& make) {
  std::string name = fmt::format("ctx.comm:{}", method);
  for (const tensors::Tensor& x : list) x.note_write(name.c_str());
  tensors::NoRecord off;
  Exchange out;
  out.written = list;
  std::map<std::pair<DType, bool>, TensorBucket>
      buckets;  // by type, and whether they stay on a GPU
  for (const tensors::Tensor& x : list) {
    if (x.view().bytes() >= kSmallBytes) {
      add_one(out, x, takes_device, make);
      continue;
    }
    TensorBucket& bucket = buckets[{x.dtype(), takes_device && is_on_gpu(x)}];
    bucket.tensors.push_back(x);
    bucket.count += x.count();
    if (static_cast<size_t>(bucket.count) * dtype_size(x.dtype()) < kBucketBytes) continue;
    add_bucket(out, bucket, takes_device, make);
    bucket = {};
  }
  for (const auto& [kind, bucket] : buckets)
    if (!bucket.tensors.empty()) add_bucket(out, bucket, takes_device, make);
  return out;
}

}  // namespace flow::lua
