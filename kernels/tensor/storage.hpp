// The memory of tensors: where it lies, who pays for it, and how it is found again quickly.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "kernels/tensor/ref_counted.hpp"

namespace flow::tensors {

/// What an operation can't do with what it was given, in words for the person who wrote it.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Device {
  enum Kind : uint8_t { cpu, cuda, symbol };  // symbol: nowhere, see fusion.hpp
  Kind kind = cpu;
  int index = 0;  // of the GPU, from 0
  bool operator==(const Device&) const = default;
};
std::string text_of(const Device& device);  // "cpu", "cuda:0"

/// Who pays for host memory: one VM. Called by the VM's thread and by those that drop its tensors.
class Budget {
 public:
  virtual ~Budget() = default;
  /// Before `bytes` are taken. Throws a Failure where they are too many.
  virtual void charge(size_t bytes) = 0;
  virtual void release(size_t bytes) = 0;
  /// `bytes` of a GPU's memory were taken.
  virtual void note_device(size_t bytes) = 0;
  /// Gives up what nothing holds any more. False where it can't.
  virtual bool collect() = 0;
};

/// A piece of memory on one device, aligned to 64 bytes. Views share it.
class Storage : public RefCounted {
 public:
  /// Memory whose content is not set. Throws a Failure that says what was asked and what is free.
  static Ref<Storage> allocate(Device device, size_t bytes);
  /// Somebody's host memory, such as a mapped file, that `keep` holds. It is not written, unless it
  /// `is_own`: nobody else sees what is written there, as of a private mapping. Then it is charged
  /// to the budget when it is first written, which is when it takes memory.
  static Ref<Storage> borrow(const void* data, size_t bytes, std::shared_ptr<const void> keep,
                             bool is_own = false);
  /// What stands for a value of a chain and holds nothing.
  static Ref<Storage> symbol(uint64_t owner, int value);
  ~Storage() override;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const Device& device() const { return device_; }
  uint64_t symbol_owner() const { return symbol_owner_; }
  int symbol_value() const { return symbol_value_; }
  bool is_read_only() const { return keep_ != nullptr && !is_own_; }
  /// Before its content is changed. Throws a Failure where its budget has no room for that.
  void note_write();

  uint32_t version = 0;  // how often it was changed in place

 private:
  Storage() = default;

  char* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_;
  std::shared_ptr<Budget> budget_;
  std::shared_ptr<const void> keep_;
  bool is_own_ = false;
  int symbol_value_ = 0;
  uint64_t symbol_owner_ = 0;
};

/// Host memory that is free to be used again at once, and that the system has not been given back.
/// Pieces from 64 KiB on are kept, up to a quarter of what was in use at most.
void* allocate_host_memory(size_t bytes);
void free_host_memory(void* data, size_t bytes);
/// Gives the system back what is kept.
void trim_host_memory();

}  // namespace flow::tensors
