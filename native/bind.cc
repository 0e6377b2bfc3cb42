// The only file that knows Python. Copies are short and keep the GIL; what may wait or move megabytes releases it.
//
// Values that are not plain (another dtype, a list, strides, a wrong shape) are not explained here: the call answers
// kIrregular, and the Python side converts them or says in words what is wrong.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>

#include "board.h"
#include "checksum.h"
#include "replay.h"

namespace nb = nanobind;
using namespace apexrl;

namespace {

constexpr int kIrregular = -1;    // a value is not a plain array of the declared kind
constexpr int kBadPriority = -2;  // a priority is NaN, infinite or negative
constexpr int kBusy = -3;         // another thread is inside this writer
constexpr int kBadReward = -4;    // a reward is NaN or infinite
constexpr int kYielded = -5;      // this process let another one own the replay

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
  size_t size() const { return size_t(view_.len) / size_t(view_.itemsize); }
  const Py_buffer& view() const { return view_; }
  template <typename T>
  T* data() const { return static_cast<T*>(view_.buf); }

 private:
  Py_buffer view_{};
};

// [N] float32 or float64 raw magnitudes to (|p|+eps)^alpha; answers 0, kIrregular or kBadPriority with `bad`.
int power_priorities(PyObject* object, size_t n, const Geometry& g, std::vector<double>& out, size_t& bad) {
  Buffer buffer;
  if (!buffer.get(object) || buffer.view().ndim != 1 || buffer.size() != n) return kIrregular;
  out.resize(n);
  if (buffer.is('f', 8)) {
    std::copy_n(buffer.data<double>(), n, out.data());
  } else if (buffer.is('f', 4)) {
    std::copy_n(buffer.data<float>(), n, out.data());
  } else {
    return kIrregular;
  }
  constexpr double kLargest = 1e150;  // sums of squares of these stay finite
  bool fine = true;
  for (size_t i = 0; i < n; ++i) fine &= out[i] >= 0.0 && out[i] <= kLargest;
  if (!fine) {
    for (bad = 0; out[bad] >= 0.0 && out[bad] <= kLargest; ++bad) {}
    return kBadPriority;
  }
  powers(out.data(), out.data(), n, g.eps, g.alpha);
  return 0;
}

struct FieldType {
  nb::object name;
  char kind;
  uint32_t itemsize;
  std::vector<Py_ssize_t> shape;
};

class PyReplay {
 public:
  PyReplay(std::shared_ptr<Replay> replay, std::vector<FieldType> fields)
      : replay(std::move(replay)), fields(std::move(fields)) {}

  // Columns of `values` ([n, ...] each); false when anything is not plain. n == 0: taken from the first.
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
    return true;
  }

  // The owner of this process serves its own workers at once.
  bool serve_here() {
    const auto owner = replay->owner();
    if (owner == nullptr) return false;
    nb::gil_scoped_release release;
    owner->serve();
    return true;
  }

  std::shared_ptr<Replay> replay;
  std::vector<FieldType> fields;
};

uint8_t* writable(nb::handle array, size_t nbytes) {
  if (array.is_none()) return nullptr;
  Buffer buffer;
  if (!buffer.get(array.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) || size_t(buffer.view().len) != nbytes)
    throw std::invalid_argument("an output array has the wrong size");
  return buffer.data<uint8_t>();
}

class PyWriter {
 public:
  PyWriter(std::shared_ptr<PyReplay> replay, uint32_t streams)
      : replay_(std::move(replay)), streams_(streams) {}

  int lease() {
    if (writer_ && writer_->leased()) return 0;
    if (writer_) {  // inherited by fork: the parent's
      writer_.release();
      busy_.clear();
    }
    writer_ = std::make_unique<Writer>(replay_->replay->segment(), streams_);
    const Status status = writer_->lease();
    if (status != Status::ok) writer_.reset();
    return int(status);
  }
  void release() {
    if (writer_ && !writer_->leased()) writer_.release();
    writer_.reset();
  }
  ~PyWriter() { release(); }
  bool leased() const { return writer_ && writer_->leased(); }
  int lane() const { return leased() ? writer_->lane() : -1; }

