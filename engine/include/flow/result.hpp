// Error handling without exceptions: external data is validated into a Result; a FLOW_CHECK guards
// the program's own invariants.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace flow {

/// The kind of an error. The command line maps each kind to an exit code.
enum class ErrorKind : uint8_t {
  user,         ///< the script or the command line is wrong (exit 2)
  task,         ///< a task failed (exit 1)
  interrupted,  ///< stopped before the end, can be resumed (exit 3)
  environment,  ///< the state or the machine can't be reached, read or written (exit 4)
  internal,     ///< a defect of flow itself (exit 4)
};

/// An error. `message` is one paragraph of plain text: what failed, where, why and what to do.
struct Error {
  ErrorKind kind = ErrorKind::internal;
  std::string message;
};

inline Error user_error(std::string message) { return {ErrorKind::user, std::move(message)}; }
inline Error environment_error(std::string message) {
  return {ErrorKind::environment, std::move(message)};
}
inline Error internal_error(std::string message) {
  return {ErrorKind::internal, std::move(message)};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}
  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool ok_ = true;
};

using Status = Result<void>;

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace flow

/// Checks an invariant of the program, also in release builds: continuing after a violated
/// invariant could lose data.
#define FLOW_CHECK(condition) \
  ((condition) ? void(0) : ::flow::check_failed(#condition, __FILE__, __LINE__))
/// Returns the error of a Result from the enclosing function.
#define FLOW_TRY(expression)                                                        \
  do {                                                                              \
    if (auto&& flow_try_ = (expression); !flow_try_.ok()) return flow_try_.error(); \
  } while (0)
