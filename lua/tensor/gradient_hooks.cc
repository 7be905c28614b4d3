#include "lua/tensor/gradient_hooks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "kernels/tensor/autograd.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {
namespace {

const char kHookKey = 0;

struct Hook {
  std::vector<tensors::Tensor> tensors;
  int ready = LUA_NOREF, finished = LUA_NOREF, started = LUA_NOREF;  // in the registry
  bool is_reached = false;                                           // by the backward that runs
};

void push_function(lua_State* L, int function) {
  luaL_checkstack(L, 4, "too many hooks");
  lua_rawgeti(L, LUA_REGISTRYINDEX, function);
}

}  // namespace

/// Of one attempt.
class GradientHooks final : public tensors::LeafObserver {
 public:
  void add(std::shared_ptr<Hook> hook) {
    for (size_t i = 0; i < hook->tensors.size(); i++)
      uses_[hook->tensors[i].body().get()].push_back({hook, i});
    hooks_.push_back(std::move(hook));
  }
  // Also called from inside a hook: a loop over several hooks then finds this one without
  // functions.
  void remove(lua_State* L, const std::shared_ptr<Hook>& hook) {
    auto found = std::find(hooks_.begin(), hooks_.end(), hook);
    if (found == hooks_.end()) return;
    for (auto& [body, uses] : uses_)
      std::erase_if(uses, [&](const LeafUse& use) { return use.hook == hook; });
    for (int* function : {&hook->ready, &hook->finished, &hook->started})
      luaL_unref(L, LUA_REGISTRYINDEX, std::exchange(*function, LUA_NOREF));
    hooks_.erase(found);
  }
  void remove_all(lua_State* L) {
    while (!hooks_.empty()) remove(L, std::shared_ptr<Hook>(hooks_.back()));
  }

  bool watches(const tensors::Body& leaf) const override {
    auto found = uses_.find(&leaf);
    return found != uses_.end() && !found->second.empty();
  }
  void begin(const std::vector<tensors::RefPtr<tensors::Body>>& leaves) override {
    std::vector<std::shared_ptr<Hook>> kept = hooks_;
    for (const auto& hook : kept) {
      if (hook->started == LUA_REFNIL || hook->started == LUA_NOREF) continue;
      push_function(L_, hook->started);
      lua_createtable(L_, 0, 0);
      lua_Integer count = 0;
      for (const auto& leaf : leaves) {
        for (const LeafUse& use : uses_[leaf.get()]) {
          if (use.hook != hook) continue;
          lua_pushinteger(L_, static_cast<lua_Integer>(use.place) + 1);
          lua_rawseti(L_, -2, ++count);
        }
      }
      lua_call(L_, 1, 0);
    }
  }
  void complete(const tensors::RefPtr<tensors::Body>& leaf) override {
    std::vector<LeafUse> uses = uses_[leaf.get()];  // a copy: a hook may add and remove hooks
    for (const LeafUse& use : uses) {
      if (use.hook->ready == LUA_NOREF) continue;
      use.hook->is_reached = true;
      push_function(L_, use.hook->ready);
      lua_pushinteger(L_, static_cast<lua_Integer>(use.place) + 1);
      lua_call(L_, 1, 0);
    }
  }

  void backward(lua_State* L, const tensors::Tensor& root, const tensors::Tensor& gradient) {
    if (L_ != nullptr) return tensors::backward(root, gradient, this);  // a backward inside another
    std::vector<std::shared_ptr<Hook>> kept = hooks_;
    {
      struct HookedBackward {
        lua_State*& state;
        ~HookedBackward() { state = nullptr; }
      } running{L_};
      for (const auto& hook : kept) hook->is_reached = false;
      L_ = L;
      tensors::backward(root, gradient, this);
    }
    for (const auto& hook : kept) {
      if (!hook->is_reached || hook->finished == LUA_NOREF) continue;
      push_function(L, hook->finished);
      lua_call(L, 0, 0);
    }
  }