  // -> (next row, status, row of a bad priority)
  std::tuple<size_t, int, size_t> extend(const nb::dict& values, nb::handle priorities, size_t start) {
    Busy busy(busy_);
    if (!busy) return {start, kBusy, 0};
    if (!leased()) return {start, int(Status::closed), 0};
    std::vector<Buffer> buffers(replay_->fields.size());
    size_t n = 0, bad = 0;
    bool first = true;
    if (!replay_->columns(values, 0, buffers, data_, n, first) || start > n) return {start, kIrregular, 0};
    const Geometry& g = replay_->replay->view().geometry();
    const double* powered = nullptr;
    if (!priorities.is_none()) {
      const int status = power_priorities(priorities.ptr(), n, g, powered_, bad);
      if (status != 0) return {start, status, bad};
      powered = powered_.data();
    }
    std::optional<nb::gil_scoped_release> release;
    if (uint64_t(g.record) * (n - start) > (1 << 18) || g.slot_bytes > (1 << 18)) release.emplace();
    Status status = writer_->extend(data_.data(), powered, n, start);
    const auto owner = status == Status::wait ? replay_->replay->owner() : nullptr;
    for (size_t before = n + 1; owner != nullptr && status == Status::wait && before != start;) {
      before = start;
      owner->serve();
      status = writer_->extend(data_.data(), powered, n, start);
    }
    return {start, int(status), 0};
  }

  // -> (stored, status, pending items, bad row). `which`: int64 array of stream numbers, or None for all.
  std::tuple<bool, int, size_t, size_t> append(const nb::dict& values, nb::handle reward, nb::handle terminated,
                                               nb::handle truncated, nb::handle which) {
    Busy busy(busy_);
    if (!busy) return {false, kBusy, 0, 0};
    if (!leased()) return {false, int(Status::closed), 0, 0};
    std::vector<Buffer> buffers(replay_->fields.size());
    Buffer r, te, tr, w;
    size_t n = 0;
    bool first = true;
    if (!r.get(reward.ptr()) || !te.get(terminated.ptr()) || !tr.get(truncated.ptr()) ||
        !(r.vector('f', 4) || r.vector('f', 8)) || !te.vector('b', 1) || !tr.vector('b', 1))
      return {false, kIrregular, 0, 0};
    n = r.size();
    reward_.resize(n);
    if (r.is('f', 4)) {
      std::copy_n(r.data<float>(), n, reward_.data());
    } else {  // as Gymnasium's vector environments give it
      std::copy_n(r.data<double>(), n, reward_.data());
    }
    first = false;
    if (te.size() != n || tr.size() != n || !replay_->columns(values, 3, buffers, data_, n, first))
      return {false, kIrregular, 0, 0};
    const int64_t* streams = nullptr;
    if (!which.is_none()) {
      if (!w.get(which.ptr()) || !w.vector('i', 8) || w.size() != n) return {false, kIrregular, 0, 0};
      streams = w.data<int64_t>();
      named_.resize(streams_);
      ++call_;
      for (size_t i = 0; i < n; ++i) {
        if (streams[i] < 0 || streams[i] >= int64_t(streams_) || named_[size_t(streams[i])] == call_)
          return {false, kIrregular, 0, 0};
        named_[size_t(streams[i])] = call_;
      }
    } else if (n != streams_) {
      return {false, kIrregular, 0, 0};
    }
    for (size_t i = 0; i < n; ++i)
      if (!std::isfinite(reward_[i])) return {false, kBadReward, 0, i};
    bool stored = false;
    auto append = [&] {
      return writer_->append(data_.data(), reward_.data(), te.data<uint8_t>(), tr.data<uint8_t>(), streams, n, stored);
    };
    Status status = append();
    if (!stored && status == Status::wait && replay_->serve_here()) status = append();
    return {stored, int(status), writer_->pending_count(), 0};
  }

