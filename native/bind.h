// Shared by the bindings: borrowed buffers, and the pickled form of segments.
//
// Values that are not plain (another dtype, a list, strides, a wrong shape) are not explained in native code: the call
// answers WriteStatus::irregular, and the Python side converts them or reports what is wrong.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "power.h"
#include "replay.h"

namespace nb = nanobind;

namespace apexrl {

// The Python member of an enum's value, without nanobind's look-up, which costs as much as a small append. Borrowed from
// the enum's class, which the module keeps; needs no GIL.
template <typename E>
inline PyObject* members[16] = {};
template <typename E>
nb::handle member(E value) { return members<E>[size_t(value)]; }
template <typename E>
void keep_members(E last) {
  for (size_t i = 0; i <= size_t(last); ++i) members<E>[i] = nb::cast(E(i)).ptr();
}

// A borrowed C-contiguous buffer.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool get(PyObject* object, int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) {
    if (PyObject_GetBuffer(object, &view_, flags) == 0) return true;
    PyErr_Clear();
    view_.obj = nullptr;
    return false;
  }
  char kind() const {  // as NumPy's dtype.kind
    const char* f = view_.format;
    if (f == nullptr || f[0] == 0 || f[1] != 0) return 0;
    switch (f[0]) {
      case '?': return 'b';
      case 'b': case 'h': case 'i': case 'l': case 'q': return 'i';
      case 'B': case 'H': case 'I': case 'L': case 'Q': return 'u';
      case 'e': case 'f': case 'd': return 'f';
      default: return 0;
    }
  }
  bool is(char kind_, size_t itemsize) const { return size_t(view_.itemsize) == itemsize && kind() == kind_; }
  bool vector(char kind_, size_t itemsize) const { return view_.ndim == 1 && is(kind_, itemsize); }
  size_t size() const { return view_.itemsize > 0 ? size_t(view_.len) / size_t(view_.itemsize) : 0; }
  const Py_buffer& view() const { return view_; }
  template <typename T>
  T* data() const { return static_cast<T*>(view_.buf); }

 private:
  Py_buffer view_{};
};

inline uint8_t* writable(nb::handle array, size_t nbytes) {
  if (array.is_none()) return nullptr;
  Buffer buffer;
  if (!buffer.get(array.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) || size_t(buffer.view().len) != nbytes)
    throw std::invalid_argument("an output array has the wrong size");
  return buffer.data<uint8_t>();
}

inline std::shared_ptr<Segment> segment_from(nb::tuple state) {
  Uuid uuid;
  const nb::bytes raw = nb::cast<nb::bytes>(state[2]);
  if (raw.size() != uuid.size()) throw std::invalid_argument("bad uuid");
  std::memcpy(uuid.data(), raw.c_str(), uuid.size());
  return Segment::attach(nb::cast<int>(state[0]), nb::cast<int>(state[1]), uuid, nb::cast<std::string>(state[3]));
}

inline nb::tuple segment_state(const Segment& s) {
  return nb::make_tuple(int(getpid()), s.fd(), nb::bytes(reinterpret_cast<const char*>(s.uuid().data()), 16), s.path());
}

// [N] float32 or float64 raw magnitudes to (|p|+eps)^alpha; answers ok, irregular, or bad_priority with its row `bad`.
inline WriteStatus power_priorities(PyObject* object, size_t n, const Geometry& g, std::vector<double>& out, size_t& bad) {
  Buffer buffer;
  if (!buffer.get(object) || buffer.view().ndim != 1 || buffer.size() != n) return WriteStatus::irregular;
  out.resize(n);
  if (buffer.is('f', 8)) {
    std::copy_n(buffer.data<double>(), n, out.data());
  } else if (buffer.is('f', 4)) {
    std::copy_n(buffer.data<float>(), n, out.data());
  } else {
    return WriteStatus::irregular;
  }
  constexpr double kLargest = 1e150;  // sums of squares of these stay finite
  bool fine = true;
  for (size_t i = 0; i < n; ++i) fine &= out[i] >= 0.0 && out[i] <= kLargest;
  if (!fine) {
    for (bad = 0; out[bad] >= 0.0 && out[bad] <= kLargest; ++bad) {}
    return WriteStatus::bad_priority;
  }
  powers(out.data(), out.data(), n, g.eps, g.alpha);
  return WriteStatus::ok;
}

struct FieldType {
  nb::object name;
  char kind;
  uint32_t itemsize;
  std::vector<Py_ssize_t> shape;
  uint32_t ragged;  // its lengths' field + 1; 0: it has the same length in every row
};  // columns that no field has come behind those of all: the lengths of compressed ones

class PyReplay {
 public:
  PyReplay(std::shared_ptr<Replay> replay, std::vector<FieldType> fields)
      : replay(std::move(replay)), fields(std::move(fields)) {
    for (const FieldType& field : this->fields) ragged_ = ragged_ || field.ragged != 0;
  }

  // Columns of `values` ([n, ...] each). False: something is not a plain array. n == 0: set from the first.
  bool columns(const nb::dict& values, size_t extra, std::vector<Buffer>& buffers, std::vector<const uint8_t*>& data,
               size_t& n, bool& first) const {
    if (size_t(PyDict_GET_SIZE(values.ptr())) != fields.size() + extra) return false;
    data.resize(fields.size());
    for (size_t i = 0; i < fields.size(); ++i) {
      PyObject* value = PyDict_GetItemWithError(values.ptr(), fields[i].name.ptr());
      if (value == nullptr || !buffers[i].get(value)) return false;
      const Py_buffer& b = buffers[i].view();
      if (!buffers[i].is(fields[i].kind, fields[i].itemsize) || size_t(b.ndim) != fields[i].shape.size() + 1)
        return false;
      for (size_t d = 0; d < fields[i].shape.size(); ++d)
        if (b.shape[d + 1] != fields[i].shape[d]) return false;
      if (first) {
        n = size_t(b.shape[0]);
        first = false;
      } else if (size_t(b.shape[0]) != n) {
        return false;
      }
      data[i] = static_cast<const uint8_t*>(b.buf);
    }
    return !ragged_ || lengths_fit(data, n);
  }

  // An owner in this process serves its own workers at once.
  bool serve_here() {
    const auto owner = replay->owner();
    if (owner == nullptr) return false;
    nb::gil_scoped_release release;
    owner->serve();
    return true;
  }

  std::shared_ptr<Replay> replay;
  std::vector<FieldType> fields;

 private:
  bool lengths_fit(const std::vector<const uint8_t*>& data, size_t n) const {
    for (const FieldType& field : fields)
      for (size_t i = 0; field.ragged != 0 && i < n; ++i) {
        int32_t length;
        std::memcpy(&length, data[field.ragged - 1] + i * sizeof length, sizeof length);
        if (length < 0 || length > field.shape[0]) return false;
      }
    return true;
  }

  bool ragged_ = false;  // some field is
};

void bind_items(nb::class_<PyReplay>& replay);
void bind_replay(nb::module_& m);
void bind_writer(nb::module_& m);
void bind_chunks(nb::module_& m);

}  // namespace apexrl