 private:
  struct LeafUse {
    std::shared_ptr<Hook> hook;
    size_t place;
  };
  std::vector<std::shared_ptr<Hook>> hooks_;
  std::unordered_map<const tensors::Body*, std::vector<LeafUse>> uses_;
  lua_State* L_ = nullptr;  // the state whose backward runs
};

namespace {

std::vector<tensors::Tensor> check_leaves(lua_State* L, int index) {
  if (!lua_istable(L, index))
    raise(L, fmt::format("flow.gradient_hook takes a list of tensors, ready(i) and finished(), not "
                         "{}",
                         describe(L, index)));
  std::vector<tensors::Tensor> list;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, index)); i++) {
    lua_rawgeti(L, index, i);
    const tensors::Tensor& x = check_object(L, -1, "what flow.gradient_hook watches");
    if (!x.wants_gradient() || x.node())
      raise(L, fmt::format("flow.gradient_hook watches tensors that require a gradient, and tensor "
                           "{} of the list does not: x:requires_grad_()",
                           i));
    list.push_back(x);
    lua_pop(L, 1);
  }
  return list;
}

int hook_remove(lua_State* L) {
  auto* object = static_cast<std::weak_ptr<Hook>*>(test_object(L, 1, &kHookKey));
  if (object == nullptr) raise(L, "a gradient hook is removed as hook:remove()");
  VmContext& ctx = context(L);
  if (std::shared_ptr<Hook> hook = object->lock(); hook != nullptr && ctx.hooks != nullptr)
    ctx.hooks->remove(L, hook);
  return 0;
}

int hook_drop(lua_State* L) {
  using HookHandle = std::weak_ptr<Hook>;
  if (auto* object = static_cast<HookHandle*>(test_object(L, 1, &kHookKey))) object->~HookHandle();
  return 0;
}

}  // namespace

int push_gradient_hook(lua_State* L) {
  VmContext& ctx = context(L);
  if (ctx.request == nullptr) raise(L, "flow.gradient_hook is called in tasks only");
  auto hook = std::make_shared<Hook>();
  hook->tensors = check_leaves(L, 1);
  if (!is_callable(L, 2) || !is_callable(L, 3))
    raise(L, "flow.gradient_hook takes a list of tensors, ready(i) and finished()");
  if (!lua_isnoneornil(L, 4) && !is_callable(L, 4))
    raise(L, fmt::format("flow.gradient_hook: started(order) is a function or left out, not {}",
                         describe(L, 4)));
  lua_settop(L, 4);
  hook->started = luaL_ref(L, LUA_REGISTRYINDEX);
  hook->finished = luaL_ref(L, LUA_REGISTRYINDEX);
  hook->ready = luaL_ref(L, LUA_REGISTRYINDEX);
  if (ctx.hooks == nullptr) ctx.hooks = std::make_shared<GradientHooks>();
  ctx.hooks->add(hook);
  if (new_metatable(L, &kHookKey, "gradient hook")) {
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, hook_remove);
    lua_setfield(L, -2, "remove");
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, hook_drop);
    lua_setfield(L, -2, "__gc");
  }
  lua_pop(L, 1);
  void* memory = lua_newuserdatauv(L, sizeof(std::weak_ptr<Hook>), 0);
  new (memory) std::weak_ptr<Hook>(hook);
  set_metatable(L, &kHookKey);
  return 1;
}

void backward_with_hooks(lua_State* L, const tensors::Tensor& root,
                         const tensors::Tensor& gradient) {
  std::shared_ptr<GradientHooks> hooks = context(L).hooks;
  if (hooks == nullptr) return tensors::backward(root, gradient);
  hooks->backward(L, root, gradient);
}

void end_gradient_hooks(lua_State* L) {
  VmContext& ctx = context(L);
  if (ctx.hooks == nullptr) return;
  ctx.hooks->remove_all(L);
  ctx.hooks = nullptr;
}

}  // namespace flow::lua