  size_t pending() { return leased() ? writer_->pending(pending_) : 0; }
  // A column of the pending items into `out` [pending, (stack,) ...].
  void gather_pending(size_t column, bool later, nb::handle out) {
    Buffer buffer;
    const View& view = replay_->replay->view();
    const Column& c = view.header().column[column];
    const Geometry& g = view.geometry();
    const bool rows = g.kind == Kind::sequence || g.kind == Kind::unroll;
    const size_t steps = rows ? g.burn_in + g.n_step : 1;
    const size_t frames = c.per_item ? 1 : c.windowed ? (steps + rows) * g.stack : steps;
    if (!buffer.get(out.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) ||
        size_t(buffer.view().len) != pending_.size() * frames * c.bytes)
      throw std::invalid_argument("out has another size than the pending items");
    if (c.per_item) {
      gather_cells(view, c, pending_.data(), pending_.size(), buffer.data<uint8_t>());
    } else if (rows) {
      gather_rows(view, c, pending_.data(), pending_.size(), buffer.data<uint8_t>());
    } else {
      gather_column(view, c, pending_.data(), pending_.size(), later, buffer.data<uint8_t>());
    }
  }
  // Arrays of [pending] (transition), or [pending, T] with `mask` and `first` [pending, T + 1].
  void gather_pending_steps(nb::handle reward, nb::handle discount, nb::handle mask, nb::handle first) {
    const View& view = replay_->replay->view();
    const Geometry& g = view.geometry();
    const size_t n = pending_.size();
    const bool rows = g.kind == Kind::sequence || g.kind == Kind::unroll;
    const size_t steps = rows ? g.burn_in + g.n_step : 1;
    auto* r = reinterpret_cast<float*>(writable(reward, n * steps * 4));
    auto* d = reinterpret_cast<float*>(writable(discount, n * steps * 4));
    if (rows) {
      gather_steps(view, pending_.data(), n, r, d, writable(mask, n * steps), writable(first, n * (steps + 1)));
    } else {
      gather_returns(view, pending_.data(), n, r, d);
    }
  }
  // -> (status, bad row)
  std::tuple<int, size_t> publish(nb::handle priorities) {
    Busy busy(busy_);
    if (!busy) return {kBusy, 0};
    if (!leased()) return {int(Status::closed), 0};
    if (priorities.is_none()) {
      writer_->publish(nullptr);
      return {0, 0};
    }
    size_t bad = 0;
    const int status = power_priorities(priorities.ptr(), writer_->pending_count(),
                                        replay_->replay->view().geometry(), powered_, bad);
    if (status == 0) writer_->publish(powered_.data());
    return {status, bad};
  }

  size_t pending_count() const { return leased() ? writer_->pending_count() : 0; }
  bool all_settled() {
    if (!leased()) return true;
    replay_->serve_here();
    return writer_->all_settled();
  }
  void wait(double seconds) {
    if (!leased()) return;
    nb::gil_scoped_release release;
    writer_->wait(int64_t(seconds * 1e9));
  }

 private:
  // Whether this thread is the only one inside.
  class Busy {
   public:
    explicit Busy(std::atomic_flag& flag) : flag_(flag), mine_(!flag.test_and_set(std::memory_order_acquire)) {}
    ~Busy() {
      if (mine_) flag_.clear(std::memory_order_release);
    }
    explicit operator bool() const { return mine_; }

   private:
    std::atomic_flag& flag_;
    bool mine_;
  };

  std::shared_ptr<PyReplay> replay_;
  uint32_t streams_;
  std::unique_ptr<Writer> writer_;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::vector<const uint8_t*> data_;
  std::vector<double> powered_;
  std::vector<float> reward_;
  std::vector<ItemRef> pending_;
  std::vector<uint64_t> named_;  // per stream: the last call that named it
  uint64_t call_ = 0;
};

// Pointers into arrays that the Python side keeps alive.
std::shared_ptr<Outputs> make_outputs(const PyReplay& replay, size_t n, nb::list columns, nb::list next_columns,
                                      nb::handle reward, nb::handle discount, nb::handle mask, nb::handle first,
                                      nb::handle keys, nb::handle probabilities, nb::handle weights) {
  auto out = std::make_shared<Outputs>();
  const View& view = replay.replay->view();
  const Geometry& g = view.geometry();
  if (nb::len(columns) != g.columns || nb::len(next_columns) != g.columns)
    throw std::invalid_argument("one output per column is needed");
  out->n = n;
  const bool rows = g.kind == Kind::sequence || g.kind == Kind::unroll;
  const size_t steps = rows ? g.burn_in + g.n_step : 1;
  for (uint32_t c = 0; c < g.columns; ++c) {
    const Column& column = view.header().column[c];
    const size_t per_item = column.per_item ? 1 : column.windowed ? (steps + rows) * g.stack : steps;
    const size_t bytes = n * column.bytes * per_item;
    out->column.push_back(writable(columns[c], bytes));
    out->next_column.push_back(writable(next_columns[c], bytes));
  }
  out->reward = reinterpret_cast<float*>(writable(reward, n * steps * 4));
  out->discount = reinterpret_cast<float*>(writable(discount, n * steps * 4));
  out->mask = writable(mask, n * steps);
  out->first = writable(first, n * (steps + 1));
  if ((g.kind != Kind::rows && (!out->reward || !out->discount)) || (rows && (!out->mask || !out->first)))
    throw std::invalid_argument("an output is missing");
  out->keys = reinterpret_cast<uint64_t*>(writable(keys, n * 8));
  out->probabilities = reinterpret_cast<double*>(writable(probabilities, n * 8));
  out->weights = reinterpret_cast<float*>(writable(weights, n * 4));
  return out;
}

