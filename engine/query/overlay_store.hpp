// A store whose writes stay in memory until the process ends.
#pragma once
#include <memory>

#include "engine/store/store.hpp"

namespace flow {

/// Reads from `below`, which it borrows; null means an empty state.
std::unique_ptr<Store> make_overlay(const Store* below);

}  // namespace flow
