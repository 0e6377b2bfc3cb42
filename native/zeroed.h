// Memory of trivial values: an array of zeros whose pages take no memory until they are touched, and an allocator for
// vectors that leaves new values as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace apexrl {

template <typename T>
class Zeroed {
  static_assert(std::is_trivially_destructible_v<T> && std::is_trivially_copyable_v<T> && alignof(T) <= 64);

 public:
  explicit Zeroed(size_t n) : count_(n), block_(std::calloc(n * sizeof(T) + 64, 1)) {
    if (!block_) throw std::bad_alloc();
    const uintptr_t at = (reinterpret_cast<uintptr_t>(block_.get()) + 63) & ~uintptr_t(63);
    data_ = reinterpret_cast<T*>(at);
  }

  size_t size() const { return count_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + count_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  size_t count_;
  std::unique_ptr<void, Free> block_;
  T* data_;  // 64-byte aligned
};

template <typename T>
struct Unfilled : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = Unfilled<U>;
  };
  template <typename U>
  void construct(U* p) {
    ::new (static_cast<void*>(p)) U;
  }
};

}  // namespace apexrl