std::vector<FieldType> field_types(nb::list fields, std::vector<Column>* columns) {
  std::vector<FieldType> types;
  for (nb::handle item : fields) {
    auto [name, kind, itemsize, shape, windowed, sampled, per_item] =
        nb::cast<std::tuple<nb::object, std::string, uint32_t, std::vector<Py_ssize_t>, bool, bool, bool>>(item);
    uint64_t bytes = itemsize;
    for (Py_ssize_t d : shape) bytes *= uint64_t(d);
    if (bytes > UINT32_MAX) throw std::invalid_argument("a field is larger than 4 GiB");
    if (columns) columns->push_back(Column{uint32_t(bytes), itemsize, windowed, sampled, 0, per_item, 0, 0});
    types.push_back(FieldType{name, kind[0], itemsize, shape});
  }
  return types;
}

std::shared_ptr<Segment> segment_from(nb::tuple state) {
  Uuid uuid;
  const nb::bytes raw = nb::cast<nb::bytes>(state[2]);
  if (raw.size() != uuid.size()) throw std::invalid_argument("bad uuid");
  std::memcpy(uuid.data(), raw.c_str(), uuid.size());
  return Segment::attach(nb::cast<int>(state[0]), nb::cast<int>(state[1]), uuid, nb::cast<std::string>(state[3]));
}

std::atomic<uint32_t>& word(const Segment& s, size_t offset) {
  if (offset % 4 != 0 || offset + 4 > s.nbytes()) throw std::invalid_argument("no word at this offset");
  return *reinterpret_cast<std::atomic<uint32_t>*>(s.data() + offset);
}

nb::tuple segment_state(const Segment& s) {
  return nb::make_tuple(int(getpid()), s.fd(), nb::bytes(reinterpret_cast<const char*>(s.uuid().data()), 16), s.path());
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native core of apexrl: shared memory, the replay and the weights board.";

  nb::class_<Segment>(m, "Segment", "Zero-filled memory shared by local processes; gone when the last holder is.")
      .def(nb::new_([](size_t nbytes, const std::string& directory) { return Segment::create(nbytes, directory); }),
           nb::arg("nbytes"), nb::arg("directory") = "")
      .def_prop_ro("nbytes", &Segment::nbytes)
      .def_prop_ro("uuid", [](const Segment& s) {
        return nb::bytes(reinterpret_cast<const char*>(s.uuid().data()), 16);
      })
      .def("try_lock", &Segment::try_lock, nb::arg("index"), "True when this process now holds it and did not before.")
      .def("unlock", &Segment::unlock, nb::arg("index"))
      .def("holder", &Segment::holder, nb::arg("index"), "Pid of the living process that holds it, else 0.")
      .def("load", [](const Segment& s, size_t offset) { return word(s, offset).load(std::memory_order_acquire); },
           nb::arg("offset"), "The 4-byte word there, with everything written before it was stored.")
      .def("store", [](const Segment& s, size_t offset, uint32_t value) {
        word(s, offset).store(value, std::memory_order_release);
      }, nb::arg("offset"), nb::arg("value"))
      .def("ring", [](const Segment& s, size_t offset) { futex_wake(word(s, offset)); }, nb::arg("offset"),
           "Add one to the word there and wake all who wait on it.")
      .def("wait", [](const Segment& s, size_t offset, uint32_t seen, double seconds) {
        auto& bell = word(s, offset);
        nb::gil_scoped_release release;
        futex_wait(bell, seen, int64_t(seconds * 1e9));
      }, nb::arg("offset"), nb::arg("seen"), nb::arg("seconds"), "Sleep while the word there is `seen`; may wake early.")
      .def("array", [](const std::shared_ptr<Segment>& s) {
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(s->data(), {s->nbytes()}, nb::cast(s));
      }, "The bytes as a writable uint8 array that keeps the memory mapped.")
      .def("view", [](nb::handle self) { return nb::steal<nb::object>(PyMemoryView_FromObject(self.attr("array")().ptr())); },
           "The bytes as a writable memoryview.")
      .def("__reduce__", [](nb::handle self) {
        return nb::make_tuple(nb::module_::import_("apexrl.segments").attr("attach_segment"), nb::make_tuple(segment_state(*nb::cast<std::shared_ptr<Segment>>(self))));
      })
      .def_static("attach", &segment_from, nb::arg("state"));

  nb::class_<Board>(m, "Board")
      .def_static("create", [](size_t capacity) { return std::make_shared<Board>(Board::create(capacity)); })
      .def_static("attach", [](nb::tuple state) { return std::make_shared<Board>(segment_from(state)); })
      .def("state", [](const Board& b) { return segment_state(*b.segment()); })
      .def_prop_ro("capacity", &Board::capacity)
      .def_prop_ro("version", &Board::version)
      .def_prop_ro("spoilt", &Board::spoilt)
      .def_prop_ro("layout", [](const Board& b) {
        const std::string text = b.layout_text();
        return nb::bytes(text.data(), text.size());
      })
      .def("set_layout", [](Board& b, nb::bytes text) { return b.set_layout(text.c_str(), text.size()); })
      .def_prop_ro("newest_bytes", &Board::newest_bytes)
      .def("publish",
           [](Board& b, uint64_t version, nb::list arrays) {
             std::vector<Buffer> buffers(nb::len(arrays));
             std::vector<std::pair<const uint8_t*, size_t>> parts;
             size_t total = 0;
             for (size_t i = 0; i < buffers.size(); ++i) {
               if (!buffers[i].get(nb::handle(arrays[i]).ptr()))
                 throw std::invalid_argument("weights must be C-contiguous arrays");
               parts.emplace_back(buffers[i].data<uint8_t>(), size_t(buffers[i].view().len));
               total += parts.back().second;
             }
             if (total > b.capacity()) throw std::invalid_argument("the weights are larger than the board");
             nb::gil_scoped_release release;
             b.publish(version, parts);
           })
      .def("read",
           [](Board& b, uint64_t newer_than, nb::handle out) {
             Buffer buffer;
             if (!buffer.get(out.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE))
               throw std::invalid_argument("out must be a writable contiguous array");
             nb::gil_scoped_release release;
             return b.read(newer_than, buffer.data<uint8_t>(), size_t(buffer.view().len));
           })
      .def("wait", [](Board& b, uint64_t seen, double seconds) {
        nb::gil_scoped_release release;
        b.wait(seen, int64_t(seconds * 1e9));
      });

  nb::class_<Outputs>(m, "Outputs");
  nb::class_<Owner::Snapshot>(m, "Snapshot")
      .def("__len__", [](const Owner::Snapshot& s) { return s.slots.size(); })
      .def_ro("inserted", &Owner::Snapshot::inserted)
      .def_ro("sampled", &Owner::Snapshot::sampled)
      .def_ro("evicted", &Owner::Snapshot::evicted)
      .def_ro("batches", &Owner::Snapshot::batches)
      .def_prop_ro("rng", [](const Owner::Snapshot& s) {
        std::vector<uint64_t> words(s.rng.first.state.begin(), s.rng.first.state.end());
        words.insert(words.end(), s.rng.second.state.begin(), s.rng.second.state.end());
        return words;
      });

  nb::class_<PyReplay>(m, "Replay")
      .def_static(
          "create",
          [](nb::list fields, nb::dict sizes, const std::string& json, const std::string& directory) {
            const auto whole = [&](const char* name) { return nb::cast<uint64_t>(sizes[name]); };
            const auto small = [&](const char* name) { return nb::cast<uint32_t>(sizes[name]); };
            const auto real = [&](const char* name) { return nb::cast<double>(sizes[name]); };
            Geometry g{};
            g.kind = Kind(small("kind"));
            g.sampler = Sampler(small("sampler"));
            g.remover = Remover(small("remover"));
            g.independent = small("independent");
            g.capacity = whole("capacity");
            g.most = whole("most");
            g.chunk = small("chunk");
            g.chunk_items = small("chunk_items");
            g.behind = small("behind");
            g.ahead = small("ahead");
            g.lanes = small("lanes");
            g.streams = small("streams");
            g.stack = small("stack");
            g.n_step = small("n_step");
            g.burn_in = small("burn_in");
            g.stride = small("stride");
            g.cells = small("cells");
            g.trim_every = small("trim_every");
            g.gamma = real("gamma");
            g.alpha = real("alpha");
            g.eps = real("eps");
            g.remover_alpha = real("remover_alpha");
            g.seed = whole("seed");
            std::vector<Column> columns;
            auto types = field_types(fields, &columns);
            return std::make_shared<PyReplay>(Replay::create(g, columns, json, whole("min_size"), real("samples_per_insert"),
                                                             real("error_buffer"), directory),
                                              std::move(types));
          },
          nb::kw_only(), nb::arg("fields"), nb::arg("sizes"), nb::arg("json"), nb::arg("directory"))
      .def_static("describe", [](nb::tuple state) { return Replay::of(segment_from(state))->json(); },
                  "The JSON that the creator left, for a process about to attach.")
      .def_static("attach", [](nb::tuple state, nb::list fields) {
        return std::make_shared<PyReplay>(Replay::of(segment_from(state)), field_types(fields, nullptr));
      })
      .def("state", [](const PyReplay& r) { return segment_state(*r.replay->segment()); })
      .def("segment", [](const PyReplay& r) { return r.replay->segment(); })
      .def("own", [](PyReplay& r, bool provisional) {  // -> 0, or the pid of the living owner
        int holder = 0;
        nb::gil_scoped_release release;
        return r.replay->own(holder, provisional) != nullptr ? 0 : std::max(holder, 1);
      }, nb::arg("provisional") = false)
      .def_prop_ro("owned", [](PyReplay& r) { return r.replay->owner() != nullptr; })
      .def("disown", [](PyReplay& r) {
        nb::gil_scoped_release release;
        r.replay->disown();
      })
      .def("shut", [](PyReplay& r) { r.replay->shut(); })
      .def_prop_ro("closed", [](const PyReplay& r) { return r.replay->closed(); })
      .def("size", [](PyReplay& r) {
        const auto owner = r.replay->owner();
        if (owner == nullptr) return r.replay->view().size(r.replay->segment()->holder(kOwnerLock) != 0);
        nb::gil_scoped_release release;
        return owner->size();
      })
      .def("outputs", &make_outputs, nb::arg("n"), nb::arg("columns"), nb::arg("next_columns"),
           nb::arg("reward").none(), nb::arg("discount").none(), nb::arg("mask").none(), nb::arg("first").none(),
           nb::arg("keys"), nb::arg("probabilities"), nb::arg("weights"))
      .def("sample", [](PyReplay& r, Outputs& out, double beta, int normalize, bool outstanding) {
        const auto owner = r.replay->owner();
        if (owner == nullptr) return int(SampleStatus::yielded);
        nb::gil_scoped_release release;
        return int(owner->sample(beta, out, Normalize(normalize), outstanding));
      }, nb::arg("outputs"), nb::arg("beta"), nb::arg("normalize") = 0, nb::arg("outstanding") = false)
      .def("done", [](PyReplay& r, uint64_t items, bool lost) {
        if (const auto owner = r.replay->owner()) lost ? owner->lose(items) : owner->done(items);
      }, nb::arg("items"), nb::arg("lost"))
      .def("update", [](PyReplay& r, nb::handle keys, nb::handle priorities) {  // -> (status, applied or bad, stale)
        const auto owner = r.replay->owner();
        if (owner == nullptr) return std::make_tuple(kYielded, size_t(0), size_t(0));
        Buffer k;
        if (!k.get(keys.ptr()) || !k.vector('u', 8)) return std::make_tuple(kIrregular, size_t(0), size_t(0));
        static thread_local std::vector<double> powered;
        size_t bad = 0;
        const int status =
            power_priorities(priorities.ptr(), k.size(), r.replay->view().geometry(), powered, bad);
        if (status != 0) return std::make_tuple(status, bad, size_t(0));
        size_t applied = 0, stale = 0;
        nb::gil_scoped_release release;
        const bool done = owner->update(k.data<uint64_t>(), powered.data(), k.size(), applied, stale);
        return std::make_tuple(done ? 0 : kYielded, applied, stale);
      })
      .def("wait", [](PyReplay& r, double seconds) {
        const auto owner = r.replay->owner();
        nb::gil_scoped_release release;
        if (owner != nullptr) owner->wait_for_items(int64_t(seconds * 1e9));
      })
      .def("set_limiter", [](PyReplay& r, uint64_t min_size, double spi, double error) {
        const auto owner = r.replay->owner();
        if (owner == nullptr) throw std::runtime_error("this process does not own the replay");
        nb::gil_scoped_release release;
        owner->set_limiter(min_size, spi, error);
      })
      .def("check", [](PyReplay& r) {
        const auto owner = r.replay->owner();
        return owner == nullptr ? 0.0 : owner->check();
      })
      .def("counters", [](PyReplay& r) {
        const Header& h = r.replay->view().header();
        const Geometry& g = r.replay->view().geometry();
        uint32_t lanes = 0;
        for (uint32_t l = 0; l < g.lanes; ++l) lanes += r.replay->view().lane(l).active.load();
        nb::dict d;
        d["inserted"] = h.inserted.load();
        d["sampled"] = h.sampled.load();
        d["evicted"] = h.evicted.load();
        d["updates_applied"] = h.updates_applied.load();
        d["updates_stale"] = h.updates_stale.load();
        d["epoch"] = h.epoch.load();
        d["owner_pid"] = r.replay->segment()->holder(kOwnerLock);
        d["lanes"] = g.lanes;
        d["lanes_active"] = lanes;
        d["lanes_reclaimed"] = h.lanes_reclaimed.load();
        d["provisional"] = h.provisional.load() != 0;
        d["dropped_steps"] = h.dropped_steps.load();
        d["lost"] = h.lost.load();
        d["max_priority"] = max_priority(h);
        d["min_size"] = h.min_size.load();
        d["samples_per_insert"] = h.samples_per_insert.load();
        d["error_buffer"] = h.error_buffer.load();
        d["next_order"] = h.next_order.load();
        d["chunk"] = g.chunk;
        d["chunk_items"] = g.chunk_items;
        d["slots"] = g.slots;
        d["slots_used"] = std::min<uint64_t>(h.next_unused.load(), g.slots);
        d["slot_bytes"] = g.slot_bytes;
        d["leaves_per_slot"] = g.leaves;
        d["bytes"] = g.total;
        return d;
      })
      .def("snapshot", [](PyReplay& r) { return r.replay->owner()->snapshot(); })
      .def("snapshot_block", [](PyReplay& r, const Owner::Snapshot& all, size_t next, nb::handle out) {
        Buffer buffer;  // -> (next, entries written)
        if (!buffer.get(out.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) throw std::invalid_argument("out must be writable");
        const auto owner = r.replay->owner();
        nb::gil_scoped_release release;
        const size_t written = owner->snapshot_block(all, next, buffer.data<uint8_t>(), size_t(buffer.view().len));
        return std::make_tuple(next, written);
      })
      .def("restore_block", [](PyReplay& r, nb::handle block, size_t count) {
        Buffer buffer;
        if (!buffer.get(block.ptr())) throw std::invalid_argument("a block is a contiguous array");
        nb::gil_scoped_release release;
        r.replay->restore_block(buffer.data<uint8_t>(), size_t(buffer.view().len), count);
      })
      .def_prop_ro("snapshot_entry_bytes", [](const PyReplay& r) { return snapshot_entry_bytes(r.replay->view().geometry()); })
      .def("finish_restore", [](PyReplay& r, uint64_t largest) { r.replay->finish_restore(largest); })
      .def("largest_generation", [](const PyReplay& r) { return r.replay->largest_generation(); })
      .def("restore_counters", [](PyReplay& r, uint64_t inserted, uint64_t sampled, uint64_t evicted, double largest) {
        Header& h = r.replay->view().header();
        h.inserted.store(inserted);
        h.sampled.store(sampled);
        h.evicted.store(evicted);
        raise_max_priority(h, largest);
      })
      .def("restore_draws", [](PyReplay& r, uint64_t batches, std::vector<uint64_t> words) {
        if (words.size() != 8) throw std::invalid_argument("the RNG state has eight words");
        Rng draws(0), removal(0);
        std::copy_n(words.begin(), 4, draws.state.begin());
        std::copy_n(words.begin() + 4, 4, removal.state.begin());
        r.replay->owner()->set_rng_state(draws, removal);
        r.replay->owner()->set_batches(batches);
      });

  nb::class_<PyWriter>(m, "Writer")
      .def(nb::init<std::shared_ptr<PyReplay>, uint32_t>())
      .def("lease", &PyWriter::lease)
      .def("release", &PyWriter::release)
      .def_prop_ro("leased", &PyWriter::leased)
      .def_prop_ro("lane", &PyWriter::lane)
      .def("extend", &PyWriter::extend, nb::arg("values"), nb::arg("priorities").none(), nb::arg("start"))
      .def("append", &PyWriter::append, nb::arg("values"), nb::arg("reward"), nb::arg("terminated"),
           nb::arg("truncated"), nb::arg("which").none())
      .def("pending", &PyWriter::pending)
      .def_prop_ro("pending_count", &PyWriter::pending_count)
      .def("gather_pending", &PyWriter::gather_pending)
      .def("gather_pending_steps", &PyWriter::gather_pending_steps, nb::arg("reward"), nb::arg("discount"),
           nb::arg("mask") = nb::none(), nb::arg("first") = nb::none())
      .def("publish", &PyWriter::publish, nb::arg("priorities").none())
      .def("all_settled", &PyWriter::all_settled)
      .def("wait", &PyWriter::wait);

  // Native structures alone, for the tests' comparison with their NumPy twins.
  struct Tree {
    explicit Tree(size_t n) : leaves(static_cast<double*>(std::aligned_alloc(64, round_up(n, 8) * 8)), std::free) {
      std::fill_n(leaves.get(), round_up(n, 8), 0.0);
      tree = std::make_unique<SumTree>(leaves.get(), round_up(n, 8));
    }
    std::unique_ptr<double, void (*)(void*)> leaves;
    std::unique_ptr<SumTree> tree;
  };
  nb::class_<Tree>(m, "SumTree")
      .def(nb::init<size_t>())
      .def("set", [](Tree& t, std::vector<size_t> index, std::vector<double> value) {
        for (size_t i = 0; i < index.size(); ++i) {
          if (index[i] >= t.tree->size()) throw nb::index_error("leaf out of range");
          t.tree->set(index[i], value.at(i));
        }
        t.tree->propagate();
      })
      .def("find", [](Tree& t, std::vector<double> prefix) {
        std::vector<uint32_t> leaf(prefix.size());
        t.tree->find(prefix.data(), leaf.data(), prefix.size());
        return leaf;
      })
      .def_prop_ro("total", [](Tree& t) { return t.tree->total(); })
      .def("check", [](Tree& t) { return t.tree->check(); });
  m.def("unheld", [](nb::tuple objects, Py_ssize_t references) {
    for (PyObject **one = &PyTuple_GET_ITEM(objects.ptr(), 0), **end = one + PyTuple_GET_SIZE(objects.ptr()); one != end; ++one)
      if (Py_REFCNT(*one) > references) return false;
    return true;
  }, nb::arg("objects"), nb::arg("references"), "Whether none of the objects has more references than that.");
  m.def("start_writing", [](int fd, int64_t offset, int64_t bytes) {
#if defined(__linux__)
    sync_file_range(fd, offset, bytes, SYNC_FILE_RANGE_WRITE);
#endif
  }, nb::arg("fd"), nb::arg("offset"), nb::arg("bytes"), "Have the kernel begin to write a file's pages; it need not.");
  m.def("crc32c", [](nb::handle data) {
    Buffer buffer;
    if (!buffer.get(data.ptr())) throw std::invalid_argument("a checksum is of a contiguous array");
    nb::gil_scoped_release release;
    return crc32c(buffer.data<uint8_t>(), size_t(buffer.view().len));
  });
  m.def("powers", [](std::vector<double> values, double eps, double alpha) {
    powers(values.data(), values.data(), values.size(), eps, alpha);
    return values;
  });
}
